"""Agents of one job on several hosts of this machine, under either launcher, and the times at which workers began.

Each worker notes that it is there, with the time (CLOCK_MONOTONIC, one clock for all processes of a machine), in a file
that all of them share, and sleeps until somebody ends it. A round is a world of which every rank has done so.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks import pairs
from tests.support.network import Host
from tests.support.processes import TOKEN_VARIABLE, family, kill_family

START_LIMIT_S = 90.0  # until the first round runs: eight agents that import torch share two cores
NEVER = float("inf")
SCRIPT = """
import os, signal, time
now_s = time.clock_gettime(time.CLOCK_MONOTONIC)
words = os.environ["NODE"], os.environ["RANK"], os.environ["WORLD_SIZE"], os.getpid(), now_s
marks = os.open(os.environ["MARKS"], os.O_WRONLY | os.O_APPEND)
os.write(marks, b"%s %s %s %d %.6f\\n" % (*(word.encode() for word in words[:3]), *words[3:]))
signal.pause()
"""


class Mark(NamedTuple):
    """A worker's first line."""

    node: str
    rank: int
    world_size: int
    pid: int
    began_s: float


def last_began_s(marks: Sequence[Mark], since_s: float, world_size: int) -> float:
    """When the last worker of a world of this size began, all of them after `since_s`; NEVER while one is missing.

    Should one begin twice, in rounds that came to nothing, its first time counts.
    """
    began: dict[int, float] = {}
    for mark in marks:
        if mark.began_s >= since_s and mark.world_size == world_size:
            began.setdefault(mark.rank, mark.began_s)
    return max(began.values()) if len(began) == world_size else NEVER


class Agents:
    """One job under one launcher; at its end every process of it is killed by pid."""

    def __init__(self, side: str, directory: Path, options: Sequence[str]) -> None:
        self.side = side
        self.directory = directory
        self._options = tuple(options)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._tokens: dict[str, str] = {}
        self._marks = directory / "marks"
        self._marks.touch()
        (directory / "train.py").write_text(SCRIPT)

    def start(self, host: Host, options: Sequence[str] = ()) -> None:
        token = self._tokens[host.name] = f"{self.directory.name}-{host.name}"
        env = {**pairs.environment(), TOKEN_VARIABLE: token, "NODE": host.name, "MARKS": str(self._marks)}
        command = [*host.prefix, *pairs.COMMANDS[self.side], *self._options, "--local-addr", host.address, *options]
        with (self.directory / f"{host.name}.log").open("ab") as log:
            self._processes[host.name] = subprocess.Popen(
                [*command, "train.py"], cwd=self.directory, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def marks(self) -> list[Mark]:
        words = (line.split() for line in self._marks.read_text().splitlines())
        return [Mark(w[0], int(w[1]), int(w[2]), int(w[3]), float(w[4])) for w in words]

    def next_round_s(self, since_s: float, world_size: int, limit_s: float) -> float:
        """When the last worker of such a round began, one that nobody began before `since_s`; or NEVER."""
        while time.monotonic() < since_s + limit_s:
            last_s = last_began_s(self.marks(), since_s, world_size)
            if last_s < NEVER:
                return last_s
            time.sleep(0.02)
        return NEVER

    def begin(self, since_s: float, world_size: int) -> None:
        """Wait for the first round. Raises RuntimeError with what the agents said if there is none."""
        if self.next_round_s(since_s, world_size, START_LIMIT_S) == NEVER:
            said = "".join(f"\n--- {log.name}\n{log.read_text()[-1500:]}" for log in self.directory.glob("*.log"))
            raise RuntimeError(f"{self.side}: no round of {world_size} workers within {START_LIMIT_S:g} s{said}")

    def kill_worker(self, node: str) -> None:
        os.kill(next(mark.pid for mark in reversed(self.marks()) if mark.node == node), signal.SIGKILL)

    def kill(self, node: str) -> None:
        for pid in family(self._tokens[node]):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def leave(self, node: str) -> None:
        self._processes[node].send_signal(signal.SIGTERM)

    def close(self) -> None:
        for token in self._tokens.values():
            kill_family(token)
        for process in self._processes.values():
            process.wait()


def free_port(address: str) -> int:
    """A port for torchrun's store, which wants to be told; nobody holds it until then."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        number: int = probe.getsockname()[1]
        return number
