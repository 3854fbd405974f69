"""gRPC over HTTP/2, the server's side of one connection, without a socket: bytes in, bytes out.

The package `h2` implements HTTP/2: frames, header blocks, the windows by which a peer limits what it receives. This
module adds gRPC's messages in its DATA frames, the order in which they are sent, and the limits. gRPC's own server was
not usable: it ended for good when an unauthenticated client sent a path that is not text, and could not distinguish
connections of members from others.

A peer can make this side hold no more than its header table, one header block, one frame, for each call one message of
the size that its method takes, and OWED_BYTES_MAX of messages that it does not receive, and one more. Any failure
inside `h2` ends the one connection. Whether a peer reads what is written is checked by the owner of the socket.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable

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
FIELDS_BYTES_MAX = 16 * 1024  # of one decoded header block; gRPC's own limit is the same
OWED_BYTES_MAX = 16 << 20  # of unsent messages; a client that requests more before it reads them is disconnected
OWED_ENTRY_BYTES = 256  # what an unsent message counts beyond its bytes, so that small ones have a limit as well
FRAME_BYTES_MAX = 1 << 20  # of a sent frame, even if a client allows more
PREFIX_BYTES = 5  # of a message: whether it is compressed, and its length
CODES = {  # the gRPC status codes that are used
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
_RESPONSE_HEADERS = [(b":status", b"200"), (b"content-type", b"application/grpc")]  # of every response
# Fields are looked up by name and never passed on, so the characters that RFC 9113 allows are not checked.
_CONFIGURATION = H2Configuration(
    client_side=False,
    validate_inbound_headers=False,
    normalize_inbound_headers=False,
    validate_outbound_headers=False,
    normalize_outbound_headers=False,
)


class ConnectionFault(Exception):
    """The peer has violated the protocol or ended the connection; `code` is the HTTP/2 error code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class StreamHandler:
    """The handler of one stream. `bytes_max` is the largest message that it takes."""

    bytes_max: int

    def take(self, message: bytes) -> None:
        """Handle the client's next message."""

    def half_close(self) -> None:
        """Handle the end of the client's messages."""

    def lose(self) -> None:
        """Handle that the client has gone or has cancelled; nothing can be sent any more."""


class Http2Stream:
    """One call of the client, as its handler sees it: `send` and `end`."""

    __slots__ = ("_connection", "call", "data", "has_begun", "id", "is_half_closed", "owed", "sent_bytes", "trailers")

    def __init__(self, connection: Http2Connection, stream_id: int) -> None:
        self._connection = connection
        self.id = stream_id
        self.call: StreamHandler | None = None
        self.data = bytearray()  # of incomplete messages
        self.owed: deque[bytes] = deque()  # unsent messages
        self.sent_bytes = 0  # of the first of them
        self.trailers: list[tuple[bytes, bytes]] = []  # to be sent after the messages in `owed`
        self.has_begun = self.is_half_closed = False

    @property
    def is_full(self) -> bool:
        """Whether the client has left too much unread, of this stream also."""
        return bool(self.owed) and self._connection.owed_bytes > OWED_BYTES_MAX

    def send(self, message: bytes) -> None:
        """Queue a message and send what the client's window and its socket allow."""
        if not self.trailers:
            self.owed.append(b"\0" + len(message).to_bytes(4, "big") + message)
            self._connection.owed_bytes += len(self.owed[-1]) + OWED_ENTRY_BYTES
            self._connection.flush(self)

    def end(self, code: str = "OK", message: str = "") -> None:
        """Send the status, as the last thing on the stream. Before an error only a message that has begun is sent."""
        if self.trailers:
            return
        while code != "OK" and len(self.owed) > bool(self.sent_bytes):
            self.drop(self.owed.pop())
        self.trailers = [(b"grpc-status", b"%d" % CODES[code])]
        if message:  # not kept in the table, whose size is the client's choice
            self.trailers.append(NeverIndexedHeaderTuple(b"grpc-message", _percent_encode(message)))
        self._connection.flush(self)

    def drop(self, message: bytes) -> None:
        """Count out a message that was in `owed`."""
        self._connection.owed_bytes -= len(message) + OWED_ENTRY_BYTES


class _Http2(H2Connection):
    MAX_CLOSED_STREAMS = 64  # that it remembers; its own 65,536 would take 8 MiB on every connection


