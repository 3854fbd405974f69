"""A restart waits for events alone: no wait between a worker's end and the next spawn ends because its time is over."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.support.jobs.multi_node import Cluster
from tests.support.jobs.single_node import Job
from tests.support.network.namespaces import loopback_hosts
from tests.support.processes.waits import Wait, read_waits, record_waits, rests
from tests.support.stores.etcd import EtcdServer
from tests.support.waiting import wait_until

SCRIPT = """
mark("up", f"{os.getpid()} {time.monotonic()}")
def fail(signum, frame):
    sys.exit(3) if signum == signal.SIGUSR1 else 1 / 0
signal.signal(signal.SIGUSR1, fail)
signal.signal(signal.SIGUSR2, fail)
signal.pause()
"""
OPTIONS = ("--nproc-per-node=4", "--max-restarts=1", "--hang-timeout=0")


def restart(job: Job, waits: Path, signum: int) -> list[Wait]:
    """End a worker of a job that rests; return the waits that ended by time-out until all of them run again."""
    pid = int(job.mark("up", 1, 1).split()[0])
    began_at = time.monotonic()
    os.kill(pid, signum)
    ended_at = max(float(text.split()[1]) for text in job.marks("up", range(4), 2))
    return [one for one in read_waits(waits) if one.what == "is over" and began_at <= one.at <= ended_at]


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSEGV, signal.SIGUSR1, signal.SIGUSR2])
@pytest.mark.parametrize("options", [(), ("--redirects=2", "--log-dir=logs")], ids=["shown", "captured"])
def test_a_restart_on_one_node_waits_for_events_alone(signum: int, options: tuple[str, ...], tmp_path: Path) -> None:
    waits = tmp_path / "waits"
    with Job(tmp_path, *OPTIONS, *options, script=SCRIPT, prefix=record_waits(waits)) as job:
        job.marks("up", range(4))
        wait_until(lambda: rests(waits, job.pid, job.supervisor_pid), 60, "agent and supervisor to rest")
        assert restart(job, waits, signum) == []


@pytest.mark.parametrize("where", ["agent", "supervisor"])
def test_a_planted_wait_is_found(where: str, tmp_path: Path) -> None:
    waits = tmp_path / "waits"
    with Job(tmp_path, *OPTIONS, script=SCRIPT, prefix=record_waits(waits, plant=where)) as job:
        job.marks("up", range(4))
        wait_until(lambda: rests(waits, job.pid, job.supervisor_pid), 60, "agent and supervisor to rest")
        assert {one.pid for one in restart(job, waits, signal.SIGKILL)} == {
            job.pid if where == "agent" else job.supervisor_pid
        }
