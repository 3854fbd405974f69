"""What agents say to each other about workers that fail or wait; how it is asked for is in launcher/views/questions.

the leader -- Examine -->     all agents       each answers with pages of Evidence
any agent  -- Diagnose -->    the leader       which answers with a Conclusion
any agent  -- NodeFailure, NodeSilence --> the leader
the leader -- Conclusion -->  all of the round, who have not asked
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from launcher.diagnosis.answer import Conclusion
from launcher.diagnosis.evidence import RankEvidence
from launcher.views.questions.messages import Expect, Inspect, NoteBase, PassedRequest, Reply
from launcher.worker.grid import WorkerMesh
from rendezvous import codec
from rendezvous.errors import RecordError


class Evidence(Struct, frozen=True, kw_only=True):
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


class NodeFailure(NoteBase, frozen=True, kw_only=True, tag="failure"):
    """A worker of the sender has failed and may be a victim: its survivors are to be looked at."""


class NodeSilence(NoteBase, frozen=True, kw_only=True, tag="silence"):
    """No worker of the sender makes progress."""

    round: int
    ranks: tuple[int, ...]
    """The sender's ranks, none once there is progress again."""
    world_size: int


Note = Inspect | Expect | PassedRequest | Reply | NodeFailure | NodeSilence | Conclusion


def decode_note(text: str) -> Note | None:
    """Decode a note; None for any other text."""
    try:
        return codec.find_decoder(Note).decode(text)  # type: ignore[arg-type]
    except (msgspec.MsgspecError, RecordError, RecursionError):
        return None
