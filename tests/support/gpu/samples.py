"""Checks that misbehave, for the tests of the runner: one hangs, one crashes, one fails, one says nothing."""

from __future__ import annotations

import signal
import subprocess
import sys

from tests.support.gpu.runner import FAILED, SEEN, Notes, NotPossibleError


def hang(notes: Notes) -> None:
    """Start a process that leaves this session and ignores SIGTERM, note its pid, and wait for ever."""
    program = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); signal.pause()"
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, start_new_session=True)
    assert child.stdout is not None
    child.stdout.readline()
    notes.note("before", SEEN, "this was noted", pid=child.pid)
    signal.pause()


def crash(notes: Notes) -> None:
    notes.note("before", SEEN, "this was noted")
    raise ZeroDivisionError("a check that is broken")


def fail(notes: Notes) -> None:
    with notes.trying("first"):
        raise ValueError("no good")
    with notes.trying("second"):
        raise NotPossibleError("no such thing")
    notes.note("third", FAILED, "x" * 1000)


def say_nothing(notes: Notes) -> None:
    pass


def lack(notes: Notes) -> None:
    raise NotPossibleError("no device")
