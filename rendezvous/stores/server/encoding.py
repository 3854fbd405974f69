"""Conversion between etcd's keys, which are bytes, and the memory store's, which are text.

A key must be UTF-8; the ends of ranges need not be. The end of a prefix is the prefix with its last byte raised by one,
which for "é" is not text. Since UTF-8 sorts as its characters do, such an end lies between two texts, and the first
text after it marks the same place.
"""

from __future__ import annotations

import bisect

from rendezvous.stores import wire
from rendezvous.stores.contract import KeyValue
from rendezvous.stores.memory.keyspace import Range, find_prefix_end
from rendezvous.stores.server.errors import EMPTY_KEY, NOT_TEXT, ServedFailure

_EVERYTHING = b"\0"  # as the end of a range: no end
_SURROGATES = range(0xD800, 0xE000)  # code points that are not characters
_CHARACTERS_COUNT = 0x110000 - len(_SURROGATES)


def decode_key(key: bytes) -> str:
    """Decode a key. Raises ServedFailure for an empty one, or one that is not text."""
    if not key:
        raise ServedFailure(EMPTY_KEY)
    try:
        return key.decode()
    except UnicodeDecodeError:
        raise ServedFailure(NOT_TEXT) from None


def decode_range(key: bytes, range_end: bytes) -> Range:
    """Return the keys of a request: one, those up to `range_end`, or with b"\\0" there all from `key` on."""
    if not range_end:
        return Range.one(decode_key(key))
    if not key:
        raise ServedFailure(EMPTY_KEY)
    start = find_first_text(key)
    if start is None:
        return Range("", "")
    return Range("" if key == b"\0" else start, None if range_end == _EVERYTHING else find_first_text(range_end))


def find_first_text(bound: bytes) -> str | None:
    """Return the first text at or after these bytes; None if there is none."""
    try:
        return bound.decode()
    except UnicodeDecodeError as error:
        head, remainder = bound[: error.start].decode(), bound[error.start :]
    index = bisect.bisect_left(range(_CHARACTERS_COUNT), remainder, key=lambda index: _character(index).encode())
    return head + _character(index) if index < _CHARACTERS_COUNT else find_prefix_end(head)


def _character(index: int) -> str:
    return chr(index if index < _SURROGATES.start else index + len(_SURROGATES))


def encode_item(item: KeyValue, *, keys_only: bool = False) -> wire.WireKeyValue:
    value = b"" if keys_only else item.value
    return wire.WireKeyValue(
        item.key.encode(), item.create_revision, item.mod_revision, item.version, value, item.lease
    )
