"""A memory store for several nodes: one agent serves it, all reach it through etcd's own gRPC API.

It is for jobs without an etcd. One thread runs one event loop, and every call is answered in a turn of its own, so
nothing happens between the parts of a response, and the store needs no thread of its own. A thousand members with two
watches and a keep-alive each are three thousand streams, too many for a thread each. gRPC itself is not used: its
server cannot be kept from serving unauthenticated clients first (http2.py, connections.py).

It belongs to one run, which it names under STORE_OWNER_KEY before any client can read. When its agent ends in order,
clients are told so (ENDED) on every stream; nothing will continue this store, so they need not look for it.

The store is lost with its process. Clients notice: a successor has another cluster id, and numbers no lease or revision
as the one before. A process that was only frozen restarts the TTL of every lease when it runs again, because it cannot
know which clients tried to renew; so no lease is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from rendezvous.errors import StoreError
from rendezvous.records import STORE_OWNER_KEY, StoreOwner, encode
from rendezvous.stores import wire
from rendezvous.stores.listeners import listen
from rendezvous.stores.memory.store import MemoryStore
from rendezvous.stores.server.connections import ConnectionTable, ServedConnection
from rendezvous.stores.server.http2 import Http2Stream, StreamHandler
from rendezvous.stores.server.services import ENDED, MESSAGE_BYTES_MAX, ServedError, Services, WatchStream

TICK_S = 0.5  # how late a lease may end, and how often the loop checks whether it was frozen; etcd's is the same
PROGRESS_S = 600.0  # how often a watch that requests progress gets the revision; etcd's is the same
START_LIMIT_S = 20.0
SHUTDOWN_GRACE_S = 0.5  # the least grace: it is over as soon as every client has closed its connection
STOP_LIMIT_S = 10.0  # beyond the grace that callers of close give
# Of keys, values and leases. A job keeps about 2 KiB for each node, so this is thirty times what a thousand need.
# The 2 GiB of etcd, on disk, would be more memory than a node that trains can spare.
QUOTA_BYTES = 64 * 1024 * 1024
LOGIN_BYTES_MAX = 4096  # of a request with user and password
_AUTHENTICATE, _KEEP_ALIVE, _WATCH = (
    method.path.encode() for method in (wire.AUTHENTICATE, wire.LEASE_KEEP_ALIVE, wire.WATCH)
)


class StoreServer:
    """Serves an empty store on `host` and `also` (addresses to bind, never implied) and `port` (0: any) after `start`.

    With a `token` only clients with user "meshrun" and the token as password are served. `owner`: whose the store is.
    `clock`: the time of leases.
    At `quota_bytes` it refuses any growth; deletions make room at once, and there is no alarm to disarm.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        also: Sequence[str] = (),
        token: str = "",
        owner: StoreOwner | None = None,
        clock: Callable[[], float] = time.monotonic,
        quota_bytes: int = QUOTA_BYTES,
    ) -> None:
        self._hosts = (host, *also)
        self.port = port
        """The port it listens on; the kernel's choice once started, if 0 was given."""
        self._clock = clock
        self._store = MemoryStore(
            clock=clock,
            first_lease=secrets.randbits(62) + 1,
            # Milliseconds of the wall clock: above all revisions that an earlier store reached, at less than a
            # thousand writes per second. A client that remembers one of those gets Compacted and lists again.
            first_revision=max(2, int(time.time() * 1000)),
            quota_bytes=quota_bytes,
        )
        if owner is not None:
            self._store.put(STORE_OWNER_KEY, encode(owner))
        self._services = Services(self._store, secrets.randbits(62) + 1, token)
        self._has_token = bool(token)
        self._connections: ConnectionTable
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._grace_s = 0.0
        self._stop: asyncio.Event

    def start(self) -> None:
        """Listen. Raises StoreError, with the process that has the port if that can be known."""
        assert self._thread is None, "a server starts once"
        listeners: list[socket.socket] = []
        try:
            for host in self._hosts:
                listeners.append(listen(host, self.port))
                self.port = int(listeners[0].getsockname()[1])
        except StoreError:
            for listener in listeners:
                listener.close()
            raise
        started: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, args=(started, listeners), name="store server", daemon=True)
        self._thread.start()
        started.result(START_LIMIT_S)

    def close(self, grace_s: float = 0.0) -> None:
        """Refuse new calls, give those in progress `grace_s` seconds, end all streams, drop the store."""
        if self._thread is None or self._loop is None:
            return
        self._grace_s = grace_s
        with contextlib.suppress(RuntimeError):  # its loop has ended already
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(grace_s + STOP_LIMIT_S)

    # The loop

    def _run(self, started: Future[None], listeners: Sequence[socket.socket]) -> None:
        with contextlib.ExitStack() as stack:
            for listener in listeners:
                stack.enter_context(listener)
            asyncio.run(self._serve(started, listeners))

    async def _serve(self, started: Future[None], listeners: Sequence[socket.socket]) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._connections = ConnectionTable(self._loop, self._begin, has_token=self._has_token)
        for listener in listeners:
            self._connections.listen(listener)
        tick_task = asyncio.create_task(self._tick())
        started.set_result(None)
        try:
            await self._stop.wait()
        finally:
            tick_task.cancel()
            for listener in listeners:
                self._loop.remove_reader(listener)
                listener.close()
            for connection in self._connections.all:
                for stream in list(connection.http2.streams.values()):
                    stream.end(*ENDED)
            await self._connections.leave(max(self._grace_s, SHUTDOWN_GRACE_S))
            self._store.close()

    async def _tick(self) -> None:
        notified_at = time.monotonic()
        while True:
            self._services.notice_absence()
            self._store.expire()
            self._store.deliver()
            self._connections.check()
            now = time.monotonic()
            if now >= notified_at + PROGRESS_S:
                notified_at = now
                for stream in list(self._services.watch_streams):
                    stream.send_progress()
            await asyncio.sleep(min(TICK_S, max(0.0, self._store.find_next_deadline() - self._clock())))

    def _begin(self, connection: ServedConnection, stream: Http2Stream, fields: dict[bytes, bytes]) -> None:
        """Set the handler of a call, once its client is authenticated."""
        services, path = self._services, fields.get(b":path", b"")
        try:
            if path != _AUTHENTICATE:
                services.admit(fields.get(b"token"))
                connection.trust()
                if self._stop.is_set():
                    raise ServedError(*ENDED)
            if path in services.methods:
                stream.call = _Call(services, stream, connection, path)
            elif path == _WATCH:
                stream.call = WatchStream(services, stream)
            else:
                raise ServedError("UNIMPLEMENTED", "meshrun: the served store has no such method")
        except ServedError as refused:
            stream.end(*refused.status)


