"""What agents say to each other when somebody asks about the run: how its nodes are, or which rank it waits for.

    any agent  -- Inspect -->     the leader       of one member, of a node by name, of all, or of the leader itself
    the leader -- Expect -->      who asks         which members were asked
               -- PassedRequest --> each of them
    each       -- Reply -->       the leader       which passes it on to who asks; of evidence several
    any agent  -- NodeFailure, NodeSilence --> the leader
    the leader -- Conclusion -->  all of the round, who have not asked

They are notes of the agreement (rendezvous/member/notes.py): each may be lost, so who waits for one has a limit. A
reply is one note; what does not fit is cut into pages.
"""

from __future__ import annotations

import msgspec
from msgspec import Raw, Struct

from launcher.diagnosis.answer import Conclusion, Purpose
from launcher.diagnosis.evidence import RankEvidence
from launcher.views.node_report import REPLY_KINDS, NodeReply, NodeRequest
from launcher.worker.grid import WorkerMesh
from rendezvous import codec
from rendezvous.errors import RecordError
from rendezvous.member import notes

_ENVELOPE = " " * 1000
"""As long as what a reply has besides its answer."""


# --- requests that only agents make, and their answers ---


class Examine(Struct, frozen=True, kw_only=True, tag="examine"):
    """Look at the workers of the round that runs, whichever it is: a leader without ranks does not know it.

    Answered by pages of Evidence.
    """

    purpose: Purpose
    limit_s: float


class Diagnose(Struct, frozen=True, kw_only=True, tag="diagnose"):
    """Asks the leader, which has all examine their workers. Answered by a Conclusion."""


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


Request = NodeRequest | Examine | Diagnose
Answer = NodeReply | Evidence | Conclusion
ANSWER_KINDS: dict[type, type[Answer]] = {**REPLY_KINDS, Examine: Evidence, Diagnose: Conclusion}


# --- notes ---


class _Note(Struct, frozen=True, kw_only=True, tag_field="note"):
    pass


class Inspect(_Note, frozen=True, kw_only=True, tag="inspect"):
    """A question to the leader."""

    id: str
    """Identifies the question to the member that asks."""
    node: str
    """A member id or a node's name, "" for all nodes."""
    request: Request


class Expect(_Note, frozen=True, kw_only=True, tag="expect"):
    """Which nodes the leader has asked: their replies go to the member that asks."""

    id: str
    members: dict[str, str]
    """Names by member id."""
    leader: str
    """A member id."""


class PassedRequest(_Note, frozen=True, kw_only=True, tag="request"):
    """A question as the leader passes it on."""

    id: str
    asker: str
    """The member id to which the reply goes."""
    request: Request


class Reply(_Note, frozen=True, kw_only=True, tag="reply"):
    """A node's answer to a question, or the leader's refusal of it, without a member id."""

    id: str
    asker: str
    member_id: str
    answer: Raw = Raw(b"null")
    """Of the kind that the request has; who asks decodes it."""
    error: str = ""
    """Why there is no answer, "" if there is one."""


class NodeFailure(_Note, frozen=True, kw_only=True, tag="failure"):
    """A worker of the sender has failed and may be a victim: its survivors are to be looked at."""


class NodeSilence(_Note, frozen=True, kw_only=True, tag="silence"):
    """No worker of the sender makes progress."""

    round: int
    ranks: tuple[int, ...]
    """The sender's ranks, none once there is progress again."""
    world_size: int


Note = Inspect | Expect | PassedRequest | Reply | NodeFailure | NodeSilence | Conclusion
_decoder: msgspec.json.Decoder[Note] = msgspec.json.Decoder(Note)


def encode_note(note: Note) -> str:
    return codec.encode(note).decode()


def decode_note(text: str) -> Note | None:
    """Decode a note; None for any other text."""
    try:
        return _decoder.decode(text)
    except (msgspec.MsgspecError, RecordError, RecursionError):
        return None


def is_sendable(answer: Answer) -> bool:
    """Return whether a reply with this answer fits into a note."""
    return notes.fits(codec.encode(answer).decode() + _ENVELOPE)
