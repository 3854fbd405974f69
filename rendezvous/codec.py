"""JSON that crosses a process or the store, as typed values.

Another program may have written it. So a value is decoded against the types of its fields, their ranges included, and
refused in a sentence; what has passed is trusted afterwards. Fields that the type does not have are ignored. msgspec
does all of it in one step. What agent, supervisor and workers say to each other is theirs alone, and carries
environments with any bytes: it stays with Python's `json`.
"""

from __future__ import annotations

from _thread import allocate_lock
from typing import Any, TypeVar

import msgspec
from msgspec.json import Decoder

from rendezvous.errors import RecordError

Value = TypeVar("Value")

_decoders: dict[Any, Decoder[Any]] = {}
_making = allocate_lock()


def find_decoder(kind: type[Value]) -> Decoder[Value]:
    """Return the decoder of a kind, made once, by one thread at a time.

    msgspec 0.22 crashes on a struct that another thread is about to describe.
    """
    if kind not in _decoders:
        with _making:
            _decoders[kind] = Decoder(kind)
    return _decoders[kind]


# docs/internals/decisions/0032-msgspec-for-values-and-records.md
def encode(value: object) -> bytes:
    """Encode a value as JSON. Characters that UTF-8 does not have, from names of files for example, become "?"."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        import json

        text = json.dumps(msgspec.to_builtins(value), separators=(",", ":"), ensure_ascii=False)
        return text.encode("utf-8", "replace")


def decode(kind: type[Value], data: bytes | str, what: str) -> Value:
    """Decode JSON as a `kind`. Raises RecordError, whose sentence begins with `what`."""
    try:
        return find_decoder(kind).decode(data)
    except msgspec.ValidationError as error:
        raise _explain(error, what) from None
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        raise RecordError(f"{what} is not JSON, so it was not written by meshrun") from None


def convert(kind: type[Value], content: object, what: str) -> Value:
    """Convert decoded JSON to a `kind`. Raises RecordError, whose sentence begins with `what`."""
    find_decoder(kind)
    try:
        return msgspec.convert(content, kind)
    except msgspec.ValidationError as error:
        raise _explain(error, what) from None


def _explain(error: msgspec.ValidationError, what: str) -> RecordError:
    """Make "cannot be read: expected int, got str in round" of "Expected `int`, got `str` - at `$.round`"."""
    text = str(error).replace("`", "").replace(" - at $.", " in ").replace(" - at $", "")
    return RecordError(f"{what} cannot be read: {text[:1].lower()}{text[1:]}")
