"""The signals of the agent: how they wake its loop, and when they make this node leave.

Clouds and batch systems announce a preemption in their own way: a signal that means nothing else, or a file that
appears. Both mean the same here as SIGTERM to the agent: this node leaves the job, with the full grace period.

Every event wakes the agent's loop by one pipe, to which signals and threads write. A signal handler only records the
number; the loop decides what it means.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
from collections.abc import Iterable, Sequence

from launcher.config.config import Config
from rendezvous.events import LeaveRequest

FILE_INTERVAL_S = 1.0  # preemptions are announced some 30 s ahead


class Termination:
    """`signum`: the signal that workers get when this node leaves; None until it has to. `signals`: those that the
    agent must handle. `wake_at`: when to check for the file again.
    """

    def __init__(self, config: Config) -> None:
        self.signum: int | None = None
        self._file = config.preemption_file
        self.wake_at = 0.0 if self._file else math.inf
        name = config.preemption_signal
        self._preemption = signal.Signals[name] if name else None
        self.signals = [*_list_forwarded_signals(config), *([name] if name else [])]

    def take_signal(self, signum: int) -> LeaveRequest | None:
        """Return what a signal means; None if this node was asked to leave before."""
        if self.signum is not None:
            return None
        name = signal.Signals(signum).name
        if signum == self._preemption:
            return self._terminate(signal.SIGTERM, f"{name} announces a preemption", 128 + signum)
        return self._terminate(signum, f"stopped by {name}", 128 + signum)

    def check_file(self, now: float) -> LeaveRequest | None:
        """Check for the file when it is time to; return a request if it exists."""
        if now < self.wake_at or self._file is None:
            return None
        self.wake_at = now + FILE_INTERVAL_S
        if self.signum is not None or not os.path.exists(self._file):
            return None
        return self._terminate(signal.SIGTERM, f"{self._file} announces a preemption", 128 + signal.SIGTERM)

    def _terminate(self, signum: int, reason: str, exit_code: int) -> LeaveRequest:
        self.signum, self.wake_at = signum, math.inf
        return LeaveRequest(reason, exit_code)


def _list_forwarded_signals(config: Config) -> Sequence[str]:
    """--signals-to-handle; by default without a SIGHUP that is ignored already, since that is nohup's purpose."""
    names = config.signals_to_handle
    if config.origins["signals_to_handle"] == "default" and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        return [name for name in names if name != "SIGHUP"]
    return names


class Wakeup:
    """Use from the main thread, except for `wake`. `names`: the signals to handle, "SIGTERM" and so on."""

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
        with contextlib.suppress(BlockingIOError):  # the pipe is full: the loop has been woken already
            os.write(self._write_end, b"\0")

    def take(self) -> list[int]:
        """Clear the wake-up; return the signals since the last call, in order."""
        with contextlib.suppress(BlockingIOError):
            while len(os.read(self._read_end, 4096)) == 4096:
                pass
        # Removed one by one: a signal may come between any two instructions.
        return [self._signals.pop(0) for _ in range(len(self._signals))]

    def _note(self, signum: int, frame: object) -> None:
        self._signals.append(signum)
