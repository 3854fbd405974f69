"""The clock of the simulated store, and when each of its leases ends: what a checker holds deadlines against."""

from __future__ import annotations

import math

from rendezvous.testing.simulation.timeline import Timeline


class StoreClock:
    """It stands still while the store is away, unless leases run on."""

    def __init__(self, timeline: Timeline) -> None:
        self.stood_still_s = 0.0  # how far it is behind the timeline
        self._still_since = math.inf
        self._timeline = timeline

    @property
    def is_still(self) -> bool:
        return self._still_since < math.inf

    def read(self) -> float:
        return min(self._timeline.now, self._still_since) - self.stood_still_s

    def stop(self) -> None:
        if not self.is_still:
            self._still_since = self._timeline.now

    def resume(self) -> None:
        if self.is_still:
            self.stood_still_s += self._timeline.now - self._still_since
            self._still_since = math.inf


class LeaseTimes:
    """When leases end or have ended. Times are given and returned on the timeline, not on the store's clock."""

    def __init__(self, timeline: Timeline, clock: StoreClock, ttl_s: float) -> None:
        self._timeline = timeline
        self._clock = clock
        self._ttl_s = ttl_s
        self._due: dict[int, float] = {}  # lease -> when it ends, on the store's clock
        self._ended_at: dict[int, float] = {}
        self._broken: set[int] = set()  # leases that ended early

    def note_grant(self, lease: int, ttl_s: float) -> None:
        """The store has granted this lease; it may be the answer to a grant that was repeated."""
        if lease not in self._due or lease in self._ended_at:
            self._due[lease] = self._clock.read() + ttl_s
            self._ended_at.pop(lease, None)

    def note_renewal(self, lease: int, ttl_s: float) -> None:
        self._due[lease] = self._clock.read() + ttl_s

    def note_end(self, lease: int) -> None:
        self._ended_at[lease] = min(self.get_end(lease), self._timeline.now)

    def note_early_end(self, lease: int) -> None:
        """The store is about to end a lease before its time."""
        self._broken.add(lease)

    def list_granted(self) -> list[int]:
        return list(self._due)

    def get_end(self, lease: int) -> float:
        """When this lease ended, or will end unless it is renewed; minus infinity for a lease that never was."""
        due = self._due.get(lease, -math.inf) + self._timeline.now - self._clock.read()
        return min(due, self._ended_at.get(lease, math.inf))

    def has_ended(self, lease: int) -> bool:
        return lease in self._ended_at

    def is_broken(self, lease: int) -> bool:
        """Whether the store has ended this lease before its time."""
        return lease in self._broken

    def is_excused(self, lease: int) -> bool:
        """Whether the member may still not know that its lease has ended, because the store ended it early."""
        ended_at = self._ended_at.get(lease, math.inf)
        return lease in self._broken and self._timeline.now < ended_at + self._ttl_s
