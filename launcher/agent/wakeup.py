"""How anything that happens wakes the agent's loop: one pipe, written to by signals and by threads.

A signal handler does nothing but note the number; the loop decides what it means.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable


class Wakeup:
    """Use from the main thread, but for `wake`. `names` are the signals to take, "SIGTERM" and so on."""

    def __init__(self, names: Iterable[str]) -> None:
        self._read_end, self._write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._signals: list[int] = []
        signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        for name in names:
            signal.signal(getattr(signal, name), self._note)

    def fileno(self) -> int:
        """Readable once something has happened."""
        return self._read_end

    def wake(self) -> None:
        """Wake the loop, from any thread."""
        with contextlib.suppress(BlockingIOError):  # the pipe is full: the loop is woken already
            os.write(self._write_end, b"\0")

    def take(self) -> list[int]:
        """Forget that the loop was woken; the signals since the last call, in order."""
        with contextlib.suppress(BlockingIOError):
            while len(os.read(self._read_end, 4096)) == 4096:
                pass
        # Taken one by one: a signal may come between any two instructions.
        return [self._signals.pop(0) for _ in range(len(self._signals))]

    def _note(self, signum: int, frame: object) -> None:
        self._signals.append(signum)
