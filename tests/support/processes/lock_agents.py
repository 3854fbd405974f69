"""Agents of one run on this node, as far as their locks go: each has a supervisor with one worker, and waits."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from launcher.agent.startup import stale_agents
from launcher.hardware.linux import locked_files
from tests.support.processes.tree import REPOSITORY, TOKEN_VARIABLE, freeze, kill_family

# Part of an agent whose locks are in the directory `folder`.
USE_FOLDER = """
from launcher.hardware.linux import locked_files
locked_files.list_lock_dirs = lambda: [folder]
"""
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
LIMIT_S = 20.0
"""This machine may be busy."""


@contextmanager
def locks_in(*folders: Path, limit_s: float = LIMIT_S) -> Iterator[None]:
    """Use the locks of the first of these directories that can be used, in this process, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(locked_files, "list_lock_dirs", lambda: [*map(str, folders)])
        patch.setattr(stale_agents, "LIMIT_S", limit_s)
        yield


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
