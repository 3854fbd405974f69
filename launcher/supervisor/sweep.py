"""The end of rounds: every process that is left is killed, pass after pass, until none is.

One pass is not enough, since killing a parent makes its orphans the supervisor's children; the next pass kills them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from launcher.hardware.linux import kernel
from launcher.supervisor.messages import STUCK_LIMIT_S

# How often a sweep checks while the processes it killed have not ended yet; each end wakes it as well.
SWEEP_INTERVAL_S = 0.02


class ProcessSweep:
    """The rounds to sweep: `rounds`, and with `is_last` all processes."""

    def __init__(self) -> None:
        self.rounds: set[int] = set()
        self.is_last = False
        self._began_at = 0.0
        self._next_pass_at = 0.0
        self._killed: set[int] = set()  # by the last pass, not reaped yet

    @property
    def is_active(self) -> bool:
        return self.is_last or bool(self.rounds)

    @property
    def wait_s(self) -> float:
        """The seconds until the next pass."""
        return self._next_pass_at - time.monotonic()

    def begin(self, rounds: Collection[int], *, is_last: bool = False) -> None:
        """Sweep these rounds as well."""
        if not self.is_active:
            self._began_at = time.monotonic()
        self._next_pass_at = 0.0
        self.rounds.update(rounds)
        self.is_last = self.is_last or is_last

    def has_killed(self, pid: int) -> bool:
        """Whether a pass has killed it and it has not been reaped."""
        return pid in self._killed

    def mark_reaped(self, pid: int) -> None:
        self._killed.discard(pid)

    def run_pass(self, list_spared: Callable[[], Collection[int]]) -> bool:
        """Kill all but the spared processes, if it is time to; whether there were none."""
        now = time.monotonic()
        if self._killed and now < self._next_pass_at:
            return False
        found = kernel.kill_children(() if self.is_last else list_spared(), now - self._began_at > STUCK_LIMIT_S)
        self._killed = set(found)
        self._next_pass_at = now + SWEEP_INTERVAL_S
        return not found
