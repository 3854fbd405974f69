"""The signals that the supervisor handles: ends of children, the end of its keeper, and faults of its own."""

from __future__ import annotations

import os
import signal

from launcher.supervisor import child

_WAKEUP_SIGNALS = (signal.SIGCHLD, signal.SIGCONT)  # the latter comes with the keeper's end
_FAULT_SIGNALS = (
    signal.SIGSEGV,
    signal.SIGBUS,
    signal.SIGFPE,
    signal.SIGILL,
    signal.SIGABRT,
    signal.SIGTRAP,
    signal.SIGSYS,
)


def configure_signals() -> tuple[int, int, list[int]]:
    """Have signals wake the loop. Returns that pipe, read and write end, and the signals for a worker to reset."""
    wakeup, alarm = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(alarm, warn_on_full_buffer=False)
    for signum in _WAKEUP_SIGNALS:
        signal.signal(signum, lambda signum, frame: None)  # its byte in the pipe is what counts
    changed = child.list_signals_to_reset()
    # The agent forked us with all signals blocked. A blocked signal does nothing to us, while one sent to a
    # worker between its fork and its exec waits for it instead of being lost, as an ignored one would be.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (*_WAKEUP_SIGNALS, *_FAULT_SIGNALS))
    return wakeup, alarm, changed
