"""A job on an etcd that takes seconds for each write: it begins, restarts and ends, only later.

`make test` tries 1.5 s, more than the limit of any other call; SLOW_WRITES=1,2,4 tries these. Where reads take as long,
the lease must be longer: each call of its renewal has a fifth of it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rendezvous.errors import LeaseExists, OutcomeUnknown
from rendezvous.stores.etcd.store import EtcdStore
from tests.support.jobs.multi_node import Cluster
from tests.support.network.namespaces import loopback_hosts
from tests.support.processes.tree import is_alive
from tests.support.stores.etcd import EtcdServer
from tests.support.stores.slow_etcd import SlowWrites

pytestmark = pytest.mark.server

DELAYS_S = [float(text) for text in os.environ.get("SLOW_WRITES", "1.5").split(",")]
N1, N2 = loopback_hosts(2)


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdServer]:
    with EtcdServer("3.5", tmp_path / "etcd") as server:
        yield server


@pytest.mark.parametrize("delays_reads", [False, True])
@pytest.mark.parametrize("delay_s", DELAYS_S)
def test_a_job_begins_and_restarts_though_each_write_takes_long(
    tmp_path: Path, etcd: EtcdServer, delay_s: float, delays_reads: bool
) -> None:
    lease = (f"--lease-ttl={5 * (delay_s + 0.5):g}",) if delays_reads else ()
    with SlowWrites(etcd.endpoint, delay_s, delays_reads=delays_reads) as slow:
        options = (*lease, "--nproc-per-node=1", "--nnodes=2", "--max-restarts=1", f"--rdzv-endpoint={slow.endpoint}")
        with Cluster(tmp_path, *options, etcd=etcd) as job:
            job.start(N1, N2)
            job.wait_for_round(1, 2)
            assert slow.grant_count == 2, "no lease is asked for twice"
            job[N1].says(f"writes to the store take {delay_s:.1f} s")
            for pid in job[N2].worker_pids():
                os.kill(pid, 9)
            job.wait_for_round(2, 2)
            assert {name for name, node in job.jobs.items() if is_alive(node.pid)} == {"n1", "n2"}
            assert "lost the membership" not in job[N1].stderr + job[N2].stderr
            slow.delay_s = 0.0
            job.finish()
            assert {name: node.wait().exit_code for name, node in job.jobs.items()} == {"n1": 0, "n2": 0}
            assert {life.round for life in job.lives()} == {1, 2}
            assert job.overlaps() == []


def test_meshctl_waits_for_a_store_whose_reads_take_long(etcd: EtcdServer) -> None:
    """It keeps no lease, so none has to be given."""
    with SlowWrites(etcd.endpoint, 1.5, delays_reads=True) as slow:
        program = os.path.join(os.path.dirname(sys.executable), "meshctl")
        words = [program, "status", "r", "--rdzv-endpoint", slow.endpoint]
        asked = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert "run r is not there" in asked.stderr


def test_a_grant_whose_answer_was_lost_is_found_and_has_a_limit(etcd: EtcdServer) -> None:
    with SlowWrites(etcd.endpoint, 0.0) as slow:
        store = EtcdStore([slow.endpoint], call_limit_s=1.0, write_limit_s=2.0)
        slow.lost = 1
        with pytest.raises(OutcomeUnknown, match=r"did not answer within 2\.0 s"):
            store.lease_grant(60, id=7)
        with pytest.raises(LeaseExists):
            store.lease_grant(60, id=7)
        store.close()