class _Call(StreamHandler):
    """A call with one request and one response, or the stream of renewals, each answered as it arrives."""

    def __init__(self, services: Services, stream: Http2Stream, connection: ServedConnection, path: bytes) -> None:
        self.bytes_max = LOGIN_BYTES_MAX if path == _AUTHENTICATE else MESSAGE_BYTES_MAX
        self._services, self._stream, self._connection, self._path = services, stream, connection, path
        self._requests: list[bytes] = []

    def take(self, message: bytes) -> None:
        if self._path == _KEEP_ALIVE:
            self._answer(message)
            return
        self._requests.append(message)
        if len(self._requests) > 1:
            self.half_close()

    def half_close(self) -> None:
        if self._path != _KEEP_ALIVE and len(self._requests) == 1:
            self._answer(self._requests[0])
        elif self._path != _KEEP_ALIVE:
            self._stream.end("INVALID_ARGUMENT", "meshrun: this method takes one message")
        self._stream.end()  # unless it has ended with an error
        self._services.store.deliver()

    def _answer(self, request: bytes) -> None:
        try:
            self._stream.send(self._services.answer(self._path, request))
        except ServedError as refused:
            self._stream.end(*refused.status)
        else:
            if self._path == _AUTHENTICATE:
                self._connection.trust()
