"""A job of `meshrun-ray` on the cluster of the tests: its driver, its workers, and what is left of them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

from tests.support.ray_cluster import RayTestCluster
from tests.support.waiting import wait_until

STEPS = Path(__file__).parent / "programs/steps.py"
LIMIT_S = 120.0  # for what Ray does on a busy machine
AGENT = "launcher.calls.agent"
_ESCAPES = re.compile(r"\x1b\[\d*m")


class Driver:
    """`meshrun-ray` in a process of its own, as the entrypoint of a job is. `script`: steps.py unless another."""

    def __init__(
        self, cluster: RayTestCluster, directory: Path, *options: str, script: tuple[str, ...] = (), **env: str
    ):
        self.directory = directory
        self.facts = directory / f"facts-{os.urandom(3).hex()}"
        self.facts.mkdir()
        self._log = directory / f"{self.facts.name}.log"
        words = script or (str(STEPS), str(self.facts))
        self.run_id = f"test-{self.facts.name}"
        with open(self._log, "wb") as log:
            self.process = subprocess.Popen(
                [Path(sys.executable).with_name("meshrun-ray"), f"--rdzv-id={self.run_id}", *options, *words],
                env={**cluster.make_environment(), **env},
                cwd=directory,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        return _ESCAPES.sub("", self._log.read_text(errors="replace"))

    def wait_for(self, text: str, limit_s: float = LIMIT_S) -> str:
        """Wait until the driver has printed something that matches; return the match."""

        def find() -> str:
            found = re.search(text, self.output)
            if not found and self.process.poll() is not None:
                raise AssertionError(f"the driver has ended without {text}:\n{self.output}")
            return found[0] if found else ""

        try:
            return wait_until(find, limit_s, text)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.output}") from None

    def wait_for_world(self, size: int, after: int = 0, limit_s: float = LIMIT_S) -> list[dict[str, Any]]:
        """Wait for a round later than `after` with so many workers; return what they say, by rank."""

        def find() -> list[dict[str, Any]]:
            rounds: dict[int, list[dict[str, Any]]] = {}
            for file in self.facts.glob("*.json"):
                found = json.loads(file.read_text())
                rounds.setdefault(int(file.stem.partition("-")[0]), []).append(found)
            for number in sorted(rounds, reverse=True):
                workers = rounds[number]
                if number > after and len(workers) == size and all(one["world"] == size for one in workers):
                    return sorted(workers, key=lambda one: int(one["rank"]))
            if self.process.poll() is not None:
                raise AssertionError(f"the driver has ended before {size} workers ran:\n{self.output}")
            return []

        try:
            return wait_until(find, limit_s, f"a round of {size} workers after round {after}")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.output}") from None

    def finish(self, code: int = 0, rank: int | None = None) -> None:
        """Have all workers, or one, end with this exit code."""
        name = "exit" if rank is None else f"exit-{rank}"
        (self.facts / f"{name}.part").write_text(str(code))
        (self.facts / f"{name}.part").rename(self.facts / name)

    def wait(self, limit_s: float = LIMIT_S) -> int:
        try:
            return self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the driver has not ended:\n{self.output}") from None

    def list_agents(self) -> dict[str, psutil.Process]:
        """The agents of this job, by the names of their nodes."""
        found = {}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                words = process.cmdline()
                # The keeper and the supervisor are forked from an agent, and are called the same.
                is_agent = any(AGENT in word for word in words) and str(process.ppid()) in words
                if is_agent and f"--rdzv-id={self.run_id}" in words:
                    name = next(word for word in words if word.startswith("--node-name="))
                    found[name.partition("=")[2]] = process
        return found

    def list_processes(self) -> list[psutil.Process]:
        """Agents, what they have forked, and workers that are alive."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                words = process.cmdline()
                is_own = f"--rdzv-id={self.run_id}" in words or str(self.facts) in words
                if is_own and process.pid != self.process.pid and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def close(self) -> None:
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        with contextlib.suppress(AssertionError):
            wait_until(lambda: not self.list_processes(), 30.0)
        for process in self.list_processes():
            with contextlib.suppress(psutil.Error):
                process.kill()

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def find_round(workers: list[dict[str, Any]]) -> int:
    return int(workers[0]["environ"]["LAUNCHER_ROUND"])


def find_number(cluster: RayTestCluster, worker: dict[str, Any]) -> int:
    """The number of the cluster's node that a worker runs on."""
    labels = worker["environ"]["LAUNCHER_NODE_LABELS"]
    return cluster.find_number(re.findall(r"ray\.io/node-id=(\w+)", labels)[0])
