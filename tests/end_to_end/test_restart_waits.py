"""A restart waits for events alone: no wait between a worker's end and the next spawn ends because its time is over."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from launcher.hardware.linux.kernel import read_start_time
from tests.support.jobs.multi_node import Cluster
from tests.support.jobs.single_node import Job
from tests.support.network.namespaces import loopback_hosts
from tests.support.processes.waits import Wait, read_waits, record_waits, rests
from tests.support.stores.etcd import EtcdServer
from tests.support.waiting import wait_until

SCRIPT = """
mark("up")
def fail(signum, frame):
    sys.exit(3) if signum == signal.SIGUSR1 else 1 / 0
signal.signal(signal.SIGUSR1, fail)
signal.signal(signal.SIGUSR2, fail)
signal.pause()
"""
OPTIONS = ("--max-restarts=1", "--hang-timeout=0")


def find_start(pid: int) -> float:
    """When a process was forked (time.monotonic()), at the end of the kernel's tick."""
    suspended_s = time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()
    return (read_start_time(pid) + 1) / os.sysconf("SC_CLK_TCK") - suspended_s


def restart(waits: Path, directory: Path, *jobs: Job, signum: int) -> list[Wait]:
    """Let a job of 4 workers rest and end one; return the waits that ended by time-out until the last is forked again.

    How long a worker's own start takes is not the agent's, whose clocks go on meanwhile.
    """

    def find_marks(round: int) -> list[int]:
        return [int(path.read_text()) for path in directory.rglob(f"up-?-{round}")]

    def run_again() -> bool:
        assert all(job.exit_code is None for job in jobs), jobs[0].stderr
        return len(find_marks(2)) == 4

    wait_until(lambda: len(find_marks(1)) == 4, 60, "all workers")
    wait_until(lambda: rests(waits, *(pid for job in jobs for pid in (job.pid, job.supervisor_pid))), 60, "a rest")
    began_at = time.monotonic()
    os.kill(find_marks(1)[0], signum)
    wait_until(run_again, 60, "the next round")
    ended_at = max(map(find_start, find_marks(2)))
    return [one for one in read_waits(waits) if one.what == "is over" and began_at <= one.at <= ended_at]


CAPTURED = ("--redirects=2", "--log-dir=logs")


@pytest.mark.parametrize(
    ("signum", "options"),
    [
        (signal.SIGKILL, ()),
        *((signum, CAPTURED) for signum in (signal.SIGKILL, signal.SIGSEGV, signal.SIGUSR1, signal.SIGUSR2)),
    ],
)
def test_a_restart_on_one_node_waits_for_events_alone(signum: int, options: tuple[str, ...], tmp_path: Path) -> None:
    waits = tmp_path / "waits"
    with Job(tmp_path, "--nproc-per-node=4", *OPTIONS, *options, script=SCRIPT, prefix=record_waits(waits)) as job:
        assert restart(waits, tmp_path, job, signum=signum) == []


@pytest.mark.parametrize("where", ["agent", "supervisor"])
def test_a_planted_wait_is_found(where: str, tmp_path: Path) -> None:
    waits = tmp_path / "waits"
    with Job(tmp_path, "--nproc-per-node=4", *OPTIONS, script=SCRIPT, prefix=record_waits(waits, plant=where)) as job:
        found = restart(waits, tmp_path, job, signum=signal.SIGKILL)
        assert {one.pid for one in found} == {job.pid if where == "agent" else job.supervisor_pid}


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGUSR1])
def test_a_restart_of_two_nodes_waits_for_events_alone(signum: int, tmp_path: Path, etcd: EtcdServer) -> None:
    waits = tmp_path / "waits"
    hosts = [host._replace(prefix=(*host.prefix, *record_waits(waits))) for host in loopback_hosts(2)]
    options = ("--nnodes=2", "--nproc-per-node=2", "--lease-ttl=60", *OPTIONS)
    with Cluster(tmp_path, *options, etcd=etcd, script=SCRIPT) as cluster:
        cluster.start(*hosts)
        assert restart(waits, tmp_path, *cluster.jobs.values(), signum=signum) == []
