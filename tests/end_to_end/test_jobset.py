"""Pods of a JobSet that restarts in place, each with a real agent; what a kubelet does with containers is done here."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from launcher.hardware import api_server
from tests.support.jobs.single_node import PRELUDE, Command
from tests.support.network.job_sets import JobSets, job_sets
from tests.support.network.namespaces import free_port
from tests.support.processes.tree import REPOSITORY
from tests.support.waiting import wait_until

SCRIPT = """
mark("ready", os.environ["POD_NAME"])
wait_for("../finish")
"""
# The account of a pod has its files at one place; here each test has its own.
PROGRAM = """
import sys
from launcher.hardware import api_server
api_server.ACCOUNT = sys.argv[1]
from launcher import cli
sys.exit(cli.main(sys.argv[2:]))
"""
LIMIT_S = 120.0


def make_container(directory: Path, cluster: JobSets, pod: str, port: int) -> Callable[[int], Command]:
    """What starts the container of a pod, for the number of times that it was started before."""

    def start(count: int) -> Command:
        place = directory / f"{pod}-{count}"
        place.mkdir()
        (place / "train.py").write_text(PRELUDE + SCRIPT)
        account = str(cluster.root) + api_server.ACCOUNT
        options = ("--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=localhost:{port}", "--lease-ttl=5")
        environ = {**os.environ, **cluster.environ, "POD_NAME": pod, "PYTHONPATH": str(REPOSITORY)}
        words = (*options, "--in-place-restart=jobset", f"--node-name={pod}", "train.py")
        return Command(place, [sys.executable, "-c", PROGRAM, account, *words], environ)

    return start


def test_a_lost_container_restarts_all_and_the_run_has_the_next_attempt(tmp_path: Path) -> None:
    with job_sets(tmp_path, 2) as cluster:
        port = free_port("127.0.0.1")
        first, second = (make_container(tmp_path, cluster, f"train-{index}", port) for index in (0, 1))

        def is_ready(count: int) -> bool:
            return len(list(tmp_path.glob(f"train-*-{count}/ready-*"))) == 2

        with first(0) as one, second(0) as other:
            wait_until(lambda: is_ready(0), LIMIT_S, "the workers of attempt 0")
            other.send(signal.SIGKILL)
            assert other.wait().exit_code == -signal.SIGKILL
            with second(1) as again:
                ended = one.wait(LIMIT_S)
                assert ended.exit_code == 143
                assert "JobSet train restarts all pods: attempt 0 is over, and this node leaves" in ended.stderr
                assert not list(tmp_path.glob("train-1-1/ready-*")), "it waits for all pods"
                with first(1) as back:
                    wait_until(lambda: is_ready(1), LIMIT_S, "the workers of attempt 1")
                    assert cluster.current == 1
                    (tmp_path / "finish").touch()
                    assert (back.wait().exit_code, again.wait().exit_code) == (0, 0)
        assert "attempt 1 starts when all of its pods are running" in again.stderr


def test_a_pod_without_the_right_to_its_jobset_ends_with_a_sentence(tmp_path: Path) -> None:
    with job_sets(tmp_path, 2) as cluster:
        cluster.refusals["PATCH"] = [403]
        with make_container(tmp_path, cluster, "train-0", free_port("127.0.0.1"))(0) as pod:
            ended = pod.wait(LIMIT_S)
    assert ended.exit_code == 2
    assert "the API server does not let this pod write an annotation of its pod: a Role with get" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_sigterm_ends_a_pod_that_waits_for_others(tmp_path: Path) -> None:
    with (
        job_sets(tmp_path, 2) as cluster,
        make_container(tmp_path, cluster, "train-0", free_port("127.0.0.1"))(0) as pod,
    ):
        pod.says("attempt 0 starts when all of its pods are running", LIMIT_S)
        pod.send(signal.SIGTERM)
        assert pod.wait(LIMIT_S).exit_code == -signal.SIGTERM
