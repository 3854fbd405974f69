"""Timers that workers set for themselves: `torch.distributed.elastic.timer`, under TORCHELASTIC_ENABLE_FILE_TIMER=1.

A script says "if this step is not over within a minute, I hang: kill me" by a line of JSON in a named pipe, and cancels
it by another. One thread of the agent reads the pipe and kills the processes whose timers have expired. That worker has
then failed, and the job continues as after any failure; torchrun 2.13 kills its own agent as well. The pipe is named by
TORCHELASTIC_TIMER_FILE, and torch is not needed here. Only descendants of this job's supervisor are ever signalled.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import json
import os
import select
import signal
import stat
import threading
import time
from collections.abc import Callable, Collection
from typing import NamedTuple

from launcher.hardware.linux import kernel
from launcher.model.console import log
from launcher.model.errors import UsageError

ENABLE_VARIABLE, FILE_VARIABLE = "TORCHELASTIC_ENABLE_FILE_TIMER", "TORCHELASTIC_TIMER_FILE"
_POLL_LIMIT_S = 3600.0
_LINE_LIMIT = 65536


class Timer(NamedTuple):
    """`expires` in seconds of the wall clock, as torch sends it; `signum` 0 sends no signal."""

    expires: float
    signum: int


class TimerTable:
    """The active timers, by process and name."""

    def __init__(self) -> None:
        self._timers: dict[tuple[int, str], Timer] = {}
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Process data from the pipe; anything that is no request is dropped."""
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[-_LINE_LIMIT:]
        for line in lines:
            with contextlib.suppress(ValueError, TypeError, LookupError, OverflowError, RecursionError):
                request = json.loads(line)
                key = int(request["pid"]), str(request["scope_id"])
                timer = Timer(float(request["expiration_time"]), int(request["signal"]))
                self._timers.pop(key, None)
                if timer.expires >= 0:  # a negative time cancels the timer
                    self._timers[key] = timer

    @property
    def next_at(self) -> float:
        """The time at which the next one expires."""
        return min((timer.expires for timer in self._timers.values()), default=float("inf"))

    def take_expired(self, now: float) -> list[tuple[int, str, int]]:
        """Remove the timers that have expired and return them in order: process, name of the timer, signal."""
        out = sorted((timer.expires, *key, timer.signum) for key, timer in self._timers.items() if timer.expires <= now)
        for _, pid, name, _ in out:
            del self._timers[pid, name]
        return [(pid, name, signum) for _, pid, name, signum in out]

    def forget(self, pid: int) -> None:
        """Remove the timers of this process, which has been killed."""
        self._timers = {key: timer for key, timer in self._timers.items() if key[0] != pid}


def start_listening(supervisor_pid: int, path: str | None) -> dict[str, str]:
    """Start to listen; return the variables for the workers. `path`: of the pipe. Raises UsageError."""
    default_path = os.path.join(os.environ.get("TMPDIR") or "/tmp", f"meshrun_timers_{os.urandom(8).hex()}")
    try:
        path = choose_path(path, default_path) if path else default_path
        os.mkfifo(path, 0o600)
        end = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)  # also for writing: so it never reaches its end
    except OSError as error:
        raise UsageError(
            f"{ENABLE_VARIABLE}=1: cannot make {path or default_path}: {error.strerror}",
            f"{FILE_VARIABLE} names another place",
        ) from None
    atexit.register(_remove, path)
    threading.Thread(
        target=listen, args=(end, lambda: kernel.list_descendants(supervisor_pid)), name="timers", daemon=True
    ).start()
    return {FILE_VARIABLE: path}


def choose_path(path: str, default_path: str) -> str:
    """Return `path` after removing the pipe of a killed agent there; `default_path` if another agent listens on it.

    That may be the one whose worker has started this one, and workers inherit the variable. Raises OSError.
    """
    try:
        if stat.S_ISFIFO(os.lstat(path).st_mode):
            os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC))
            return default_path
    except FileNotFoundError:
        pass
    except OSError as error:
        if error.errno != errno.ENXIO:  # no reader
            raise
        os.unlink(path)
    return path


def listen(end: int, list_killable: Callable[[], Collection[int]]) -> None:
    """Read the pipe and kill for ever. `list_killable`: returns the processes that may be killed."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # signals are for the main thread
    timers = TimerTable()
    poll = select.poll()
    poll.register(end, select.POLLIN)
    while True:
        wait_s = min(max(0.0, timers.next_at - time.time()), _POLL_LIMIT_S)
        if poll.poll(wait_s * 1000 + 1):
            timers.feed(os.read(end, _LINE_LIMIT))
        for pid, name, signum in timers.take_expired(time.time()):
            if 0 < signum < signal.NSIG and pid in list_killable():
                with contextlib.suppress(OSError):
                    os.kill(pid, signum)
                    log(f"pid {pid}: its timer {name!r} has run out, it gets signal {signum}")
                    timers.forget(pid)


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)
