"""The compressed header fields of HTTP/2 (RFC 7541): all of reading, and as much of writing as an answer needs.

A reader has to know the whole of it, for every block changes the table by which the next one is read. A writer may
choose, and ours writes every field out: an answer has three. What a peer may make us hold is bounded: the table by
TABLE_BYTES, the fields of one block by BLOCK_BYTES_MAX.
"""

from __future__ import annotations

from collections import deque
from functools import lru_cache

TABLE_BYTES = 4096  # the default of HTTP/2, which we do not change
BLOCK_BYTES_MAX = 16 * 1024  # of one block once it is read; gRPC's own limit is the same
_FIELD_BYTES = 32  # what a field counts beyond its letters (4.1)
_INTEGER_MAX = 1 << 24

# Appendix A: the fields that every connection knows, numbered from 1.
_STATIC = tuple(
    (name.encode(), value.encode())
    for name, _, value in (
        line.partition(" ")
        for line in """:authority/:method GET/:method POST/:path \1/:path \1index.html/:scheme http/:scheme https/\
:status 200/:status 204/:status 206/:status 304/:status 400/:status 404/:status 500/accept-charset/\
accept-encoding gzip, deflate/accept-language/accept-ranges/accept/access-control-allow-origin/age/allow/\
authorization/cache-control/content-disposition/content-encoding/content-language/content-length/content-location/\
content-range/content-type/cookie/date/etag/expect/expires/from/host/if-match/if-modified-since/if-none-match/\
if-range/if-unmodified-since/last-modified/link/location/max-forwards/proxy-authenticate/proxy-authorization/range/\
referer/refresh/retry-after/server/set-cookie/strict-transport-security/transfer-encoding/user-agent/vary/via/\
www-authenticate""".replace("/", "\n")
        .replace("\1", "/")
        .split("\n")
    )
)

# Appendix B: the letters by the length of their codes. The codes follow one another: each is the one before it plus
# one, with zeros put after it where codes become longer. What is not named here is 28 bits long; 256 is the end.
_LETTERS: dict[int, list[int]] = {
    5: list(b"012aceiost"),
    6: list(b" %-./3456789=A_bdfghlmnpru"),
    7: list(b":BCDEFGHIJKLMNOPQRSTUVWYjkqvwxyz"),
    8: list(b"&*,;XZ"),
    10: list(b"!\"()?"),
    11: list(b"'+|"),
    12: list(b"#>"),
    13: list(b"\0$@[]~"),
    14: list(b"^}"),
    15: list(b"<`{"),
    19: [92, 195, 208],
    20: [128, 130, 131, 162, 184, 194, 224, 226],
    21: [153, 161, 167, 172, 176, 177, 179, 209, 216, 217, 227, 229, 230],
    22: [*(129, 132, 133, 134, 136, 146, 154, 156, 160, 163, 164, 169, 170, 173, 178, 181, 185, 186, 187, 189, 190),
         *(196, 198, 228, 232, 233)],
    23: [*(1, 135, 137, 138, 139, 140, 141, 143, 147, 149, 150, 151, 152, 155, 157, 158, 165, 166, 168, 174, 175, 180),
         *(182, 183, 188, 191, 197, 231, 239)],
    24: [9, 142, 144, 145, 148, 159, 171, 206, 215, 225, 236, 237],
    25: [199, 207, 234, 235],
    26: [192, 193, 200, 201, 202, 205, 210, 213, 218, 219, 238, 240, 242, 243, 255],
    27: [203, 204, 211, 212, 214, 221, 222, 223, 241, 244, 245, 246, 247, 248, 250, 251, 252, 253, 254],
    28: [],
    30: [10, 13, 22, 256],
}  # fmt: skip
_END = 256


def _codes() -> dict[tuple[int, int], int]:
    """(length, code) -> letter."""
    named = {letter for letters in _LETTERS.values() for letter in letters}
    code, length_before = 0, 5
    codes = {}
    for length, letters in _LETTERS.items():
        code <<= length - length_before
        length_before = length
        for letter in letters or sorted(set(range(_END)) - named):
            codes[length, code] = letter
            code += 1
    return codes


