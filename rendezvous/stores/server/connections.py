"""The sockets of a served store's clients, and the CPU share of unauthenticated ones.

A client that has not made a call yet, with the token if there is one, is unauthenticated: few of these are connected at
a time, and not for long. Where there is a token, all of them together get
UNAUTHENTICATED_SHARE of the time, whatever they do with it: guess, or open and cancel calls by the thousand. Beyond
that they wait, unread, and the kernel's buffers block them. Addresses that wait are served in turn; accepting, which
has no turns, has the same share again. Only what members need is limited: time. Clients with the token never wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections import deque
from collections.abc import Callable

from rendezvous.stores.listeners import limit_connections
from rendezvous.stores.server.http2 import ENHANCE_YOUR_CALM, ConnectionFault, Http2Connection, Http2Stream

UNAUTHENTICATED_SHARE = 0.2
CREDIT_S = 0.05  # what unauthenticated clients may use at once: no member waits longer for them
UNAUTHENTICATED_MAX = 512  # connections, see limit_connections; the oldest of the address that has most makes room
UNAUTHENTICATED_BYTES_MAX = 16 * 1024  # what one may send; logging in takes less than 1 KiB
UNAUTHENTICATED_CALLS_MAX = 8
UNAUTHENTICATED_LIMIT_S = 10.0  # how long one may stay
READ_BYTES = 4 * 1024  # at a time, so that all are read in turn: what is read at once is parsed at once
UNAUTHENTICATED_READ_BYTES = 1024  # logging in takes less, and a flood some 50 calls
UNSENT_BYTES_MAX = 64 * 1024  # a client with more than this unsent is not read until it has received it
PING_AFTER_S = 20.0  # of silence; a client whose host is gone must not stay
GONE_AFTER_S = 30.0
AWAY_S = 5.0  # without a check: this process was frozen
_RETRY_S = 0.5  # after a connection could not be accepted for want of descriptors or memory
_buffer = memoryview(bytearray(READ_BYTES))  # one loop, one read at a time


class CpuShare:
    """The time for unauthenticated clients: `take` what was used, `compute_wait_s` until there is some again."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self._credit_s = CREDIT_S
        self._seen_at = clock()

    def take(self, used_s: float) -> None:
        """Subtract the time that was used."""
        self._refill()
        self._credit_s -= used_s

    def compute_wait_s(self) -> float:
        """Return the seconds until there is time again; 0 if there is some now."""
        self._refill()
        return max(0.0, -self._credit_s / UNAUTHENTICATED_SHARE)

    def _refill(self) -> None:
        now = self.clock()
        self._credit_s = min(CREDIT_S, self._credit_s + (now - self._seen_at) * UNAUTHENTICATED_SHARE)
        self._seen_at = now


