"""Several agents of one run on one host, as on a laptop where two nodes are tried, and commands that differ."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.support.jobs.single_node import Job
from tests.support.network.namespaces import free_port
from tests.support.stores.etcd import EtcdServer
from tests.support.waiting import wait_until

HOST = os.uname().nodename
SLEEP = 'mark("began"); wait_for("../finish")'


class OneHost:
    """Agents of one run, each in a directory of its own."""

    def __init__(self, directory: Path, stack: ExitStack, *options: str, script: str = SLEEP) -> None:
        self.directory = directory
        self._stack = stack
        self._options = options
        self._script = script
        self._count = 0

    def start(self, *options: str, arguments: tuple[str, ...] = (), **env: str) -> Job:
        self._count += 1
        own = self.directory / f"agent-{self._count}"
        own.mkdir()
        job = Job(own, *self._options, *options, script=self._script, arguments=arguments, env=env)
        return self._stack.enter_context(job)

    def finish(self) -> None:
        (self.directory / "finish").touch()


@contextmanager
def one_host(directory: Path, *options: str, script: str = SLEEP) -> Iterator[OneHost]:
    with ExitStack() as stack:
        yield OneHost(directory, stack, "--nproc-per-node=1", *options, script=script)


def ranks(job: Job, round: int = 1) -> list[int]:
    return [int(path.name.split("-")[1]) for path in job.directory.glob(f"began-*-{round}")]


def test_torchx_s_two_nodes_on_this_machine_are_one_job(tmp_path: Path) -> None:
    """The options are those of `torchx run -s local_cwd dist.ddp -j 2x1`; here each node has arguments of its own."""
    at = ("--rdzv_backend=c10d", f"--rdzv_endpoint=localhost:{free_port('127.0.0.1')}", "--rdzv_id=digits")
    script = 'mark("began", " ".join(sys.argv[1:]))'
    with one_host(tmp_path, *at, "--nnodes=2", "--tee=3", "--role=", script=script) as host:
        jobs = [host.start(arguments=("--data", f"/part/{part}", f"--token=t0ken{part}")) for part in (1, 2)]
        ended = [job.wait(120) for job in jobs]
        assert [one.exit_code for one in ended] == [0, 0], ended
        assert sorted(rank for job in jobs for rank in ranks(job)) == [0, 1]
        for part, job in enumerate(jobs, 1):
            (rank,) = ranks(job)
            assert job.mark("began", rank, 1) == f"--data /part/{part} --token=t0ken{part}"
        assert sum(f"this node is called {HOST}-2" in one.stderr for one in ended) == 1
        remark = "was started with other arguments for the script; this node keeps its own"
        assert sum(remark in one.stderr for one in ended) == 1
        assert not any(words in one.stderr for words in ("nodes are called", "t0ken") for one in ended)


@pytest.mark.server
def test_one_run_id_under_two_prefixes_is_two_runs_on_a_host(tmp_path: Path, etcd: EtcdServer) -> None:
    at = ("--rdzv-backend=etcd", f"--rdzv-endpoint={etcd.endpoint}", f"--rdzv-id=twice-{os.getpid()}")
    with one_host(tmp_path, *at, "--nnodes=1:2", "--join-grace=0", "--node-name=both") as host:
        jobs = [host.start(f"--rdzv-conf=etcd_prefix={prefix}") for prefix in ("one", "other")]
        for job in jobs:
            wait_until(lambda job=job: ranks(job), 60, "its rank of round 1")  # type: ignore[misc]
        host.finish()
        ended = [job.wait(120) for job in jobs]
        assert [one.exit_code for one in ended] == [0, 0], ended
        assert not [one.stderr for one in ended if "here, too" in one.stderr or "waiting up to" in one.stderr]


@pytest.mark.server
def test_an_agent_that_is_killed_and_comes_again_keeps_name_and_ranks(tmp_path: Path, etcd: EtcdServer) -> None:
    at = ("--rdzv-backend=etcd", f"--rdzv-endpoint={etcd.endpoint}", f"--rdzv-id=again-{os.getpid()}")
    with one_host(tmp_path, *at, "--nnodes=3", "--lease-ttl=15") as host:
        jobs = [host.start() for _ in range(3)]
        for job in jobs:
            wait_until(lambda job=job: ranks(job), 60, "its rank of round 1")  # type: ignore[misc]
        (victim,) = [job for job in jobs if f"this node is called {HOST}-2" in job.stderr]
        others = [job for job in jobs if job is not victim]
        before = {id(job): ranks(job) for job in jobs}
        os.kill(victim.pid, signal.SIGKILL)
        again = host.start()
        wait_until(lambda: f"this node is called {HOST}-2" in again.stderr, 60, "its name")
        last = wait_until(lambda: max(rounds(again), default=0), 60, "its rank")
        assert ranks(again, last) == before[id(victim)]
        for job in others:
            wait_until(lambda job=job: ranks(job, last) == before[id(job)], 60, "its rank")  # type: ignore[misc]
        host.finish()
        assert [job.wait(60).exit_code for job in (*others, again)] == [0, 0, 0]


def rounds(job: Job) -> list[int]:
    return [int(path.name.split("-")[2]) for path in job.directory.glob("began-*-*[0-9]")]


def test_a_second_agent_with_the_same_devices_or_name_is_refused(tmp_path: Path) -> None:
    at = ("--rdzv-backend=c10d", f"--rdzv-endpoint=localhost:{free_port('127.0.0.1')}", "--nnodes=1:2")
    devices = ("--devices=foo:2", "--visible-env=FOO_VISIBLE", "--join-grace=0")
    with one_host(tmp_path, *at, *devices) as host:
        host._options = host._options[1:]  # the devices say how many workers there are
        first = host.start()
        wait_until(lambda: ranks(first), 60, "its ranks")
        # Other visible devices: it is not taken for one that comes again. Of the devices in question they say nothing.
        second = host.start(CUDA_VISIBLE_DEVICES="7").wait(60)
        assert second.exit_code == 75
        *_, sentence, hint = second.stderr.splitlines()
        assert sentence.startswith(f"meshrun: error: agent {first.pid} ({HOST}) of this run is here ")
        assert sentence.endswith("with foo0, foo1, which this agent would also use")
        assert hint == "hint: give each agent devices of its own with FOO_VISIBLE, or a --node-name to share them"
        third = host.start(CUDA_VISIBLE_DEVICES="7", FOO_VISIBLE="4,5")
        wait_until(lambda: f"this node is called {HOST}-2" in third.stderr, 60, "its name")
        named = host.start("--node-name=mine")
        wait_until(lambda: "runs without this node" in named.stderr, 60, "one that may share them")
        again = host.start("--node-name=mine").wait(60)
        assert again.exit_code == 75
        assert f"is already on this node, as mine: pid {named.pid}" in again.stderr
        host.finish()
        assert [job.wait(60).exit_code for job in (first, third, named)] == [0, 0, 0]
