"""Protobuf's wire format for messages that are named tuples: `encode(message)`, `decode(Type, data)`.

The annotations of a message carry its field numbers, so what one reads is what goes over the wire:

    class PutRequest(NamedTuple):
        key: Annotated[bytes, 1] = b""       # a value equal to its default is not written, as proto3 has it
        lease: Annotated[int, 3] = 0         # int: int64, and enumerations; also bool, bytes, str
        header: Annotated[Header, 1] = Header()              # a message within: absent reads as the default
        kvs: Annotated[tuple[KeyValue, ...], 2] = ()         # repeated
        version: Annotated[int | None, 4] = None             # of a oneof: written when not None, be it 0 or empty

Unknown fields are skipped when read, as protobuf asks, so a newer server may say more. Deliberately absent:
floats, maps, repeated numbers (etcd has none that we use), and unsigned numbers: those above 2^63 read as negative.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import NoneType
from typing import Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

Message = TypeVar("Message", bound=tuple[Any, ...])

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types


class WireError(ValueError):
    """Bytes that are no such message."""


class _Field(NamedTuple):
    """How one field is written and read; `place` is where it stands in the tuple."""

    place: int
    tag: int
    is_repeated: bool
    write: Callable[[Any], bytes]
    read: Callable[[Any], Any]


def encode(message: tuple[Any, ...]) -> bytes:
    """The bytes of a message."""
    written = bytearray()
    fields, defaults = _layout(type(message))
    for field in fields.values():
        value = message[field.place]
        if field.is_repeated:
            for each in value:
                written += _varint(field.tag) + field.write(each)
        elif value != defaults[field.place]:
            written += _varint(field.tag) + field.write(value)
    return bytes(written)


def decode(message: type[Message], data: bytes) -> Message:
    """The message of that type in `data`. Raises WireError for anything else."""
    fields, defaults = _layout(message)
    values = list(defaults)
    repeated: dict[int, list[Any]] = {}
    position = 0
    while position < len(data):
        tag, position = _read_varint(data, position)
        content, position = _read_content(data, position, tag & 7)
        field = fields.get(tag)
        if field is None:
            continue
        value = field.read(content)
        if field.is_repeated:
            repeated.setdefault(field.place, []).append(value)
        else:
            values[field.place] = value
    for place, found in repeated.items():
        values[place] = tuple(found)
    return message(*values)


@cache
def _layout(message: type[tuple[Any, ...]]) -> tuple[dict[int, _Field], tuple[Any, ...]]:
    """The fields of a type by tag, in the order of their numbers, and its defaults."""
    defaults: dict[str, Any] = getattr(message, "_field_defaults", {})
    hints = get_type_hints(message, include_extras=True)
    fields = [_field(place, *get_args(hints[name])) for place, name in enumerate(defaults)]
    return {field.tag: field for field in sorted(fields, key=lambda field: field.tag)}, tuple(defaults.values())


def _field(place: int, kind: Any, number: int) -> _Field:
    is_repeated = get_origin(kind) is tuple
    if get_args(kind):  # tuple[kind, ...] or kind | None
        (kind,) = (each for each in get_args(kind) if each not in (..., NoneType))
    wire_type, write, read = _KINDS.get(kind) or (_BYTES, _write_message, lambda data: decode(kind, data))
    return _Field(place, number << 3 | wire_type, is_repeated, write, read)


def _write_message(message: tuple[Any, ...]) -> bytes:
    return _write_bytes(encode(message))


def _write_bytes(data: bytes) -> bytes:
    return _varint(len(data)) + data


def _varint(number: int) -> bytes:
    number &= (1 << 64) - 1  # a negative one is its two's complement in 64 bits: ten bytes
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    written.append(number)
    return bytes(written)


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        if position >= len(data) or shift > 63:
            raise WireError(f"a number that starts before byte {position} has no end")
        byte = data[position]
        number |= (byte & 0x7F) << shift
        position += 1
        if byte < 0x80:
            return number & (1 << 64) - 1, position
        shift += 7


def _read_content(data: bytes, position: int, wire_type: int) -> tuple[int | bytes, int]:
    if wire_type == _VARINT:
        return _read_varint(data, position)
    if wire_type == _BYTES:
        length, position = _read_varint(data, position)
    elif wire_type in (_FIXED64, _FIXED32):
        length = 8 if wire_type == _FIXED64 else 4
    else:
        raise WireError(f"wire type {wire_type} at byte {position} is not protobuf's")
    if length > len(data) - position:
        raise WireError(f"{length} bytes are announced at byte {position}, {len(data) - position} are there")
    return data[position : position + length], position + length


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


def _read_text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise WireError(f"text that is not UTF-8: {error}") from error


_KINDS: dict[type, tuple[int, Callable[[Any], bytes], Callable[[Any], Any]]] = {
    int: (_VARINT, _varint, _signed),
    bool: (_VARINT, _varint, bool),
    bytes: (_BYTES, _write_bytes, bytes),
    str: (_BYTES, lambda text: _write_bytes(text.encode()), _read_text),
}
