"""When to dial a member, and what refused dials prove: a machine without sockets.

There are two reasons to dial. *Connecting*: one member is to have a connection, so it is dialled soon at first and then
less often. *Proving*: the kernel of a member's host has ended a connection. The listener is held by keeper, supervisor
and workers, so as long as one of them lives a dial is answered, or at least accepted, and when all are gone it is
refused. Two refusals in a row prove it. A dial that is accepted but gets no data, or never arrives, proves nothing.
"""

from __future__ import annotations

import math

from msgspec import Struct

Target = tuple[int, tuple[str, int]]
"""A socket family and the address to connect to."""
PROOF_INTERVAL_S = 0.02
PROOF_DELAY_MAX_S = 0.5
"""Another process answers at that address: there will be no proof, so the dials become rarer."""
PROOF_REFUSALS = 2
PROOF_LIMIT_S = 30.0
"""By then the lease has long ended, and a host that has not ended the processes is unlikely to do so."""
DELAY_FIRST_S = 0.02
DELAY_MAX_S = 1.0
"""A thousand members that dial a leader that does not answer make at most a thousand dials per second."""
REJECTED_DELAY_MAX_S = 4.0
"""Another process listens there: without a job secret, anyone who may write to the store can name any address. Shorter
than the 5 s (two of the shortest leases) for which the leader itself may be unreachable."""


class DialAttempt(Struct):
    """The dials of one member. `next_at` is when to dial, infinite while a dial is in progress or none is wanted."""

    member_id: str
    address: str
    targets: list[Target] = []
    """The addresses of the name, the one to dial first."""
    next_at: float = math.inf
    is_connecting: bool = False
    is_source_open: bool = False
    """Whether the kernel chooses the source address."""
    delay_s: float = 0.0
    """From the last failed dial to the next."""
    _proving_until: float = -math.inf
    _refusals: int = 0

    @property
    def is_proving(self) -> bool:
        return self._proving_until > -math.inf

    @property
    def is_wanted(self) -> bool:
        return self.is_connecting or self.is_proving

    def connect(self, at: float, delay_s: float = 0.0) -> None:
        """Keep a connection to the member from `at` on; `delay_s`: the backoff to continue from."""
        self.is_connecting = True
        self.delay_s = delay_s
        self.next_at = min(self.next_at, at)

    def prove(self, now: float) -> None:
        """Seek a proof that the member is gone: its host has ended the connection."""
        self._proving_until = now + PROOF_LIMIT_S
        self._refusals = 0
        self.delay_s = 0.0
        self.next_at = now

    def stop_proving(self) -> None:
        """Give up the proof."""
        self._proving_until = -math.inf
        if not self.is_connecting:
            self.next_at = math.inf

    def succeed(self) -> None:
        """The member has answered."""
        self.delay_s = 0.0
        self._proving_until = -math.inf
        self.next_at = math.inf

    def fail(self, now: float, *, is_refused: bool, is_rejected: bool = False) -> bool:
        """Note a failed dial; return whether the proof is complete. `is_rejected`: accepted, but no handshake."""
        self._refusals = self._refusals + 1 if is_refused else 0
        is_proven = self.is_proving and self._refusals >= PROOF_REFUSALS
        if is_proven or now >= self._proving_until:
            self._proving_until = -math.inf
        if self.is_proving:
            delay_s = self._back_off(PROOF_DELAY_MAX_S)
            self.next_at = now + (PROOF_INTERVAL_S if is_refused else delay_s)
        elif self.is_connecting:
            self.next_at = now + self._back_off(REJECTED_DELAY_MAX_S if is_rejected else DELAY_MAX_S)
            if not is_refused:
                self.is_source_open = not self.is_source_open
                self.targets = []  # the name may have other addresses by now
        else:
            self.next_at = math.inf
        return is_proven

    def _back_off(self, delay_max_s: float) -> float:
        self.delay_s = min(max(2 * self.delay_s, DELAY_FIRST_S), delay_max_s)
        return self.delay_s
