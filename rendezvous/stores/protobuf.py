"""Protobuf's wire format for messages that are classes: `encode(message)`, `decode(Type, data)`.

The annotations of a message carry its field numbers, so the class shows what is sent:

    class PutRequest(Message, frozen=True):
        key: Annotated[bytes, 1] = b""       # a value equal to its default is not written, as in proto3
        lease: Annotated[int, 3] = 0         # int: int64, and enumerations; also bool, bytes, str
        header: Annotated[Header, 1] = Header()              # a nested message: absent reads as the default
        kvs: Annotated[tuple[KeyValue, ...], 2] = ()         # repeated
        version: Annotated[int | None, 4] = None             # of a oneof: written when not None, even if 0 or empty

Unknown fields are skipped when read, as protobuf requires, so a newer server may send more; a server that must not
misread a request has them refused (`is_strict`). Deliberately absent: floats, maps, repeated numbers (etcd has none in
use here), and unsigned numbers: those above 2^63 read as negative.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

from msgspec import Struct

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types


class WireError(ValueError):
    """Bytes that are not a message of the expected type."""


class Message(Struct, frozen=True):
    """The base of messages; every field has a default."""


AnyMessage = TypeVar("AnyMessage", bound=Message)


_Writer = tuple[str, bytes, Any, bool, Callable[[Any], bytes]]  # name, tag, default, is repeated, write
_Reader = tuple[int, bool, Callable[[Any], Any]]  # place among the fields, is repeated, read


def encode(message: Message) -> bytes:
    """Return the bytes of a message."""
    encoded = bytearray()
    for name, tag, default, is_repeated, write in _find_layout(type(message))[0]:
        value = getattr(message, name)
        if is_repeated:
            for item in value:
                encoded += tag + write(item)
        elif value != default:
            encoded += tag + write(value)
    return bytes(encoded)


def decode(message: type[AnyMessage], data: bytes, *, is_strict: bool = False) -> AnyMessage:
    """Decode a message of this type. Raises WireError for anything else, if `is_strict` also for unknown fields."""
    readers = _find_layout(message, is_strict)[1]
    values: list[Any] = list(message.__struct_defaults__)
    repeated: dict[int, list[Any]] = {}
    position, end = 0, len(data)
    while position < end:
        tag = data[position]
        position += 1
        if tag > 0x7F:
            tag, position = _read_varint(data, position - 1)
        content: int | bytes
        short = data[position] if position < end else 0x80  # most numbers and lengths are one byte
        if short < 0x80 and tag & 7 == _BYTES and short < end - position:
            position += 1 + short
            content = data[position - short : position]
        elif short < 0x80 and tag & 7 == _VARINT:
            position += 1
            content = short
        else:
            content, position = _read_content(data, position, tag & 7)
        reader = readers.get(tag)
        if reader is None:
            if is_strict:
                raise WireError(f"field {tag >> 3} of {message.__name__} is not supported")
            continue
        index, is_repeated, read = reader
        if is_repeated:
            repeated.setdefault(index, []).append(read(content))
        else:
            values[index] = read(content)
    for index, found in repeated.items():
        values[index] = tuple(found)
    return message(*values)


@cache
def _find_layout(message: type[Message], is_strict: bool = False) -> tuple[list[_Writer], dict[int, _Reader]]:
    """Return how the fields of a type are written, in order of their numbers, and read, by tag."""
    annotations: dict[str, Any] = {}
    for kind in message.__mro__:
        annotations |= vars(kind).get("__annotations__", {})
    writers: dict[int, _Writer] = {}
    readers: dict[int, _Reader] = {}
    for index, (name, default) in enumerate(zip(message.__struct_fields__, message.__struct_defaults__, strict=True)):
        tag, is_repeated, write, read = _read_annotation(message, annotations[name], is_strict)
        writers[tag] = (name, _encode_varint(tag), default, is_repeated, write)
        readers[tag] = (index, is_repeated, read)
    return [writers[tag] for tag in sorted(writers)], readers


def _read_annotation(
    message: type, annotation: Any, is_strict: bool
) -> tuple[int, bool, Callable[[Any], bytes], Callable[[Any], Any]]:
    """Return the tag of a field, whether it is repeated, and how one is written and read.

    Annotations are read as text: evaluating them takes 10 ms for the messages that an agent uses at its start.
    """
    text: str = getattr(annotation, "__forward_arg__", annotation)
    kind, _, number = text.removeprefix("Annotated[").removesuffix("]").rpartition(", ")
    name = kind.removeprefix("tuple[").removesuffix(", ...]").removesuffix(" | None")
    if name in _KINDS:
        wire_type, write, read = _KINDS[name]
    else:
        nested = getattr(sys.modules[message.__module__], name)
        wire_type, write, read = _BYTES, _write_message, lambda data: decode(nested, data, is_strict=is_strict)
    return int(number) << 3 | wire_type, kind != name and kind.startswith("tuple["), write, read


def _write_message(message: Message) -> bytes:
    return _write_bytes(encode(message))


def _write_bytes(data: bytes) -> bytes:
    return _encode_varint(len(data)) + data


def _encode_varint(number: int) -> bytes:
    if 0 <= number < 0x80:
        return _SHORT[number]
    number &= (1 << 64) - 1  # a negative one is its two's complement in 64 bits: ten bytes
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


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


def _to_signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


def _read_text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise WireError(f"text that is not UTF-8: {error}") from error


_SHORT = [bytes((number,)) for number in range(0x80)]

_KINDS: dict[str, tuple[int, Callable[[Any], bytes], Callable[[Any], Any]]] = {
    "int": (_VARINT, _encode_varint, _to_signed),
    "bool": (_VARINT, _encode_varint, bool),
    "bytes": (_BYTES, _write_bytes, bytes),
    "str": (_BYTES, lambda text: _write_bytes(text.encode()), _read_text),
}
