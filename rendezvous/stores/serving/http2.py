"""gRPC over HTTP/2 (RFC 9113), the server's side of one connection; bytes in, bytes out, no socket here.

gRPC's own server ended for good when a stranger sent a path that is no text, wrote a stranger's words to stderr, and
could not tell a member's connection from a stranger's. What a server of a dozen small methods needs of HTTP/2 is this
file: frames, header blocks, the two windows by which a peer says how much it can take, and messages in DATA frames.

A peer can make us hold no more than its header table, one header block, and for each of STREAMS_MAX calls one message
of the size that its method takes. What it owes us in return, to read what we write, is seen to by who has the socket.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from rendezvous.stores.serving.hpack import BLOCK_BYTES_MAX, HeaderError, HeaderReader, written

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
STREAMS_MAX = 1000
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PUSH_PROMISE, _PING, _GOAWAY, _WINDOW_UPDATE, _CONTINUATION = (
    *(0, 1, 3, 4, 5, 6, 7, 8, 9),
)
_END_STREAM = _ACK = 1
_END_HEADERS, _PADDED, _PRIORITY = 4, 8, 32
_NO_ERROR, _PROTOCOL, _FLOW_CONTROL, _FRAME_SIZE, _REFUSED, _CANCEL, _COMPRESSION, CALM = 0, 1, 3, 6, 7, 8, 9, 11
_STREAM_LIMIT, _WINDOW_SIZE, _FRAME_LIMIT, _FIELDS_LIMIT = 3, 4, 5, 6  # SETTINGS
_WINDOW = 65_535  # what either side may send before it is told that there is room for more
_WINDOW_MAX = 2**31 - 1
_CREDIT_BYTES = 16_384  # a window is filled up once so much of it is used
_FRAME_BYTES_MAX = 16_384
_PREFIX_BYTES = 5  # of a message: whether it is compressed, and its length
_CODES = {  # of gRPC's statuses, those that are used
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
_CONTENT_TYPE = written(b"content-type", b"application/grpc")
_STATUS_200 = b"\x88"


class ConnectionFault(Exception):
    """The peer has said what cannot be gone on from; `code` is HTTP/2's for it."""

    def __init__(self, code: int, words: str) -> None:
        super().__init__(words)
        self.code = code


class Call(Protocol):
    """What answers one stream. `bytes_max` is the largest message that it takes."""

    bytes_max: int

    def take(self, message: bytes) -> None:
        """The client's next message."""

    def half_close(self) -> None:
        """The client has said all."""

    def drain(self) -> None:
        """What was sent has gone, after it could not for a while."""

    def lose(self) -> None:
        """The client has gone or has cancelled; nothing can be said any more."""


class Stream:
    """One call of the client, as its answerer sees it: `send` and `end`."""

    __slots__ = (
        "_connection",
        "call",
        "data",
        "has_begun",
        "id",
        "is_half_closed",
        "owed",
        "trailers",
        "used",
        "window",
    )

    def __init__(self, connection: Connection, id: int, window: int) -> None:
        self._connection = connection
        self.id = id
        self.window = window  # what the client takes of it now
        self.call: Call | None = None
        self.data = bytearray()  # of messages that are not complete
        self.used = 0  # of the window that we gave
        self.owed: deque[memoryview] = deque()
        self.trailers = b""  # to be sent after what is owed
        self.has_begun = self.is_half_closed = False

    @property
    def is_clear(self) -> bool:
        """Whether what is sent now goes at once."""
        return not self.owed and not self._connection.is_choked

    def send(self, message: bytes) -> None:
        if not self.trailers:
            self.owed.append(memoryview(b"\0" + len(message).to_bytes(4, "big") + message))
            self._connection.flush(self)

    def end(self, code: str = "OK", words: str = "") -> None:
        """Say the status, last of all."""
        if self.trailers:
            return
        block = b"" if self.has_begun or self.owed else _STATUS_200 + _CONTENT_TYPE
        block += written(b"grpc-status", b"%d" % _CODES[code])
        if words:
            block += written(b"grpc-message", _percent(words))
        self.trailers = block
        self._connection.flush(self)


