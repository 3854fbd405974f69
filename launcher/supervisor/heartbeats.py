"""Decides when a worker that has sent heartbeats counts as hung: arithmetic on counts, without a clock of its own.

Heartbeats are counted, not timed: no clock of a worker is used. The agent polls several times within the time-out, and
a worker's silence is the time over which polls found no new heartbeat. Time without a poll, because this machine slept
or the agent was stopped with its workers, counts for one poll at most, so it never makes a worker hung. A worker that
has never sent a heartbeat has no time-out; it may compile or load for any time.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

CHECKS_PER_TIMEOUT = 8
"""Polls within a time-out: a hung worker is detected after at most a quarter more than the time-out."""


class Heartbeats:
    """The workers of one round on this node."""

    def __init__(self, timeout_s: float, now: float) -> None:
        self._timeout_s = timeout_s
        self._observed_at = now
        self._counts: dict[int, int] = {}  # by index, as is the silence
        self._silence_s: dict[int, float] = {}

    @property
    def wake_at(self) -> float:
        """When to poll next."""
        return self._observed_at + self._timeout_s / CHECKS_PER_TIMEOUT

    def observe(self, counts: Sequence[int], live: Collection[int], now: float) -> list[int]:
        """Take each worker's count at `now`; return the workers that reach the time-out, each once."""
        passed_s = min(now - self._observed_at, 2 * self._timeout_s / CHECKS_PER_TIMEOUT)
        self._observed_at = now
        unresponsive = []
        for index, count in enumerate(counts):
            if count != self._counts.get(index) or not count or index not in live:
                self._counts[index], self._silence_s[index] = count, 0.0
                continue
            before_s = self._silence_s[index]
            self._silence_s[index] += passed_s
            if before_s < self._timeout_s <= self._silence_s[index]:
                unresponsive.append(index)
        return unresponsive
