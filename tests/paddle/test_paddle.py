"""PaddlePaddle on CPUs, over gloo, in an environment of its own: `make slow WHAT=paddle`."""

from __future__ import annotations

import os
import signal
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.jobs.examples import EXAMPLES, LIMIT_S, finish_after_kill
from tests.support.jobs.multi_node import Cluster
from tests.support.jobs.single_node import Job
from tests.support.network.namespaces import free_port, loopback_hosts

if find_spec("paddle") is None:
    pytest.skip("PaddlePaddle is not installed", allow_module_level=True)

# Under this machine's own name: gloo, as Paddle has it, looks it up.
N1, N2 = (host._replace(prefix=()) for host in loopback_hosts(2))
PADDLE = ("--framework=paddle", "--max-restarts=1")
SUM = """
import paddle, paddle.distributed as dist
dist.init_parallel_env()
total = paddle.to_tensor([dist.get_rank() + 1.0])
if dist.get_world_size() > 1:
    dist.all_reduce(total)
mark("sum", f"{total.item():g} of {dist.get_world_size()}, {dist.get_rank() == RANK}")
mark("master", os.environ["PADDLE_MASTER"])
"""
STAYS = SUM + 'beat_until("../finish")\n'
SAVES = (
    SUM
    + """
from launcher.worker import stop_requested
paddle.disable_signal_handler()
mark("ready")
while not stop_requested():
    time.sleep(0.01)
mark("saved")
"""
)


def test_the_example_goes_on_where_a_killed_worker_left_it(tmp_path: Path) -> None:
    """Rank 0, which serves Paddle's store: the next one listens on a port of its own."""
    words = ("--framework=paddle", str(EXAMPLES / "paddle_digits.py"), "--epochs", "40")
    finish_after_kill(tmp_path, "digits.pdparams", 0, *words)
    assert os.listdir(tmp_path / "saved") == ["digits.pdparams"]


def test_two_nodes_form_a_world_and_one_goes_on_alone(tmp_path: Path) -> None:
    endpoint = f"{N1.address}:{free_port(N1.address)}"
    options = ("--nproc-per-node=1", "--nnodes=1:2", "--lease-ttl=3", "--join-grace=0.5", "--framework=paddle")
    c10d = ("--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}")
    with Cluster(tmp_path, *options, *c10d, script=STAYS) as job:
        for host in (N1, N2):
            serves = f"--rdzv-conf=is_host={host is N1}"
            job.start(host, options=("--target-nodes=2", "--node-name", host.name, serves))
        ranks = {name: found[0] for name, found in job.wait_for_round(1, 2, limit_s=LIMIT_S).items()}
        assert [job[host].mark("sum", ranks[host.name], 1, LIMIT_S) for host in (N1, N2)] == ["3 of 2, True"] * 2
        job[N2].kill()
        assert job[N1].mark("sum", 0, 2, LIMIT_S) == "1 of 1, True"
        assert job[N1].mark("master", 0, 2) != job[N1].mark("master", ranks[N1.name], 1)
        job.finish(N1)


def test_a_script_saves_when_it_is_told_to_stop(tmp_path: Path) -> None:
    with Job(tmp_path, "--nproc-per-node=2", *PADDLE, script=SAVES) as job:
        job.marks("ready", range(2), 1, LIMIT_S)
        job.send(signal.SIGTERM)
        job.marks("saved", range(2), 1, LIMIT_S)
        ended = job.wait(LIMIT_S)
        assert ended.exit_code == 143, ended.stderr
        assert "Termination signal" not in ended.stderr


def test_a_backend_of_the_user_reaches_paddle(tmp_path: Path) -> None:
    with Job(tmp_path, "--nproc-per-node=2", *PADDLE, script=SUM, env={"PADDLE_DISTRI_BACKEND": "nonsense"}) as job:
        ended = job.wait(LIMIT_S)
        assert ended.exit_code == 1
        assert "but got nonsense" in ended.stderr


def test_an_address_that_paddle_cannot_use_is_refused_before_the_workers(tmp_path: Path) -> None:
    with Job(tmp_path, "--nproc-per-node=2", "--local-addr=::1", *PADDLE, script=SUM) as job:
        ended = job.wait(LIMIT_S)
        assert ended.exit_code == 2
        assert "error: Paddle cannot reach rank 0 at ::1: its store has no IPv6\nhint: give each node" in ended.stderr
