"""gRPC over HTTP/2, the server's side of one connection; bytes in, bytes out, no socket here.

The package `h2` does HTTP/2: frames, header blocks, the windows by which a peer says how much it can take. Here are
gRPC's messages in its DATA frames, the order in which they go out, and the limits. gRPC's own server ended for good
when a stranger sent a path that is no text, and could not tell a member's connection from a stranger's.

A peer can make us hold no more than its header table, one header block, one frame, for each call one message of the
size that its method takes, and OWED_BYTES_MAX of answers for which it leaves no room, with one more. Whatever goes
wrong inside `h2` ends the one connection. That a peer reads what we write is seen to by who has the socket.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from typing import Protocol

from h2 import events
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings
from hpack import NeverIndexedHeaderTuple
from hyperframe.frame import GoAwayFrame

ENHANCE_YOUR_CALM = ErrorCodes.ENHANCE_YOUR_CALM
STREAMS_MAX = 1000
FIELDS_BYTES_MAX = 16 * 1024  # of one header block once it is read; gRPC's own limit is the same
OWED_BYTES_MAX = 16 << 20  # of answers; who asks for more before it takes them is sent away
FRAME_BYTES_MAX = 1 << 20  # of what we send, whatever a client allows
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
_RESPONSE_HEADERS = [(b":status", b"200"), (b"content-type", b"application/grpc")]  # of every answer
# Fields are looked up by name and never passed on, so what RFC 9113 says of their letters is not checked.
_CONFIGURATION = H2Configuration(
    client_side=False,
    validate_inbound_headers=False,
    normalize_inbound_headers=False,
    validate_outbound_headers=False,
    normalize_outbound_headers=False,
)


class ConnectionFault(Exception):
    """The peer has said what cannot be gone on from; `code` is HTTP/2's for it."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class StreamHandler(Protocol):
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


class Http2Stream:
    """One call of the client, as its answerer sees it: `send` and `end`."""

    __slots__ = ("_connection", "call", "data", "has_begun", "id", "is_half_closed", "owed", "trailers")

    def __init__(self, connection: Http2Connection, id: int) -> None:
        self._connection = connection
        self.id = id
        self.call: StreamHandler | None = None
        self.data = bytearray()  # of messages that are not complete
        self.owed: deque[memoryview] = deque()
        self.trailers: list[tuple[bytes, bytes]] = []  # to be sent after what is owed
        self.has_begun = self.is_half_closed = False

    @property
    def is_clear(self) -> bool:
        """Whether what is sent now goes at once."""
        return not self.owed and not self._connection.is_choked

    def send(self, message: bytes) -> None:
        if not self.trailers:
            self.owed.append(memoryview(b"\0" + len(message).to_bytes(4, "big") + message))
            self._connection.flush(self)

    def end(self, code: str = "OK", message: str = "") -> None:
        """Say the status, last of all."""
        if self.trailers:
            return
        self.trailers = [(b"grpc-status", b"%d" % CODES[code])]
        if message:  # not kept in the table, whose size is the client's choice
            self.trailers.append(NeverIndexedHeaderTuple(b"grpc-message", _percent_encode(message)))
        self._connection.flush(self)


class _Http2(H2Connection):
    MAX_CLOSED_STREAMS = 64  # that it remembers; of 65,536 they are 8 MiB on every connection


