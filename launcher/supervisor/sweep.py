"""The end of rounds: whoever is left is killed, pass after pass, until nobody is.

One pass cannot be enough, since killing a parent hands its orphans to the supervisor; they belong to the next one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from launcher.hardware.linux import kernel
from launcher.supervisor.messages import STUCK_LIMIT_S

# How often a sweep looks again while the processes it killed have not ended yet; each end wakes it as well.
SWEEP_INTERVAL_S = 0.02


class ProcessSweep:
    """What is being swept: `rounds`, and with `is_last` everything there is."""

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
        """How long until the next pass."""
        return self._next_pass_at - time.monotonic()

    def begin(self, rounds: Collection[int], *, is_last: bool = False) -> None:
        """Sweep these as well."""
        if not self.is_active:
            self._began_at = time.monotonic()
        self._next_pass_at = 0.0
        self.rounds.update(rounds)
        self.is_last = self.is_last or is_last

    def has_killed(self, pid: int) -> bool:
        """Whether it is about to end by a pass."""
        return pid in self._killed

    def mark_reaped(self, pid: int) -> None:
        self._killed.discard(pid)

    def run_pass(self, list_spared: Callable[[], Collection[int]]) -> bool:
        """Kill who is there but the spared, if it is time to; whether nobody was."""
        now = time.monotonic()
        if self._killed and now < self._next_pass_at:
            return False
        found = kernel.kill_children(() if self.is_last else list_spared(), now - self._began_at > STUCK_LIMIT_S)
        self._killed = set(found)
        self._next_pass_at = now + SWEEP_INTERVAL_S
        return not found
