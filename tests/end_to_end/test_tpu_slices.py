"""Hosts of TPU slices as agents of one job: made-up chips and variables, real rounds over etcd."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from launcher.extensions.devices.tpu_environment import TpuEnvironment
from tests.support.jobs.multi_node import Cluster
from tests.support.network.namespaces import loopback_hosts
from tests.support.stores.etcd import EtcdServer
from tests.unit.launcher.extensions.devices.test_tpu_environment import chips
from tests.unit.launcher.hardware.test_slice_identity import GKE
from tests.unit.launcher.placement.adapter.test_numbering_slices import host, plan, shares
from tests.unit.launcher.ranks.environments.test_torch import PLACE

HOSTS = loopback_hosts(4)
# Host -> slice and worker id; their names, addresses and order of joining say nothing about either.
SLICES = {"n1": ("b", 1), "n2": ("a", 1), "n3": ("b", 0), "n4": ("a", 0)}
CHIPS = ("--devices=tpu:1", "--visible-env=TPU_VISIBLE_CHIPS")  # believed, not looked for
SCRIPT = """
names = ("TPU_WORKER_ID", "TPU_WORKER_HOSTNAMES", "MEGASCALE_NUM_SLICES", "MEGASCALE_SLICE_ID",
         "MEGASCALE_COORDINATOR_ADDRESS", "MASTER_ADDR")
mark("tpu", " ".join(os.environ[name] for name in names))
beat_until("../finish")
"""


def variables(name: str) -> dict[str, str]:
    """What a controller tells the pod; the numbers of slices are old ones."""
    slice, worker_id = SLICES[name]
    return {
        "TPU_SKIP_MDS_QUERY": "true",
        "TPU_WORKER_ID": str(worker_id),
        "TPU_WORKER_HOSTNAMES": f"{slice}-0,{slice}-1",
        "MEGASCALE_NUM_SLICES": "7",
        "MEGASCALE_SLICE_ID": {"a": "5", "b": "3"}[slice],
        "MEGASCALE_COORDINATOR_ADDRESS": "long-gone",
    }


def test_ranks_follow_slices_and_workers_are_told_so(tmp_path: Path, etcd: EtcdServer) -> None:
    options = ("--nnodes=2:4", "--target-nodes=4", "--lease-ttl=15", "--framework=torch", *CHIPS)
    with Cluster(tmp_path, *options, etcd=etcd, script=SCRIPT) as cluster:
        for host in HOSTS:
            cluster.start(host, env=variables(host.name))
        ranks = cluster.wait_for_round(1, 4)
        said = {name: cluster[name].mark("tpu", own[0], 1).split() for name, own in ranks.items()}
        for name, (own, *_) in ranks.items():
            slice, worker_id = SLICES[name]
            said_id, hostnames, count, index, coordinator, master = said[name]
            assert own == worker_id + 2 * int(index)
            assert (said_id, hostnames) == (str(worker_id), f"{slice}-0,{slice}-1"), "the slice's own words are its own"
            assert (count, coordinator) == ("2", master)
        (first,) = (name for name, own in ranks.items() if own == [0])
        assert {words[4] for words in said.values()} == {cluster[first].host.address}
        cluster.finish()


@pytest.mark.parametrize("slice_count", [1, 3])
def test_jax_numbers_its_processes_as_the_ranks_are(slice_count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What JAX makes of the variables on a TPU host of GKE: its own code, which needs no TPU for that."""
    pytest.importorskip("jax", reason="JAX is not installed on this Python")
    from jax._src.clusters.cloud_tpu_cluster import GkeTpuCluster

    names = "abc"[:slice_count]
    members = [host(slice, worker_id, slots=1) for worker_id in (2, 0, 3, 1) for slice in names]
    for name, share in shares(plan(members)).items():
        slice, _, worker_id = name.partition("-")
        parent = {
            **GKE,
            "TPU_WORKER_ID": worker_id,
            "TPU_WORKER_HOSTNAMES": ",".join(f"{slice}-{index}" for index in range(4)),
            "MEGASCALE_NUM_SLICES": "9",
            "MEGASCALE_SLICE_ID": "7",
            "MEGASCALE_COORDINATOR_ADDRESS": "127.0.0.1",
        }
        where = replace(
            PLACE,
            slot=chips(0, 1, 2, 3),
            rank=share.ranks[0],
            local_rank=0,
            local_world_size=1,
            world_size=share.world_size,
            group_world_size=share.group_world_size,
            master_addr="127.0.0.1",
            slice_index=share.slice_index,
            slice_count=share.slice_count,
        )
        for variable, value in {**parent, **TpuEnvironment().variables(where, parent)}.items():
            monkeypatch.setenv(variable, value)
        assert GkeTpuCluster.get_process_id() == share.ranks[0]
        assert GkeTpuCluster.get_process_count() == share.world_size == 4 * slice_count
        assert GkeTpuCluster.get_coordinator_address(5, "29400") == "127.0.0.1:29400"
