"""The messages of members over their presence connections.

Three kinds carry a job through a store outage (see `outage`), one sends what the leader knows of the store (see
`stale_watch`), and one is a text of the program above (see `notes`). They come from other processes, so they are
validated like any outside input; a text that is not such a message is dropped silently, as a message can be lost on its
way anyhow.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated

from msgspec import Meta, Struct

from rendezvous import codec
from rendezvous.errors import RecordError

NOTE_MAX = 100_000
"""Characters of a note."""
LINE_MAX = 250_000  # of a message as the connection writes it, JSON within JSON; a line may have 262,144 bytes
TEXT_MAX = 512  # of any other
Number = Annotated[int, Meta(ge=0, lt=2**62)]
Token = Annotated[str, Meta(max_length=64)]


class _OutageMessage(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    probe: Number
    plan_token: Token


class OutageProbe(_OutageMessage, frozen=True, tag="IsStoreAway"):
    """The leader cannot reach the store, and asks with number `probe` whether the receiver can."""


class OutageAck(_OutageMessage, frozen=True, tag="StoreIsAway"):
    """The reply: the sender cannot reach the store either, and knows no newer round than this plan's."""

    is_done: bool = False
    """No worker of the round runs there, nor has to run there again."""


class OutageConfirmed(_OutageMessage, frozen=True, tag="HoldOn"):
    """All have acknowledged `probe`: each may count a lease's time from its own acknowledgement."""

    is_over: bool = False
    """All are done, and the store is a served one, so its return is not waited for."""


class KnownRevision(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="Known"):
    """The leader knows the control keys up to `revision`, and whether the receiver is a member."""

    revision: Number
    is_member: bool


class Note(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="Note"):
    """A text that the program above has for the receiver."""

    text: Annotated[str, Meta(max_length=NOTE_MAX)]


Message = OutageProbe | OutageAck | OutageConfirmed | KnownRevision | Note


def encode_message(message: Message) -> str:
    """Encode the message as text: a list of its tag and its fields."""
    return codec.encode(message).decode()


def decode_message(text: str) -> Message | None:
    """Decode a text; None if it is not a message."""
    if len(text) > (LINE_MAX if text.startswith('["Note",') else TEXT_MAX):
        return None
    with suppress(RecordError):
        return codec.decode(Message, text, "a message")  # type: ignore[arg-type]
    return None
