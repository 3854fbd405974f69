"""A job on an etcd that takes seconds for each write: it begins, restarts and ends, only later.

`make test` tries 1.5 s, more than the limit of any other call; SLOW_WRITES=1,2,4 tries these, and each for reads, too.
Where reads take as long, the lease must be longer: each call of its renewal has a fifth of it.
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from tests.support.jobs.multi_node import Cluster, meshctl
from tests.support.network.namespaces import loopback_hosts
from tests.support.processes.tree import is_alive
from tests.support.stores.etcd import EtcdServer
from tests.support.stores.slow_etcd import SlowWrites

pytestmark = pytest.mark.server

SLOW_WRITES = os.environ.get("SLOW_WRITES")
DELAYS_S = [float(text) for text in SLOW_WRITES.split(",")] if SLOW_WRITES else [1.5]
# Reads are asked for more often: where they are slow, too, a shorter delay shows as much.
CASES = [*itertools.product(DELAYS_S, [False]), *itertools.product(DELAYS_S if SLOW_WRITES else [1.05], [True])]
N1, N2 = loopback_hosts(2)


@pytest.mark.parametrize(("delay_s", "delays_reads"), CASES)
def test_a_job_begins_and_restarts_though_each_write_takes_long(
    tmp_path: Path, own_etcd: EtcdServer, delay_s: float, delays_reads: bool
) -> None:
    lease = (f"--lease-ttl={5 * (delay_s + 0.5):g}",) if delays_reads else ()
    with SlowWrites(own_etcd.endpoint, delay_s, delays_reads=delays_reads) as slow:
        options = (*lease, "--nproc-per-node=1", "--nnodes=2", "--max-restarts=1", f"--rdzv-endpoint={slow.endpoint}")
        with Cluster(tmp_path, *options, etcd=own_etcd) as job:
            job.begin(N1, N2, workers=2)
            assert slow.grant_count == 2, "no lease is asked for twice"
            job[N1].says("writes to the store take ")
            said_s = float(job[N1].stderr.partition("writes to the store take ")[2].split()[0])
            assert said_s >= round(delay_s, 1), "as measured: a busy machine adds to it"
            for pid in job[N2].worker_pids():
                os.kill(pid, 9)
            job.wait_for_round(2, 2)
            assert {name for name, node in job.jobs.items() if is_alive(node.pid)} == {"n1", "n2"}
            assert "membership lost" not in job[N1].stderr + job[N2].stderr
            slow.delay_s = 0.0
            job.finish()
            assert {life.round for life in job.lives()} == {1, 2}


def test_meshctl_waits_for_a_store_whose_reads_take_long(own_etcd: EtcdServer) -> None:
    """It keeps no lease, so none has to be given."""
    with SlowWrites(own_etcd.endpoint, 1.5, delays_reads=True) as slow:
        assert "run r does not exist" in meshctl("status", "r", endpoint=slow.endpoint).stderr
