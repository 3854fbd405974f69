"""Presence: connections between agents that show within milliseconds what a lease shows within seconds.

A lease shows that a member has been silent for too long. A connection shows more: when a process ends, for whatever
reason, its kernel ends its connections at once, and refuses new ones when no process holds the listener any more. Every
agent listens, and keeps one connection to the leader. The listener is bound before keeper and supervisor are forked and
is held by them and by the workers, and the keeper ends last: refused dials prove that not only the agent is gone but
all that its workers have started, so their ranks can be given to others at once. Silence proves nothing, and is
reported as silence.

Calls go in, events come out, and nothing here waits for the network: all connections of one agent are in one thread
that waits for all of them at once. handshake.py authenticates two agents to each other, connection.py is one
connection, dial_attempt.py decides when to dial and what a refusal proves, dialer.py dials.

A connection whose handshake is not complete is unauthenticated. These are few and short-lived, whatever they send, and
no events are made of them. Once both sides have completed the handshake, the member is up; it is down when its last
connection has ended. There may be two, since either side may dial; the newest of each direction is kept.

A connection that has carried nothing for a third of `silence_s` gets a heartbeat. Silence is measured up to when the
thread last read, so an agent that was frozen itself does not take the others for silent.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import selectors
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterable

from rendezvous.errors import SettingsError
from rendezvous.events import ConnectTo, Event, PeerDown, PeerGone, PeerMessage, PeerUp, SendToPeer, SetIdentity
from rendezvous.peers.connection import BYE, HEARTBEAT, ConnectionEnd, PeerConnection, find_dial_failure
from rendezvous.peers.dialer import Dialer
from rendezvous.peers.handshake import NONCE_BYTES, Handshake, HandshakeError, PeerIdentity
from rendezvous.stores.addresses import split_address
from rendezvous.stores.listeners import limit_connections

BACKLOG = 4096  # all members of a large job dial a new leader at once; the kernel has a limit of its own
CLOSE_LIMIT_S = 1.0
UNAUTHENTICATED_MAX = 2048
"""All members of a large job may dial a new leader at once. Beyond this the oldest unauthenticated connection is ended:
a handshake takes one round trip, so it is hardly a member's. A process that may have few descriptors has fewer of them
(`limit_connections`)."""
HANDSHAKE_LIMIT_S = 3.0
DIAL_LIMIT_S = 3.0
"""Long enough for one lost packet, which the kernel retransmits after a second."""
ACCEPTS_PER_TURN = 128  # accepted in one turn of the loop
HEARTBEATS_PER_SILENCE = 3


def bind(host: str, ports: Iterable[int]) -> socket.socket:
    """Return a listening socket on the first free one of these ports of `host`; port 0 is any.

    Raises OSError of the last port that was tried.
    """
    failure = OSError("no port to listen on was given")
    # Unused ports first. Then those where the kernel still remembers connections, for an agent that was restarted; it
    # cannot tell them from a port that is reserved for the rank 0 of another job.
    for is_reused, port in itertools.product((False, True), ports):
        listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, is_reused)
            listener.bind((host, port))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, True)  # inherited by its connections
            listener.listen(BACKLOG)
        except OSError as error:
            listener.close()
            failure = error
        else:
            return listener
    raise failure


class PeerConnections:
    """The connections of one agent. Methods may be called from any thread and return at once.

    `listener` is listening and is still held by the caller: agent, keeper, supervisor and workers. `address` is
    HOST:PORT by which others reach it. With a `secret` only agents that know it are authenticated. `submit` is called
    from the thread of the connections with PeerUp, PeerDown, PeerGone and PeerMessage. `silence_s`: how long nothing
    may arrive until a connection counts as silent.

    Each PeerUp is followed by one PeerDown before the next, unless it reports that the member has become provable.
    """

    def __init__(
        self,
        *,
        listener: socket.socket,
        address: str,
        secret: bytes,
        submit: Callable[[Event], None],
        clock: Callable[[], float],
        silence_s: float,
    ) -> None:
        split_address(address)
        self._listener = listener
        self.address = address
        self._secret = secret
        self._submit = submit
        self._clock = clock
        self._silence_s = silence_s
        self._tick_s = min(max(silence_s / 12, 0.02), 0.5)
        self._sweep_at = 0.0
        self._own: PeerIdentity | None = None
        self._unauthenticated: dict[PeerConnection, None] = {}  # oldest first
        self._unauthenticated_max = limit_connections(UNAUTHENTICATED_MAX)
        self._members: dict[str, list[PeerConnection]] = {}  # newest last, never empty
        self._dialer = Dialer(
            address,
            on_dial=self._take_dial,
            report_gone=lambda member_id: submit(PeerGone(member_id)),
            call_soon=self._call_soon,
            clock=clock,
        )
        self._queued_calls: deque[tuple[Callable[..., None], tuple[object, ...]]] = deque()
        self._is_stopped = False
        self._wakeup, self._alarm = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._is_closed = False
        self._closing = threading.Lock()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wakeup, selectors.EVENT_READ)
        self._thread: threading.Thread | None = None

    # --- calls from any thread ---

    def carry_out(self, action: SetIdentity | ConnectTo | SendToPeer) -> None:
        """Carry out an action of the machine, the first of which is to be a member.

        Under a new identity connections under the old one are ended. Proofs about others go on whoever is connected. A
        text is lost if there is no connection or the member does not read.
        """
        self._call_soon(self._carry_out, action)
        if self._thread is None and isinstance(action, SetIdentity):
            thread = threading.Thread(target=self._run, name="presence", daemon=True)
            thread.start()  # raises where the machine has no more
            self._thread = thread

    def close(self) -> None:
        """End all connections without a farewell, so that others may prove that no process is left."""
        self._call_soon(self._stop)
        if self._thread is not None:
            with contextlib.suppress(RuntimeError):  # called from the thread itself
                self._thread.join(CLOSE_LIMIT_S)
        else:
            self._close_all()

    def _call_soon(self, call: Callable[..., None], *arguments: object) -> None:
        """Have the thread call a method; without effect after the end."""
        self._queued_calls.append((call, arguments))
        with self._closing, contextlib.suppress(BlockingIOError):  # the pipe is full: it is woken already
            if not self._is_closed:
                os.write(self._alarm, b"\0")

    # --- what the thread is called for ---

    def _carry_out(self, action: SetIdentity | ConnectTo | SendToPeer) -> None:
        match action:
            case SetIdentity(job, member_id):
                self._set_identity(PeerIdentity(job, member_id, self.address))
            case ConnectTo(member_id, address):
                if (replaced := self._dialer.connect_to(member_id, address)) is not None:
                    self._disconnect(replaced)
            case SendToPeer(member_id, text):
                if group := self._members.get(member_id):
                    self._send(group[-1], ["tell", text])

    def _set_identity(self, own: PeerIdentity) -> None:
        if own == self._own:
            return
        self._own = own
        self._dialer.stop_proving()
        for connection in self._list_connections():
            self._disconnect(connection)

    def _stop(self) -> None:
        self._is_stopped = True

    # --- the loop ---

    def _run(self) -> None:
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        try:
            while True:
                while self._queued_calls and not self._is_stopped:
                    call, arguments = self._queued_calls.popleft()
                    call(*arguments)
                if self._is_stopped:
                    return
                selected_at = self._clock()
                wake_at = min(self._sweep_at, self._dialer.next_at)
                for key, mask in self._selector.select(max(0.0, wake_at - selected_at)):
                    if isinstance(key.data, PeerConnection):
                        self._serve(key.data, mask)
                    elif key.fd == self._wakeup:
                        os.read(self._wakeup, 4096)
                    else:
                        self._accept()
                self._sweep(selected_at)
                self._dialer.dial()
        finally:
            self._close_all()

    def _close_all(self) -> None:
        self._is_stopped = True
        for connection in self._list_connections():
            connection.sock.close()
        self._selector.close()
        with self._closing:
            if not self._is_closed:
                self._is_closed = True
                os.close(self._alarm)
                os.close(self._wakeup)

    def _list_connections(self) -> list[PeerConnection]:
        groups = (connection for group in self._members.values() for connection in group)
        return list({*self._unauthenticated, *self._dialer.under_way, *groups})

    def _accept(self) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                return
            except ConnectionError:  # ended before it was accepted
                continue
            except OSError:  # too many open files: the others wait in the kernel's queue
                self._selector.unregister(self._listener)
                self._sweep_at = min(self._sweep_at, self._clock() + self._tick_s)
                return
            if len(self._unauthenticated) >= self._unauthenticated_max:
                self._end(next(iter(self._unauthenticated)), ConnectionEnd.OURS)
            connection = PeerConnection(sock, expected="", now=self._clock())
            self._unauthenticated[connection] = None
            self._selector.register(sock, selectors.EVENT_READ, connection)

    def _sweep(self, now: float) -> None:
        """Send heartbeats, end connections that have timed out, and accept again after a shortage of descriptors."""
        if now < self._sweep_at:
            return
        if self._listener not in self._selector.get_map():
            self._selector.register(self._listener, selectors.EVENT_READ)
        # Due times only move later, and a connection that begins from now on is not due before the last of these.
        interval_s = self._silence_s / HEARTBEATS_PER_SILENCE
        next_at = now + min(interval_s, DIAL_LIMIT_S, HANDSHAKE_LIMIT_S)
        for connection in self._list_connections():
            if connection.peer is None:
                due_at = connection.opened_at + (DIAL_LIMIT_S if connection.expected else HANDSHAKE_LIMIT_S)
                if now > due_at:
                    self._end(connection, ConnectionEnd.OURS)
            elif now - connection.heard_at > self._silence_s:
                self._end(connection, ConnectionEnd.OURS)
            else:
                if now - connection.sent_at >= interval_s:
                    self._send(connection, HEARTBEAT)
                due_at = min(connection.heard_at + self._silence_s, connection.sent_at + interval_s)
            if not connection.is_over:
                next_at = min(next_at, due_at)
        self._sweep_at = max(next_at, now + self._tick_s)

    # --- one connection ---

    def _take_dial(self, connection: PeerConnection, ending: ConnectionEnd | None) -> None:
        self._selector.register(connection.sock, selectors.EVENT_WRITE, connection)
        if ending is not None:
            self._end(connection, ending)

    def _serve(self, connection: PeerConnection, mask: int) -> None:
        if connection.is_over:
            return  # ended while another connection was served
        ending = None
        if connection.is_connecting:
            ending = find_dial_failure(connection.sock)
            if ending is None:
                connection.is_connecting = False
                self._begin_handshake(connection)
        elif mask & selectors.EVENT_WRITE:
            ending = connection.flush()
        messages: list[list[object]] = []
        if ending is None and mask & selectors.EVENT_READ:
            messages, ending = connection.receive(self._clock())
        for message in messages:
            if not connection.is_over:
                self._take(connection, message)
        if ending is not None:
            self._end(connection, ending)
        elif not connection.is_over:
            self._watch(connection)

    def _begin_handshake(self, connection: PeerConnection) -> Handshake:
        assert self._own is not None
        nonce = os.urandom(NONCE_BYTES)
        handshake = Handshake(self._own, expected=connection.expected, secret=self._secret, nonce=nonce)
        connection.handshake = handshake
        for message in handshake.open():
            self._send(connection, message)
        return handshake

    def _take(self, connection: PeerConnection, message: list[object]) -> None:
        if connection.peer is None:
            self._continue_handshake(connection, connection.handshake or self._begin_handshake(connection), message)
            return
        match message:
            case ["tell", str(text)]:
                self._submit(PeerMessage(connection.peer.member_id, text))
            case ["bye"]:
                self._end(connection, ConnectionEnd.FAREWELL)
            case _:  # a heartbeat
                pass

    def _continue_handshake(self, connection: PeerConnection, handshake: Handshake, message: list[object]) -> None:
        try:
            answers = handshake.take(message)
        except HandshakeError:
            self._end(connection, ConnectionEnd.OURS)
            return
        for answer in answers:
            self._send(connection, answer)
        if handshake.is_done and not connection.is_over:
            self._arrive(connection, handshake.peer)

    def _arrive(self, connection: PeerConnection, peer: PeerIdentity) -> None:
        """Register a connection whose handshake is complete on both sides."""
        self._unauthenticated.pop(connection, None)
        connection.peer, connection.handshake = peer, None
        connection.is_provable, unneeded = self._dialer.handle_arrival(connection, peer.member_id, peer.address)
        if not connection.expected:
            with contextlib.suppress(SettingsError):
                connection.is_provable = connection.comes_from(split_address(peer.address)[0])
        group = self._members.setdefault(peer.member_id, [])
        was_up, was_provable = bool(group), any(other.is_provable for other in group)
        for other in [other for other in group if other.expected == connection.expected]:
            group.remove(other)
            self._hang_up(other)
        group.append(connection)
        if unneeded is not None:
            self._disconnect(unneeded)  # it was dialled for a proof
        if not was_up or (connection.is_provable and not was_provable):
            self._submit(PeerUp(peer.member_id, peer.address, connection.is_provable))

    def _disconnect(self, connection: PeerConnection) -> None:
        """End a connection with a farewell, so that the peer does not take it for the end of this agent."""
        if connection.peer is not None:
            connection.send(BYE, self._clock())
        self._end(connection, ConnectionEnd.OURS)

    def _end(self, connection: PeerConnection, ending: ConnectionEnd) -> None:
        """End a connection, report it, and seek a proof of death if its peer's kernel has ended it."""
        if connection.is_over:
            return
        self._hang_up(connection)
        self._unauthenticated.pop(connection, None)
        if connection.expected:
            self._dialer.handle_end(connection, ending)
        peer = connection.peer
        if peer is not None:
            group = self._members[peer.member_id]
            group.remove(connection)
            if not group:
                del self._members[peer.member_id]
                self._submit(PeerDown(peer.member_id))
                if ending is ConnectionEnd.PEER and connection.is_provable:
                    self._dialer.prove(peer.member_id, peer.address)

    def _hang_up(self, connection: PeerConnection) -> None:
        self._selector.unregister(connection.sock)
        connection.sock.close()

    def _send(self, connection: PeerConnection, message: list[object]) -> None:
        ending = connection.send(message, self._clock())
        if ending is not None:
            self._end(connection, ending)
        else:
            self._watch(connection)

    def _watch(self, connection: PeerConnection) -> None:
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.is_waiting else 0)
        if self._selector.get_key(connection.sock).events != events:
            self._selector.modify(connection.sock, events, connection)
