"""An agent that runs out of descriptors while its job runs: a restart waits for them, and a success remains one."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.jobs.shortage import limit_descriptors
from tests.support.jobs.single_node import Job
from tests.support.network.namespaces import free_port
from tests.support.waiting import wait_until

SLEEP = 'mark("began"); wait_for("finish")'
NETWORKED = ("--rdzv-backend=c10d", "--nnodes=1", "--rdzv-id=short")


def count_files(job: Job) -> int:
    return len(os.listdir(f"/proc/{job.pid}/fd"))


@contextmanager
def started(directory: Path, *options: str, kind: str) -> Iterator[Job]:
    at = (*NETWORKED, f"--rdzv-endpoint=localhost:{free_port('127.0.0.1')}") if kind == "networked" else ()
    with Job(directory, "--nproc-per-node=2", *at, *options, script=SLEEP) as job:
        job.marks("began", range(2))
        yield job


@pytest.mark.parametrize("kind", ["alone", "networked"])
def test_a_round_whose_pipes_cannot_be_opened_waits_and_is_started(tmp_path: Path, kind: str) -> None:
    with started(tmp_path, "--max-restarts=1", "--tee=3", "--duplicate-stdout-filters=found", kind=kind) as job:
        held = count_files(job)
        # There will be room for the read ends of the round's pipes, and not for write ends too.
        before = limit_descriptors(job.pid, held)
        os.kill(int(job.mark("began", 0, 1)), signal.SIGKILL)
        job.says("cannot prepare 2 workers: Too many open files (check ulimit -n); retrying for 60 s")
        limit_descriptors(job.pid, before)
        job.marks("began", range(2), round=2)
        wait_until(lambda: count_files(job) <= held + 1, 20, "no more files than before: tries in vain leave none")
        (tmp_path / "finish").touch()
        assert job.wait(60).exit_code == 0, job.stderr
        assert job.stderr.count("cannot prepare") == 1


def test_a_job_that_waits_for_descriptors_can_be_stopped(tmp_path: Path) -> None:
    with started(tmp_path, "--max-restarts=1", "--tee=3", "--shutdown-timeout=300", kind="alone") as job:
        limit_descriptors(job.pid, count_files(job))
        os.kill(int(job.mark("began", 0, 1)), signal.SIGKILL)
        job.says("retrying for 60 s")
        os.kill(job.pid, signal.SIGTERM)
        assert job.wait(60).exit_code == 143, job.stderr


@pytest.mark.parametrize("kind", ["alone", "networked"])
def test_a_success_without_a_descriptor_to_spare_is_a_success(tmp_path: Path, kind: str) -> None:
    with started(tmp_path, "--tee=3", kind=kind) as job:
        limit_descriptors(job.pid, 3)
        (tmp_path / "finish").touch()
        assert job.wait(60).exit_code == 0, job.stderr
