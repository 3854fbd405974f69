"""What agents say to each other when somebody asks about the run: how its nodes are, or which rank it waits for.

    any agent  -- Inspect -->     the leader       of one member, of a node by name, of all, or of the leader itself
    the leader -- Expect -->      who asks         which members were asked
               -- PassedRequest --> each of them
    each       -- Reply -->       the leader       which passes it on to who asks; of some several

They are notes of the agreement (rendezvous/member/notes.py): each may be lost, so who waits for one has a limit. A
reply is one note; what does not fit is cut into pages.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Raw, Struct

from launcher.views.requests import NodeRequest
from rendezvous import codec
from rendezvous.member import notes

_ENVELOPE = " " * 1000
"""As long as what a reply has besides its answer."""


Purpose = Literal["question", "failure", "silence"]
"""Why workers are looked at: a person asks, one has failed, or none makes progress."""


# --- requests that only agents make; what answers them is decided in launcher/diagnosis ---


class Examine(Struct, frozen=True, kw_only=True, tag="examine"):
    """Look at the workers of the round that runs, whichever it is: a leader without ranks does not know it."""

    purpose: Purpose
    limit_s: float


class Diagnose(Struct, frozen=True, kw_only=True, tag="diagnose"):
    """Asks the leader, which has all examine their workers."""


Request = NodeRequest | Examine | Diagnose


# --- notes ---


class NoteBase(Struct, frozen=True, kw_only=True, tag_field="note"):
    """What all notes have."""


class Inspect(NoteBase, frozen=True, kw_only=True, tag="inspect"):
    """A question to the leader."""

    id: str
    """Identifies the question to the member that asks."""
    node: str
    """A member id or a node's name, "" for all nodes."""
    request: Request


class Expect(NoteBase, frozen=True, kw_only=True, tag="expect"):
    """Which nodes the leader has asked: their replies go to the member that asks."""

    id: str
    members: dict[str, str]
    """Names by member id."""
    leader: str
    """A member id."""


class PassedRequest(NoteBase, frozen=True, kw_only=True, tag="request"):
    """A question as the leader passes it on."""

    id: str
    asker: str
    """The member id to which the reply goes."""
    request: Request


class Reply(NoteBase, frozen=True, kw_only=True, tag="reply"):
    """A node's answer to a question, or the leader's refusal of it, without a member id."""

    id: str
    asker: str
    member_id: str
    answer: Raw = Raw(b"null")
    """Of the kind that the request has; who asks decodes it."""
    error: str = ""
    """Why there is no answer, "" if there is one."""


def encode_note(note: Struct) -> str:
    return codec.encode(note).decode()


def is_sendable(answer: object) -> bool:
    """Return whether a reply with this answer fits into a note."""
    return notes.fits(codec.encode(answer).decode() + _ENVELOPE)
