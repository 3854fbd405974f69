"""A memory store for several nodes: one agent serves it, all reach it through etcd's own gRPC API.

It is for jobs without an etcd. This package's client, etcdctl and other clients of etcd work with it unchanged; the
modules beside this one make the responses. One thread runs one event loop, and every call is answered in a turn of its
own, so nothing happens between the parts of a response, and the store needs no thread of its own. A thousand members
with two watches and a keep-alive each are three thousand streams, too many for a thread each. gRPC itself is not used:
its server cannot be kept from serving unauthenticated clients first (http2.py, connections.py).

The store is lost with its process. Clients notice: leases and revisions are never numbered as before, so a member that
reconnects learns that its lease is gone, and a watch that it must list again. A process that was only frozen restarts
the TTL of every lease when it runs again, because it cannot know which clients tried to renew; so no lease is lost.
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
from typing import Any

from rendezvous.errors import StoreError
from rendezvous.stores import wire
from rendezvous.stores.addresses import join_address
from rendezvous.stores.contract import REQUEST_BYTES_MAX
from rendezvous.stores.memory.store import MemoryStore
from rendezvous.stores.protobuf import WireError, decode, encode
from rendezvous.stores.server import errors
from rendezvous.stores.server.authentication import Authenticator
from rendezvous.stores.server.calls import MESSAGE_BYTES_MAX, KeepAliveStream, UnaryCall, WatchCall, refuse
from rendezvous.stores.server.connections import ConnectionTable, ServedConnection
from rendezvous.stores.server.errors import ServedError, ServedFailure, make_error
from rendezvous.stores.server.http2 import Http2Stream
from rendezvous.stores.server.keys import KeyService
from rendezvous.stores.server.leases import LeaseService
from rendezvous.stores.server.listen import listen
from rendezvous.stores.server.watches import WatchService, WatchStream

VERSION = "3.4.0+meshrun"  # the version of the API, as clients that ask expect it
TICK_S = 0.5  # how late a lease may end, and how often the loop checks whether it was frozen; etcd's is the same
AWAY_S = 2.0  # a process that has not run for this long was frozen or starved
PROGRESS_S = 600.0  # how often a quiet watch that requests progress gets the revision; etcd's is the same
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

_Clock = Callable[[], float]


class StoreServer:
    """Serves an empty store on `host` and `also` (addresses to bind, never implied) and `port` (0: any) after `start`.

    With a `token` only clients with user "meshrun" and the token as password are served. `clock`: the time of leases.
    At `quota_bytes` it refuses any growth; deletions make room at once, and there is no alarm to disarm.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        also: Sequence[str] = (),
        token: str = "",
        clock: _Clock = time.monotonic,
        quota_bytes: int = QUOTA_BYTES,
    ) -> None:
        self.host = host
        self._hosts = (host, *also)
        self.port = port
        """The port it listens on; the kernel's choice once started, if 0 was given."""
        self._id = secrets.randbits(62) + 1  # of the "cluster": unique to this store
        self._clock = clock
        self._store = MemoryStore(
            clock=clock,
            threaded=False,
            first_lease=secrets.randbits(62) + 1,
            # Milliseconds of the wall clock: above all revisions that an earlier store reached, at less than a
            # thousand writes per second. A client that remembers one of those gets Compacted and lists again.
            first_revision=max(2, int(time.time() * 1000)),
        )
        self._authenticator = Authenticator(token)
        self._keys = KeyService(self._store, self._make_header, quota_bytes)
        self._leases = LeaseService(self._store, lambda: self._make_header(self._store.revision), quota_bytes)
        self._watches = WatchService(self._store, self._make_header)
        self._streams: set[WatchStream] = set()
        self._connections: ConnectionTable
        self._seen_at = 0.0
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._handlers = self._make_handlers()
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
        self._connections = ConnectionTable(self._loop, self._begin, has_token=self._authenticator.has_token)
        self._seen_at = time.monotonic()
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
                    refuse(stream, errors.STOPPED)
            await self._connections.leave(max(self._grace_s, SHUTDOWN_GRACE_S))
            self._store.close()

    async def _tick(self) -> None:
        notified_at = time.monotonic()
        while True:
            self._notice_absence()
            self._store.expire()
            self._store.deliver()
            self._connections.check()
            now = time.monotonic()
            if now >= notified_at + PROGRESS_S:
                notified_at = now
                for stream in list(self._streams):
                    stream.send_progress()
            due = self._store.find_next_deadline()
            await asyncio.sleep(TICK_S if due is None else min(TICK_S, max(0.0, due - self._clock())))

    def _notice_absence(self) -> None:
        now = time.monotonic()
        if now - self._seen_at > AWAY_S:
            self._store.renew_leases()
        self._seen_at = now

    # The services

    def _make_header(self, revision: int) -> wire.Header:
        return wire.Header(self._id, self._id, revision, 1)

    def _make_handlers(self) -> dict[bytes, tuple[wire.Method[Any, Any], Callable[[Any], Any]]]:
        """Return the methods with one request and one response, by path."""
        unary: tuple[tuple[wire.Method[Any, Any], Callable[[Any], Any]], ...] = (
            (wire.RANGE, self._keys.range),
            (wire.PUT_KEY, self._keys.put),
            (wire.DELETE_RANGE, self._keys.delete_range),
            (wire.TXN, self._keys.txn),
            (wire.COMPACT, self._keys.compact),
            (wire.LEASE_GRANT, self._leases.grant),
            (wire.LEASE_REVOKE, self._leases.revoke),
            (wire.LEASE_TIME_TO_LIVE, self._leases.time_to_live),
            (wire.LEASE_LEASES, self._leases.leases),
            (wire.STATUS, self._answer_status),
            (wire.ALARM, lambda _: wire.AlarmResponse(self._make_header(self._store.revision))),
            (wire.MEMBER_LIST, self._answer_member_list),
            (wire.AUTHENTICATE, self._authenticate),
        )
        return {method.path.encode(): (method, handler) for method, handler in unary}

    def _authenticate(self, request: wire.AuthenticateRequest) -> wire.AuthenticateResponse:
        return self._authenticator.authenticate(request, self._make_header(self._store.revision))

    def _answer_status(self, _: wire.StatusRequest) -> wire.StatusResponse:
        revision = self._store.revision
        return wire.StatusResponse(
            self._make_header(revision),
            VERSION,
            self._store.measure_size(),
            leader=self._id,
            raft_index=revision,
            raft_term=1,
        )

    def _answer_member_list(self, _: wire.MemberListRequest) -> wire.MemberListResponse:
        member = wire.WireMember(self._id, "meshrun", (), (f"http://{join_address(self.host, self.port)}",))
        return wire.MemberListResponse(self._make_header(self._store.revision), (member,))

    # Between a client and the services

    def _begin(self, connection: ServedConnection, stream: Http2Stream, fields: dict[bytes, bytes]) -> None:
        """Set the handler of a call, once its client is authenticated."""
        path = fields.get(b":path", b"")
        if path == _AUTHENTICATE:
            stream.call = UnaryCall(self, stream, connection, *self._handlers[path], LOGIN_BYTES_MAX)
            return
        try:
            self._authenticator.admit(fields.get(b"token"))
        except ServedFailure as refused:
            refuse(stream, refused.error)
            return
        connection.trust()
        if self._stop.is_set():
            refuse(stream, errors.STOPPED)
        elif path in self._handlers:
            stream.call = UnaryCall(self, stream, connection, *self._handlers[path], MESSAGE_BYTES_MAX)
        elif path == _KEEP_ALIVE:
            stream.call = KeepAliveStream(self, stream)
        elif path == _WATCH:
            stream.call = WatchCall(self, stream)
        else:
            stream.end("UNIMPLEMENTED", "meshrun: the served store has no such method")

    def answer(
        self, method: wire.Method[Any, Any], handler: Callable[[Any], Any], request: bytes
    ) -> bytes | ServedError:
        """Return the response to a request. The caller sends it, then calls `deliver`."""
        if len(request) > REQUEST_BYTES_MAX:
            return errors.TOO_LARGE
        self._notice_absence()
        try:
            return encode(handler(decode(method.request, request)))
        except ServedFailure as refused:
            return refused.error
        except StoreError as error:
            return make_error(error)
        except WireError as error:
            return ServedError("INVALID_ARGUMENT", f"meshrun: {error}")

    def deliver(self) -> None:
        """Run the callbacks of watches."""
        self._store.deliver()

    def keep_alive(self, request: bytes) -> bytes | ServedError:
        return self.answer(wire.LEASE_KEEP_ALIVE, self._leases.keep_alive, request)

    def begin_watching(self, wake: Callable[[], None]) -> WatchStream:
        stream = WatchStream(self._watches, wake)
        self._streams.add(stream)
        return stream

    def forget_watching(self, stream: WatchStream) -> None:
        self._streams.discard(stream)