class ServedConnection:
    """One client's connection. The loop owns it from the beginning to `close`."""

    def __init__(self, table: ConnectionTable, sock: socket.socket, origin: str) -> None:
        sock.setblocking(False)
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.origin = origin
        self.is_trusted = False
        self.heard_at = self.begun_at = table.share.clock()
        self.is_open = True
        self._table = table
        self._sock = sock
        self._outbound: list[bytes] = []
        self._outbound_bytes, self._unsent = 0, b""
        self._is_shutting_down = self._is_pinged = False
        self._remaining_bytes, self._remaining_calls = UNAUTHENTICATED_BYTES_MAX, UNAUTHENTICATED_CALLS_MAX
        self.http2 = Http2Connection(self._begin, self._write)
        table.loop.add_reader(sock, self._on_readable)

    def trust(self) -> None:
        """Authenticate the connection: it has made a call, with the token if there is one."""
        if not self.is_trusted:
            self.is_trusted = True
            self._table.trust(self)

    def _begin(self, stream: Http2Stream, fields: dict[bytes, bytes]) -> None:
        if not self.is_trusted:
            self._remaining_calls -= 1
            if self._remaining_calls < 0:
                raise ConnectionFault(ENHANCE_YOUR_CALM, "too many calls without the token")
        self._table.begin(self, stream, fields)

    # Reading

    def _on_readable(self) -> None:
        if self.is_trusted:
            self.read()
        else:
            self._table.let_read(self)

    def pause(self) -> None:
        if self.is_open:
            self._table.loop.remove_reader(self._sock)

    def resume(self) -> None:
        if self.is_open and not self.http2.is_blocked:
            self._table.loop.add_reader(self._sock, self._on_readable)

    def read(self) -> None:
        """Handle the bytes that have arrived, as many as allowed at a time."""
        if not self.is_open or self.http2.is_blocked:
            return
        try:
            size = self._sock.recv_into(_buffer, READ_BYTES if self.is_trusted else UNAUTHENTICATED_READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            size = 0
        if not size:
            self.close()
            return
        self.heard_at, self._is_pinged = self._table.share.clock(), False
        try:
            self.http2.receive(_buffer[:size])
            self._remaining_bytes -= size
            if not self.is_trusted and self._remaining_bytes <= 0:
                raise ConnectionFault(ENHANCE_YOUR_CALM, "too much without the token")
        except ConnectionFault as fault:
            self.http2.go_away(fault.code)
            self._flush()
            self.close()
        except BaseException:
            self.close()
            raise

    # Writing

    def _write(self, data: bytes) -> None:
        if not self._outbound and not self._unsent and self.is_open:
            self._table.loop.call_soon(self._flush)
        self._outbound.append(data)
        self._outbound_bytes += len(data)
        if not self.http2.is_blocked and self._outbound_bytes + len(self._unsent) > UNSENT_BYTES_MAX:
            self.http2.is_blocked = True
            self.pause()

    def _flush(self) -> None:
        if not self.is_open:
            return
        is_waiting = bool(self._unsent)
        data = b"".join((self._unsent, *self._outbound))
        self._outbound.clear()
        self._outbound_bytes = 0
        try:
            sent = self._sock.send(data) if data else 0
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError:
            self.close()
            return
        self._unsent = data[sent:]
        if self._unsent and not is_waiting:
            self._table.loop.add_writer(self._sock, self._flush)
        elif is_waiting and not self._unsent:
            self._table.loop.remove_writer(self._sock)
        if self.http2.is_blocked and not self._unsent:
            self.http2.is_blocked = False
            self.resume()
            self.http2.resume()
        if self._is_shutting_down and not self._unsent and not self._outbound:
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_WR)

    # Ending

    def check(self, now: float) -> None:
        """End a connection that is gone or unauthenticated for too long, and ping one that has been silent."""
        silent_s = now - self.heard_at
        if silent_s > GONE_AFTER_S or (not self.is_trusted and now - self.begun_at > UNAUTHENTICATED_LIMIT_S):
            self.close()
        elif silent_s > PING_AFTER_S and not self._is_pinged:
            self._is_pinged = True
            self.http2.ping()

    def shut_down(self) -> None:
        """Send all that is queued, and GOAWAY; the client ends the connection."""
        self.http2.go_away()
        self._is_shutting_down = True
        self._flush()

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            self._table.loop.remove_reader(self._sock)
            self._table.loop.remove_writer(self._sock)
            self._sock.close()
            self._table.forget(self)
            self.http2.lose()


