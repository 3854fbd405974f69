"""What many simulated agents of one process share: one client of etcd, and one thread for all their connections.

A real agent has a machine to itself. A thousand of them on two cores would measure how cores take turns between ten
thousand threads. So agents here share what belongs to a machine, and nothing that belongs to the agreement:

- the gRPC channel: each agent's requests are its own, but they travel over one connection per process;
- the streams of watches: each agent has its own watches, etcd sends each event once per watch, but WATCHES_PER_STREAM
  of them are told over one stream;
- the thread that waits for presence connections: each agent has its own listener and its own connection to the leader,
  greets, beats and proves as in production, by the same code.

Nobody dials an agent here before it leads. When it does, its listener is given to presence as it is in production.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

import grpc

from rendezvous.errors import Compacted, StoreError
from rendezvous.events import Event as ProtocolEvent
from rendezvous.events import PeerDown, PeerGone, PeerMessage, PeerUp
from rendezvous.peers.connection import BYE, HEARTBEAT, ConnectionEnd, PeerConnection, find_dial_failure
from rendezvous.peers.connections import PeerConnections
from rendezvous.peers.dialer import Dialer
from rendezvous.peers.handshake import NONCE_BYTES, Handshake, HandshakeError, PeerIdentity
from rendezvous.stores import wire
from rendezvous.stores.contract import Batch, KeyEvent, Watch
from rendezvous.stores.etcd.store import EtcdStore
from rendezvous.stores.etcd.watch import decode_item
from rendezvous.stores.protobuf import decode, encode

WATCHES_PER_STREAM = 200
BEATS_PER_SILENCE = 3  # as the switchboard's


# --- watches ---


class SharedStore(EtcdStore):
    """A client whose watches share streams."""

    def __init__(self, endpoint: str, call_limit_s: float) -> None:
        super().__init__([endpoint], call_limit_s=call_limit_s)
        options = (("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1))
        self._channel = grpc.insecure_channel(endpoint, options)
        self._streams: list[_Stream] = []
        self._adding = threading.Lock()

    def watch(
        self,
        key: str,
        *,
        prefix: bool = False,
        start_revision: int,
        on_batch: Callable[[Batch], None],
        on_lost: Callable[[StoreError], None],
    ) -> Watch:
        """As the contract has it; a stream that breaks loses its watches, which production would open again."""
        with self._adding:
            if not self._streams or self._streams[-1].count >= WATCHES_PER_STREAM:
                self._streams.append(_Stream(self._channel))
            return self._streams[-1].add(key, prefix, start_revision, on_batch, on_lost)


class _SharedWatch(Watch):
    def __init__(
        self,
        stream: _Stream,
        number: int,
        on_batch: Callable[[Batch], None],
        on_lost: Callable[[StoreError], None],
    ) -> None:
        self._stream = stream
        self.number = number
        self.on_batch = on_batch
        self.on_lost = on_lost

    def cancel(self) -> None:
        self._stream.remove(self.number)


class _Stream:
    """One stream of etcd's and the watches that it carries, each under a number of ours."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._questions: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._numbers = itertools.count(1)
        self._watches: dict[int, _SharedWatch] = {}
        questions: Iterator[bytes] = iter(self._questions.get, b"")
        watch: grpc.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(wire.WATCH.path)
        self._answers = watch(questions, metadata=(("hasleader", "true"),))
        threading.Thread(target=self._run, daemon=True).start()

    @property
    def count(self) -> int:
        return len(self._watches)

    def add(
        self,
        key: str,
        prefix: bool,
        start_revision: int,
        on_batch: Callable[[Batch], None],
        on_lost: Callable[[StoreError], None],
    ) -> Watch:
        number, start = next(self._numbers), key.encode()
        end = start[:-1] + bytes((start[-1] + 1,)) if prefix else b""
        watch = self._watches[number] = _SharedWatch(self, number, on_batch, on_lost)
        question = wire.WatchCreateRequest(start, end, start_revision, progress_notify=True, watch_id=number)
        self._questions.put(encode(wire.WatchRequest(create_request=question)))
        return watch

    def remove(self, number: int) -> None:
        if self._watches.pop(number, None) is not None:
            self._questions.put(encode(wire.WatchRequest(cancel_request=wire.WatchCancelRequest(number))))

    def _run(self) -> None:
        for data in self._answers:
            answer = decode(wire.WatchResponse, data)
            watch = self._watches.get(answer.watch_id)
            if watch is None or answer.created:
                continue
            if answer.canceled:
                del self._watches[answer.watch_id]
                lost = Compacted(answer.compact_revision) if answer.compact_revision else None
                watch.on_lost(lost or StoreError(answer.cancel_reason))
                continue
            events = [KeyEvent("delete" if e.type == wire.DELETE else "put", decode_item(e.kv)) for e in answer.events]
            for revision, some in itertools.groupby(events, lambda event: event.item.mod_revision):
                watch.on_batch(Batch(revision, tuple(some)))


