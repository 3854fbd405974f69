"""The example of a 3-D mesh: a worker is killed, a node is lost, and the losses stay those of one worker alone."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from tests.support.jobs.examples import EXAMPLES, LIMIT_S, Run, finish
from tests.support.jobs.multi_node import BEAT_IN_A_THREAD, Cluster
from tests.support.network.namespaces import loopback_hosts
from tests.support.stores.etcd import EtcdServer
from tests.support.waiting import wait_until

pytest.importorskip("torch")

N1, N2 = loopback_hosts(2)
STEPS = 40
WORDS = ("--steps", str(STEPS), "--every", "5")
# Runs the example and beats, so that one sees which ranks ran where.
TRAINING = f"""{BEAT_IN_A_THREAD}
import runpy

sys.argv = ["mesh_3d.py", *{WORDS!r}, "--checkpoint", "../saved"]
runpy.run_path({str(EXAMPLES / "mesh_3d.py")!r}, run_name="__main__")
"""


def losses(output: str) -> dict[int, float]:
    """The loss after each step that is told."""
    found = re.findall(r"^step ([0-9]+) of [0-9]+: loss ([0-9.]+)$", output, re.MULTILINE)
    return {int(step): float(loss) for step, loss in found}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """What one worker alone learns when nothing is lost."""
    words = ("--nproc-per-node=1", str(EXAMPLES / "mesh_3d.py"), *WORDS)
    found = losses(finish("meshrun", tmp_path_factory.mktemp("alone"), *words))
    assert sorted(found) == list(range(5, STEPS + 1, 5))
    assert found[STEPS] < found[5] - 0.5
    return found


def test_eight_workers_go_on_where_a_killed_one_left_them(tmp_path: Path, alone: dict[int, float]) -> None:
    words = ("--nproc-per-node=8", "--mesh=pp=2,dp=*,tp=2", "--max-restarts=1", str(EXAMPLES / "mesh_3d.py"), *WORDS)
    with Run("meshrun", tmp_path, *words, "--checkpoint", "saved") as run:
        wait_until(lambda: list(tmp_path.glob("saved/step-*[0-9]")), LIMIT_S, "the first checkpoint")
        os.kill(run.worker(5), signal.SIGKILL)
        output = run.require()
    assert output.count("mesh pp=2 dp=2 tp=2") == 2
    assert output.count("resumed after step") == 1
    assert losses(output) == pytest.approx(alone, abs=0.01)


@pytest.mark.server
@pytest.mark.parametrize("pp", [1, 2])
def test_a_lost_node_is_a_lost_replica(tmp_path: Path, etcd: EtcdServer, alone: dict[int, float], pp: int) -> None:
    """Fewer read the checkpoint, and nothing else changes."""
    mesh = "--mesh=dp=*,tp=2" if pp == 1 else "--mesh=pp=2,dp=*,tp=2"
    options = (f"--nproc-per-node={2 * pp}", "--lease-ttl=3", "--join-grace=0.5", "--nnodes=1:2", mesh)
    with Cluster(tmp_path, *options, etcd=etcd, script=TRAINING) as cluster:
        cluster.start(N1, N2, options=("--target-nodes=2",))
        cluster.wait_for_round(1, 4 * pp)
        wait_until(lambda: list(tmp_path.glob("saved/step-*[0-9]")), LIMIT_S, "the first checkpoint")
        cluster[N2].kill()
        (ended,) = cluster.wait(N1, limit_s=LIMIT_S)
        assert cluster.ranks(2) == {N1.name: list(range(2 * pp))}
    ((step, sizes),) = re.findall(r"^resumed after step ([0-9]+) .* saved by (.*)$", ended.stdout, re.MULTILINE)
    assert sizes == f"pp={pp} dp=2 tp=2"
    assert f"mesh pp={pp} dp=1 tp=2" in ended.stdout
    # What n2 printed in round 1 was lost with it; from the checkpoint on there is all of it.
    learned = losses(ended.stdout)
    after = {number: loss for number, loss in alone.items() if number > int(step)}
    assert after
    assert {number: learned.get(number) for number in after} == pytest.approx(after, abs=0.01)
