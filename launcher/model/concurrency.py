"""Threads that a shortage may delay, and that then cost the agent nothing.

Threads count as processes: where workers use up what `ulimit -u` or a pod's limit of pids allows, no thread can be
started for a while, and Python says so by a RuntimeError, wherever that is. What an agent's further threads do (answer,
tell, write down) can wait or be done otherwise. The job must not end because of one, nor may a part that found no
thread at the wrong moment be without it for the rest of the run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

NO_THREAD = "no thread can be started at the moment (check ulimit -u)"


def start_thread(run: Callable[..., object], name: str, *arguments: object) -> threading.Thread | None:
    """Start a thread that does not keep the process from exiting; None where none can be had now.

    Change no state that says there is one before this has returned it.
    """
    thread = threading.Thread(target=run, args=arguments, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError:  # Python's exception for EAGAIN
        return None
    return thread


class LateThread:
    """A thread that lasts until its part is closed, and is started with the first work, or as soon as one is to be had.

    Its work has to wait in a queue of the part's own. Call `start` again while `is_missing`.
    """

    def __init__(self, run: Callable[[], object], name: str) -> None:
        self._run = run
        self._name = name
        self._thread: threading.Thread | None = None
        self.is_missing = False
        """Whether it is needed and could not be started yet."""

    @property
    def has_started(self) -> bool:
        return self._thread is not None

    def start(self) -> None:
        """Start it, unless it has been."""
        if self._thread is None:
            self._thread = start_thread(self._run, self._name)
            self.is_missing = self._thread is None

    def finish(self, limit_s: float) -> bool:
        """Wait until it has ended, once it has been told to; whether it has. One that is missing is tried once more."""
        if self.is_missing:
            self.start()
        if self._thread is None:
            return not self.is_missing
        self._thread.join(limit_s)
        return not self._thread.is_alive()
