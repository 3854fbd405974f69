"""Stock torchrun with our rendezvous, once; `make slow WHAT=compat` has the rest (tests/compat/test_plugin.py)."""

from __future__ import annotations

from pathlib import Path

from tests.support.jobs.torchrun import Torchruns
from tests.support.stores.etcd import EtcdServer

CRASH_ONCE = "tell()\nif SEEN['TORCHELASTIC_RESTART_COUNT'] == 0 and SEEN['RANK'] == 1:\n    sys.exit(3)\n"


def test_torchrun_ranks_nodes_by_our_plan_and_restarts_in_its_own_store(tmp_path: Path, etcd: EtcdServer) -> None:
    wait = "if SEEN['RANK'] == 0 and len(open('../seen').readlines()) < 3:\n    wait_for('never')\n"
    with Torchruns(tmp_path, etcd, "--nnodes=2", "--max-restarts=1", script=CRASH_ONCE + wait) as job:
        job.start(10)
        job.start(9)
        assert job.wait() == {"n9": 0, "n10": 0}
        seen = job.seen()
    assert {(one["NODE"], one["RANK"], one["WORLD_SIZE"]) for one in seen} == {("n9", 0, 2), ("n10", 1, 2)}
    assert len({one["MASTER_PORT"] for one in seen}) == 2
    assert {one["ADDR"] for one in seen} == {"127.0.0.29"}
    assert "round 1: 2 nodes; this is node 1" in job.agents["n10"].stderr
