"""The example of a 3-D mesh on two nodes, of which one is lost: fewer read the checkpoint, and nothing else changes.

`test_mesh_3d` has the same with eight workers, and with pipeline stages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.test_examples import EXAMPLES, finish
from tests.support.jobs.multi_node import Cluster
from tests.support.network.namespaces import loopback_hosts
from tests.support.stores.etcd import EtcdServer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.server

LIMIT_S = 180.0
N1, N2 = loopback_hosts(2)
STEPS, EVERY = 24, 4
WORDS = ("--steps", str(STEPS), "--every", str(EVERY))


def training(*words: str) -> str:
    """A script that runs the example with these words and beats, so that one sees which ranks ran where."""
    return f"""
import runpy, threading

def live():
    while True:
        beat()
        time.sleep(0.01)

threading.Thread(target=live, daemon=True).start()
sys.argv = ["mesh_3d.py", *{words!r}, "--checkpoint", "../saved"]
runpy.run_path({str(EXAMPLES / "mesh_3d.py")!r}, run_name="__main__")
"""


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdServer]:
    with EtcdServer("3.4", tmp_path / "etcd") as server:
        yield server


def losses(output: str) -> dict[int, float]:
    """The loss after each step that is told."""
    found = re.findall(r"^step ([0-9]+) of [0-9]+: loss ([0-9.]+)$", output, re.MULTILINE)
    return {int(step): float(loss) for step, loss in found}


def test_one_replica_resumes_the_checkpoint_of_two_with_the_same_result(tmp_path: Path, etcd: EtcdServer) -> None:
    pytest.importorskip("torch")
    options = ("--nproc-per-node=2", "--lease-ttl=3", "--join-grace=0.5", "--nnodes=1:2", "--mesh=dp=*,tp=2")
    with Cluster(tmp_path, *options, etcd=etcd, script=training(*WORDS)) as cluster:
        cluster.start(N1, N2, options=("--target-nodes=2",))
        cluster.wait_for_round(1, 4)
        wait_until(lambda: list(tmp_path.glob("saved/step-*[0-9]")), LIMIT_S, "the first checkpoint")
        cluster[N2].kill()
        ended = cluster[N1].wait(LIMIT_S)
        assert ended.exit_code == 0, ended
        assert cluster.ranks(2) == {N1.name: [0, 1]}
    resumed = re.findall(r"^resumed after step ([0-9]+) .* saved by (.*)$", ended.stdout, re.MULTILINE)
    assert len(resumed) == 1
    assert int(resumed[0][0]) < STEPS
    assert resumed[0][1] == "pp=1 dp=2 tp=2"
    assert "mesh pp=1 dp=1 tp=2" in ended.stdout
    learned = losses(ended.stdout)
    alone = losses(finish("meshrun", tmp_path, "--nproc-per-node=1", str(EXAMPLES / "mesh_3d.py"), *WORDS))
    assert sorted(alone) == list(range(EVERY, STEPS + 1, EVERY))
    assert alone[STEPS] < alone[EVERY] - 0.5
    # What n2 printed of round 1 was lost with it, if it had rank 0; from the checkpoint on there is all of it.
    after = [step for step in alone if step > int(resumed[0][0])]
    assert {step: learned[step] for step in after} == pytest.approx({step: alone[step] for step in after}, abs=0.01)