class ConnectionTable:
    """All connections of one store. `begin` handles the calls; with `has_token` others get a share of the time."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        begin: Callable[[ServedConnection, Http2Stream, dict[bytes, bytes]], None],
        *,
        has_token: bool,
    ) -> None:
        self.loop = loop
        self.begin = begin
        self.share = CpuShare(time.monotonic)
        self._accepting = CpuShare(time.monotonic)
        self.all: set[ServedConnection] = set()
        self._has_token = has_token
        self._unauthenticated_max = limit_connections(UNAUTHENTICATED_MAX)
        self._unauthenticated: dict[str, dict[ServedConnection, None]] = {}  # by address, the oldest first
        self._waiting: dict[str, deque[ServedConnection]] = {}  # those of them with unread data
        self._wake_handle: asyncio.TimerHandle | None = None
        self._checked_at = time.monotonic()

    def listen(self, listener: socket.socket) -> None:
        listener.setblocking(False)
        self.loop.add_reader(listener, self._accept, listener)

    def _accept(self, listener: socket.socket) -> None:
        if self._has_token and (wait_s := self._accepting.compute_wait_s()):
            self._accept_later(listener, wait_s)
            return
        began_at = self.share.clock()
        try:
            sock, address = listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionError):
            return
        except OSError:
            self._accept_later(listener, _RETRY_S)
            return
        connection = ServedConnection(self, sock, str(address[0]))
        self.all.add(connection)
        self._unauthenticated.setdefault(connection.origin, {})[connection] = None
        if sum(map(len, self._unauthenticated.values())) > self._unauthenticated_max:
            busiest = max(self._unauthenticated, key=lambda origin: len(self._unauthenticated[origin]))
            next(iter(self._unauthenticated[busiest])).close()
        self._accepting.take(self.share.clock() - began_at)

    def _accept_later(self, listener: socket.socket, wait_s: float) -> None:
        self.loop.remove_reader(listener)

        def retry() -> None:
            if listener.fileno() >= 0:  # it may have been closed since
                self.loop.add_reader(listener, self._accept, listener)

        self.loop.call_later(wait_s, retry)

    # Unauthenticated clients

    def let_read(self, connection: ServedConnection) -> None:
        """Read from an unauthenticated client, now or in its turn."""
        if not self._has_token or (not self._waiting and not self.share.compute_wait_s()):
            self._read(connection)
            return
        connection.pause()
        self._waiting.setdefault(connection.origin, deque()).append(connection)
        if self._wake_handle is None:
            self._wake_handle = self.loop.call_later(self.share.compute_wait_s(), self._read_next)

    def _read_next(self) -> None:
        """Read from one client of the address whose turn it is; the address goes to the end."""
        self._wake_handle = None
        origin = next(iter(self._waiting))
        queue = self._waiting.pop(origin)
        connection = queue.popleft()
        if queue:
            self._waiting[origin] = queue
        try:
            self._read(connection)
        finally:  # a bug in one turn must not prevent the next
            connection.resume()
            if self._waiting:
                self._wake_handle = self.loop.call_later(self.share.compute_wait_s(), self._read_next)

    def _read(self, connection: ServedConnection) -> None:
        began_at = self.share.clock()
        try:
            connection.read()
        finally:
            self.share.take(self.share.clock() - began_at)

    def trust(self, connection: ServedConnection) -> None:
        """Remove the connection from the unauthenticated ones."""
        group = self._unauthenticated.get(connection.origin, {})
        group.pop(connection, None)
        if not group:
            self._unauthenticated.pop(connection.origin, None)

    def forget(self, connection: ServedConnection) -> None:
        """Remove a connection that is closed."""
        self.all.discard(connection)
        self.trust(connection)

    def check(self) -> None:
        """Check all connections; call this regularly."""
        now = self.share.clock()
        was_away = now - self._checked_at > AWAY_S  # nothing could be received then
        self._checked_at = now
        for connection in list(self.all):
            if was_away:
                connection.heard_at = connection.begun_at = now
            connection.check(now)

    async def leave(self, grace_s: float) -> None:
        """Shut down all connections, and wait until every client has closed its own, for `grace_s` at most."""
        for connection in list(self.all):
            if connection.is_trusted:
                connection.shut_down()
            else:
                connection.close()
        deadline = self.loop.time() + grace_s
        while self.all and self.loop.time() < deadline:
            await asyncio.sleep(0.01)
        for connection in list(self.all):
            connection.close()
