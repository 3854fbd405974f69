"""What is asked about a run, and what agents say to each other then: how its nodes are, or which rank it waits for.

    any agent  -- Inspect -->     the leader       of one member, of a node by name, of all, or of the leader itself
    the leader -- Expect -->      who asks         which members were asked
               -- PassedRequest --> each of them
    each       -- Reply -->       the leader       which passes it on to who asks; of some several

They are notes of the agreement (rendezvous/member/notes.py): each may be lost, so who waits for one has a limit. A
reply is one note; what does not fit is cut into pages.
"""

from __future__ import annotations

import zlib
from base64 import b64decode, b64encode
from typing import Literal

from msgspec import Raw, Struct

from launcher.views.requests import Identify, NodeRequest, ReadRun, Replace
from rendezvous import codec
from rendezvous.member import notes
from rendezvous.records import Command

_ENVELOPE = " " * 1000
"""As long as what a reply has besides its answer."""


Purpose = Literal["question", "failure", "silence"]
"""Why workers are looked at: a person asks, one has failed, or none makes progress."""


# --- requests of which launcher/diagnosis decides what answers them ---


class Examine(Struct, frozen=True, kw_only=True, tag="examine"):
    """Look at the workers of the round that runs, whichever it is: a leader without ranks does not know it."""

    purpose: Purpose
    limit_s: float


class Diagnose(Struct, frozen=True, kw_only=True, tag="diagnose"):
    """Which rank the run waits for, and why: asks the leader, which has all examine their workers."""


AgentRequest = NodeRequest | Examine | Diagnose


class Submit(Struct, frozen=True, kw_only=True, tag="submit"):
    """A person's request to the job, of a process of this machine; a `Command` answers it, too."""

    command: Command
    limit_s: float
    """For an answer of the leader."""


class Question(Struct, frozen=True, kw_only=True):
    """What is asked of an agent from outside: one line of JSON, by its socket, or through the store."""

    request: NodeRequest | Identify | ReadRun | Diagnose | Replace | Submit
    node: str = ""
    """A member id or a node's name, "" for the agent's own; with a NodeRequest only."""


class RefusedQuestion(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an agent says in place of an answer."""

    error: str
    """A sentence."""
    is_silent: bool = False
    """Whether it is that the node which was asked has not answered."""


def pack(answer: bytes) -> str:
    """Return an answer as the store has it: a record is text, and thousands of ranks have much in common."""
    return b64encode(zlib.compress(answer, 1)).decode()


def unpack(text: str, bytes_max: int) -> bytes:
    """Return what was packed. Raises ValueError for anything else, and for more than `bytes_max` bytes."""
    unpacker = zlib.decompressobj()
    try:
        answer = unpacker.decompress(b64decode(text, validate=True), bytes_max)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if not unpacker.eof:
        raise ValueError("it is cut off, or too long")
    return answer


# --- notes ---


class NoteBase(Struct, frozen=True, kw_only=True, tag_field="note"):
    """What all notes have."""


class Inspect(NoteBase, frozen=True, kw_only=True, tag="inspect"):
    """A question to the leader."""

    id: str
    """Identifies the question to the member that asks."""
    node: str
    """A member id or a node's name, "" for all nodes."""
    request: AgentRequest


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
    request: AgentRequest


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
