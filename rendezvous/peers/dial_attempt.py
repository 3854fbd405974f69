"""When to dial a member, and what refused dials prove: a machine without sockets.

There are two reasons to dial. The member that is *attended* gets a connection, soon at first and then less often.
And after the kernel of a member's host has ended a connection, a *proof* is sought: the listener is held by keeper,
supervisor and workers, so as long as one of them lives a dial is answered, or at least taken, and when all are gone it
is refused. Two refusals in a row prove it. A dial that is taken and then hears nothing proves nothing, and neither
does one that never arrives.
"""

from __future__ import annotations

import math

from rendezvous.peers.resolve import Target

PROOF_INTERVAL_S = 0.02
PROOF_DELAY_MAX_S = 0.5
"""Somebody else answers at that address: no proof will come of it, so the dials become rarer."""
PROOF_REFUSALS = 2
PROOF_LIMIT_S = 30.0
"""By then the lease has long decided, and it would be a strange host that has not ended the processes."""
DELAY_FIRST_S = 0.02
DELAY_MAX_S = 1.0
"""A thousand members that dial a leader who does not answer are then a thousand dials in a second."""
REJECTED_DELAY_MAX_S = 4.0
"""Something listens there and does not belong to the job: without a job secret, whoever may write to the store can name
any address. Shorter than the 5 s (two of the shortest leases) for which the leader itself may be out of reach."""


class DialAttempt:
    """Of one member. `next_at` is when to dial, infinite while a dial is under way or none is wanted."""

    def __init__(self, member_id: str, address: str) -> None:
        self.member_id = member_id
        self.address = address
        self.targets: list[Target] = []  # what the name stands for, the one to dial first
        self.next_at = math.inf
        self.is_connecting = False
        self.is_source_open = False  # whether the kernel chooses the address that we dial from
        self._proving_until = -math.inf
        self._refusals = 0
        self.delay_s = 0.0  # from the last dial that came to nothing to the next

    @property
    def is_proving(self) -> bool:
        return self._proving_until > -math.inf

    @property
    def is_wanted(self) -> bool:
        return self.is_connecting or self.is_proving

    def connect(self, at: float, delay_s: float = 0.0) -> None:
        """Keep a connection to the member from then on; `delay_s`: to go on from where others were rejected."""
        self.is_connecting = True
        self.delay_s = delay_s
        self.next_at = min(self.next_at, at)

    def prove(self, now: float) -> None:
        """The member's host has ended the connection: find out whether anybody is left."""
        self._proving_until = now + PROOF_LIMIT_S
        self._refusals = 0
        self.delay_s = 0.0
        self.next_at = now

    def stop_proving(self) -> None:
        self._proving_until = -math.inf
        if not self.is_connecting:
            self.next_at = math.inf

    def succeed(self) -> None:
        """The member is there."""
        self.delay_s = 0.0
        self._proving_until = -math.inf
        self.next_at = math.inf

    def fail(self, now: float, *, is_refused: bool, is_rejected: bool = False) -> bool:
        """A dial has come to nothing; whether the proof is complete. `is_rejected`: it was taken, but not greeted."""
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
                self.targets = []  # a name may stand for something else by now
        else:
            self.next_at = math.inf
        return is_proven

    def _back_off(self, delay_max_s: float) -> float:
        self.delay_s = min(max(2 * self.delay_s, DELAY_FIRST_S), delay_max_s)
        return self.delay_s
