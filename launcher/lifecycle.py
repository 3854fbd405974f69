"""What the agent does with the processes of a round: a machine without hands.

A round on this node starts, runs, is stopped and is gone. What happens (a worker ends, a stop is ordered, time
passes) goes in; what shall be done (signal, sweep, tell the others) comes out. Stopping is always the same
three steps: a signal that workers may act on, SIGKILL when the grace is over, and a sweep that leaves nothing
behind, grandchildren included. Only then is the round said to be stopped.

    starting/running --all succeeded--> done --stop--> sweeping --gone--> no round
            |--failure: told at once, siblings run until the stop comes
            |--stop--> stopping --all ended or grace over--> sweeping
"""

from __future__ import annotations

import math

from rendezvous.values import NamedTuple

ECHO_WINDOW_S = 0.5
"""How long a failure that looks like a lost peer waits for a better one on this node."""


class End(NamedTuple):
    """How one worker ended: `exit_code` is negative for a signal; `is_echo`: it looks like the loss of a peer."""

    local_rank: int
    exit_code: int
    is_echo: bool


class Signal(NamedTuple):
    """Send this signal to every worker of the round."""

    signum: int


class Sweep(NamedTuple):
    """Kill what is left of the round, and wait until nothing is."""


class TellSucceeded(NamedTuple):
    pass


class TellFailed(NamedTuple):
    """The first failure on this node."""

    cause: End


class TellStopped(NamedTuple):
    """Nothing of the round is left."""


Action = Signal | Sweep | TellSucceeded | TellFailed | TellStopped


class Round:
    """The processes of one round on this node."""

    def __init__(self, round: int, worker_count: int) -> None:
        self.round = round
        self.live = set(range(worker_count))
        self.failures: list[End] = []  # before any stop, in the order in which they were seen
        self.wake_at = math.inf
        self.is_gone = False
        self.is_stopping = False
        self._is_sweeping = False
        self._is_told = False
        self._tell_at = math.inf

    def ended(self, end: End, now: float) -> list[Action]:
        """A worker has ended, or could not be started."""
        self.live.discard(end.local_rank)
        if self._is_sweeping:
            return []
        if self.is_stopping:
            return [] if self.live else self._sweep()
        if end.exit_code != 0:
            self.failures.append(end)
            self._tell_at = min(self._tell_at, now + ECHO_WINDOW_S) if end.is_echo and self.live else now
        elif not self.live and not self.failures:
            self._is_told = True
            return [TellSucceeded()]
        return self.passed(now)

    def stop(self, signum: int, grace_s: float, now: float) -> list[Action]:
        """End the round: the signal now, SIGKILL after `grace_s`. A later stop can only shorten the grace."""
        if self._is_sweeping:
            return []
        told = [] if self.is_stopping else self._tell()
        is_first, self.is_stopping = not self.is_stopping, True
        self.wake_at = now + grace_s if is_first else min(self.wake_at, now + grace_s)
        if not self.live or grace_s <= 0:
            return [*told, *self._sweep()]
        return [*told, Signal(signum)] if is_first else told

    def kill(self) -> list[Action]:
        """End the round without a signal that workers could act on."""
        self.is_stopping = True
        return [] if self._is_sweeping else self._sweep()

    def passed(self, now: float) -> list[Action]:
        """Time has passed: `wake_at` may have been reached."""
        actions: list[Action] = []
        if now >= self._tell_at:
            actions += self._tell()
        if self.is_stopping and not self._is_sweeping and now >= self.wake_at:
            actions += self._sweep()
        if not self.is_stopping:
            self.wake_at = self._tell_at
        return actions

    def gone(self) -> list[Action]:
        """Nothing of the round is left."""
        if self.is_gone:
            return []
        self.is_gone = True
        self.live.clear()
        self.wake_at = math.inf
        return [TellStopped()]

    def _tell(self) -> list[Action]:
        self._tell_at = math.inf
        if self._is_told or not self.failures:
            return []
        self._is_told = True
        return [TellFailed(min(self.failures, key=lambda end: end.is_echo))]

    def _sweep(self) -> list[Action]:
        self._is_sweeping = True
        self.wake_at = math.inf
        return [Sweep()]