# --- presence ---


class Crowd:
    """The presence connections of all agents of a process, in one thread."""

    def __init__(self, clock: Callable[[], float], silence_s: float) -> None:
        self.clock = clock
        self.silence_s = silence_s
        self.selector = selectors.DefaultSelector()
        self._orders: deque[tuple[Callable[..., None], tuple[object, ...]]] = deque()
        self._wakeup, self._alarm = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._is_awake = True
        self.selector.register(self._wakeup, selectors.EVENT_READ)
        self.dialling: set[Dialer] = set()  # that may have something to do
        self._connected: deque[tuple[float, CrowdPresence]] = deque()  # whose next beat is due when
        threading.Thread(target=self._run, name="crowd", daemon=True).start()

    def order(self, what: Callable[..., None], *words: object) -> None:
        """Have the thread call it; from any thread."""
        self._orders.append((what, words))
        if not self._is_awake:
            self._is_awake = True
            with contextlib.suppress(BlockingIOError):
                os.write(self._alarm, b"\0")

    def has_connected(self, member: CrowdPresence) -> None:
        self._connected.append((self.clock() + self.silence_s / BEATS_PER_SILENCE, member))

    def _run(self) -> None:
        while True:
            while self._orders:
                what, words = self._orders.popleft()
                what(*words)
            now = self.clock()
            due = min((dialling.next_at for dialling in self.dialling), default=float("inf"))
            if self._connected:
                due = min(due, self._connected[0][0])
            self._is_awake = bool(self._orders)
            for key, mask in self.selector.select(0.0 if self._orders else max(0.0, min(due - now, 1.0))):
                if key.data is not None:
                    key.data[0].serve(key.data[1], mask)
                else:
                    os.read(self._wakeup, 4096)
            self._is_awake = True
            now = self.clock()
            while self._connected and self._connected[0][0] <= now:
                _, member = self._connected.popleft()
                if member.beat(now):
                    self.has_connected(member)
            for dialling in [each for each in self.dialling if each.next_at <= now]:
                dialling.dial()
            self.dialling = {dialling for dialling in self.dialling if dialling.next_at < float("inf")}


