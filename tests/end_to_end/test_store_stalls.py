"""A job whose etcd ends leases before their time, or lets a leader renew them that is none any more.

Both come from one defect of older servers: a leader whose disk stalls does not see that it was replaced. `make test`
stalls a disk once in each way; LEASE_STALLS=25 does it so often. What can be shown where no disk can be frozen is shown
with a server that is stopped, too.
"""

from __future__ import annotations

import base64
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.jobs.multi_node import Cluster
from tests.support.network.namespaces import loopback_hosts
from tests.support.processes.tree import is_alive
from tests.support.stores.etcd import EtcdServer, Members
from tests.support.stores.frozen_disks import StallingCluster, StoppingCluster, can_stall
from tests.support.waiting import wait_until

pytestmark = pytest.mark.server

STALLS = int(os.environ.get("LEASE_STALLS", "1"))
N1, N2 = loopback_hosts(2)
TTL_S = 3.0
OPTIONS = ("--nproc-per-node=1", f"--lease-ttl={TTL_S:g}", "--grow=delay=1")


def ended(job: Cluster) -> list[str]:
    """The nodes whose agents have ended."""
    return [name for name, node in job.jobs.items() if not is_alive(node.pid)]


def last_round(job: Cluster) -> dict[str, list[int]]:
    return job.ranks(max((life.round for life in job.lives()), default=0))


def require_all_to_go_on(job: Cluster, nodes: int) -> None:
    """No agent is lost, all are in one round in the end, and no two rounds have overlapped."""
    wait_until(lambda: len(last_round(job)) == nodes or ended(job), 60, "a round of all nodes")
    job.finish()


def end_lease(job: Cluster, node: str) -> None:
    """End a member's lease, and its key with it, as a server does by mistake."""
    answer = json.loads(job.etcd.ctl("get", "--prefix", f"/meshrun/{job.run_id}/", "--write-out", "json"))
    items = [item for item in answer["kvs"] if b"/members/" in base64.b64decode(item["key"])]
    (lease,) = (item["lease"] for item in items if json.loads(base64.b64decode(item["value"]))["node_name"] == node)
    job.etcd.ctl("lease", "revoke", f"{lease:x}")


def test_a_lease_that_the_store_ends_early_costs_a_round_and_no_agent(tmp_path: Path, etcd: EtcdServer) -> None:
    with Cluster(tmp_path, *OPTIONS, "--nnodes=1", etcd=etcd) as job:
        job.begin(N1, workers=1)
        end_lease(job, "n1")
        job.wait_for_round(2, 1)
        job[N1].says("membership lost: the store ended the lease early; joining again")
        require_all_to_go_on(job, 1)


def test_a_member_whose_key_is_deleted_under_a_lease_that_lives_is_removed(tmp_path: Path, etcd: EtcdServer) -> None:
    with Cluster(tmp_path, *OPTIONS, "--nnodes=1", etcd=etcd) as job:
        job.begin(N1, workers=1)
        (key,) = (key for key in job.stored() if key.startswith("members/"))
        root = f"/meshrun/{job.run_id}/" + etcd.ctl("get", "--print-value-only", f"/meshrun/{job.run_id}/current")
        etcd.ctl("del", f"{root.strip()}/{key}")
        job.wait(N1, exit_code=137)
        job[N1].says("this node was removed from the job")
        assert {life.round for life in job.lives()} == {1}


@pytest.fixture(scope="module")
def stalling(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StallingCluster]:
    why_not = can_stall(tmp_path_factory.mktemp("probe"))
    if why_not:
        pytest.skip(f"no disk can be frozen here: {why_not}")
    with StallingCluster(tmp_path_factory.mktemp("etcd")) as cluster:
        yield cluster


def test_no_agent_is_lost_when_etcds_leader_is_frozen_and_all_leases_end(tmp_path: Path) -> None:
    with StoppingCluster(tmp_path / "etcd") as stopping:
        require_none_lost_by_a_stall(tmp_path, stopping, is_n1_behind=False, stall_s=0.0)


@pytest.mark.parametrize("number", range(STALLS))
@pytest.mark.parametrize("is_n1_behind", [False, True], ids=["ended early", "renewed in vain"])
def test_a_store_whose_leader_stalls_loses_no_agent(
    tmp_path: Path, stalling: StallingCluster, is_n1_behind: bool, number: int
) -> None:
    require_none_lost_by_a_stall(tmp_path, stalling, is_n1_behind=is_n1_behind, stall_s=3 * TTL_S)


def require_none_lost_by_a_stall(
    tmp_path: Path, stalling: StallingCluster | StoppingCluster, *, is_n1_behind: bool, stall_s: float
) -> None:
    """`is_n1_behind`: n1 asks the stalled leader alone, n2 the others; else all ask the others."""
    leader = stalling.leader()
    others = Members([member for member in stalling.members if member is not leader])
    with Cluster(tmp_path, *OPTIONS, "--nnodes=1:2", "--store-outage=stop", etcd=others) as job:
        job.start(N1, options=(f"--rdzv-endpoint={leader.endpoint}",) if is_n1_behind else ())
        job.start(N2)
        # With so short a lease a busy machine may need a second round.
        wait_until(lambda: len(last_round(job)) == 2, 180, "a round of both nodes")
        with stalling.stalled(leader):
            time.sleep(stall_s)  # the stall itself: leases that it has not heard of are over for this leader
        require_all_to_go_on(job, 2)
        print(f"{len({life.round for life in job.lives()})} rounds")