class Connection:
    """`begin` is given each new stream and its fields, and sets its `call` or ends it; `write` takes what we say.

    `is_choked`: the socket takes no more for now; who sets it calls `resume` afterwards.
    """

    def __init__(self, begin: Callable[[Stream, dict[bytes, bytes]], None], write: Callable[[bytes], None]) -> None:
        self.is_choked = False
        self.streams: dict[int, Stream] = {}
        self._begin = begin
        self._write = write
        self._reader = HeaderReader()
        self._input = bytearray()
        self._is_greeted = self._has_settings = False
        self._last_id = 0
        self._block: tuple[int, int, bytearray] | None = None  # stream and flags of a header block under way
        self._used = 0
        self._window = self._stream_window = _WINDOW
        self._frame_max = _FRAME_BYTES_MAX

    # What the client says

    def receive(self, data: bytes | memoryview) -> None:
        """Raises ConnectionFault."""
        self._input += data
        if not self._is_greeted:
            head = bytes(self._input[: len(PREFACE)])
            if not PREFACE.startswith(head):
                raise ConnectionFault(_PROTOCOL, "this is no HTTP/2")
            if len(head) < len(PREFACE):
                return
            del self._input[: len(PREFACE)]
            self._is_greeted = True
            settings = ((_STREAM_LIMIT, STREAMS_MAX), (_FIELDS_LIMIT, BLOCK_BYTES_MAX))
            payload = b"".join(name.to_bytes(2, "big") + value.to_bytes(4, "big") for name, value in settings)
            self._write(_frame(_SETTINGS, 0, 0, payload))
        at = 0
        while len(self._input) >= at + 9:
            size = int.from_bytes(self._input[at : at + 3], "big")
            if size > _FRAME_BYTES_MAX:
                raise ConnectionFault(_FRAME_SIZE, "a frame is too large")
            if len(self._input) < at + 9 + size:
                break
            kind, flags = self._input[at + 3], self._input[at + 4]
            id = int.from_bytes(self._input[at + 5 : at + 9], "big") & _WINDOW_MAX
            payload = bytes(self._input[at + 9 : at + 9 + size])
            at += 9 + size
            self._take(kind, flags, id, payload)
        del self._input[:at]

    def _take(self, kind: int, flags: int, id: int, payload: bytes) -> None:
        if not self._has_settings and (kind != _SETTINGS or flags & _ACK):
            raise ConnectionFault(_PROTOCOL, "settings come first")
        if (kind == _CONTINUATION) != (self._block is not None):
            raise ConnectionFault(_PROTOCOL, "a header block is not alone")
        if kind == _DATA:
            self._take_data(flags, id, payload)
        elif kind == _HEADERS:
            payload = _unpadded(flags, payload)
            self._take_block(id, flags, payload[5:] if flags & _PRIORITY else payload)
        elif kind == _CONTINUATION:
            assert self._block is not None
            if id != self._block[0]:
                raise ConnectionFault(_PROTOCOL, "a header block is not alone")
            self._take_block(id, self._block[1] | flags & _END_HEADERS, payload)
        elif kind == _RST_STREAM:
            self._require(id <= self._last_id and id > 0, "a reset of a stream that never was")
            self._drop(id)
        elif kind == _SETTINGS:
            self._require(id == 0, "settings of a stream")
            if not flags & _ACK:
                self._take_settings(payload)
        elif kind == _PING:
            self._require(id == 0 and len(payload) == 8, "a ping of another form")
            if not flags & _ACK:
                self._write(_frame(_PING, _ACK, 0, payload))
        elif kind == _WINDOW_UPDATE:
            self._take_window(id, payload)
        elif kind == _PUSH_PROMISE:
            raise ConnectionFault(_PROTOCOL, "clients promise nothing")

    def _take_block(self, id: int, flags: int, part: bytes) -> None:
        block = self._block[2] if self._block is not None else bytearray()
        block += part
        if len(block) > BLOCK_BYTES_MAX:
            raise ConnectionFault(CALM, "a header block is too large")
        self._block = None if flags & _END_HEADERS else (id, flags, block)
        if self._block is not None:
            return
        try:
            fields = self._reader.read(bytes(block))
        except HeaderError as error:
            raise ConnectionFault(_COMPRESSION, str(error)) from None
        if id <= self._last_id:  # trailers, which gRPC's clients do not send; or a stream that has ended meanwhile
            self._require(id > 0, "a call without a stream")
            if id in self.streams and flags & _END_STREAM:
                self._half_close(self.streams[id])
            return
        self._require(id % 2 == 1, "an even stream")
        self._last_id = id
        if len(self.streams) >= STREAMS_MAX:
            self._write(_frame(_RST_STREAM, 0, id, _REFUSED.to_bytes(4, "big")))
            return
        stream = self.streams[id] = Stream(self, id, self._stream_window)
        stream.is_half_closed = bool(flags & _END_STREAM)
        self._begin(stream, dict(fields))
        if stream.is_half_closed and stream.call is not None:
            stream.call.half_close()

    def _take_data(self, flags: int, id: int, payload: bytes) -> None:
        self._require(0 < id <= self._last_id, "data of a stream that never was")
        self._used = self._credit(0, self._used + len(payload))
        stream = self.streams.get(id)
        if stream is None or stream.is_half_closed or stream.trailers:
            return
        stream.used += len(payload)
        stream.data += _unpadded(flags, payload)
        while stream.call is not None and len(stream.data) >= _PREFIX_BYTES and not stream.trailers:
            size = int.from_bytes(stream.data[1:_PREFIX_BYTES], "big")
            if stream.data[0]:
                stream.end("UNIMPLEMENTED", "meshrun: messages are not compressed here")
            elif size > stream.call.bytes_max:
                words = f"SERVER: Received message larger than max ({size} vs. {stream.call.bytes_max})"
                stream.end("RESOURCE_EXHAUSTED", words)
            elif len(stream.data) < _PREFIX_BYTES + size:
                break
            else:
                message = bytes(stream.data[_PREFIX_BYTES : _PREFIX_BYTES + size])
                del stream.data[: _PREFIX_BYTES + size]
                stream.call.take(message)
        if flags & _END_STREAM:
            self._half_close(stream)
        elif id in self.streams:
            stream.used = self._credit(id, stream.used)

    def _half_close(self, stream: Stream) -> None:
        if not stream.is_half_closed:
            stream.is_half_closed = True
            if stream.call is not None:
                stream.call.half_close()

    def _credit(self, id: int, used: int) -> int:
        """Fill a window up if enough of it is used; how much is used then."""
        if used < _CREDIT_BYTES:
            return used
        self._write(_frame(_WINDOW_UPDATE, 0, id, used.to_bytes(4, "big")))
        return 0

    def _take_settings(self, payload: bytes) -> None:
        self._require(len(payload) % 6 == 0, "settings of another form")
        self._has_settings = True
        for at in range(0, len(payload), 6):
            name, value = int.from_bytes(payload[at : at + 2], "big"), int.from_bytes(payload[at + 2 : at + 6], "big")
            if name == _WINDOW_SIZE:
                self._require(value <= _WINDOW_MAX, "a window that is too large")
                for stream in self.streams.values():
                    stream.window += value - self._stream_window
                self._stream_window = value
            elif name == _FRAME_LIMIT:
                self._frame_max = max(_FRAME_BYTES_MAX, min(value, 1 << 20))
        self._write(_frame(_SETTINGS, _ACK, 0))
        self.resume()

    def _take_window(self, id: int, payload: bytes) -> None:
        more = int.from_bytes(payload, "big") & _WINDOW_MAX
        self._require(len(payload) == 4 and more > 0 and id <= self._last_id, "a window of another form")
        if id == 0:
            self._window += more
            if self._window > _WINDOW_MAX:
                raise ConnectionFault(_FLOW_CONTROL, "a window that is too large")
            self.resume()
        elif (stream := self.streams.get(id)) is not None:
            stream.window += more
            if stream.window > _WINDOW_MAX:
                raise ConnectionFault(_FLOW_CONTROL, "a window that is too large")
            if stream.owed:
                self.flush(stream)
                if stream.is_clear and stream.call is not None:
                    stream.call.drain()

    def _require(self, holds: bool, words: str) -> None:
        if not holds:
            raise ConnectionFault(_PROTOCOL, words)

    # What we say

    def resume(self) -> None:
        """Go on with what had to wait."""
        for stream in list(self.streams.values()):
            if stream.owed:
                self.flush(stream)
            if stream.is_clear and stream.call is not None:
                stream.call.drain()

    def flush(self, stream: Stream) -> None:
        """Say as much of what is owed as the client takes."""
        if stream.id not in self.streams:
            return
        frames = []
        if stream.owed and not stream.has_begun:
            stream.has_begun = True
            frames.append(_frame(_HEADERS, _END_HEADERS, stream.id, _STATUS_200 + _CONTENT_TYPE))
        while stream.owed and (size := min(len(stream.owed[0]), self._window, stream.window, self._frame_max)) > 0:
            piece = stream.owed.popleft()
            frames.append(_frame(_DATA, 0, stream.id, bytes(piece[:size])))
            self._window -= size
            stream.window -= size
            if size < len(piece):
                stream.owed.appendleft(piece[size:])
        if stream.trailers and not stream.owed:
            frames.append(_frame(_HEADERS, _END_HEADERS | _END_STREAM, stream.id, stream.trailers))
            if not stream.is_half_closed:  # the client need not say the rest (RFC 9113 8.1)
                frames.append(_frame(_RST_STREAM, 0, stream.id, _NO_ERROR.to_bytes(4, "big")))
            del self.streams[stream.id]
        if frames:
            self._write(b"".join(frames))

    def ping(self) -> None:
        self._write(_frame(_PING, 0, 0, bytes(8)))

    def say_goodbye(self, code: int = _NO_ERROR) -> None:
        self._write(_frame(_GOAWAY, 0, 0, self._last_id.to_bytes(4, "big") + code.to_bytes(4, "big")))

    def lose(self) -> None:
        """The peer is gone."""
        for id in list(self.streams):
            self._drop(id)

    def _drop(self, id: int) -> None:
        stream = self.streams.pop(id, None)
        if stream is not None and stream.call is not None:
            stream.call.lose()


def _frame(kind: int, flags: int, id: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + id.to_bytes(4, "big") + payload


def _unpadded(flags: int, payload: bytes) -> bytes:
    if not flags & _PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise ConnectionFault(_PROTOCOL, "more padding than frame")
    return payload[1 : len(payload) - payload[0]]


def _percent(words: str) -> bytes:
    """As gRPC writes a status's words into a field."""
    return b"".join(
        bytes((byte,)) if 0x20 <= byte < 0x7F and byte != 0x25 else b"%%%02X" % byte for byte in words.encode()
    )
