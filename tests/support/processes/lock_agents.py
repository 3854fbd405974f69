"""Agents of one run on this node, as far as their locks go: each has a supervisor with one worker, and waits."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.processes.tree import REPOSITORY, TOKEN_VARIABLE, freeze, kill_family

# Part of an agent that has a NodeLock in `place` and the command of its worker in `worker`.
BEGIN_WORKER = """
os.environ.update(place.environment)
from launcher.supervisor.handle import SWEEP_LIMIT_S, Supervisor
from launcher.supervisor.keeper import fork_keeper
from launcher.supervisor.messages import WorkerSpec
supervisor = Supervisor(*fork_keeper())
supervisor.start((place.descriptor,), place.group)
supervisor.spawn(1, [WorkerSpec(0, ("sh", "-c", worker), {}, (), None, None)])
while not (reports := supervisor.read_reports()): pass
"""
SLEEP = "exec sleep 1000"


class LockAgents:
    """Agents, one after another or side by side. `program`: of each; `folder`: of the locks."""

    def __init__(self, program: str, folder: Path) -> None:
        self.folder = folder
        self.token = secrets.token_hex(8)
        self.processes: list[subprocess.Popen[str]] = []
        self._program = program

    def run(self, *words: str, **environment: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", self._program, str(self.folder), *words],
            cwd=REPOSITORY,
            env={**os.environ, **environment, TOKEN_VARIABLE: self.token},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.processes.append(process)
        return process

    def close(self) -> None:
        kill_family(self.token)
        for process in self.processes:
            process.communicate()


def read_words(process: subprocess.Popen[str]) -> list[str]:
    """The next line that an agent prints."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.communicate()[1]
    return line.split()


def act_after_open(monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]) -> None:
    """Let another agent act between the next opening of a file and what follows it."""
    opened = os.open

    def open_and_act(*words: object) -> int:
        found: int = opened(*words)  # type: ignore[arg-type]
        monkeypatch.undo()
        action()
        return found

    monkeypatch.setattr(os, "open", open_and_act)


def kill_all_three(agent: subprocess.Popen[str]) -> None:
    """Kill agent, keeper and supervisor so that none of them can clean up."""
    (keeper,) = children_of(agent.pid)
    trio = [agent.pid, keeper, *children_of(keeper)]
    for pid in trio:
        freeze(pid)
    for pid in reversed(trio):  # the end of its parent would let the next go on
        os.kill(pid, signal.SIGKILL)
    agent.wait()


def children_of(pid: int) -> list[int]:
    return [int(number) for number in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
