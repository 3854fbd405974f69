"""The messages of members over their presence connections: four kinds, all short.

Three of them carry a job through a store outage (see `outage`), one sends what the leader knows of the store (see
`stale_watch`). They come from other processes, so they are validated like any outside input; a text that is not such a
message is dropped silently, as a message can be lost on its way anyhow.
"""

from __future__ import annotations

import json

from rendezvous.values import NamedTuple

TEXT_MAX = 512
TOKEN_MAX = 64
NUMBER_MAX = 2**62


class OutageProbe(NamedTuple):
    """The leader cannot reach the store, and asks with number `probe` whether the receiver can."""

    probe: int
    plan_token: str


class OutageAck(NamedTuple):
    """The reply: the sender cannot reach the store either, and knows no newer round than this plan's."""

    probe: int
    plan_token: str


class OutageConfirmed(NamedTuple):
    """All have acknowledged `probe`: each may count a lease's time from its own acknowledgement."""

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
"""The name of each on the wire, where agents of other versions read it."""
_OUTAGE_KINDS = {_NAMES[kind]: kind for kind in (OutageProbe, OutageAck, OutageConfirmed)}


def encode_message(message: Message) -> str:
    """Encode the message as text."""
    return json.dumps([_NAMES[type(message)], *message], separators=(",", ":"))


def decode_message(text: str) -> Message | None:
    """Decode a text; None if it is not a message."""
    if len(text) > TEXT_MAX:
        return None
    try:
        name, number, value = json.loads(text)
        kind = _OUTAGE_KINDS[name] if name != _NAMES[KnownRevision] else None
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < NUMBER_MAX:
        return None
    if kind is None:
        return KnownRevision(number, value) if isinstance(value, bool) else None
    if not isinstance(value, str) or len(value) > TOKEN_MAX:
        return None
    return kind(number, value)
