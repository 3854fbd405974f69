"""Two machines with one address, as that of a bridge which each host has: the node that leads says so."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from tests.support.jobs.multi_node import Cluster, HostEtcd
from tests.support.network.namespaces import Host, Network, run_ip

SHARED = "172.17.0.1"
BOOT_ID = "/proc/sys/kernel/random/boot_id"


def make_host(network: Network, directory: Path, name: str, boot_id: str) -> Host:
    """A host that has the address, too, and a kernel of its own as far as its boot id says."""
    host = network.host(name)
    run_ip("-netns", host.prefix[3], "address", "add", f"{SHARED}/32", "dev", "lo")
    file = directory / f"boot-{name}"
    file.write_text(f"{boot_id}\n")
    booted = ("sh", "-c", f'mount --bind "$0" {BOOT_ID} && exec "$@"', str(file))  # `ip netns exec` has its own mounts
    return Host(name, SHARED, (*host.prefix, *booted))


@pytest.mark.parametrize("is_one_machine", [False, True])
def test_one_address_of_two_machines_is_told_once(
    network: Network, etcd: HostEtcd, tmp_path: Path, *, is_one_machine: bool
) -> None:
    own = Path(BOOT_ID).read_text().strip()
    with Cluster(tmp_path, "--nproc-per-node=1", "--nnodes=2", "--max-restarts=1", etcd=etcd) as job:
        hosts = [
            make_host(network, tmp_path, name, own if is_one_machine else str(uuid.uuid4())) for name in ("n1", "n2")
        ]
        job.begin(*hosts, workers=2)
        said = [ended.stderr for ended in job.finish()]
        remark = f"n1, n2 publish the same address, {SHARED}, but have different boot ids: they are probably different"
        assert sum(text.count(remark) for text in said) == (0 if is_one_machine else 1)
        assert sum(text.count("publish the same address") for text in said) == (0 if is_one_machine else 1)
