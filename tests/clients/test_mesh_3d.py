"""The example of a 3-D mesh with all three axes: a worker is killed, a node is lost, and the losses stay the same."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.test_mesh_3d_two_nodes import losses, training
from tests.end_to_end.test_examples import EXAMPLES, LIMIT_S, finish, start
from tests.support.jobs.multi_node import Cluster
from tests.support.network.namespaces import loopback_hosts
from tests.support.stores.etcd import EtcdServer
from tests.support.waiting import wait_until

pytest.importorskip("torch")

N1, N2 = loopback_hosts(2)
STEPS = 40
MESH = "--mesh=pp=2,dp=*,tp=2"
WORDS = ("--steps", str(STEPS), "--every", "5")


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdServer]:
    with EtcdServer("3.4", tmp_path / "etcd") as server:
        yield server


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """What one worker alone learns when nothing is lost."""
    words = ("--nproc-per-node=1", str(EXAMPLES / "mesh_3d.py"), *WORDS)
    return losses(finish("meshrun", tmp_path_factory.mktemp("alone"), *words))


def test_eight_workers_go_on_where_a_killed_one_left_them(tmp_path: Path, alone: dict[int, float]) -> None:
    words = ("--nproc-per-node=8", MESH, "--max-restarts=1", str(EXAMPLES / "mesh_3d.py"), *WORDS)
    with start("meshrun", tmp_path, *words, "--checkpoint", "saved") as run:
        wait_until(lambda: list(tmp_path.glob("saved/step-*[0-9]")), LIMIT_S, "the first checkpoint")
        os.kill(run.worker(5), signal.SIGKILL)
        assert run.wait() == 0, run.output
        output = run.output
    assert output.count("mesh pp=2 dp=2 tp=2") == 2
    assert output.count("resumed after step") == 1
    assert losses(output) == pytest.approx(alone, abs=0.01)
    assert alone[STEPS] < alone[5] - 0.5


def test_a_lost_node_is_a_lost_replica(tmp_path: Path, etcd: EtcdServer, alone: dict[int, float]) -> None:
    options = ("--nproc-per-node=4", "--lease-ttl=3", "--join-grace=0.5", "--nnodes=1:2", MESH)
    with Cluster(tmp_path, *options, etcd=etcd, script=training(*WORDS)) as cluster:
        cluster.start(N1, N2, options=("--target-nodes=2",))
        cluster.wait_for_round(1, 8)
        wait_until(lambda: list(tmp_path.glob("saved/step-*[0-9]")), LIMIT_S, "the first checkpoint")
        cluster[N2].kill()
        ended = cluster[N1].wait(LIMIT_S)
        assert ended.exit_code == 0, ended
        assert cluster.ranks(2) == {N1.name: [0, 1, 2, 3]}
        assert cluster.overlaps() == []
    resumed = re.findall(r"^resumed after step ([0-9]+) .* saved by (.*)$", ended.stdout, re.MULTILINE)
    assert [sizes for _, sizes in resumed] == ["pp=2 dp=2 tp=2"]
    assert "mesh pp=2 dp=1 tp=2" in ended.stdout
    # What n2 printed in round 1 was lost with it; from the checkpoint on there is all of it.
    after = {step: loss for step, loss in alone.items() if step > int(resumed[0][0])}
    learned = losses(ended.stdout)
    assert after
    assert {step: learned.get(step) for step in after} == pytest.approx(after, abs=0.01)
