"""An etcd that is killed or frozen: workers go on, and the round is the same afterwards."""

from __future__ import annotations

import os

import pytest

from tests.support.jobs.multi_node import Cluster, HostEtcd, Make
from tests.support.network.namespaces import Host, Network
from tests.support.waiting import wait_until

LEASE_TTL_S = 4.0
only_in_make_faults = pytest.mark.skipif("FAULT_REPEATS" not in os.environ, reason="takes long: make slow WHAT=faults")


def running(cluster: Make, hosts: list[Host], *options: str) -> Cluster:
    job = cluster("--nnodes", "3", "--max-restarts", "0", *options)
    job.begin(*hosts[:3], workers=6)
    job.leader()
    return job


@only_in_make_faults  # once: tests/end_to_end/test_store_faults.py
@pytest.mark.parametrize(("fault", "ttls"), [("killed", 0.1), ("killed", 1.6), ("frozen", 1.6)])
def test_an_etcd_that_is_killed_or_hangs_stops_nobody_however_long(
    cluster: Make, hosts: list[Host], etcd: HostEtcd, fault: str, ttls: float
) -> None:
    job = running(cluster, hosts)
    harm, heal = (etcd.kill, etcd.start) if fault == "killed" else (etcd.stop, etcd.cont)
    harm()
    job.live_on(ttls * LEASE_TTL_S)
    heal()
    job.live_on(1.1 * LEASE_TTL_S)
    job.finish()
    assert [life.round for life in job.lives()] == [1] * 6


def test_in_an_outage_all_workers_die_if_one_node_is_cut_off_from_the_rest(
    cluster: Make, hosts: list[Host], etcd: HostEtcd, network: Network
) -> None:
    """Nobody can tell whether the node that is cut off sees the store: then nobody goes on."""
    job = running(cluster, hosts)
    etcd.kill()
    network.cut("n3")
    wait_until(lambda: not any(job[name].worker_pids() for name in job.jobs), 30, "the end of all workers")
    etcd.start()
    job.wait_for_members("n1", "n2")
    network.heal("n3")
    job.wait_for_round(2, 6)
    job.finish()


@only_in_make_faults
def test_with_store_outage_stop_an_outage_ends_the_round(cluster: Make, hosts: list[Host], etcd: HostEtcd) -> None:
    job = running(cluster, hosts, "--store-outage", "stop")
    etcd.kill()
    wait_until(lambda: not any(job[name].worker_pids() for name in job.jobs), 30, "the end of all workers")
    etcd.start()
    job.wait_for_round(2, 6)
    job.finish()