_CODES = _codes()


class HeaderError(Exception):
    """A header block that cannot be read, or is too large. The connection cannot go on."""


@lru_cache(256)
def read_huffman(data: bytes) -> bytes:
    """Raises HeaderError."""
    letters = bytearray()
    code, length = 0, 0
    for byte in data:
        for shift in range(7, -1, -1):
            code = code << 1 | byte >> shift & 1
            length += 1
            letter = _CODES.get((length, code))
            if letter is not None:
                if letter == _END:
                    raise HeaderError("a text holds the code of its end")
                letters.append(letter)
                code, length = 0, 0
        if length > 30:
            raise HeaderError("a text holds a code that means nothing")
    if length > 7 or code != (1 << length) - 1:
        raise HeaderError("a text ends in the middle of a letter")
    return bytes(letters)


class HeaderReader:
    """The fields of one connection's blocks, in their order."""

    def __init__(self) -> None:
        self._table: deque[tuple[bytes, bytes]] = deque()  # the newest first
        self._size = 0
        self._limit = TABLE_BYTES

    def read(self, block: bytes) -> list[tuple[bytes, bytes]]:
        """Raises HeaderError."""
        fields: list[tuple[bytes, bytes]] = []
        at = size = 0
        while at < len(block):
            first = block[at]
            if first & 0x80:
                index, at = _integer(block, at, 7)
                field = self._field(index)
            elif first & 0xE0 == 0x20:
                limit, at = _integer(block, at, 5)
                if limit > TABLE_BYTES or fields:
                    raise HeaderError("the table cannot be resized so")
                self._limit = limit
                self._shrink()
                continue
            else:
                is_kept = bool(first & 0x40)
                index, at = _integer(block, at, 6 if is_kept else 4)
                name, at = (self._field(index)[0], at) if index else _text(block, at)
                value, at = _text(block, at)
                field = (name, value)
                if is_kept:
                    self._table.appendleft(field)
                    self._size += _size(field)
                    self._shrink()
            size += _size(field)
            if size > BLOCK_BYTES_MAX:
                raise HeaderError("the fields are too many")
            fields.append(field)
        return fields

    def _field(self, index: int) -> tuple[bytes, bytes]:
        if 0 < index <= len(_STATIC):
            return _STATIC[index - 1]
        if 0 <= index - len(_STATIC) - 1 < len(self._table):
            return self._table[index - len(_STATIC) - 1]
        raise HeaderError(f"there is no field {index}")

    def _shrink(self) -> None:
        while self._size > self._limit:
            self._size -= _size(self._table.pop())


def _size(field: tuple[bytes, bytes]) -> int:
    return len(field[0]) + len(field[1]) + _FIELD_BYTES


def _integer(block: bytes, at: int, bits: int) -> tuple[int, int]:
    """The number whose last `bits` of the byte at `at` are its beginning (5.1), and where it ends."""
    mask = (1 << bits) - 1
    value = block[at] & mask
    at += 1
    if value < mask:
        return value, at
    shift = 0
    while at < len(block):
        byte = block[at]
        at += 1
        value += (byte & 0x7F) << shift
        if value > _INTEGER_MAX or shift > 28:
            break
        if not byte & 0x80:
            return value, at
        shift += 7
    raise HeaderError("a number is too large or does not end")


def _text(block: bytes, at: int) -> tuple[bytes, int]:
    if at >= len(block):
        raise HeaderError("a text is missing")
    is_packed = bool(block[at] & 0x80)
    length, at = _integer(block, at, 7)
    data = block[at : at + length]
    if len(data) < length:
        raise HeaderError("a text is cut off")
    return read_huffman(data) if is_packed else data, at + length


def written(name: bytes, value: bytes) -> bytes:
    """A field, written out."""
    return b"\0" + _written_text(name) + _written_text(value)


def _written_text(text: bytes) -> bytes:
    rest = len(text) - 127
    if rest < 0:
        return bytes((len(text),)) + text
    length = bytearray((127,))
    while rest >= 128:
        length.append(rest & 0x7F | 0x80)
        rest >>= 7
    length.append(rest)
    return bytes(length) + text
