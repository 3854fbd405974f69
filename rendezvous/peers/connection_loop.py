"""All presence connections of one agent, in one thread that waits for all of them at once.

A connection whose handshake is not complete is unauthenticated. These are few and short-lived, whatever they send, and
no events are made of them. Once both sides have completed the handshake, the member is up; it is down when its last
connection has ended. There may be two, since either side may dial; the newest of each direction is kept.

A connection that has carried nothing for a third of `silence_s` gets a heartbeat. Silence is measured up to when the
thread last read, so an agent that was frozen itself does not take the others for silent.
"""

from __future__ import annotations

import contextlib
import os
import resource
import selectors
import socket
import threading
from collections import deque
from collections.abc import Callable

from rendezvous.errors import SettingsError
from rendezvous.events import Event, PeerDown, PeerGone, PeerMessage, PeerUp
from rendezvous.peers.connection import BYE, HEARTBEAT, ConnectionEnd, PeerConnection, find_dial_failure
from rendezvous.peers.dialer import Dialer
from rendezvous.peers.handshake import NONCE_BYTES, Handshake, HandshakeError, PeerIdentity
from rendezvous.stores.addresses import split_address

UNAUTHENTICATED_MAX = 2048
"""All members of a large job may dial a new leader at once. Beyond this the oldest unauthenticated connection is ended:
a handshake takes one round trip, so it is hardly a member's. They never use more than a quarter of the descriptors of
this process: the agent needs some to start workers and to reach the store."""
HANDSHAKE_LIMIT_S = 3.0
DIAL_LIMIT_S = 3.0
"""Long enough for one lost packet, which the kernel retransmits after a second."""
ACCEPTS_PER_TURN = 128  # accepted in one turn of the loop
HEARTBEATS_PER_SILENCE = 3

NOT_NEEDED = ConnectionEnd(False, "it is not needed any more")


class ConnectionLoop:
    """Use from one thread, but for `call_soon`."""

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
        self._listener = listener
        self._address = address
        self._secret = secret
        self._submit = submit
        self._clock = clock
        self._silence_s = silence_s
        self._tick_s = min(max(silence_s / 12, 0.02), 0.5)
        self._sweep_at = 0.0
        self._own: PeerIdentity | None = None
        self._unauthenticated: dict[PeerConnection, None] = {}  # oldest first
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]  # -1: without a limit
        self._unauthenticated_max = (
            min(UNAUTHENTICATED_MAX, descriptors // 4) if descriptors > 0 else UNAUTHENTICATED_MAX
        )
        self._members: dict[str, list[PeerConnection]] = {}  # newest last, never empty
        self._dialer = Dialer(
            address,
            on_dial=self._take_dial,
            report_gone=lambda member_id: submit(PeerGone(member_id)),
            call_soon=self.call_soon,
            clock=clock,
        )
        self._queued_calls: deque[tuple[Callable[..., None], tuple[object, ...]]] = deque()
        self._is_stopped = False
        self._wakeup, self._alarm = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._is_closed = False
        self._closing = threading.Lock()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wakeup, selectors.EVENT_READ)

    # --- calls ---

    def call_soon(self, call: Callable[..., None], *arguments: object) -> None:
        """Have the thread call one of the methods below; from any thread, and without effect after the end."""
        self._queued_calls.append((call, arguments))
        with self._closing, contextlib.suppress(BlockingIOError):  # the pipe is full: it is woken already
            if not self._is_closed:
                os.write(self._alarm, b"\0")

    def set_identity(self, job: str, member_id: str) -> None:
        own = PeerIdentity(job, member_id, self._address)
        if own == self._own:
            return
        self._own = own
        self._dialer.stop_proving()
        for connection in self._list_connections():
            self._disconnect(connection)

    def connect_to(self, member_id: str, address: str) -> None:
        replaced = self._dialer.connect_to(member_id, address)
        if replaced is not None:
            self._disconnect(replaced)

    def send(self, member_id: str, text: str) -> None:
        group = self._members.get(member_id)
        if group:
            self._send(group[-1], ["tell", text])

    def stop(self) -> None:
        self._is_stopped = True

    # --- the loop ---

    def run(self) -> None:
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
            self.close()

    def close(self) -> None:
        """Close all connections without a farewell."""
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
                self._end(next(iter(self._unauthenticated)), ConnectionEnd(False, "too many have not greeted"))
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
                limit_s = DIAL_LIMIT_S if connection.expected else HANDSHAKE_LIMIT_S
                due_at = connection.opened_at + limit_s
                if now > due_at:
                    self._end(connection, ConnectionEnd(False, f"it has not answered within {limit_s:g} s"))
            elif now - connection.heard_at > self._silence_s:
                self._end(connection, ConnectionEnd(False, f"nothing was heard for {self._silence_s:g} s"))
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
                self._end(connection, ConnectionEnd(True, "it has said goodbye", is_farewell=True))
            case _:  # a heartbeat, or a message of a later version
                pass

    def _continue_handshake(self, connection: PeerConnection, handshake: Handshake, message: list[object]) -> None:
        try:
            answers = handshake.take(message)
        except HandshakeError as error:
            self._end(connection, ConnectionEnd(False, str(error)))
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
        self._end(connection, NOT_NEEDED)

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
                self._submit(PeerDown(peer.member_id, not ending.is_by_peer))
                if ending.is_by_peer and connection.is_provable and not ending.is_farewell:
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
