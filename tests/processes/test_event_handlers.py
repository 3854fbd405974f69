"""A handler of torch's that takes events badly: it may lose them, but holds up neither the agent nor its end."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Stands in for torch, which hands an event to a handler of Python's logging in the same way.
PROGRAM = """
import logging, sys, threading, types
from launcher.logs.reports import events

class Handler(logging.Handler):
    def emit(self, record):
        print("event", record.getMessage(), flush=True)
        {emit}
    def flush(self):
        print("flushed", flush=True)

class Event(dict):
    pass

logger = logging.getLogger("made-up")
logger.setLevel("INFO")
logger.addHandler(Handler())
torchs, handlers = types.ModuleType("events"), types.ModuleType("handlers")
torchs.EventSource = {{"AGENT": 1, "WORKER": 2}}
torchs.Event = Event
torchs.record = lambda event, name: logger.info(event["name"])
handlers._log_handlers = {{"mine": None}}
sys.modules["torch.distributed.elastic.events"] = torchs
sys.modules["torch.distributed.elastic.events.handlers"] = handlers
events.DRAIN_LIMIT_S = {limit_s}
write = events.make_writer("mine", "--event-log-handler")
for name in ("first", "second"):
    write({{"name": name, "source": "AGENT"}})
"""


def run(emit: str, limit_s: float = 60) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROGRAM.format(emit=emit, limit_s=limit_s)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)


def test_all_events_are_handed_on_before_the_process_ends() -> None:
    done = run("pass")
    assert done.stdout.splitlines() == ["event first", "event second", "flushed"]
    assert done.stderr == ""


def test_one_that_hangs_does_not_keep_the_process() -> None:
    done = run("threading.Event().wait()", limit_s=0.1)
    assert done.stdout.splitlines() == ["event first"]
    sentence = "--event-log-handler=mine takes longer than 0.1 s at the end: its last events are lost"
    assert done.stderr.splitlines() == [f"meshrun: {sentence}"]


@pytest.mark.parametrize("emit", ["raise OSError('no route')", "sys.exit('no route')"])
def test_one_that_fails_is_named_once_and_gets_the_next_event(emit: str) -> None:
    done = run(emit)
    assert done.stdout.splitlines() == ["event first", "event second", "flushed"]
    (line,) = done.stderr.splitlines()
    assert line.startswith("meshrun: --event-log-handler=mine fails, an event is lost: ")
    assert "no route" in line