# docs/internals/decisions/0043-h2-for-the-served-store.md
class Http2Connection:
    """`begin` is given each new stream and its fields, and sets its `call` or ends it; `write` takes what we say.

    `is_choked`: the socket takes no more for now; who sets it calls `resume` afterwards.
    """

    def __init__(
        self, begin: Callable[[Http2Stream, dict[bytes, bytes]], None], write: Callable[[bytes], None]
    ) -> None:
        self.is_choked = False
        self.streams: dict[int, Http2Stream] = {}
        self._begin = begin
        self._write = write
        self._is_broken = False
        self._http2 = _Http2(_CONFIGURATION)
        limits = {SettingCodes.MAX_CONCURRENT_STREAMS: STREAMS_MAX, SettingCodes.MAX_HEADER_LIST_SIZE: FIELDS_BYTES_MAX}
        self._http2.local_settings = Settings(client=False, initial_values=limits)
        self._http2.decoder.max_header_list_size = FIELDS_BYTES_MAX  # before the client has seen the settings, too
        self._http2.initiate_connection()

    # What the client says

    def receive(self, data: bytes | memoryview) -> None:
        """Raises ConnectionFault."""
        if self._is_broken:
            raise ConnectionFault(ErrorCodes.INTERNAL_ERROR, "HTTP/2 has failed on this connection")
        try:
            said = self._http2.receive_data(data)
        except ProtocolError as error:
            self._http2.clear_outbound_data_buffer()  # its goodbye; ours follows
            raise ConnectionFault(error.error_code, str(error)) from None
        except Exception as error:
            raise ConnectionFault(ErrorCodes.INTERNAL_ERROR, repr(error)) from None
        for event in said:
            self._take(event)
        self._pass_on()

    def _take(self, event: events.Event) -> None:
        if isinstance(event, events.DataReceived):
            self._take_data(event.stream_id, event.data, event.flow_controlled_length)
        elif isinstance(event, events.RequestReceived):
            stream = self.streams[event.stream_id] = Http2Stream(self, event.stream_id)
            self._begin(stream, dict(event.headers))
        elif isinstance(event, events.StreamEnded):
            stream_or_none = self.streams.get(event.stream_id)
            if stream_or_none is not None:
                stream_or_none.is_half_closed = True
                if stream_or_none.call is not None and not stream_or_none.trailers:
                    stream_or_none.call.half_close()
        elif isinstance(event, events.StreamReset):
            self._drop(event.stream_id)
        elif isinstance(event, events.WindowUpdated) and event.stream_id:
            if (stream_or_none := self.streams.get(event.stream_id)) is not None and stream_or_none.owed:
                self._continue(stream_or_none)
        elif isinstance(event, (events.WindowUpdated, events.RemoteSettingsChanged)):
            self.resume()
        elif isinstance(event, events.ConnectionTerminated):
            raise ConnectionFault(ErrorCodes.NO_ERROR, "the client says goodbye")

    def _take_data(self, id: int, data: bytes, used: int) -> None:
        stream = self.streams.get(id)
        if stream is not None and not stream.trailers:
            stream.data += data
        while stream is not None and stream.call is not None and len(stream.data) >= PREFIX_BYTES:
            size = int.from_bytes(stream.data[1:PREFIX_BYTES], "big")
            if stream.trailers:
                break
            if stream.data[0]:
                stream.end("UNIMPLEMENTED", "meshrun: messages are not compressed here")
            elif size > stream.call.bytes_max:
                words = f"SERVER: Received message larger than max ({size} vs. {stream.call.bytes_max})"
                stream.end("RESOURCE_EXHAUSTED", words)
            elif len(stream.data) < PREFIX_BYTES + size:
                break
            else:
                if self._count_owed_bytes() > OWED_BYTES_MAX:
                    raise ConnectionFault(ENHANCE_YOUR_CALM, "the answers are not taken")
                message = bytes(stream.data[PREFIX_BYTES : PREFIX_BYTES + size])
                del stream.data[: PREFIX_BYTES + size]
                stream.call.take(message)
        with contextlib.suppress(ProtocolError):  # it may be gone meanwhile
            self._http2.acknowledge_received_data(used, id)

    def _count_owed_bytes(self) -> int:
        return sum(len(piece) for stream in self.streams.values() for piece in stream.owed)

    # What we say

    def resume(self) -> None:
        """Go on with what had to wait."""
        for stream in list(self.streams.values()):
            self._continue(stream)

    def _continue(self, stream: Http2Stream) -> None:
        if stream.owed:
            self.flush(stream)
        if stream.is_clear and stream.call is not None:
            stream.call.drain()

    def flush(self, stream: Http2Stream) -> None:
        """Say as much of what is owed as the client takes."""
        if stream.id not in self.streams:
            return
        try:
            self._send_owed(stream)
        except ProtocolError:  # it has been taken back, which we are told in a moment
            self._drop(stream.id)
        except Exception:  # never the caller's, who may be answering another client
            self._is_broken = True
            self.lose()
        self._pass_on()

    def _send_owed(self, stream: Http2Stream) -> None:
        http2, id = self._http2, stream.id
        if stream.owed and not stream.has_begun:
            stream.has_begun = True
            http2.send_headers(id, _RESPONSE_HEADERS)
        while stream.owed:
            piece = stream.owed[0]
            size = min(len(piece), http2.local_flow_control_window(id), http2.max_outbound_frame_size, FRAME_BYTES_MAX)
            if size <= 0:
                return
            http2.send_data(id, bytes(piece[:size]))
            stream.owed.popleft()
            if size < len(piece):
                stream.owed.appendleft(piece[size:])
        if stream.trailers:
            del self.streams[id]
            http2.send_headers(id, stream.trailers if stream.has_begun else _RESPONSE_HEADERS + stream.trailers, True)
            if not stream.is_half_closed:  # the client need not say the rest (RFC 9113 8.1)
                http2.reset_stream(id, ErrorCodes.NO_ERROR)

    def ping(self) -> None:
        with contextlib.suppress(ProtocolError):
            self._http2.ping(bytes(8))
        self._pass_on()

    def go_away(self, code: int = ErrorCodes.NO_ERROR) -> None:
        """What is under way goes on, so `h2`, after whose goodbye nothing can be said, does not know of it."""
        self._write(GoAwayFrame(0, self._http2.highest_inbound_stream_id, code).serialize())

    def lose(self) -> None:
        """The peer is gone."""
        for id in list(self.streams):
            self._drop(id)

    def _drop(self, id: int) -> None:
        stream = self.streams.pop(id, None)
        if stream is not None and stream.call is not None:
            stream.call.lose()

    def _pass_on(self) -> None:
        if data := self._http2.data_to_send():
            self._write(data)


def _percent_encode(message: str) -> bytes:
    """As gRPC writes a status's words into a field."""
    return b"".join(
        bytes((byte,)) if 0x20 <= byte < 0x7F and byte != 0x25 else b"%%%02X" % byte for byte in message.encode()
    )
