"""Waits of an agent and its supervisor: which of them end because their time is over, and where.

The agent is started by a text that puts recording functions in the place of the library's before anything is imported;
the supervisor, which is forked, inherits them. Workers know nothing of it. Waits within C are not seen,
and two are left out for which nothing waits: the pause by which the output's thread lets pipes fill, and gRPC's look
for signals, ten times a second beside each wait for an event.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import NamedTuple

_RECORDER = """
import json, os, select, signal, sys, threading, time

FILE, PLANT = sys.argv[1:3]
sys.argv[1:] = sys.argv[6:]  # python -m launcher is what stands between

def record(what, limit_s):
    thread, frame = threading.current_thread().name, sys._getframe(2)
    if thread != "output" and not frame.f_code.co_filename.endswith("grpc/_common.py"):
        where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        line = json.dumps([os.getpid(), time.monotonic(), thread, what, limit_s, where]) + chr(10)
        file = os.open(FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.write(file, line.encode())
        os.close(file)

real_poll, real_select, real_wait = select.poll, select.select, threading.Condition.wait
real_sleep, real_sigtimedwait = time.sleep, signal.sigtimedwait

class Poll:
    def __init__(self):
        poll = real_poll()
        self._poll, self.register, self.unregister, self.modify = poll.poll, poll.register, poll.unregister, poll.modify

    def poll(self, timeout=None):
        limit_s = None if timeout is None or timeout < 0 else timeout / 1000
        if limit_s != 0:
            record("begins", limit_s)
        found = self._poll(timeout)
        if not found and limit_s:
            record("is over", limit_s)
        return found

def sleep(seconds):
    real_sleep(seconds)
    if seconds > 0:
        record("is over", seconds)

def wait(self, timeout=None):
    found = real_wait(self, timeout)
    if not found and timeout:
        record("is over", timeout)
    return found

def sigtimedwait(signals, timeout):
    found = real_sigtimedwait(signals, timeout)
    if found is None and timeout:
        record("is over", timeout)
    return found

def select_ready(reads, writes, errors, timeout=None):
    found = real_select(reads, writes, errors, timeout)
    if not any(found) and timeout:
        record("is over", timeout)
    return found

select.poll, select.select, threading.Condition.wait = Poll, select_ready, wait
time.sleep, signal.sigtimedwait = sleep, sigtimedwait

import launcher.cli

def plant(owner, name):
    planted = getattr(owner, name)

    def call(*given, **named):
        time.sleep(0.001)
        return planted(*given, **named)

    setattr(owner, name, call)

if PLANT == "agent":
    import launcher.agent.loop
    plant(launcher.agent.loop.Agent, "_report_failed")
elif PLANT == "supervisor":
    import launcher.supervisor.loop
    plant(launcher.supervisor.loop.SupervisorLoop, "_start_sweep")
sys.exit(launcher.cli.main())
"""


class Wait(NamedTuple):
    """One wait, when it `begins` or `is over` by time-out. `limit_s`: None without a limit."""

    pid: int
    at: float
    thread: str
    what: str
    limit_s: float | None
    where: str


def record_waits(file: Path, plant: str = "") -> tuple[str, ...]:
    """Return what to put before `python -m launcher`. `plant`: a wait in a restart, of the "agent" or "supervisor"."""
    return (sys.executable, "-c", _RECORDER, str(file), plant)


def read_waits(file: Path) -> list[Wait]:
    """Return what has been recorded so far."""
    lines = file.read_text().split("\n")[:-1] if file.exists() else []
    return [Wait(*json.loads(line)) for line in lines]


def rests(file: Path, *pids: int) -> bool:
    """Whether each of these waits for an event, and for nothing that is due within 5 s."""
    last = {one.pid: one for one in read_waits(file) if one.thread == "MainThread"}
    found = [last.get(pid) for pid in pids]
    return all(one and one.what == "begins" and (one.limit_s is None or one.limit_s >= 5.0) for one in found)
