"""Dialling: which members are pursued, and how a dial is begun. Whether it succeeds is the switchboard's to see.

A dial goes out from the address at which this agent listens. So the other side sees that address, and may believe
a refusal there later. Where that cannot be routed, every other dial leaves the choice to the kernel.
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
from collections.abc import Callable
from errno import EINPROGRESS
from itertools import islice

from rendezvous.errors import SettingsError
from rendezvous.peers.connection import ConnectionEnd, PeerConnection, explain_error
from rendezvous.peers.dial_attempt import DialAttempt
from rendezvous.peers.resolve import Target, resolve
from rendezvous.stores.addresses import split_address

DIALS_PER_TURN = 128  # begun in one turn of the loop
LOOK_UPS_MAX = 8  # names that are looked up at once, each by a thread that may take half a minute
_NO_PORT_YET = 24  # IP_BIND_ADDRESS_NO_PORT: the kernel chooses the source port when it knows the destination


class Dialer:
    """Used by the switchboard in its thread. `address`: where this agent listens.

    `take` is given each dial as a connection, and what ended it if it has failed already. `tell_proven` is called
    with the member that is proven gone, `order` as the switchboard's.
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
        self._rejected_at, self._rejected_delay_s = -math.inf, 0.0  # the last attended member that was rejected

    @property
    def next_at(self) -> float:
        return min((pursuit.next_at for pursuit in self._attempts.values()), default=math.inf)

    @property
    def under_way(self) -> list[PeerConnection]:
        """Dials that have not been answered yet, and connections that came of one."""
        return list(self._under_way.values())

    def connect_to(self, member_id: str, address: str) -> PeerConnection | None:
        """Pursue this member and leave the one attended before; the connection to be given up, if there is one."""
        left = None
        old = self._attempts.get(self._wanted_id)
        if old is not None and (old.member_id, old.address) != (member_id, address):
            left = self._under_way.pop(old.member_id, None)
            del self._attempts[old.member_id]
        self._wanted_id = member_id
        if member_id:
            pursuit = self._attempts.get(member_id)
            if pursuit is None or pursuit.address != address:
                pursuit = self._attempts[member_id] = DialAttempt(member_id, address)
            if not pursuit.is_connecting:
                self._begin_connecting(pursuit)
                if member_id in self._under_way:
                    pursuit.next_at = math.inf
        return left

    def _begin_connecting(self, attempt: DialAttempt) -> None:
        """Dial at once, unless the member attended before was rejected a moment ago.

        A leader's record that is replaced again and again gets no more dials than one that stays.
        """
        now, at = self._clock(), self._rejected_at + self._rejected_delay_s
        if now <= at + self._rejected_delay_s:
            attempt.connect(max(now, at), self._rejected_delay_s)
        else:
            attempt.connect(now)

    def prove(self, member_id: str, address: str) -> None:
        """The kernel of that member's host has ended its last connection."""
        pursuit = self._attempts.setdefault(member_id, DialAttempt(member_id, address))
        pursuit.prove(self._clock())
        if member_id in self._under_way:
            pursuit.next_at = math.inf

    def stop_proving(self) -> None:
        for pursuit in list(self._attempts.values()):
            pursuit.stop_proving()
            self._forget(pursuit)

    def dial(self) -> None:
        """Begin the dials that are due."""
        now = self._clock()
        due = [pursuit for pursuit in self._attempts.values() if pursuit.next_at <= now]
        for pursuit in islice(due, DIALS_PER_TURN):
            pursuit.next_at = math.inf
            if pursuit.targets:
                self._begin(pursuit)
            else:
                self._look_up(pursuit)

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
        family, place = attempt.targets[0]
        try:
            end = socket.socket(family, socket.SOCK_STREAM)
        except OSError:  # too many open files
            self._fail(attempt, is_refused=False)
            return
        connection = PeerConnection(end, expected=attempt.member_id, now=self._clock())
        connection.is_connecting = True
        if not attempt.is_source_open:
            with contextlib.suppress(OSError, SettingsError):
                end.setsockopt(socket.IPPROTO_IP, _NO_PORT_YET, 1)
                end.bind((split_address(self._address)[0], 0))
        self._under_way[attempt.member_id] = connection
        number = end.connect_ex(place)
        is_begun = number in (0, EINPROGRESS)
        self._on_dial(connection, None if is_begun else explain_error(OSError(number, os.strerror(number))))

    def handle_end(self, connection: PeerConnection, ending: ConnectionEnd) -> None:
        """A connection that was dialled is over, or was never answered."""
        member_id = connection.expected
        if self._under_way.get(member_id) is not connection:
            return
        del self._under_way[member_id]
        pursuit = self._attempts.get(member_id)
        if pursuit is not None and connection.peer is None:
            is_refused = connection.is_connecting and ending.is_refusal
            self._fail(pursuit, is_refused=is_refused, is_rejected=not connection.is_connecting)
        elif pursuit is not None and pursuit.is_connecting:
            pursuit.next_at = min(pursuit.next_at, self._clock())

    def handle_arrival(
        self, connection: PeerConnection, member_id: str, address: str
    ) -> tuple[bool, PeerConnection | None]:
        """A member is up. Whether a dial proves where it listens, and a connection that is not needed any more."""
        pursuit = self._attempts.get(member_id)
        dialled = self._under_way.get(member_id)
        if dialled is connection:
            if pursuit is None:
                return False, None
            pursuit.succeed()
            self._forget(pursuit)
            return pursuit.address == address, None
        if pursuit is not None:
            pursuit.stop_proving()
            if dialled is None and pursuit.is_connecting:
                pursuit.next_at = min(pursuit.next_at, self._clock())
            self._forget(pursuit)
            if pursuit.is_connecting:
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
        """Drop a pursuit that has no reason any more."""
        if not attempt.is_wanted:
            self._attempts.pop(attempt.member_id, None)
