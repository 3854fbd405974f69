"""What agents say to each other when somebody asks what the job's workers do.

    any agent  -- Ask -->      the leader
    the leader -- Examine -->  all agents of the round
    each       -- Evidence --> the leader      one or several, some two kilobytes a rank
    the leader -- Conclusion -->     who asked, or all

They are notes of the agreement (rendezvous/member/notes.py): each may be lost, so who waits for one has a limit.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from launcher.diagnose.answer import HangAnswer
from launcher.diagnose.evidence import RankEvidence
from launcher.worker.grid import WorkerMesh
from rendezvous import codec

Purpose = Literal["question", "failure", "silence"]
"""Why the workers are looked at: a person asks, one of them has failed, or none makes progress any more."""


class _Message(Struct, frozen=True, kw_only=True, tag_field="note"):
    id: str


class Ask(_Message, frozen=True, kw_only=True, tag="ask"):
    purpose: Purpose


class NodeSilence(_Message, frozen=True, kw_only=True, tag="silence"):
    """No worker of the sender makes progress."""

    round: int
    ranks: tuple[int, ...]
    """The sender's ranks, none once there is progress again."""
    world_size: int
    sentence: str = ""
    """Since when, for people."""


class Examine(_Message, frozen=True, kw_only=True, tag="examine"):
    """Look at the workers of the round that runs, whichever it is: a leader without ranks does not know it."""

    purpose: Purpose
    limit_s: float


class Evidence(_Message, frozen=True, kw_only=True, tag="evidence"):
    """What one node has found out about its ranks."""

    node: str
    round: int
    """0 if no round runs on the node, so that the leader does not wait for it."""
    mesh: WorkerMesh
    """Of any of its ranks."""
    ranks: tuple[RankEvidence, ...]
    folder: str = ""
    """Where the node keeps the complete evidence, "" if it does not."""
    remarks: tuple[str, ...] = ()


class Conclusion(_Message, frozen=True, kw_only=True, tag="conclusion"):
    """What the leader concludes."""

    round: int
    """0 if no agent has answered."""
    purpose: Purpose
    answer: HangAnswer
    stacks: str = ""
    """Of all ranks, for people."""
    is_news: bool = True
    """It names more than a worker that has failed."""
    to_end: tuple[int, ...] = ()
    """The ranks to end so that all restart."""


Message = Ask | NodeSilence | Examine | Evidence | Conclusion


def encode_message(message: Message) -> str:
    return codec.encode(message).decode()
