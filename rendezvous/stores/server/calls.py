"""The three kinds of calls: one request and one response, renewals of leases, a stream of watches.

Each handles the client's messages on its stream (http2.py), calls the server, and sends the response.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from rendezvous.errors import StoreError
from rendezvous.stores import wire
from rendezvous.stores.contract import REQUEST_BYTES_MAX
from rendezvous.stores.protobuf import WireError, decode
from rendezvous.stores.server import errors
from rendezvous.stores.server.connections import ServedConnection
from rendezvous.stores.server.errors import ServedError, make_error
from rendezvous.stores.server.http2 import Http2Stream
from rendezvous.stores.server.watches import WatchStream

OWED_MAX = 64  # responses to renewals that a client leaves unread; this package's client waits for each one
MESSAGE_BYTES_MAX = REQUEST_BYTES_MAX + 512 * 1024  # a request between the two limits is refused with etcd's error


class CallHandler(Protocol):
    """The server, as its calls need it."""

    def answer(
        self, method: wire.Method[Any, Any], handler: Callable[[Any], Any], request: bytes
    ) -> bytes | ServedError:
        """Return the response to a request. The caller sends it, then calls `deliver`."""

    def deliver(self) -> None:
        """Run the callbacks of watches."""

    def keep_alive(self, request: bytes) -> bytes | ServedError: ...

    def begin_watching(self, wake: Callable[[], None]) -> WatchStream: ...

    def forget_watching(self, stream: WatchStream) -> None: ...


class UnaryCall:
    """A call with one request and one response."""

    def __init__(
        self,
        server: CallHandler,
        stream: Http2Stream,
        connection: ServedConnection,
        method: wire.Method[Any, Any],
        handler: Callable[[Any], Any],
        bytes_max: int,
    ) -> None:
        self.bytes_max = bytes_max
        self._server, self._stream, self._connection = server, stream, connection
        self._method, self._handler = method, handler
        self._request: bytes | None = None

    def take(self, message: bytes) -> None:
        if self._request is not None:
            self._stream.end("INVALID_ARGUMENT", "meshrun: this method takes one message")
        self._request = message

    def half_close(self) -> None:
        if self._request is None:
            self._stream.end("INVALID_ARGUMENT", "meshrun: this method takes one message")
            return
        response = self._server.answer(self._method, self._handler, self._request)
        if isinstance(response, bytes):
            if self._method is wire.AUTHENTICATE:
                self._connection.trust()
            self._stream.send(response)
            self._stream.end()
        else:
            refuse(self._stream, response)
        self._server.deliver()

    def drain(self) -> None:
        pass

    def lose(self) -> None:
        pass


class KeepAliveStream:
    """Renewals of leases, each answered as it arrives."""

    bytes_max = MESSAGE_BYTES_MAX

    def __init__(self, server: CallHandler, stream: Http2Stream) -> None:
        self._server, self._stream = server, stream

    def take(self, message: bytes) -> None:
        if len(self._stream.owed) >= OWED_MAX:  # of a stream whose window is closed; the socket does not show that
            self._stream.end("RESOURCE_EXHAUSTED", "meshrun: the answers before are not read")
            return
        response = self._server.keep_alive(message)
        if isinstance(response, bytes):
            self._stream.send(response)
        else:
            refuse(self._stream, response)

    def half_close(self) -> None:
        self._stream.end()

    def drain(self) -> None:
        pass

    def lose(self) -> None:
        pass


class WatchCall:
    """A stream of watches: responses are sent as fast as the client receives them."""

    bytes_max = MESSAGE_BYTES_MAX

    def __init__(self, server: CallHandler, stream: Http2Stream) -> None:
        self._server, self._stream = server, stream
        self._watch = server.begin_watching(self.drain)

    def take(self, message: bytes) -> None:
        try:
            self._watch.take(decode(wire.WatchRequest, message))
        except WireError as error:
            self._watch.end(ServedError("INVALID_ARGUMENT", f"meshrun: {error}"))
        except StoreError as error:
            self._watch.end(make_error(error))
        self._server.deliver()

    def half_close(self) -> None:
        pass  # the client may still receive events

    def drain(self) -> None:
        while self._stream.is_clear and (message := self._watch.take_next()) is not None:
            self._stream.send(message)
        if self._watch.end_reason is not None:
            refuse(self._stream, self._watch.end_reason)
            self._server.forget_watching(self._watch)

    def lose(self) -> None:
        self._watch.end(errors.STOPPED)


def refuse(stream: Http2Stream, error: ServedError) -> None:
    """End the stream with this error."""
    stream.end(error.code, error.message)