class CrowdPresence:
    """One agent's presence, as the driver uses it: connections by production's code, the thread is the crowd's."""

    def __init__(
        self, crowd: Crowd, listener: socket.socket, address: str, submit: Callable[[ProtocolEvent], None]
    ) -> None:
        self._crowd = crowd
        self._listener = listener
        self._address = address
        self._submit = submit
        self._own: PeerIdentity | None = None
        self._connection: PeerConnection | None = None
        self._is_closed = False
        self._leading: PeerConnections | None = None
        self._dialling = Dialer(
            address, on_dial=self._take_dial, report_gone=self._tell_proven, call_soon=crowd.order, clock=crowd.clock
        )

    # --- from the driver ---

    def set_identity(self, job: str, member_id: str) -> None:
        self._crowd.order(self._appear, PeerIdentity(job, member_id, self._address))

    def connect_to(self, member_id: str, address: str) -> None:
        self._crowd.order(self._attend, member_id, address)

    def send(self, member_id: str, text: str) -> None:
        if self._leading is not None:
            self._leading.send(member_id, text)
        else:
            self._crowd.order(self._send, ["tell", text])

    def close(self) -> None:
        """As when the process is killed: the kernel closes everything."""
        self._crowd.order(self._close)

    def lead(self) -> None:
        """This agent leads: from here on its listener is served as in production."""
        if self._leading is None and self._own is not None:
            self._leading = PeerConnections(
                listener=self._listener,
                address=self._address,
                secret=b"",
                submit=self._submit,
                clock=self._crowd.clock,
                silence_s=self._crowd.silence_s,
            )
            self._leading.set_identity(self._own.job, self._own.member_id)

    # --- in the crowd's thread ---

    def _appear(self, own: PeerIdentity) -> None:
        self._own = own
        if self._connection is not None:
            self._end(self._connection, ConnectionEnd(False, "another member"))

    def _attend(self, member_id: str, address: str) -> None:
        left = self._dialling.connect_to(member_id, address)
        if left is not None:
            left.send(BYE, self._crowd.clock())
            self._end(left, ConnectionEnd(False, "it is not needed any more"))
        self._crowd.dialling.add(self._dialling)

    def _tell_proven(self, member_id: str) -> None:
        self._submit(PeerGone(member_id))

    def _close(self) -> None:
        self._is_closed = True
        for connection in self._dialling.under_way:
            self._hang_up(connection)
        self._crowd.dialling.discard(self._dialling)
        self._listener.close()
        if self._leading is not None:
            self._leading.close()

    def _take_dial(self, connection: PeerConnection, ending: ConnectionEnd | None) -> None:
        self._crowd.selector.register(connection.sock, selectors.EVENT_WRITE, (self, connection))
        if ending is not None:
            self._end(connection, ending)

    def serve(self, connection: PeerConnection, mask: int) -> None:
        if connection.is_over or self._is_closed:
            return
        ending: ConnectionEnd | None = None
        if connection.is_connecting:
            ending = find_dial_failure(connection.sock)
            if ending is None:
                connection.is_connecting = False
                assert self._own is not None
                nonce = os.urandom(NONCE_BYTES)
                connection.handshake = Handshake(self._own, expected=connection.expected, secret=b"", nonce=nonce)
                for words in connection.handshake.open():
                    ending = ending or connection.send(words, self._crowd.clock())
        elif mask & selectors.EVENT_READ:
            messages, ending = connection.receive(self._crowd.clock())
            for words in messages:
                ending = ending or self._take(connection, words)
        if ending is None:
            ending = connection.flush()
        if ending is not None:
            self._end(connection, ending)
        elif not connection.is_over:
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.is_waiting else 0)
            if self._crowd.selector.get_key(connection.sock).events != wanted:
                self._crowd.selector.modify(connection.sock, wanted, (self, connection))

    def _take(self, connection: PeerConnection, words: list[object]) -> ConnectionEnd | None:
        if connection.peer is not None:
            match words:
                case ["tell", str(text)]:
                    self._submit(PeerMessage(connection.peer.member_id, text))
                case ["bye"]:
                    return ConnectionEnd(True, "it has said goodbye", is_farewell=True)
            return None
        assert connection.handshake is not None
        try:
            answers = connection.handshake.take(words)
        except HandshakeError as error:
            return ConnectionEnd(False, str(error))
        for answer in answers:
            ending = connection.send(answer, self._crowd.clock())
            if ending is not None:
                return ending
        if connection.handshake.is_done:
            peer = connection.peer = connection.handshake.peer
            connection.is_provable, _ = self._dialling.handle_arrival(connection, peer.member_id, peer.address)
            self._connection = connection
            self._crowd.has_connected(self)
            self._submit(PeerUp(peer.member_id, peer.address, connection.is_provable))
        return None

    def beat(self, now: float) -> bool:
        """Whether there is still a connection that wants beats."""
        connection = self._connection
        if connection is None or self._is_closed:
            return False
        if now - connection.heard_at > self._crowd.silence_s:
            self._end(connection, ConnectionEnd(False, "nothing was heard"))
        elif now - connection.sent_at >= self._crowd.silence_s / BEATS_PER_SILENCE / 2:
            self._send(HEARTBEAT)
        return self._connection is not None

    def _send(self, words: list[object]) -> None:
        if self._connection is not None and not self._is_closed:
            ending = self._connection.send(words, self._crowd.clock())
            if ending is not None:
                self._end(self._connection, ending)

    def _end(self, connection: PeerConnection, ending: ConnectionEnd) -> None:
        if connection.is_over:
            return
        self._hang_up(connection)
        self._dialling.handle_end(connection, ending)
        peer = connection.peer
        if connection is self._connection and peer is not None:
            self._connection = None
            self._submit(PeerDown(peer.member_id, not ending.is_by_peer))
            if ending.is_by_peer and connection.is_provable and not ending.is_farewell:
                self._dialling.prove(peer.member_id, peer.address)
        self._crowd.dialling.add(self._dialling)

    def _hang_up(self, connection: PeerConnection) -> None:
        self._crowd.selector.unregister(connection.sock)
        connection.sock.close()


def boot_time() -> float:
    """One clock for all processes of a machine, the protocol's."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
