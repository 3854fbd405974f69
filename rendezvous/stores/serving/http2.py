"""gRPC over HTTP/2 (RFC 9113), the server's side of one connection; bytes in, bytes out, no socket here.

gRPC's own server ended for good when a stranger sent a path that is no text, wrote a stranger's words to stderr, and
could not tell a member's connection from a stranger's. What a server of a dozen small methods needs of HTTP/2 is this
file: frames, header blocks, the two windows by which a peer says how much it can take, and messages in DATA frames.

A peer can make us hold no more than its header table, one header block, and for each call one message of the
size that its method takes. What it owes us in return, to read what we write, is seen to
by who has the socket.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from rendezvous.stores.serving import frames
from rendezvous.stores.serving.frames import ConnectionFault
from rendezvous.stores.serving.hpack import BLOCK_BYTES_MAX, HeaderError, HeaderReader, written


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
        block = b"" if self.has_begun or self.owed else frames.BEGINNING
        block += written(b"grpc-status", b"%d" % frames.CODES[code])
        if words:
            block += written(b"grpc-message", frames.percent_encoded(words))
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
        self._window = self._stream_window = frames.WINDOW
        self._frame_max = frames.FRAME_BYTES_MAX

    # What the client says

    def receive(self, data: bytes | memoryview) -> None:
        """Raises ConnectionFault."""
        self._input += data
        if not self._is_greeted:
            head = bytes(self._input[: len(frames.PREFACE)])
            if not frames.PREFACE.startswith(head):
                raise ConnectionFault(frames.PROTOCOL, "this is no HTTP/2")
            if len(head) < len(frames.PREFACE):
                return
            del self._input[: len(frames.PREFACE)]
            self._is_greeted = True
            self._write(frames.GREETING)
        at = 0
        while len(self._input) >= at + 9:
            size = int.from_bytes(self._input[at : at + 3], "big")
            if size > frames.FRAME_BYTES_MAX:
                raise ConnectionFault(frames.FRAME_SIZE, "a frames.frame is too large")
            if len(self._input) < at + 9 + size:
                break
            kind, flags = self._input[at + 3], self._input[at + 4]
            id = int.from_bytes(self._input[at + 5 : at + 9], "big") & frames.WINDOW_MAX
            payload = bytes(self._input[at + 9 : at + 9 + size])
            at += 9 + size
            self._take(kind, flags, id, payload)
        del self._input[:at]

    def _take(self, kind: int, flags: int, id: int, payload: bytes) -> None:
        if not self._has_settings and (kind != frames.SETTINGS or flags & frames.ACK):
            raise ConnectionFault(frames.PROTOCOL, "settings come first")
        if (kind == frames.CONTINUATION) != (self._block is not None):
            raise ConnectionFault(frames.PROTOCOL, "a header block is not alone")
        if kind == frames.DATA:
            self._take_data(flags, id, payload)
        elif kind == frames.HEADERS:
            payload = frames.unpadded(flags, payload)
            self._take_block(id, flags, payload[5:] if flags & frames.PRIORITY else payload)
        elif kind == frames.CONTINUATION:
            assert self._block is not None
            if id != self._block[0]:
                raise ConnectionFault(frames.PROTOCOL, "a header block is not alone")
            self._take_block(id, self._block[1] | flags & frames.END_HEADERS, payload)
        elif kind == frames.RST_STREAM:
            self._require(id <= self._last_id and id > 0, "a reset of a stream that never was")
            self._drop(id)
        elif kind == frames.SETTINGS:
            self._require(id == 0, "settings of a stream")
            if not flags & frames.ACK:
                self._take_settings(payload)
        elif kind == frames.PING:
            self._require(id == 0 and len(payload) == 8, "a ping of another form")
            if not flags & frames.ACK:
                self._write(frames.frame(frames.PING, frames.ACK, 0, payload))
        elif kind == frames.WINDOW_UPDATE:
            self._take_window(id, payload)
        elif kind == frames.PUSH_PROMISE:
            raise ConnectionFault(frames.PROTOCOL, "clients promise nothing")

    def _take_block(self, id: int, flags: int, part: bytes) -> None:
        block = self._block[2] if self._block is not None else bytearray()
        block += part
        if len(block) > BLOCK_BYTES_MAX:
            raise ConnectionFault(frames.CALM, "a header block is too large")
        self._block = None if flags & frames.END_HEADERS else (id, flags, block)
        if self._block is not None:
            return
        try:
            fields = self._reader.read(bytes(block))
        except HeaderError as error:
            raise ConnectionFault(frames.COMPRESSION, str(error)) from None
        if id <= self._last_id:  # trailers, which gRPC's clients do not send; or a stream that has ended meanwhile
            self._require(id > 0, "a call without a stream")
            if id in self.streams and flags & frames.END_STREAM:
                self._half_close(self.streams[id])
            return
        self._require(id % 2 == 1, "an even stream")
        self._last_id = id
        if len(self.streams) >= frames.STREAMS_MAX:
            self._write(frames.frame(frames.RST_STREAM, 0, id, frames.REFUSED.to_bytes(4, "big")))
            return
        stream = self.streams[id] = Stream(self, id, self._stream_window)
        stream.is_half_closed = bool(flags & frames.END_STREAM)
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
        stream.data += frames.unpadded(flags, payload)
        while stream.call is not None and len(stream.data) >= frames.PREFIX_BYTES and not stream.trailers:
            size = int.from_bytes(stream.data[1 : frames.PREFIX_BYTES], "big")
            if stream.data[0]:
                stream.end("UNIMPLEMENTED", "meshrun: messages are not compressed here")
            elif size > stream.call.bytes_max:
                words = f"SERVER: Received message larger than max ({size} vs. {stream.call.bytes_max})"
                stream.end("RESOURCE_EXHAUSTED", words)
            elif len(stream.data) < frames.PREFIX_BYTES + size:
                break
            else:
                message = bytes(stream.data[frames.PREFIX_BYTES : frames.PREFIX_BYTES + size])
                del stream.data[: frames.PREFIX_BYTES + size]
                stream.call.take(message)
        if flags & frames.END_STREAM:
            self._half_close(stream)
        elif id in self.streams:
            stream.used = self._credit(id, stream.used)

    def _half_close(self, stream: Stream) -> None:
        if not stream.is_half_closed:
            stream.is_half_closed = True
            if stream.call is not None and not stream.trailers:
                stream.call.half_close()

    def _credit(self, id: int, used: int) -> int:
        """Fill a window up if enough of it is used; how much is used then."""
        if used < frames.CREDIT_BYTES:
            return used
        self._write(frames.frame(frames.WINDOW_UPDATE, 0, id, used.to_bytes(4, "big")))
        return 0

    def _take_settings(self, payload: bytes) -> None:
        self._has_settings = True
        for name, value in frames.settings(payload):
            if name == frames.WINDOW_SIZE:
                self._require(value <= frames.WINDOW_MAX, "a window that is too large")
                for stream in self.streams.values():
                    stream.window += value - self._stream_window
                self._stream_window = value
            elif name == frames.FRAME_LIMIT:
                self._frame_max = max(frames.FRAME_BYTES_MAX, min(value, 1 << 20))
        self._write(frames.frame(frames.SETTINGS, frames.ACK, 0))
        self.resume()

    def _take_window(self, id: int, payload: bytes) -> None:
        more = int.from_bytes(payload, "big") & frames.WINDOW_MAX
        self._require(len(payload) == 4 and more > 0 and id <= self._last_id, "a window of another form")
        if id == 0:
            self._window += more
            if self._window > frames.WINDOW_MAX:
                raise ConnectionFault(frames.FLOW_CONTROL, "a window that is too large")
            self.resume()
        elif (stream := self.streams.get(id)) is not None:
            stream.window += more
            if stream.window > frames.WINDOW_MAX:
                raise ConnectionFault(frames.FLOW_CONTROL, "a window that is too large")
            if stream.owed:
                self.flush(stream)
                if stream.is_clear and stream.call is not None:
                    stream.call.drain()

    def _require(self, holds: bool, words: str) -> None:
        if not holds:
            raise ConnectionFault(frames.PROTOCOL, words)

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
        said = []
        if stream.owed and not stream.has_begun:
            stream.has_begun = True
            said.append(frames.frame(frames.HEADERS, frames.END_HEADERS, stream.id, frames.BEGINNING))
        while stream.owed and (size := min(len(stream.owed[0]), self._window, stream.window, self._frame_max)) > 0:
            piece = stream.owed.popleft()
            said.append(frames.frame(frames.DATA, 0, stream.id, bytes(piece[:size])))
            self._window -= size
            stream.window -= size
            if size < len(piece):
                stream.owed.appendleft(piece[size:])
        if stream.trailers and not stream.owed:
            said.append(frames.frame(frames.HEADERS, frames.LAST_HEADERS, stream.id, stream.trailers))
            if not stream.is_half_closed:  # the client need not say the rest (RFC 9113 8.1)
                said.append(frames.frame(frames.RST_STREAM, 0, stream.id, frames.NO_ERROR.to_bytes(4, "big")))
            del self.streams[stream.id]
        if said:
            self._write(b"".join(said))

    def ping(self) -> None:
        self._write(frames.frame(frames.PING, 0, 0, bytes(8)))

    def say_goodbye(self, code: int = frames.NO_ERROR) -> None:
        self._write(frames.frame(frames.GOAWAY, 0, 0, self._last_id.to_bytes(4, "big") + code.to_bytes(4, "big")))

    def lose(self) -> None:
        """The peer is gone."""
        for id in list(self.streams):
            self._drop(id)

    def _drop(self, id: int) -> None:
        stream = self.streams.pop(id, None)
        if stream is not None and stream.call is not None:
            stream.call.lose()
