"""A memory store for several nodes: one agent serves it, all reach it through etcd's own gRPC API.

For jobs without an etcd. Our client, etcdctl and other clients of etcd speak with it as they are; what it answers is
decided in stores/serving/. Picture one thread with one loop: every call is answered in a turn of its own, so nothing
happens between the parts of an answer, and the store needs no thread of its own. A thousand members with two watches
and a keep-alive each are three thousand streams, which is why it is a loop and not a thread for each.

The store is lost with its process. Clients notice: leases and revisions are never numbered as before, so a member that
returns learns that its lease is gone, and a watch that it must list again. A process that was merely frozen begins
every lease's time anew when it wakes, for it cannot know who tried to reach it; nobody loses a lease by that.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from typing import Any

import grpc
import grpc.aio

from rendezvous.addresses import join_address
from rendezvous.errors import StoreError
from rendezvous.store import REQUEST_BYTES_MAX
from rendezvous.stores import wire
from rendezvous.stores.listening import PortTaken, check_can_listen
from rendezvous.stores.memory import MemoryStore
from rendezvous.stores.protobuf import WireError, decode, encode
from rendezvous.stores.serving import refusals
from rendezvous.stores.serving.guard import Guard
from rendezvous.stores.serving.keys import KeyService
from rendezvous.stores.serving.leases import LeaseService
from rendezvous.stores.serving.refusals import Refusal, Refused, refusal_of
from rendezvous.stores.serving.watches import WatchService, WatchStream

VERSION = "3.4.0+meshrun"  # the version of the API, as clients that ask expect it
TICK_S = 0.5  # how late a lease may end, and how often we look whether we were away; etcd's is the same
AWAY_S = 2.0  # not having run for so long is being frozen or starved
PROGRESS_S = 600.0  # how often a quiet watch that wants to hear is told where the store is; etcd's is the same
START_LIMIT_S = 20.0
FAREWELL_S = 0.5  # the least grace: it is over as soon as every client has been told
STOP_LIMIT_S = 10.0  # beyond the grace that callers of close give

_OPTIONS = (
    ("grpc.so_reuseport", 0),  # a second server on the port is refused instead of taking every other connection
    ("grpc.max_receive_message_length", REQUEST_BYTES_MAX + 512 * 1024),  # what is larger than it may be is told so
    ("grpc.max_send_message_length", -1),
    # Clients may ask every few seconds whether we live, and we ask them: a dead one's streams must not stay.
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 1000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
)

_Clock = Callable[[], float]
_Context = Any  # grpc.aio.ServicerContext[bytes, bytes]


class StoreServer:
    """Serves an empty store on `host` and `also` (addresses to bind, never implied) and `port` (0: any) after `start`.

    With a `token` only clients with user "meshrun" and the token as password are answered. `clock`: what leases go by.
    """

    def __init__(
        self, host: str, port: int, *, also: Sequence[str] = (), token: str = "", clock: _Clock = time.monotonic
    ) -> None:
        self.host = host
        self._hosts = (host, *also)
        self.port = port
        """The port it listens on; the kernel's choice once started, if 0 was given."""
        self._id = secrets.randbits(62) + 1  # of the "cluster": another store has another
        self._clock = clock
        self._store = MemoryStore(
            clock=clock,
            threaded=False,
            first_lease=secrets.randbits(62) + 1,
            # Milliseconds of the clock on the wall: above all that a store before this one reached, at less than
            # a thousand writes a second. A client that remembers a revision of that one is told to list again.
            first_revision=max(2, int(time.time() * 1000)),
        )
        self._guard = Guard(token)
        self._keys = KeyService(self._store, self._header)
        self._leases = LeaseService(self._store, lambda: self._header(self._store.revision))
        self._watches = WatchService(self._store, self._header)
        self._streams: set[WatchStream] = set()
        self._listening: set[asyncio.Task[Any]] = set()  # of keep-alives: those that wait for their client
        self._seen_at = 0.0
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._grace_s = 0.0
        self._stop: asyncio.Event

    def start(self) -> None:
        """Listen. Raises StoreError, with who has the port if that can be known, when that is impossible."""
        assert self._thread is None, "a server starts once"
        for host in self._hosts:
            self.port = check_can_listen(host, self.port)
        started: Future[int] = Future()
        self._thread = threading.Thread(target=self._run, args=(started,), name="store server", daemon=True)
        self._thread.start()
        self.port = started.result(START_LIMIT_S)

    def close(self, grace_s: float = 0.0) -> None:
        """Refuse new calls, give those under way `grace_s` seconds, end all streams, forget everything."""
        if self._thread is None or self._loop is None:
            return
        self._grace_s = grace_s
        with contextlib.suppress(RuntimeError):  # its loop has ended already
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(grace_s + STOP_LIMIT_S)

    # The loop

    def _run(self, started: Future[int]) -> None:
        try:
            asyncio.run(self._serve(started))
        except Exception as error:
            if started.done():
                raise
            started.set_exception(error)

    async def _serve(self, started: Future[int]) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = grpc.aio.server(options=_OPTIONS)
        server.add_generic_rpc_handlers(self._handlers())
        try:
            ports = [server.add_insecure_port(join_address(host, self.port)) for host in self._hosts]
        except RuntimeError as error:  # all of it could be listened on a moment ago
            for host in self._hosts:
                check_can_listen(host, self.port)
            where = ", ".join(join_address(host, self.port) for host in self._hosts)
            raise PortTaken(f"the store cannot listen on {where}: another process has just had the port") from error
        await server.start()
        self._seen_at = time.monotonic()
        ticking = asyncio.create_task(self._tick())
        started.set_result(ports[0])
        try:
            await self._stop.wait()
        finally:
            ticking.cancel()
            for stream in list(self._streams):
                stream.end(refusals.STOPPED)
            for task in list(self._listening):
                task.cancel()
            await server.stop(max(self._grace_s, FAREWELL_S))
            self._store.close()

    async def _tick(self) -> None:
        told_at = time.monotonic()
        while True:
            self._notice_absence()
            self._store.expire()
            self._store.deliver()
            now = time.monotonic()
            if now >= told_at + PROGRESS_S:
                told_at = now
                for stream in list(self._streams):
                    stream.tell_progress()
            due = self._store.next_deadline()
            await asyncio.sleep(TICK_S if due is None else min(TICK_S, max(0.0, due - self._clock())))

    def _notice_absence(self) -> None:
        now = time.monotonic()
        if now - self._seen_at > AWAY_S:
            self._store.renew_leases()
        self._seen_at = now

    # The services

    def _header(self, revision: int) -> wire.Header:
        return wire.Header(self._id, self._id, revision, 1)

    def _handlers(self) -> tuple[grpc.GenericRpcHandler, ...]:
        one_to_one: tuple[tuple[wire.Method[Any, Any], Callable[[Any], Any]], ...] = (
            (wire.RANGE, self._keys.range),
            (wire.PUT_KEY, self._keys.put),
            (wire.DELETE_RANGE, self._keys.delete_range),
            (wire.TXN, self._keys.txn),
            (wire.COMPACT, self._keys.compact),
            (wire.LEASE_GRANT, self._leases.grant),
            (wire.LEASE_REVOKE, self._leases.revoke),
            (wire.LEASE_TIME_TO_LIVE, self._leases.time_to_live),
            (wire.LEASE_LEASES, self._leases.leases),
            (wire.STATUS, self._status),
            (wire.ALARM, lambda _: wire.AlarmResponse(self._header(self._store.revision))),
            (wire.MEMBER_LIST, self._member_list),
            (wire.AUTHENTICATE, self._authenticate),
        )
        methods: dict[str, Any] = {
            method.path: grpc.unary_unary_rpc_method_handler(self._answering(method, answer))
            for method, answer in one_to_one
        }
        methods[wire.LEASE_KEEP_ALIVE.path] = grpc.stream_stream_rpc_method_handler(self._keep_alive)
        methods[wire.WATCH.path] = grpc.stream_stream_rpc_method_handler(self._watch)
        services: dict[str, dict[str, Any]] = {}
        for path, handler in methods.items():
            _, service, name = path.split("/")
            services.setdefault(service, {})[name] = handler
        return tuple(grpc.method_handlers_generic_handler(service, named) for service, named in services.items())

    def _authenticate(self, request: wire.AuthenticateRequest) -> wire.AuthenticateResponse:
        return self._guard.authenticate(request, self._header(self._store.revision))

    def _status(self, _: wire.StatusRequest) -> wire.StatusResponse:
        revision = self._store.revision
        return wire.StatusResponse(
            self._header(revision), VERSION, self._store.size(), leader=self._id, raft_index=revision, raft_term=1
        )

    def _member_list(self, _: wire.MemberListRequest) -> wire.MemberListResponse:
        us = wire.Member(self._id, "meshrun", (), (f"http://{join_address(self.host, self.port)}",))
        return wire.MemberListResponse(self._header(self._store.revision), (us,))

    # Between gRPC and the services

    def _answering(
        self, method: wire.Method[Any, Any], answer: Callable[[Any], Any]
    ) -> Callable[[bytes, _Context], Awaitable[bytes]]:
        async def handle(question: bytes, context: _Context) -> bytes:
            refusal = self._refusal(context) if method is not wire.AUTHENTICATE else None
            if refusal is None:
                reply = self._answer(method, answer, question)
                if isinstance(reply, bytes):
                    return reply
                refusal = reply
            await _abort(context, refusal)
            return b""  # never: the line before raises

        return handle

    def _refusal(self, context: _Context) -> Refusal | None:
        """Why this call is not admitted, if it is not."""
        shown = next((str(value) for name, value in context.invocation_metadata() or () if name == "token"), None)
        try:
            self._guard.admit(shown)
        except Refused as refused:
            return refused.refusal
        return None

    def _answer(self, method: wire.Method[Any, Any], answer: Callable[[Any], Any], question: bytes) -> bytes | Refusal:
        if len(question) > REQUEST_BYTES_MAX:
            return refusals.TOO_LARGE
        self._notice_absence()
        try:
            return encode(answer(decode(method.question, question)))
        except Refused as refused:
            return refused.refusal
        except StoreError as error:
            return refusal_of(error)
        except WireError as error:
            return Refusal("INVALID_ARGUMENT", f"meshrun: {error}")
        finally:
            self._store.deliver()

    async def _keep_alive(self, _: object, context: _Context) -> None:
        refusal = self._refusal(context)
        if refusal is not None:
            await _abort(context, refusal)
        task = asyncio.current_task()
        assert task is not None
        try:
            while not self._stop.is_set():
                self._listening.add(task)
                question = await context.read()
                self._listening.discard(task)
                if question is grpc.aio.EOF:
                    return
                reply = self._answer(wire.LEASE_KEEP_ALIVE, self._leases.keep_alive, question)
                if not isinstance(reply, bytes):
                    await _abort(context, reply)
                    return
                await context.write(reply)
        except asyncio.CancelledError:
            if not self._stop.is_set():
                raise  # the client is gone
        finally:
            self._listening.discard(task)
        await _abort(context, refusals.STOPPED)

    async def _watch(self, _: object, context: _Context) -> None:
        refusal = self._refusal(context)
        if refusal is not None:
            await _abort(context, refusal)
        woken = asyncio.Event()
        stream = WatchStream(self._watches, woken.set)
        self._streams.add(stream)
        reading = asyncio.create_task(self._read_watch(stream, context))
        try:
            while stream.ended is None:
                message = stream.next()
                if message is not None:
                    await context.write(message)
                else:
                    woken.clear()
                    await woken.wait()
            await _abort(context, stream.ended)
        finally:
            reading.cancel()
            self._streams.discard(stream)
            stream.end(refusals.STOPPED)

    async def _read_watch(self, stream: WatchStream, context: _Context) -> None:
        while (question := await context.read()) is not grpc.aio.EOF:
            try:
                stream.take(decode(wire.WatchRequest, question))
            except WireError as error:
                stream.end(Refusal("INVALID_ARGUMENT", f"meshrun: {error}"))
            except StoreError as error:
                stream.end(refusal_of(error))
            self._store.deliver()


async def _abort(context: _Context, refusal: Refusal) -> None:
    await context.abort(grpc.StatusCode[refusal.code], refusal.words)
