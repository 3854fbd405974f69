"""The signals of the agent: how they wake its loop, and when they make this node leave.

Clouds and batch systems announce a preemption in their own way: a signal that means nothing else, a file that appears,
or a notice at the metadata server. All mean the same here as SIGTERM to the agent: this node leaves the job, with the
full grace period, or with what a notice leaves of it.

A batch system's signal is mostly SIGUSR1 or SIGUSR2 (`sbatch --signal=USR1@90`). Slurm sends it to its own children
alone (proctrack/cgroup), so no worker learns of it unless the agent tells it.

Every event wakes the agent's loop by one pipe, to which signals and threads write. A signal handler only records the
number; the loop decides what it means.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
from collections.abc import Iterable, Sequence

from launcher.config.config import ShutdownOptions
from launcher.supervisor.messages import name_signal
from rendezvous.events import LeaveRequest
from rendezvous.reasons import Reason

FILE_INTERVAL_S = 1.0  # preemptions are announced some 30 s ahead

# Signals that end a process which does not handle them, other than by a fault of its own. The last line's are the
# user's choice: who leaves one of torchrun's four out of --signals-to-handle gets the kernel's default.
_NOTICES = signal.valid_signals() - {
    signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV, signal.SIGSYS, signal.SIGTRAP,
    signal.SIGCHLD, signal.SIGCONT, signal.SIGKILL, signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU,
    signal.SIGURG, signal.SIGWINCH,
    signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM,
}  # fmt: skip


class Termination:
    """`signum`: the signal that workers get when this node leaves; None until it has to. `notice_signum`: the one that
    came, which workers get before it if they handle it; 0 if `signum` is it. `signals`: the numbers of those that the
    agent must handle. `wake_at`: when to check for the file again.
    """

    def __init__(self, options: ShutdownOptions) -> None:
        self.signum: int | None = None
        self.notice_signum = 0
        self._file = options.preemption_file
        self.wake_at = 0.0 if self._file else math.inf
        name = options.preemption_signal
        self._preemption = signal.Signals[name] if name else None
        self._forwarded = [signal.Signals[name] for name in _list_forwarded_signals(options)]
        asked = {*self._forwarded, *([self._preemption] if self._preemption else [])}
        unasked = (number for number in _NOTICES if signal.getsignal(number) is signal.SIG_DFL)
        self.signals = sorted(asked.union(unasked))

    def take_signal(self, signum: int) -> LeaveRequest | None:
        """Return what a signal means; None if this node was asked to leave before."""
        if self.signum is not None:
            return None
        name = name_signal(signum)
        if signum == self._preemption:
            return self._terminate(signal.SIGTERM, Reason.of("agent/preemption-signal", signal=name), 128 + signum)
        if signum in self._forwarded:
            return self._terminate(signum, Reason.of("agent/signal", signal=name), 128 + signum)
        # One that nobody has named. The kernel's default would be the agent's death, without a line and without a save.
        # Scripts written for Slurm handle that very signal and often no SIGTERM, others the reverse: so a worker that
        # handles it gets it, and one that does not, or handles SIGTERM as well, gets SIGTERM.
        self.notice_signum = signum
        is_of_slurm = signum in (signal.SIGUSR1, signal.SIGUSR2) and "SLURM_JOB_ID" in os.environ
        reason = Reason.of("agent/slurm-end", signal=name) if is_of_slurm else Reason.of("agent/signal", signal=name)
        return self._terminate(signal.SIGTERM, reason, 128 + signum)

    def leave(self, asked: LeaveRequest) -> LeaveRequest | None:
        """Have this node leave for a reason that a part has; None if it was asked to leave before."""
        return None if self.signum is not None else self._terminate(signal.SIGTERM, asked.reason, asked.exit_code)

    def check(self, now: float) -> LeaveRequest | None:
        """Check for the file when it is time to; return a request if this node has to leave."""
        if now < self.wake_at or self._file is None:
            return None
        self.wake_at = now + FILE_INTERVAL_S
        if not os.path.exists(self._file):
            return None
        reason = Reason.of("agent/preemption-file", path=self._file)
        return self._terminate(signal.SIGTERM, reason, 128 + signal.SIGTERM)

    def _terminate(self, signum: int, reason: Reason, exit_code: int) -> LeaveRequest:
        self.signum, self.wake_at = signum, math.inf
        return LeaveRequest(reason, exit_code)


def _list_forwarded_signals(options: ShutdownOptions) -> Sequence[str]:
    """--signals-to-handle; by default without a SIGHUP that is ignored already, since that is nohup's purpose."""
    names = options.signals_to_handle
    if options.origins["signals_to_handle"] == "default" and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        return [name for name in names if name != "SIGHUP"]
    return names


class Wakeup:
    """Use from the main thread, except for `wake`. `signals`: the numbers of those to handle."""

    def __init__(self, signals: Iterable[int]) -> None:
        self._read_end, self._write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._signals: list[int] = []
        signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        for signum in signals:
            signal.signal(signum, self._note)

    def fileno(self) -> int:
        """Readable once something has happened."""
        return self._read_end

    def wake(self) -> None:
        """Wake the loop, from any thread."""
        with contextlib.suppress(BlockingIOError):  # the pipe is full: the loop has been woken already
            os.write(self._write_end, b"\0")

    def has_signal(self) -> bool:
        """Whether a signal other than a child's waits to be taken."""
        return any(signum != signal.SIGCHLD for signum in self._signals)

    def take(self) -> list[int]:
        """Clear the wake-up; return the signals since the last call, in order."""
        with contextlib.suppress(BlockingIOError):
            while len(os.read(self._read_end, 4096)) == 4096:
                pass
        # Removed one by one: a signal may come between any two instructions.
        return [self._signals.pop(0) for _ in range(len(self._signals))]

    def _note(self, signum: int, frame: object) -> None:
        self._signals.append(signum)
