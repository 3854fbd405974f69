"""When a node that is not fit looks at itself again, and when it gives up: pure, the clock is an argument.

The pauses are those between rounds without progress, 1 s and then twice as long each time up to 60 s: a device that
comes back soon is used soon, and a check that takes the whole machine is not run all the time.
"""

from __future__ import annotations

from rendezvous.settings import Settings


class Backoff:
    """Of one node that began to look at `now`, and may go on for `limit_s`."""

    def __init__(self, limit_s: float, now: float) -> None:
        self.limit_s = limit_s
        self._deadline = now + limit_s
        self._next_s = Settings.backoff_first_s

    def take_pause(self, now: float) -> float | None:
        """How long to wait after a look that failed; None for no more. The last look is when the time has passed."""
        if now >= self._deadline:
            return None
        pause_s = min(self._next_s, self._deadline - now)
        self._next_s = min(2 * self._next_s, Settings.backoff_max_s)
        return pause_s
