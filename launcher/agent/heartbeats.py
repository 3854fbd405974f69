"""When a worker that has beaten is taken as hung: arithmetic on what is seen, without a clock of its own.

Beats are counted, not timed: no clock of a worker is believed. The agent looks several times within the time-out, and
the silence of a worker is the time over which looks found nothing new. Time in which nobody looked, since this machine
slept or the agent was stopped with its workers, counts for one look at most: nobody is hung because of it. A worker
that has never beaten has no time-out; it may compile or load for as long as it likes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

CHECKS_PER_TIMEOUT = 8
"""Looks within a time-out: a worker is found out after at most a quarter more than the time-out."""


class Heartbeats:
    """The workers of one round on this node."""

    def __init__(self, timeout_s: float, now: float) -> None:
        self._timeout_s = timeout_s
        self._observed_at = now
        self._counts: list[int] = []
        self._silence_s: list[float] = []

    @property
    def wake_at(self) -> float:
        """When to look next."""
        return self._observed_at + self._timeout_s / CHECKS_PER_TIMEOUT

    def observe(self, counts: Sequence[int], live: Collection[int], now: float) -> list[int]:
        """How often each worker has beaten by now; whose silence has lasted for the time-out, each told once."""
        passed_s = min(now - self._observed_at, 2 * self._timeout_s / CHECKS_PER_TIMEOUT)
        self._observed_at = now
        self._counts += [0] * (len(counts) - len(self._counts))
        self._silence_s += [0.0] * (len(counts) - len(self._silence_s))
        silent = []
        for index, count in enumerate(counts):
            is_new, self._counts[index] = count != self._counts[index], count
            if is_new or not count or index not in live:
                self._silence_s[index] = 0.0
                continue
            before_s = self._silence_s[index]
            self._silence_s[index] += passed_s
            if before_s < self._timeout_s <= self._silence_s[index]:
                silent.append(index)
        return silent
