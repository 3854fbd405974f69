"""The dialer: which members are dialled, and how a dial is begun. The connection loop sees whether it succeeds.

A dial goes out from the address at which this agent listens, so the other side sees that address, and may believe a
refusal there later. Where that cannot be routed, every other dial leaves the choice to the kernel.
"""

from __future__ import annotations

import contextlib
import math
import socket
import threading
from collections.abc import Callable
from errno import EINPROGRESS
from itertools import islice

from rendezvous.errors import SettingsError
from rendezvous.peers.connection import ConnectionEnd, PeerConnection, explain_error
from rendezvous.peers.dial_attempt import DialAttempt, Target
from rendezvous.stores.addresses import resolve_host, split_address

DIALS_PER_TURN = 128  # begun in one turn of the loop
LOOK_UPS_MAX = 8  # names that are resolved at once, each by a thread that may take half a minute
_NO_PORT_YET = 24  # IP_BIND_ADDRESS_NO_PORT: the kernel chooses the source port when it knows the destination


class Dialer:
    """Used by the connection loop in its thread. `address`: where this agent listens.

    `on_dial` gets each dial as a connection, and its end if it has failed already. `report_gone` is called with a
    member that is proven gone; `call_soon` is the connection loop's.
    """

    def __init__(
        self,
        address: str,
        *,
        on_dial: Callable[[PeerConnection, ConnectionEnd | None], None],
        report_gone: Callable[[str], None],
        call_soon: Callable[..., None],
        clock: Callable[[], float],
    ) -> None:
        self._address = address
        self._on_dial = on_dial
        self._report_gone = report_gone
        self._call_soon = call_soon
        self._clock = clock
        self._attempts: dict[str, DialAttempt] = {}
        self._wanted_id = ""
        self._under_way: dict[str, PeerConnection] = {}
        self._look_up_count = 0
        self._rejected_at, self._rejected_delay_s = -math.inf, 0.0  # of the last wanted member that was rejected

    @property
    def next_at(self) -> float:
        """When the next dial is due; infinite if none is."""
        return min((attempt.next_at for attempt in self._attempts.values()), default=math.inf)

    @property
    def under_way(self) -> list[PeerConnection]:
        """Dials in progress, and the connections that were made by one."""
        return list(self._under_way.values())

    def connect_to(self, member_id: str, address: str) -> PeerConnection | None:
        """Connect to this member instead of the last one; return the connection to be given up, if there is one."""
        replaced = None
        old = self._attempts.get(self._wanted_id)
        if old is not None and (old.member_id, old.address) != (member_id, address):
            replaced = self._under_way.pop(old.member_id, None)
            del self._attempts[old.member_id]
        self._wanted_id = member_id
        if member_id:
            attempt = self._attempts.get(member_id)
            if attempt is None or attempt.address != address:
                attempt = self._attempts[member_id] = DialAttempt(member_id, address)
            if not attempt.is_connecting:
                self._begin_connecting(attempt)
                if member_id in self._under_way:
                    attempt.next_at = math.inf
        return replaced

    def _begin_connecting(self, attempt: DialAttempt) -> None:
        """Dial at once, unless the last wanted member was rejected a moment ago.

        A leader record that is replaced repeatedly causes no more dials than one that stays.
        """
        now, earliest_at = self._clock(), self._rejected_at + self._rejected_delay_s
        if now <= earliest_at + self._rejected_delay_s:
            attempt.connect(max(now, earliest_at), self._rejected_delay_s)
        else:
            attempt.connect(now)

    def prove(self, member_id: str, address: str) -> None:
        """Seek a proof that this member is gone, because its host's kernel has ended its last connection."""
        attempt = self._attempts.setdefault(member_id, DialAttempt(member_id, address))
        attempt.prove(self._clock())
        if member_id in self._under_way:
            attempt.next_at = math.inf

    def stop_proving(self) -> None:
        """Give up all proofs."""
        for attempt in list(self._attempts.values()):
            attempt.stop_proving()
            self._forget(attempt)

    def dial(self) -> None:
        """Begin the dials that are due."""
        now = self._clock()
        due = [attempt for attempt in self._attempts.values() if attempt.next_at <= now]
        for attempt in islice(due, DIALS_PER_TURN):
            attempt.next_at = math.inf
            if attempt.targets:
                self._begin(attempt)
            else:
                self._look_up(attempt)

    def _look_up(self, attempt: DialAttempt) -> None:
        if self._look_up_count >= LOOK_UPS_MAX:
            self._fail(attempt, is_refused=False)
            return
        self._look_up_count += 1

        def on_targets(targets: list[Target]) -> None:
            self._call_soon(self._take_targets, attempt, targets)

        resolve(attempt.address, on_targets)

    def _take_targets(self, attempt: DialAttempt, targets: list[Target]) -> None:
        self._look_up_count -= 1
        if self._attempts.get(attempt.member_id) is not attempt or attempt.member_id in self._under_way:
            return
        attempt.targets = targets
        if targets:
            self._begin(attempt)
        else:
            self._fail(attempt, is_refused=False)

    def _begin(self, attempt: DialAttempt) -> None:
        family, target = attempt.targets[0]
        try:
            sock = socket.socket(family, socket.SOCK_STREAM)
        except OSError:  # too many open files
            self._fail(attempt, is_refused=False)
            return
        connection = PeerConnection(sock, expected=attempt.member_id, now=self._clock())
        connection.is_connecting = True
        if not attempt.is_source_open:
            with contextlib.suppress(OSError, SettingsError):
                sock.setsockopt(socket.IPPROTO_IP, _NO_PORT_YET, 1)
                sock.bind((split_address(self._address)[0], 0))
        self._under_way[attempt.member_id] = connection
        error_number = sock.connect_ex(target)
        is_begun = error_number in (0, EINPROGRESS)
        self._on_dial(connection, None if is_begun else explain_error(OSError(error_number, "")))

    def handle_end(self, connection: PeerConnection, ending: ConnectionEnd) -> None:
        """Handle the end of a connection that was dialled, or of a dial."""
        member_id = connection.expected
        if self._under_way.get(member_id) is not connection:
            return
        del self._under_way[member_id]
        attempt = self._attempts.get(member_id)
        if attempt is not None and connection.peer is None:
            is_refused = connection.is_connecting and ending is ConnectionEnd.REFUSED
            self._fail(attempt, is_refused=is_refused, is_rejected=not connection.is_connecting)
        elif attempt is not None and attempt.is_connecting:
            attempt.next_at = min(attempt.next_at, self._clock())

    def handle_arrival(
        self, connection: PeerConnection, member_id: str, address: str
    ) -> tuple[bool, PeerConnection | None]:
        """A member is up. Return whether a dial proves where it listens, and a connection that is no longer needed."""
        attempt = self._attempts.get(member_id)
        dialled = self._under_way.get(member_id)
        if dialled is connection:
            if attempt is None:
                return False, None
            attempt.succeed()
            self._forget(attempt)
            return attempt.address == address, None
        if attempt is not None:
            attempt.stop_proving()
            if dialled is None and attempt.is_connecting:
                attempt.next_at = min(attempt.next_at, self._clock())
            self._forget(attempt)
            if attempt.is_connecting:
                return False, None
        return False, dialled

    def _fail(self, attempt: DialAttempt, *, is_refused: bool, is_rejected: bool = False) -> None:
        now = self._clock()
        is_proven = attempt.fail(now, is_refused=is_refused, is_rejected=is_rejected)
        if is_rejected and attempt.is_connecting:
            self._rejected_at, self._rejected_delay_s = now, attempt.delay_s
        self._forget(attempt)
        if is_proven:
            self._report_gone(attempt.member_id)

    def _forget(self, attempt: DialAttempt) -> None:
        """Drop an attempt that is no longer wanted."""
        if not attempt.is_wanted:
            self._attempts.pop(attempt.member_id, None)


def resolve(address: str, on_targets: Callable[[list[Target]], None]) -> None:
    """Call `on_targets` with the addresses of HOST:PORT: at once for an address, later and from a thread for a name.

    A thread, since the system's resolver may take half a minute to fail. The list is empty if there is no such host.
    """
    try:
        host, port = split_address(address)
    except SettingsError:
        on_targets([])
        return
    found = resolve_host(host, port, socket.AI_NUMERICHOST)
    if found:
        on_targets(found)
        return

    def look_up() -> None:
        on_targets(resolve_host(host, port))

    try:
        threading.Thread(target=look_up, name=f"look up {host}", daemon=True).start()
    except RuntimeError:  # the kernel gives no more threads
        on_targets([])
