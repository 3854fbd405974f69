"""What agents say to each other when somebody asks what the job's workers do.

    any agent  -- Ask -->      the leader
    the leader -- Examine -->  all agents of the round
    each       -- Evidence --> the leader      one or several, some two kilobytes a rank
    the leader -- Conclusion -->     who asked, or all

They are notes of the agreement (rendezvous/member/notes.py): each may be lost, so who waits for one has a limit.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Struct

from launcher.diagnose.answer import HangAnswer
from launcher.diagnose.evidence import RankEvidence
from launcher.worker.grid import WorkerMesh
from rendezvous import codec
from rendezvous.errors import RecordError

Purpose = Literal["question", "failure", "silence"]
"""Why the workers are looked at: a person asks, one of them has failed, or none makes progress any more."""


class _Message(Struct, frozen=True, kw_only=True, tag_field="say"):
    id: str


class Ask(_Message, frozen=True, kw_only=True, tag="ask"):
    purpose: Purpose


class NodeSilence(_Message, frozen=True, kw_only=True, tag="silence"):
    """No worker of the sender makes progress; `sentence` says since when. `ranks`: none once there is progress."""

    round: int
    ranks: tuple[int, ...]
    world_size: int
    sentence: str = ""


class Examine(_Message, frozen=True, kw_only=True, tag="examine"):
    """Look at the workers of the round that runs, whichever it is: a leader without ranks does not know it."""

    purpose: Purpose
    limit_s: float


class Evidence(_Message, frozen=True, kw_only=True, tag="evidence"):
    """`mesh`: of any of its ranks. `folder`: where the node keeps the whole of it; "" if it does not.

    `round`: 0 if no round runs on the node, so that nobody waits for it.
    """

    node: str
    round: int
    mesh: WorkerMesh
    ranks: tuple[RankEvidence, ...]
    folder: str = ""
    remarks: tuple[str, ...] = ()


class Conclusion(_Message, frozen=True, kw_only=True, tag="conclusion"):
    """What the leader concludes. `stacks`: of all ranks, for people. `round`: 0 if no agent has answered.

    `is_news`: whether it names more than a worker that has failed. `to_end`: the ranks to end for a restart of all.
    """

    round: int
    purpose: Purpose
    answer: HangAnswer
    stacks: str = ""
    is_news: bool = True
    to_end: tuple[int, ...] = ()


Message = Ask | NodeSilence | Examine | Evidence | Conclusion
_decoder: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)


def encode_message(message: Message) -> str:
    return codec.encode(message).decode()


def decode_message(text: str) -> Message | None:
    """Decode a note; None for any other."""
    try:
        return _decoder.decode(text)
    except (msgspec.MsgspecError, RecordError, RecursionError):
        return None
