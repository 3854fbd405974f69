"""The words of HTTP/2 (RFC 9113) and of gRPC over it: frames, codes, fields that are always the same."""

from __future__ import annotations

from rendezvous.stores.serving.hpack import BLOCK_BYTES_MAX, written

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
STREAMS_MAX = 1000
DATA, HEADERS, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    *(0, 1, 3, 4, 5, 6, 7, 8, 9),
)
END_STREAM = ACK = 1
END_HEADERS, PADDED, PRIORITY = 4, 8, 32
LAST_HEADERS = END_HEADERS | END_STREAM
NO_ERROR, PROTOCOL, FLOW_CONTROL, FRAME_SIZE, REFUSED, COMPRESSION, CALM = 0, 1, 3, 6, 7, 9, 11
STREAM_LIMIT, WINDOW_SIZE, FRAME_LIMIT, FIELDS_LIMIT = 3, 4, 5, 6  # SETTINGS
WINDOW = 65_535  # what either side may send before it is told that there is room for more
WINDOW_MAX = 2**31 - 1
CREDIT_BYTES = 16_384  # a window is filled up once so much of it is used
FRAME_BYTES_MAX = 16_384
PREFIX_BYTES = 5  # of a message: whether it is compressed, and its length
CODES = {  # of gRPC's statuses, those that are used
    "OK": 0,
    "INVALID_ARGUMENT": 3,
    "NOT_FOUND": 5,
    "RESOURCE_EXHAUSTED": 8,
    "FAILED_PRECONDITION": 9,
    "OUT_OF_RANGE": 11,
    "UNIMPLEMENTED": 12,
    "UNAVAILABLE": 14,
    "UNAUTHENTICATED": 16,
}
BEGINNING = b"\x88" + written(b"content-type", b"application/grpc")  # of every answer: status 200


class ConnectionFault(Exception):
    """The peer has said what cannot be gone on from; `code` is HTTP/2's for it."""

    def __init__(self, code: int, words: str) -> None:
        super().__init__(words)
        self.code = code


def frame(kind: int, flags: int, id: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + id.to_bytes(4, "big") + payload


GREETING = frame(
    SETTINGS,
    0,
    0,
    b"".join(
        name.to_bytes(2, "big") + value.to_bytes(4, "big")
        for name, value in ((STREAM_LIMIT, STREAMS_MAX), (FIELDS_LIMIT, BLOCK_BYTES_MAX))
    ),
)


def settings(payload: bytes) -> list[tuple[int, int]]:
    """Their names and values. Raises ConnectionFault."""
    if len(payload) % 6:
        raise ConnectionFault(FRAME_SIZE, "settings of another form")
    parts = (payload[at : at + 6] for at in range(0, len(payload), 6))
    return [(int.from_bytes(part[:2], "big"), int.from_bytes(part[2:], "big")) for part in parts]


def unpadded(flags: int, payload: bytes) -> bytes:
    if not flags & PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise ConnectionFault(PROTOCOL, "more padding than frame")
    return payload[1 : len(payload) - payload[0]]


def percent_encoded(words: str) -> bytes:
    """As gRPC writes a status's words into a field."""
    return b"".join(
        bytes((byte,)) if 0x20 <= byte < 0x7F and byte != 0x25 else b"%%%02X" % byte for byte in words.encode()
    )
