"""Ray's control service restarts, for which it has to keep its state in a database, or hangs, while a job runs."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ray.running import Driver, find_number, find_round
from tests.support.ray_cluster import RayTestCluster
from tests.support.waiting import wait_until


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[str]:
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("redis-server is not installed")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    command = [program, "--bind", "127.0.0.1", "--port", str(port), "--save", "", "--dir", str(tmp_path)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)

    def answers() -> bool:
        with socket.socket() as asked:
            return asked.connect_ex(("127.0.0.1", port)) == 0

    try:
        wait_until(answers, what="redis")
        yield f"127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


def test_a_restart_of_the_control_service_does_not_end_a_job(redis: str, tmp_path: Path) -> None:
    with RayTestCluster(redis=redis) as cluster:
        for _ in range(2):
            cluster.add()
        with Driver(cluster, tmp_path, "--nproc-per-node=1", "--nnodes=2", "--max-restarts=9") as driver:
            before = driver.wait_for_world(2)
            agents = {name: agent.pid for name, agent in driver.list_agents().items()}
            cluster.restart_gcs()
            os.kill(before[0]["pid"], signal.SIGKILL)  # a round is restarted without Ray
            after = driver.wait_for_world(2, find_round(before))
            assert {name: agent.pid for name, agent in driver.list_agents().items()} == agents
            lost = find_number(cluster, after[1])
            new = cluster.add()
            cluster.kill(lost)
            again = driver.wait_for_world(2, find_round(after))
            assert new.number in {find_number(cluster, worker) for worker in again}
            driver.finish()
            assert driver.wait() == 0


def test_a_job_is_stopped_though_the_control_service_hangs(tmp_path: Path) -> None:
    with RayTestCluster() as cluster:
        cluster.add()
        with Driver(cluster, tmp_path, "--nproc-per-node=1", "--max-restarts=9") as driver:
            (worker,) = driver.wait_for_world(1)
            cluster.pause_gcs(True)
            try:
                os.kill(worker["pid"], signal.SIGKILL)
                driver.wait_for_world(1, find_round([worker]))
                driver.process.send_signal(signal.SIGTERM)
                assert driver.wait(60) == 128 + signal.SIGTERM
                assert not driver.list_processes()
            finally:
                cluster.pause_gcs(False)
