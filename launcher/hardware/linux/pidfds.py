"""Kills a process that is no child of this one, and never a foreign process that has got its pid since.

A pidfd refers to one process permanently: opened first and verified then, it cannot hit another. Linux has them from
5.3 on, Python from 3.9 on if the headers that it was built with had them, which those of conda's and of portable
Pythons do not; there the system calls are made by number. An older kernel or seccomp profile refuses them: there the
start time of the process is compared right before the kill, and the remaining risk is a pid that is reused within
microseconds.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from errno import ENOSYS

from launcher.hardware.linux import kernel

# include/uapi/asm-generic/unistd.h; the same number on every architecture but those that count from elsewhere.
_PIDFD_SEND_SIGNAL = 424
_PIDFD_OPEN = 434
_NUMBERED_OTHERWISE = ("alpha", "ia64", "mips")


def kill_exactly(pid: int, is_same_process: Callable[[], bool]) -> None:
    """SIGKILL the process if `is_same_process` confirms it once the pid is pinned; do nothing if it has ended.

    Raises OSError when it could not be killed: it is a setuid program, or something forbids it.
    """
    started = kernel.read_start_time(pid)
    with suppress(ProcessLookupError):
        process = _open(pid)
        try:
            if started and is_same_process() and kernel.read_start_time(pid) == started:
                _kill(pid, process)
        finally:
            if process is not None:
                os.close(process)


def _open(pid: int) -> int | None:
    """Open a pidfd; None where the system cannot. Raises ProcessLookupError when the process has ended."""
    try:
        return os.pidfd_open(pid) if hasattr(os, "pidfd_open") else _call_kernel(_PIDFD_OPEN, pid, 0)
    except ProcessLookupError:
        raise
    except OSError:  # ENOSYS, EPERM: the kernel or a filter is older; EMFILE
        return None


def _kill(pid: int, process: int | None) -> None:
    try:
        if process is not None:
            _send(process, signal.SIGKILL)
            return
    except ProcessLookupError:
        raise
    except OSError:  # a filter may refuse this call and not the other; kill() tells whether it is that
        pass
    os.kill(pid, signal.SIGKILL)


def _send(process: int, signum: int) -> None:
    if hasattr(signal, "pidfd_send_signal"):
        signal.pidfd_send_signal(process, signum)
    else:
        _call_kernel(_PIDFD_SEND_SIGNAL, process, signum, 0, 0)


def _call_kernel(number: int, *words: int) -> int:
    """Make a system call by its number. Raises OSError."""
    if os.uname().machine.startswith(_NUMBERED_OTHERWISE):
        raise OSError(ENOSYS, os.strerror(ENOSYS))
    import ctypes

    # Variadic in C: every argument has to be as wide as the kernel reads it.
    result = int(kernel.load_libc().syscall(*map(ctypes.c_long, (number, *words))))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def kill_descendants(pid: int) -> None:
    """SIGKILL all descendants of a process that cannot do so itself, though they are no children of ours.

    Their pids may be reused at any time, so the descent of each is checked once more after its pidfd is open.
    """
    for found in kernel.list_descendants(pid):
        with suppress(OSError):
            kill_exactly(found, lambda: kernel.is_descendant(pid, found))  # noqa: B023  (called at once)
