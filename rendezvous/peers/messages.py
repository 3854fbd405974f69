"""What members tell each other over their presence connections: four kinds of short messages.

Three of them carry a job through a store outage (see `outage`), one says what the leader knows of the store (see
`stale_watch`). They come from other processes, so they are checked like anything from outside; what is no such
message is dropped without a word, as a message can be lost on its way anyhow.
"""

from __future__ import annotations

import json

from rendezvous.values import NamedTuple

TEXT_MAX = 512
TOKEN_MAX = 64
NUMBER_MAX = 2**62


class OutageProbe(NamedTuple):
    """The leader cannot reach the store, and asks in beat `beat` whether the receiver finds the same."""

    probe: int
    plan_token: str


class OutageAck(NamedTuple):
    """The answer: the sender cannot reach the store either, and knows no newer round than this plan's."""

    probe: int
    plan_token: str


class OutageConfirmed(NamedTuple):
    """All have answered in beat `beat`: whoever sent an answer may count a lease's time from then."""

    probe: int
    plan_token: str


class KnownRevision(NamedTuple):
    """The leader knows the control keys up to `revision`, and whether the receiver is a member."""

    revision: int
    is_member: bool


Message = OutageProbe | OutageAck | OutageConfirmed | KnownRevision
_NAMES: dict[type[Message], str] = {
    OutageProbe: "IsStoreAway",
    OutageAck: "StoreIsAway",
    OutageConfirmed: "HoldOn",
    KnownRevision: "Known",
}
"""What each is called on the wire, where agents of other versions read it."""
_OUTAGE_KINDS = {_NAMES[kind]: kind for kind in (OutageProbe, OutageAck, OutageConfirmed)}


def encode_message(message: Message) -> str:
    """The message as text."""
    return json.dumps([_NAMES[type(message)], *message], separators=(",", ":"))


def decode_message(text: str) -> Message | None:
    """The message in a text; None if it is none."""
    if len(text) > TEXT_MAX:
        return None
    try:
        name, number, rest = json.loads(text)
        kind = _OUTAGE_KINDS[name] if name != _NAMES[KnownRevision] else None
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < NUMBER_MAX:
        return None
    if kind is None:
        return KnownRevision(number, rest) if isinstance(rest, bool) else None
    if not isinstance(rest, str) or len(rest) > TOKEN_MAX:
        return None
    return kind(number, rest)
