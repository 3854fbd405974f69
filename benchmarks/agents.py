"""Agents of one job on several hosts of this machine, under either launcher, and the times at which workers began.

Each worker notes in a file that all of them share that it is there, and, if it trains, that it has made its first step:
with the time (CLOCK_MONOTONIC, one clock for all processes of a machine). A round is a world of which every rank has
done so. Where it matters how long workers live, each writes down every few milliseconds that it still does.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks import pairs
from benchmarks.runs import NEVER
from tests.support.network.namespaces import Host
from tests.support.processes.tree import TOKEN_VARIABLE, family, freeze, kill_family

START_LIMIT_S = 90.0  # until the first round runs: eight agents that import torch share two cores
BEGAN, STEPPED = "began", "stepped"
NOTES = """
import os, signal, threading, time

def note(what):
    now_s = time.clock_gettime(time.CLOCK_MONOTONIC)
    words = os.environ["NODE"], os.environ["RANK"], os.environ["WORLD_SIZE"], str(os.getpid()), "%.6f" % now_s, what
    marks = os.open(os.environ["MARKS"], os.O_WRONLY | os.O_APPEND)
    os.write(marks, (" ".join(words) + "\\n").encode())

def live():
    life = os.open(f'{os.environ["LIVES"]}/{os.environ["NODE"]}-{os.getpid()}', os.O_CREAT | os.O_WRONLY, 0o644)
    while True:
        os.pwrite(life, b"%020.6f" % time.clock_gettime(time.CLOCK_MONOTONIC), 0)
        time.sleep(0.004)

note("began")
"""
IDLE = (
    NOTES
    + """
live() if "LIVES" in os.environ else signal.pause()
"""
)
# A small model whose gradients are averaged over all ranks, step by step, as data-parallel training does.
GLOO = (
    NOTES
    + """
if "LIVES" in os.environ:
    threading.Thread(target=live, daemon=True).start()
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.Linear(256, 256)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
is_first = True
while True:
    optimizer.zero_grad()
    model(torch.randn(16, 256)).square().mean().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()
    optimizer.step()
    if is_first:
        note("stepped")
        is_first = False
    time.sleep(0.02)
"""
)


class Mark(NamedTuple):
    """What a worker noted."""

    node: str
    rank: int
    world_size: int
    pid: int
    at_s: float
    what: str


def last_s(marks: Sequence[Mark], since_s: float, world_size: int, what: str = BEGAN) -> float:
    """When the last rank of a world of this size noted this, all after `since_s`; NEVER while one is missing.

    Should one do so twice, in rounds that came to nothing, its first time counts.
    """
    found: dict[int, float] = {}
    for mark in marks:
        if mark.what == what and mark.at_s >= since_s and mark.world_size == world_size:
            found.setdefault(mark.rank, mark.at_s)
    return max(found.values()) if len(found) == world_size else NEVER


class Agents:
    """One job under one launcher; at its end every process of it is killed by pid.

    `command`: what stands before the options, by default the launcher's own. `env` is for all agents.
    """

    def __init__(
        self,
        side: str,
        directory: Path,
        options: Sequence[str],
        *,
        script: str = IDLE,
        command: Sequence[str] | None = None,
        env: Mapping[str, str] | None = None,
        notes_lives: bool = False,
    ) -> None:
        self.side = side
        self.directory = directory
        self._command = list(command or pairs.COMMANDS[side])
        self._options = tuple(options)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._tokens: dict[str, str] = {}
        self._marks, self._lives = directory / "marks", directory / "lives"
        self._marks.touch()
        self._lives.mkdir()
        self._env = {**(env or {}), "MARKS": str(self._marks), **({"LIVES": str(self._lives)} if notes_lives else {})}
        (directory / "train.py").write_text(script)

    def start(self, host: Host, options: Sequence[str] = ()) -> None:
        token = self._tokens[host.name] = f"{self.directory.name}-{host.name}"
        env = {**pairs.environment(), **self._env, TOKEN_VARIABLE: token, "NODE": host.name}
        command = [*host.prefix, *self._command, *self._options, "--local-addr", host.address, *options]
        with (self.directory / f"{host.name}.log").open("ab") as log:
            self._processes[host.name] = subprocess.Popen(
                [*command, "train.py"], cwd=self.directory, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def marks(self) -> list[Mark]:
        words = (line.split() for line in self._marks.read_text().splitlines())
        return [Mark(w[0], int(w[1]), int(w[2]), int(w[3]), float(w[4]), w[5]) for w in words]

    def next_s(self, since_s: float, world_size: int, limit_s: float, what: str = BEGAN) -> float:
        """When the last worker of such a round had noted this, which nobody had before `since_s`; or NEVER."""
        while time.monotonic() < since_s + limit_s:
            found_s = last_s(self.marks(), since_s, world_size, what)
            if found_s < NEVER:
                return found_s
            time.sleep(0.02)
        return NEVER

    def begin(self, since_s: float, world_size: int, what: str = BEGAN) -> None:
        """Wait for the first round. Raises RuntimeError with what the agents said if there is none."""
        if self.next_s(since_s, world_size, START_LIMIT_S, what) == NEVER:
            said = "".join(f"\n--- {log.name}\n{log.read_text()[-1500:]}" for log in self.directory.glob("*.log"))
            raise RuntimeError(f"{self.side}: no round of {world_size} workers within {START_LIMIT_S:g} s{said}")

    def outlived_s(self, node: str, since_s: float, began_s: float) -> float:
        """For how long workers of this node lived beyond `began_s`, those that began before `since_s`.

        Negative where the last of them was gone before. All of them must have noted their lives.
        """
        pids = {mark.pid for mark in self.marks() if mark.node == node and mark.at_s < since_s}
        return max(float((self._lives / f"{node}-{pid}").read_text()) for pid in pids) - began_s

    # --- what happens to a node ---

    def kill_worker(self, node: str) -> None:
        os.kill(next(mark.pid for mark in reversed(self.marks()) if mark.node == node), signal.SIGKILL)

    def kill(self, node: str) -> None:
        for pid in family(self._tokens[node]):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def leave(self, node: str) -> None:
        self._processes[node].send_signal(signal.SIGTERM)

    def freeze(self, node: str) -> None:
        """SIGSTOP to the agent alone."""
        freeze(self._processes[node].pid)

    def pause(self, node: str) -> None:
        """SIGSTOP to every process of the node."""
        for pid in family(self._tokens[node]):
            os.kill(pid, signal.SIGSTOP)

    def go_on(self, node: str) -> None:
        """Undo either."""
        for pid in family(self._tokens[node]):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

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
