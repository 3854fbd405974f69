"""The watchdog: the deadline until which workers may live, enforced twice.

The supervisor checks it in its loop, and a kernel timer ends the supervisor, and its workers with it, where the loop
does not run. Most runs on one machine have no watchdog and never load this.
"""

from __future__ import annotations

import math

from launcher.model.errors import TemporaryError
from launcher.supervisor.child import ProcessHost

# The delay of the kernel's timer after the supervisor should have killed by itself: it hits only one that is stopped
# or starved.
TIMER_MARGIN_S = 0.5


class Watchdog:
    """Times are seconds of CLOCK_BOOTTIME. Raises TemporaryError where the kernel has no timer left for this user."""

    def __init__(self, host: ProcessHost) -> None:
        self._host = host
        try:
            self._timer = host.make_timer()
        except OSError as error:
            raise TemporaryError(
                f"the supervisor cannot create the timer that ends workers: {error.strerror}; check `ulimit -i`"
            ) from None
        self._deadline = math.inf
        self._is_handled = False

    @property
    def is_expired(self) -> bool:
        return self._host.read_clock() >= self._deadline

    @property
    def wait_s(self) -> float:
        """The seconds until its expiry has to be handled."""
        return math.inf if self._is_handled else self._deadline - self._host.read_clock()

    def extend(self, until: float | None) -> None:
        """Set its expiry to `until`; None means no end."""
        self._deadline = math.inf if until is None else until
        self._is_handled = False
        if until is None or self.is_expired:
            self.disarm()
        else:
            self._timer.arm(until + TIMER_MARGIN_S)

    def take_expiry(self) -> bool:
        """Whether it has expired and that has not been handled: true once."""
        if self._is_handled or not self.is_expired:
            return False
        self._is_handled = True
        return True

    def disarm(self) -> None:
        """Stop the kernel's timer."""
        self._timer.disarm()
