"""meshrun-ray as the entrypoint of a submitted job: what Ray learns of its end, and its stop."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.ray.running import LIMIT_S, STEPS
from tests.support.ray_cluster import RayTestCluster
from tests.support.waiting import wait_until


class Job:
    """A job that was submitted by `ray job submit`."""

    def __init__(
        self, cluster: RayTestCluster, directory: Path, *options: str, env: dict[str, str] | None = None
    ) -> None:
        from ray.job_submission import JobSubmissionClient

        self.facts = directory / "facts"
        self.facts.mkdir(exist_ok=True)
        self.id = f"exp-{os.urandom(3).hex()}"
        self.client = JobSubmissionClient(cluster.dashboard_url)
        words = ["--nproc-per-node=1", "--bundle=CPU=2", *options, str(STEPS), str(self.facts)]
        # The environment's own command, by its path: the job has no other PATH.
        ray = str(Path(sys.executable).parent / "ray")
        subprocess.run(
            [
                ray, "job", "submit", "--no-wait", f"--address={cluster.dashboard_url}", f"--submission-id={self.id}",
                f"--runtime-env-json={json.dumps({'env_vars': env or {}})}",
                "--", sys.executable, "-m", "launcher.extensions.ray", *words,
            ],
            env=cluster.make_environment(), check=True, capture_output=True, timeout=LIMIT_S,
        )  # fmt: skip

    def wait_for_workers(self, count: int) -> None:
        def find() -> bool:
            info = self.client.get_job_info(self.id)
            assert info.status in ("PENDING", "RUNNING"), f"{info.message}\n{self.read_logs()}"
            return len(list(self.facts.glob("*.json"))) == count

        wait_until(find, LIMIT_S, f"{count} workers")

    def wait_for_end(self) -> Any:
        def find() -> Any:
            info = self.client.get_job_info(self.id)
            return info if info.status in ("FAILED", "SUCCEEDED", "STOPPED") else None

        return wait_until(find, LIMIT_S, "the end of the job")

    def read_logs(self) -> str:
        return str(self.client.get_job_logs(self.id))

    def list_processes(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter(["cmdline", "status"]):
            words = process.info["cmdline"] or []
            is_own = str(self.facts) in words and "submit" not in words
            if is_own and process.info["status"] != psutil.STATUS_ZOMBIE:
                found.append(process)
        return found


@contextmanager
def submit(cluster: RayTestCluster, directory: Path, *options: str, **env: str) -> Iterator[Job]:
    job = Job(cluster, directory, *options, env=env)
    try:
        yield job
    finally:
        job.client.stop_job(job.id)
        wait_until(lambda: not job.list_processes(), 30.0, "the end of the job's processes")


@pytest.mark.parametrize(("code", "status"), [(0, "SUCCEEDED"), (7, "FAILED")])
def test_a_job_has_the_exit_code_of_its_workers(
    cluster: RayTestCluster, tmp_path: Path, code: int, status: str
) -> None:
    with submit(cluster, tmp_path) as job:
        job.wait_for_workers(3)
        (job.facts / "part").write_text(str(code))
        (job.facts / "part").rename(job.facts / "exit")
        info = job.wait_for_end()
        assert (info.status, info.driver_exit_code) == (status, code), job.read_logs()
        assert f"run {job.id} asks Ray for 3 nodes with CPU=2" in job.read_logs()


def test_a_stop_of_the_job_ends_agents_and_workers(cluster: RayTestCluster, tmp_path: Path) -> None:
    with submit(cluster, tmp_path) as job:
        job.wait_for_workers(3)
        began = time.monotonic()
        job.client.stop_job(job.id)
        wait_until(lambda: not job.list_processes(), 10.0, "the end of agents and workers")
        assert job.wait_for_end().status == "STOPPED"
        print(f"stopped after {time.monotonic() - began:.1f} s")
        assert "stopping all agents: SIGTERM" in job.read_logs()


def test_a_long_grace_is_warned_of_unless_ray_waits_for_it(cluster: RayTestCluster, tmp_path: Path) -> None:
    warning = "--shutdown-timeout 20 is longer than ray job stop allows"
    with submit(cluster, tmp_path, "--shutdown-timeout=20") as job:
        job.wait_for_workers(3)
        assert f"{warning}, which kills this driver after 3 s: set RAY_JOB_STOP_WAIT_TIME_S=21" in job.read_logs()
    (tmp_path / "again").mkdir()
    with submit(cluster, tmp_path / "again", "--shutdown-timeout=20", RAY_JOB_STOP_WAIT_TIME_S="21") as job:
        job.wait_for_workers(3)
        assert warning not in job.read_logs()


def test_workers_have_their_grace_where_ray_waits_for_it(cluster: RayTestCluster, tmp_path: Path) -> None:
    (tmp_path / "facts").mkdir()
    (tmp_path / "facts/deaf").touch()
    with submit(cluster, tmp_path, "--shutdown-timeout=4", RAY_JOB_STOP_WAIT_TIME_S="30") as job:
        job.wait_for_workers(3)
        job.client.stop_job(job.id)
        wait_until(lambda: not job.list_processes(), 30.0, "the end of agents and workers")
        assert job.wait_for_end().status == "STOPPED"
        assert "SIGTERM is passed to the workers, which have 4 s" in job.read_logs()
        assert "\nmeshrun: stopped by SIGTERM" in re.sub(r"\S+ driver ", "", job.read_logs())  # not killed after 3 s