# docs/internals/decisions/0043-h2-for-the-served-store.md
class Http2Connection:
    """`begin` gets each new stream with its fields, and sets its `call` or ends it; `write` gets outbound bytes.

    `is_blocked`: the socket takes no more for now; the caller that sets it calls `resume` afterwards.
    """

    def __init__(
        self, begin: Callable[[Http2Stream, dict[bytes, bytes]], None], write: Callable[[bytes], None]
    ) -> None:
        self.is_blocked = False
        self.owed_bytes = 0  # of all streams' unsent messages
        self.streams: dict[int, Http2Stream] = {}
        self._begin = begin
        self._write = write
        self._is_broken = False
        self._http2 = _Http2(_CONFIGURATION)
        limits = {SettingCodes.MAX_CONCURRENT_STREAMS: STREAMS_MAX, SettingCodes.MAX_HEADER_LIST_SIZE: FIELDS_BYTES_MAX}
        self._http2.local_settings = Settings(client=False, initial_values=limits)
        self._http2.decoder.max_header_list_size = FIELDS_BYTES_MAX  # also before the client has received the settings
        self._http2.initiate_connection()

    # Input

    def receive(self, data: bytes | memoryview) -> None:
        """Handle bytes of the client. Raises ConnectionFault."""
        if self._is_broken:
            raise ConnectionFault(ErrorCodes.INTERNAL_ERROR, "HTTP/2 has failed on this connection")
        try:
            received = self._http2.receive_data(data)
        except ProtocolError as error:
            self._http2.clear_outbound_data_buffer()  # h2's GOAWAY; this class sends its own
            raise ConnectionFault(error.error_code, str(error)) from None
        except Exception as error:
            raise ConnectionFault(ErrorCodes.INTERNAL_ERROR, repr(error)) from None
        for event in received:
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
                self.flush(stream_or_none)
        elif isinstance(event, (events.WindowUpdated, events.RemoteSettingsChanged)):
            self.resume()
        elif isinstance(event, events.ConnectionTerminated):
            raise ConnectionFault(ErrorCodes.NO_ERROR, "the client says goodbye")

    def _take_data(self, stream_id: int, data: bytes, used: int) -> None:
        stream = self.streams.get(stream_id)
        if stream is not None and not stream.trailers:
            stream.data += data
        while stream is not None and stream.call is not None and len(stream.data) >= PREFIX_BYTES:
            size = int.from_bytes(stream.data[1:PREFIX_BYTES], "big")
            if stream.trailers:
                break
            if stream.data[0]:
                stream.end("UNIMPLEMENTED", "meshrun: messages are not compressed here")
            elif size > stream.call.bytes_max:
                reason = f"SERVER: Received message larger than max ({size} vs. {stream.call.bytes_max})"
                stream.end("RESOURCE_EXHAUSTED", reason)
            elif len(stream.data) < PREFIX_BYTES + size:
                break
            else:
                if self.owed_bytes > OWED_BYTES_MAX:
                    raise ConnectionFault(ENHANCE_YOUR_CALM, "the answers are not taken")
                message = bytes(stream.data[PREFIX_BYTES : PREFIX_BYTES + size])
                del stream.data[: PREFIX_BYTES + size]
                stream.call.take(message)
        with contextlib.suppress(ProtocolError):  # the stream may be gone by now
            self._http2.acknowledge_received_data(used, stream_id)

    # Output

    def resume(self) -> None:
        """Continue with what was blocked."""
        for stream in list(self.streams.values()):
            if stream.owed:
                self.flush(stream)

    def flush(self, stream: Http2Stream) -> None:
        """Send as much of the stream's messages as the client receives."""
        if stream.id not in self.streams:
            return
        try:
            self._send_owed(stream)
        except ProtocolError:  # it was reset; the event for that follows
            self._drop(stream.id)
        except Exception:  # not raised to the caller, which may be serving another client
            self._is_broken = True
            self.lose()
        self._pass_on()

    def _send_owed(self, stream: Http2Stream) -> None:
        http2, stream_id = self._http2, stream.id
        if stream.owed and not stream.has_begun:
            stream.has_begun = True
            http2.send_headers(stream_id, _RESPONSE_HEADERS)
        while stream.owed and not self.is_blocked:
            message, start = stream.owed[0], stream.sent_bytes
            window = min(http2.local_flow_control_window(stream_id), http2.max_outbound_frame_size, FRAME_BYTES_MAX)
            if window <= 0:
                return
            http2.send_data(stream_id, message[start : start + window])
            stream.sent_bytes += window
            if stream.sent_bytes >= len(message):
                stream.sent_bytes = 0
                stream.drop(stream.owed.popleft())
        if stream.trailers and not stream.owed:
            del self.streams[stream_id]
            http2.send_headers(
                stream_id, stream.trailers if stream.has_begun else _RESPONSE_HEADERS + stream.trailers, True
            )
            if not stream.is_half_closed:  # the client need not send the rest (RFC 9113 8.1)
                http2.reset_stream(stream_id, ErrorCodes.NO_ERROR)

    def ping(self) -> None:
        with contextlib.suppress(ProtocolError):
            self._http2.ping(bytes(8))
        self._pass_on()

    def go_away(self, code: int = ErrorCodes.NO_ERROR) -> None:
        """Send GOAWAY. Calls in progress continue, so `h2` is bypassed: after its own GOAWAY it can send nothing."""
        self._write(GoAwayFrame(0, self._http2.highest_inbound_stream_id, code).serialize())

    def lose(self) -> None:
        """Drop all streams: the peer is gone."""
        for stream_id in list(self.streams):
            self._drop(stream_id)

    def _drop(self, stream_id: int) -> None:
        stream = self.streams.pop(stream_id, None)
        if stream is None:
            return
        while stream.owed:
            stream.drop(stream.owed.pop())
        if stream.call is not None:
            stream.call.lose()

    def _pass_on(self) -> None:
        if data := self._http2.data_to_send():
            self._write(data)


def _percent_encode(message: str) -> bytes:
    """Encode the message of a status as gRPC does."""
    return b"".join(
        bytes((byte,)) if 0x20 <= byte < 0x7F and byte != 0x25 else b"%%%02X" % byte for byte in message.encode()
    )
