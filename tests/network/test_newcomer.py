"""A node that comes to a job of measured nodes on an emulated tree: it stands at its leaf, and the job goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.jobs.multi_node import HostEtcd
from tests.support.network.measuring import TREES, URGENT, KnownNetwork, place
from tests.support.network.trees import why_no_trees
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif(bool(why_no_trees()), reason=why_no_trees())

TREE = TREES["8 hosts, 4+4"]
PATHS = place(TREE)
LIMIT_S = 180.0  # as in tests.support.jobs.multi_node: a busy machine takes long to start six agents
OPTIONS = ("--nnodes", "6:8", "--nproc-per-node", "1", "--measure", "--join-grace", "3", "--grow", "never")
PRESENT = [name for name in PATHS if name not in ("n6", "n7")]  # three of each leaf
NEWCOMER = "n6"


class MeasuredJob:
    """Agents of one run on hosts of a network, whose lines are read from files; their workers wait for a file."""

    def __init__(self, network: KnownNetwork, endpoint: str, folder: Path, run_id: str) -> None:
        self._network, self._folder, self._processes = network, folder, {}
        (folder / "wait.py").write_text("import os, time\nwhile not os.path.exists('end'):\n    time.sleep(0.1)\n")
        words = ("--rdzv-backend", "etcd", "--rdzv-endpoint", endpoint, "--rdzv-id", run_id, *OPTIONS, "wait.py")
        self._command = [sys.executable, "-m", "launcher", *words]

    def start(self, *names: str) -> None:
        for name in names:
            with open(self._folder / name, "w") as file:
                self._processes[name] = subprocess.Popen(
                    [*self._network.host(name).prefix, *URGENT, *self._command],
                    stderr=file,
                    cwd=self._folder,
                    env={**os.environ, "PYTHONPATH": str(Path.cwd())},
                )

    def read(self, name: str) -> str:
        return (self._folder / name).read_text()

    def wait_for(self, text: str, *names: str) -> None:
        wait_until(lambda: all(text in self.read(name) for name in names), LIMIT_S, f"{text!r} of {names}")

    def find_leaf(self, name: str) -> str:
        line = next(line for line in self.read(name).splitlines() if "this node stands at leaf=" in line)
        return line.partition("leaf=")[2].partition(",")[0]

    def end(self) -> list[int]:
        """Exit codes, when the workers have ended."""
        (self._folder / "end").touch()
        return [process.wait(LIMIT_S) for process in self._processes.values()]

    def kill(self) -> None:
        for process in self._processes.values():
            if process.poll() is None:
                process.kill()
                process.wait()


@pytest.fixture(scope="module")
def network() -> Iterator[KnownNetwork]:
    with KnownNetwork(TREE) as network:
        yield network


@pytest.fixture
def job(network: KnownNetwork, tmp_path: Path) -> Iterator[MeasuredJob]:
    """Six agents that have found the tree. A machine without a free core may find none: one of three tries has to."""
    (tmp_path / "etcd").mkdir()
    with HostEtcd(network, tmp_path / "etcd") as etcd:
        for attempt in range(3):
            folder = tmp_path / str(attempt)
            folder.mkdir()
            job = MeasuredJob(network, etcd.endpoint, folder, f"run-{attempt}")
            try:
                job.start(*PRESENT)
                job.wait_for("round 1: 6 of 6 nodes", *PRESENT)
                if attempt == 2 or all("this node stands at leaf=" in job.read(name) for name in PRESENT):
                    yield job
                    return
            finally:
                job.kill()


def test_a_newcomer_stands_at_its_leaf_and_the_job_goes_on(job: MeasuredJob) -> None:
    job.start(NEWCOMER)
    job.wait_for("round 1 runs without this node", NEWCOMER)
    like = [name for name in PRESENT if job.find_leaf(name) == job.find_leaf(NEWCOMER)]
    assert {PATHS[name] for name in like} == {PATHS[NEWCOMER]}
    line = f"meshrun: {NEWCOMER} comes to the run: the network is loaded for a moment to find its place"
    assert all(line in job.read(name).splitlines() for name in PRESENT)
    assert job.end() == [0] * 7
    assert not any("round 2" in job.read(name) for name in PRESENT)


def test_without_udp_a_newcomer_joins_without_a_place(network: KnownNetwork, job: MeasuredJob) -> None:
    network.block_udp(NEWCOMER)
    try:
        job.start(NEWCOMER)
        job.wait_for("round 1 runs without this node", NEWCOMER)
    finally:
        network.heal(NEWCOMER)
    assert "got UDP echoes from 0 of 6 nodes, which is too few: it has no measured place" in job.read(NEWCOMER)
    assert "this node stands at" not in job.read(NEWCOMER)


def test_a_third_of_a_newcomers_packets_may_be_lost(network: KnownNetwork, job: MeasuredJob) -> None:
    network.lose(NEWCOMER, 0.33)
    try:
        job.start(NEWCOMER)
        job.wait_for("this node's place in the network is unknown", NEWCOMER)  # and then it measures
    finally:
        network.heal(NEWCOMER)
    job.wait_for("round 1 runs without this node", NEWCOMER)
    if "it has no measured place" not in job.read(NEWCOMER):
        like = [name for name in PRESENT if job.find_leaf(name) == job.find_leaf(NEWCOMER)]
        assert {PATHS[name] for name in like} == {PATHS[NEWCOMER]}
