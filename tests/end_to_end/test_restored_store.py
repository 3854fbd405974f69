"""A job whose etcd is restored from a snapshot, or replaced by another, while it runs.

A restored etcd has forgotten writes that the agents have acted on, and its revisions mean other writes from then on. An
agent that reads less than it has read kills its workers, says what it saw and ends with 75; started again, the agents
continue from what the store holds.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.support.jobs.multi_node import Cluster
from tests.support.network.namespaces import loopback_hosts
from tests.support.network.proxy import Proxy
from tests.support.stores.etcd import EtcdCluster, EtcdServer, Snapshot

pytestmark = pytest.mark.server

HOSTS = N1, N2 = loopback_hosts(2)
OPTIONS = ("--nproc-per-node=1", "--lease-ttl=15", "--nnodes=2", "--max-restarts=5")
LOST = "meshrun: the store was restored, replaced, or restarted without its data: "
HINT = "hint: start the agents again once all earlier agents of the run have exited\n"


def begin_next_round(job: Cluster, round: int) -> None:
    """End the running round by the failure of one worker, and wait until this one runs."""
    (pid,) = job[N1].worker_pids()
    os.kill(pid, signal.SIGKILL)
    job.wait_for_round(round, 2)


def require_all_end(job: Cluster, evidence: str) -> None:
    """Both agents must say what shows that the store went back, and end with 75 and nothing left."""
    for node, ended in zip(job.jobs.values(), job.wait(exit_code=75), strict=True):
        assert f"{LOST}{evidence}" in ended.stderr
        assert ended.stderr.endswith(HINT)
        node.wait_until_nobody_is_left()


def test_a_snapshot_of_round_1_restored_in_round_3_ends_both_agents(tmp_path: Path, own_etcd: EtcdServer) -> None:
    with Cluster(tmp_path, *OPTIONS, etcd=own_etcd) as job:
        job.begin(*HOSTS, workers=2)
        snapshot = Snapshot(own_etcd)
        begin_next_round(job, 2)
        begin_next_round(job, 3)
        snapshot.restore()
        own_etcd.start()
        require_all_end(job, "it is at revision ")
        for life in tmp_path.glob("*/life-*"):  # round numbers are used again
            life.unlink()
        job.start(*HOSTS)  # the same command, as a scheduler repeats it
        for node in job.jobs.values():
            node.says("meshrun: round 2: 2 of 2 nodes")
        job.wait_for_round(2, 2)
        job.finish()


def test_a_restored_store_that_others_have_written_to_ends_both_agents(tmp_path: Path, own_etcd: EtcdServer) -> None:
    """Its revision is higher than any that the agents have seen; a key of the job is older than they know it."""
    with Cluster(tmp_path, *OPTIONS, etcd=own_etcd) as job:
        job.begin(*HOSTS, workers=2)
        snapshot = Snapshot(own_etcd)
        begin_next_round(job, 2)
        snapshot.restore(others=150)
        own_etcd.start()
        require_all_end(job, f"/meshrun/{job.run_id}/")


def test_an_address_that_leads_to_another_store_ends_both_agents(tmp_path: Path, own_etcd: EtcdServer) -> None:
    with EtcdServer("3.5", tmp_path / "other") as other, Proxy(own_etcd.client_port) as proxy:
        meeting = ("--rdzv-backend", "etcd", "--rdzv-endpoint", proxy.endpoint)
        with Cluster(tmp_path, *OPTIONS, *meeting) as job:
            job.begin(*HOSTS, workers=2)
            proxy.lead_to(other.client_port)
            require_all_end(job, f"the store at {proxy.endpoint} belongs to cluster ")
            assert "/meshrun" not in other.ctl("get", "--prefix", "/meshrun", "--keys-only")


def test_one_server_of_three_that_is_restored_alone_stops_nobody(tmp_path: Path) -> None:
    with EtcdCluster("3.5", tmp_path / "etcd") as etcd, Cluster(tmp_path, *OPTIONS, etcd=etcd) as job:
        job.begin(*HOSTS, workers=2)
        server = etcd.members[0]
        Snapshot(server).restore()
        server.start()
        job.live_on(6.0)  # each has renewed its lease meanwhile
        job.finish()
        assert {life.round for life in job.lives()} == {1}
