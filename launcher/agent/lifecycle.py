"""The life cycle of a round's processes on one node: a state machine without I/O.

A round on this node starts, runs, is stopped and is gone. Events go in (a worker ends, a stop is ordered, time
passes); actions come out (signal, sweep, report to the other nodes). Stopping is always the same three steps: a
signal that workers may act on, SIGKILL when the grace is over, and a sweep that leaves nothing behind,
grandchildren included. Only then is the round reported as stopped.

    starting/running --all succeeded--> done --stop--> sweeping --gone--> no round
            |--failure: reported at once, the other workers run until the stop comes
            |--stop--> stopping --all ended or grace over--> sweeping
"""

from __future__ import annotations

import math

from msgspec import Struct

VICTIM_WINDOW_S = 0.3
"""How long the report of a possible victim waits for a primary failure on this node, and for a look at the survivors.

A primary failure is reported at once, here and on other nodes, and no stop of a round waits for anything.
"""


class WorkerExit(Struct, frozen=True):
    """How one worker ended."""

    local_rank: int
    exit_code: int
    """Negative for a signal."""
    is_secondary: bool
    """It looks like the loss of a peer: the cause only if there is no other."""
    is_claimed: bool = False
    """The worker has said beforehand why it fails (launcher/worker/claims.py)."""
    may_be_victim: bool = False
    """It may have waited for a worker that still lives, so its report waits for `VICTIM_WINDOW_S`."""


class SignalWorkers(Struct, frozen=True):
    """Send this signal to every worker of the round."""

    signum: int


class SweepRound(Struct, frozen=True):
    """Kill what is left of the round, and wait until nothing is."""


class ReportSucceeded(Struct, frozen=True):
    pass


class ReportFailed(Struct, frozen=True):
    """The first failure on this node."""

    cause: WorkerExit


RoundAction = SignalWorkers | SweepRound | ReportSucceeded | ReportFailed


class Round:
    """The processes of one round on this node."""

    def __init__(self, round: int, worker_count: int) -> None:
        self.round = round
        self.live = set(range(worker_count))
        self.failures: list[WorkerExit] = []  # before any stop, in the order of observation
        self.wake_at = math.inf
        self.is_stopping = False
        self._is_sweeping = False
        self._is_reported = False
        self._report_at = math.inf

    def take_exit(self, worker_exit: WorkerExit, now: float) -> list[RoundAction]:
        """Handle that a worker has ended, or could not be started."""
        self.live.discard(worker_exit.local_rank)
        if self.is_stopping:
            report = self._report_claim(worker_exit)
            return report if self.live or self._is_sweeping else [*report, *self._sweep()]
        if worker_exit.exit_code != 0:
            self.failures.append(worker_exit)
            self._report_at = min(self._report_at, now + VICTIM_WINDOW_S) if worker_exit.may_be_victim else now
        elif not self.live and not self.failures:
            self._is_reported = True
            return [ReportSucceeded()]
        return self.advance(now)

    def stop(self, signum: int, grace_s: float, now: float) -> list[RoundAction]:
        """End the round: the signal now, SIGKILL after `grace_s`. A later stop can only shorten the grace."""
        if self._is_sweeping:
            return []
        report = [] if self.is_stopping else self._report_failure()  # what waits in the window was before the stop
        is_first, self.is_stopping = not self.is_stopping, True
        self.wake_at = now + grace_s if is_first else min(self.wake_at, now + grace_s)
        if not self.live or grace_s <= 0:
            return [*report, *self._sweep()]
        return [*report, SignalWorkers(signum)] if is_first else report

    def kill(self) -> list[RoundAction]:
        """End the round without a signal that workers could act on."""
        self.is_stopping = True
        return [] if self._is_sweeping else self._sweep()

    def advance(self, now: float) -> list[RoundAction]:
        """Handle that time has passed: `wake_at` may have been reached."""
        actions: list[RoundAction] = []
        if now >= self._report_at:
            actions += self._report_failure()
        if self.is_stopping and not self._is_sweeping and now >= self.wake_at:
            actions += self._sweep()
        if not self.is_stopping:
            self.wake_at = self._report_at
        return actions

    def end_window(self, now: float) -> list[RoundAction]:
        """Report a possible victim now: it is known for whom it waited."""
        if self._report_at < math.inf:
            self._report_at = now
        return self.advance(now)

    def _report_failure(self) -> list[RoundAction]:
        self._report_at = math.inf
        if self._is_reported or not self.failures:
            return []
        self._is_reported = True
        return [ReportFailed(min(self.failures, key=lambda end: (not end.is_claimed, end.is_secondary)))]

    def _report_claim(self, worker_exit: WorkerExit) -> list[RoundAction]:
        """Report a worker that has said why it fails, though the failure of a peer has stopped the round before."""
        if self._is_reported or not worker_exit.is_claimed:
            return []
        self._is_reported = True
        return [ReportFailed(worker_exit)]

    def _sweep(self) -> list[RoundAction]:
        self._is_sweeping = True
        self.wake_at = math.inf
        return [SweepRound()]
