"""From labels, variables of Slurm and signs of clouds to levels: the table of keys, family by family."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launcher.hardware.api_server import ACCOUNT
from launcher.hardware.metadata_server import NoAnswer
from launcher.locality.clouds import CLOUDS, CloudSource
from launcher.locality.contract import Hints
from launcher.locality.keys import TIERS, RemarkedLevels, derive_levels
from launcher.locality.kubernetes import Source as KubernetesSource
from launcher.locality.kubernetes import parse_labels
from launcher.locality.slurm import Source as SlurmSource
from launcher.model.locality_path import LEVELS

LIMIT_S = 20.0
TIER, DOMAIN = "fabric.topograph.run/tier-", "accelerator.topograph.run/domain"
NVIDIA, GCE, GKE = "network.topology.nvidia.com/", "cloud.google.com/gce-topology-", "cloud.google.com/gke-"
AWS, AZURE, OCI = "topology.k8s.aws/", "topology.kubernetes.azure.com/", "oci.oraclecloud.com/"
KUBERNETES = "topology.kubernetes.io/"
CLIQUE = "7b968a6d-0000-4000-8000-5c1f2e3d4a5b.1"

FAMILIES: list[tuple[str, dict[str, str], str]] = [
    ("zone and region", {f"{KUBERNETES}region": "r", f"{KUBERNETES}zone": "z", "kubernetes.io/hostname": "n"},
     "region=r zone=z"),
    ("zone and region as the alpha wrote them", {"topology.k8s.io/region": "r", "topology.k8s.io/zone": "z"},
     "region=r zone=z"),
    ("topograph 1 with three tiers",
     {f"{TIER}0": "l", f"{TIER}1": "s", f"{TIER}2": "c", DOMAIN: "d", "accelerator.topograph.run/sub-domain": "d.1"},
     "core=c spine=s leaf=l nvl=d"),
    ("topograph 1 with ten tiers", {f"{TIER}{number}": f"t{number}" for number in range(10)},
     "tier-9=t9 tier-8=t8 tier-7=t7 tier-6=t6 tier-5=t5 tier-4=t4 tier-3=t3 core=t2 spine=t1 leaf=t0"),
    ("topograph 0.3 to 0.5",
     {f"{NVIDIA}leaf": "l", f"{NVIDIA}spine": "s", f"{NVIDIA}core": "c", f"{NVIDIA}accelerator": "a"},
     "core=c spine=s leaf=l nvl=a"),
    ("topograph 0.1",
     {f"{NVIDIA}block": "b", f"{NVIDIA}spine": "s", f"{NVIDIA}datacenter": "d", f"{NVIDIA}accelerator": "a"},
     "core=d spine=s leaf=b nvl=a"),
    ("the driver's clique before topograph's domain", {"nvidia.com/gpu.clique": CLIQUE, DOMAIN: "d"}, f"nvl={CLIQUE}"),
    ("GKE with GPUs", {f"{GCE}block": "b", f"{GCE}subblock": "s", f"{GCE}host": "h"}, "spine=b leaf=s"),
    ("GKE with a TPU slice of several hosts",
     {f"{GKE}nodepool": "p", f"{GKE}tpu-topology": "4x4", f"{GKE}tpu-accelerator": "tpu-v6e-slice"}, "slice=p"),
    ("GKE with TPU slices made of partitions",
     {f"{GKE}nodepool": "p", f"{GKE}tpu-topology": "4x4x4", f"{GKE}tpu-partition-4x4x4-id": "p-12"}, ""),
    ("GKE with TPU hosts that stand alone", {f"{GKE}nodepool": "p", f"{GKE}tpu-topology": "2x4"}, ""),
    ("GKE without TPUs", {f"{GKE}nodepool": "p"}, ""),
    ("GKE with a shape that is none", {f"{GKE}nodepool": "p", f"{GKE}tpu-topology": "4xmany"}, ""),
    ("AWS with three layers",
     {f"{AWS}network-node-layer-{number}": f"nn-{number}" for number in (1, 2, 3)}
     | {f"{AWS}zone-id": "usw2-az1"},
     "core=nn-1 spine=nn-2 leaf=nn-3"),
    ("AWS with four layers", {f"{AWS}network-node-layer-{number}": f"nn-{number}" for number in (1, 2, 3, 4)},
     "tier-3=nn-1 core=nn-2 spine=nn-3 leaf=nn-4"),
    ("AWS with a gap", {f"{AWS}network-node-layer-1": "nn-1", f"{AWS}network-node-layer-3": "nn-3"},
     "core=nn-1 leaf=nn-3"),
    ("an UltraServer", {f"{AWS}capacity-block-id": "cr-1", f"{AWS}ultraserver-id": "us-1"}, "nvl=us-1"),
    ("a capacity block of other machines", {f"{AWS}capacity-block-id": "cr-1"}, ""),
    ("Azure",
     {f"{AZURE}interconnect-group": "g", f"{AZURE}interconnect-subgroup": "s", f"{AZURE}sub-fault-domain": "1"},
     "spine=g leaf=s"),
    ("Azure's samples", {"ib/torset": "torset-03", "hyperv/PhysicalHostName": "BN4"}, "leaf=torset-03"),
    ("OCI with RDMA",
     {f"{OCI}rdma.{key}": key[0] for key in ("local_block_id", "network_block_id", "hpc_island_id", "host_id")}
     | {f"{OCI}host.gpu_memory_fabric_id": "f", f"{OCI}host.rack_id": "rack", f"{OCI}host.network_block_id": "x"},
     "core=h spine=n leaf=l nvl=f"),
    ("OCI without", {f"{OCI}host.rack_id": "rack", f"{OCI}host.network_block_id": "n", f"{OCI}host.tray_index": "13"},
     "spine=n leaf=rack"),
    ("Volcano", {"volcano.sh/tor": "t", "volcano.sh/hypernode": "h", "volcano.sh/hypercluster": "c"},
     "core=c spine=h leaf=t"),
    ("Ray", {"ray.io/availability-region": "r", "ray.io/availability-zone": "z", "ray.io/node-id": "f00"},
     "region=r zone=z"),
    ("none of all these", {"app": "train", "fabric.topograph.run/tier-": "x", f"{TIER}one": "x"}, ""),
]  # fmt: skip


@pytest.mark.parametrize(("labels", "levels"), [case[1:] for case in FAMILIES], ids=[case[0] for case in FAMILIES])
def test_each_family_of_labels_gives_its_levels(labels: dict[str, str], levels: str) -> None:
    found = derive_levels("kubernetes", labels, "node label")
    assert " ".join(f"{level.name}={level.domain}" for level in found.levels) == levels
    assert not found.remarks
    for level in found.levels:
        assert labels[level.origin.removeprefix("node label ")] == level.domain


def test_levels_of_switches_come_from_one_family_and_stand_in_one_order() -> None:
    labels = {f"{TIER}0": "l", f"{AWS}network-node-layer-1": "nn-1", f"{AWS}network-node-layer-2": "nn-2",
              f"{AWS}network-node-layer-3": "nn-3", "topology.kubernetes.io/zone": "z"}  # fmt: skip
    found = derive_levels("kubernetes", labels).levels
    assert {level.name: level.domain for level in found} == {"zone": "z", "leaf": "l"}
    assert sorted(TIERS, key=LEVELS.index, reverse=True) == list(TIERS)
    assert derive_levels("kubernetes", {f"{KUBERNETES}zone": "", f"{TIER}0": ""}) == RemarkedLevels((), ())


@pytest.mark.parametrize(
    ("labels", "remark"),
    [
        ({f"{TIER}10": "x"}, "fabric.topograph.run/tier-10 is further out than tier-9"),
        ({f"{AWS}network-node-layer-1": "a", f"{AWS}network-node-layer-2": "b"}, "the leaf is unknown"),
        ({f"{AWS}network-node-layer-5": "a"}, "the leaf is unknown"),
        ({f"{KUBERNETES}zone": "a\x1b[31m"}, "topology.kubernetes.io/zone is not a valid name"),
        ({f"{OCI}rdma.local_block_id": "no-imds-data"}, "oci.oraclecloud.com/rdma.local_block_id is no-imds-data"),
        ({f"{TIER}0": "Unknown"}, "fabric.topograph.run/tier-0 is Unknown"),
        ({f"{TIER}0": "x" * 256}, "fabric.topograph.run/tier-0 is not a valid name"),
    ],
)
def test_a_label_that_cannot_be_used_is_remarked(labels: dict[str, str], remark: str) -> None:
    found = derive_levels("kubernetes", labels)
    assert not found.levels
    (said,) = found.remarks
    assert remark in said


# Labels as text


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("", {}),
        ('zone="us-east1-b"\napp="train"\n', {"zone": "us-east1-b", "app": "train"}),
        (r'a="say \"x=y, z\" \\ \t\u00e9\x41\U0001f600"', {"a": 'say "x=y, z" \\ \té\x41\U0001f600'}),
        (r'a="\ud800\U00110000"', {"a": "\ud800\ufffd"}),
        ('a="1", b="2"\n\n c=3 ', {"a": "1", "b": "2", "c": "3"}),
        ("a=1,b=,c=3", {"a": "1", "b": "", "c": "3"}),
        ("a=1\na=2", {"a": "2"}),
        ('{"a": "1", "b": 2}', {"a": "1"}),
        (json.dumps({"kind": "Node", "metadata": {"name": "n", "labels": {"a": "1"}}}), {"a": "1"}),
        (json.dumps({"metadata": {}}), {}),
    ],
)
def test_labels_are_read_from_every_form(text: str, labels: dict[str, str]) -> None:
    assert parse_labels(text) == labels


@pytest.mark.parametrize(
    ("text", "clause"),
    [
        ("zone", "'zone' is not KEY=VALUE"),
        ("=b", "is not KEY=VALUE"),
        ('a="1" b', "'b' is not KEY=VALUE"),
        ('a="never ends', "ends within a value"),
        ("topology.kubernetes.io/zone=$(ZONE)", "$(ZONE) was not replaced: that variable must be defined before"),
        ("{", "it begins like JSON but is not valid"),
        ("{" * 50_000, "it begins like JSON but is not valid"),
        ('{"metadata": {"labels": []}}', "its labels are not a JSON object"),
        ("\n".join(f"k{number}=v" for number in range(10_002)), "more than 10000 labels"),
    ],
)
def test_text_that_is_no_labels_is_told_in_a_clause(text: str, clause: str) -> None:
    with pytest.raises(NoAnswer) as refused:
        parse_labels(text)
    assert clause in str(refused.value)
    assert str(refused.value).isprintable()


# What a pod is handed


def handed(root: Path, **environ: str) -> Hints:
    return KubernetesSource(root=str(root)).look(environ, LIMIT_S)


def test_a_downward_api_volume_is_found_where_kubernetes_examples_mount_it(tmp_path: Path) -> None:
    folder = tmp_path / "etc/podinfo"
    folder.mkdir(parents=True)
    (folder / "labels").write_text('app="train"\nvolcano.sh/tor="t1"\ntopology.kubernetes.io/zone="z1"\n')
    (folder / "annotations").write_text('volcano.sh/tor="another"\nnote="two\\nlines"\n')
    hints = handed(tmp_path)
    assert [level[:2] for level in hints.levels] == [("zone", "z1"), ("leaf", "t1")]
    assert hints.levels[0].origin == f"{folder}/labels: topology.kubernetes.io/zone"
    assert hints.reason == f"{folder}/labels; {folder}/annotations"


def test_a_zone_of_azure_s_that_is_a_number_is_a_fault_domain(tmp_path: Path) -> None:
    numbered = {"LAUNCHER_NODE_LABELS": "topology.kubernetes.io/zone=0,volcano.sh/tor=t1"}
    assert [level[:2] for level in handed(tmp_path, **numbered).levels] == [("zone", "0"), ("leaf", "t1")]
    tag = tmp_path / "sys/class/dmi/id/chassis_asset_tag"
    tag.parent.mkdir(parents=True)
    tag.write_text("7783-7084-3265-9085-8269-3286-77\n")
    hints = handed(tmp_path, **numbered)
    assert [level[:2] for level in hints.levels] == [("leaf", "t1")]
    assert hints.reason.endswith("zone 0 is a fault domain of Azure, not a zone")
    named = {"LAUNCHER_NODE_LABELS": "topology.kubernetes.io/zone=eastus-1,volcano.sh/tor=t1"}
    assert handed(tmp_path, **named).levels[0].domain == "eastus-1"


def test_a_pool_names_no_slice_where_the_slice_tells_its_own_name(tmp_path: Path) -> None:
    environ = {"LAUNCHER_NODE_LABELS": f"{GKE}nodepool=p,{GKE}tpu-topology=4x4"}
    assert [level[:2] for level in handed(tmp_path, **environ).levels] == [("slice", "p")]
    assert not handed(tmp_path, **environ, TPU_WORKER_ID="0").levels


@pytest.mark.parametrize("name", ["LAUNCHER_NODE_LABELS", "LAUNCHER_NODE_LABELS_FILE"])
def test_labels_are_handed_in_by_variable_or_file(tmp_path: Path, name: str) -> None:
    text = "topology.kubernetes.io/zone=z1,volcano.sh/tor=t1"
    (tmp_path / "labels").write_text(text)
    hints = handed(tmp_path, **{name: text if name.endswith("LABELS") else str(tmp_path / "labels")})
    assert [level[:2] for level in hints.levels] == [("zone", "z1"), ("leaf", "t1")]


@pytest.mark.parametrize(
    ("environ", "reason"),
    [
        ({"LAUNCHER_NODE_LABELS_FILE": "/nowhere/labels"}, "/nowhere/labels cannot be read: No such file or directory"),
        ({"LAUNCHER_NODE_LABELS": "app=x"}, "LAUNCHER_NODE_LABELS: no label names a place"),
        ({"LAUNCHER_NODE_LABELS": "zone"}, "LAUNCHER_NODE_LABELS: 'zone' is not KEY=VALUE"),
        ({"LAUNCHER_NODE_LABELS_FILE": "/proc/self/exe"}, "/proc/self/exe: "),
        ({}, "NODE_NAME is not set from spec.nodeName"),
    ],
)
def test_what_was_handed_in_wrongly_is_said(tmp_path: Path, environ: dict[str, str], reason: str) -> None:
    hints = handed(tmp_path, **environ)
    assert not hints.levels
    assert reason in hints.reason
    assert hints.reason.isprintable()


def test_a_pod_is_known_by_its_variable_or_its_account(tmp_path: Path) -> None:
    source = KubernetesSource(root=str(tmp_path))
    assert not source.is_likely({"NODE_NAME": "a name that others use too"})
    assert source.is_likely({"KUBERNETES_SERVICE_HOST": "10.0.0.1"})
    assert source.is_likely({"LAUNCHER_NODE_LABELS": "a=b"})
    (tmp_path / ACCOUNT.lstrip("/")).mkdir(parents=True)
    assert source.is_likely({})


# Slurm

SLURM = [
    ("a tree", "s8.s4.s0.tux1", "switch.switch.switch.node", "core=s8 spine=s4 leaf=s0"),
    ("one switch", "s0.tux1", "switch.node", "leaf=s0"),
    ("a level without a switch", "s8..s0.tux1", "switch.switch.switch.node", "core=s8 leaf=s0"),
    ("two switches at a level", "s8.s[4-5].s0.tux1", "switch.switch.switch.node", "core=s8 spine=s[4-5] leaf=s0"),
    ("a list", "s8.s[4,6].s0.tux1", "switch.switch.switch.node", "core=s8 spine=s[4,6] leaf=s0"),
    ("a block", "b8.tux1", "block.node", "leaf=b8"),
    ("twelve levels", ".".join(f"s{n}" for n in range(12, 0, -1)) + ".tux1", "switch." * 12 + "node",
     "tier-9=s10 tier-8=s9 tier-7=s8 tier-6=s7 tier-5=s6 tier-4=s5 tier-3=s4 core=s3 spine=s2 leaf=s1"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("address", "pattern", "levels"), [case[1:] for case in SLURM], ids=[case[0] for case in SLURM]
)
@pytest.mark.parametrize("node", ["tux1", ""])
def test_slurm_s_address_gives_levels(address: str, pattern: str, levels: str, node: str) -> None:
    environ = {"SLURM_TOPOLOGY_ADDR": address, "SLURM_TOPOLOGY_ADDR_PATTERN": pattern, "SLURMD_NODENAME": node}
    found = SlurmSource().look(environ, LIMIT_S).levels
    assert " ".join(f"{level.name}={level.domain}" for level in found) == levels
    assert {level.origin for level in found} == {"SLURM_TOPOLOGY_ADDR"}


@pytest.mark.parametrize(
    ("address", "pattern", "reason"),
    [
        ("", "", "no SLURM_TOPOLOGY_ADDR: srun has not started this command"),
        ("s0.tux1", "", "no SLURM_TOPOLOGY_ADDR_PATTERN"),
        ("tux1", "node", "this cluster's network is not described to Slurm"),
        ("..tux1", "switch.switch.node", "names no switch"),
        (".tux1", "block.node", "names no block"),
        ("t0:1:2:3.tux1", "torus:x:y:z.node", "neither a tree nor a block"),
        ("b8.s1.tux1", "block.switch.node", "neither a tree nor a block"),
        ("s1.tux1", "switch.switch.node", "does not fit switch.switch.node"),
        ("s1.tux2", "switch.node", "is about another node than tux1"),
        ("s1", "switch", "does not end in a node"),
        ("s\x1b1.tux1", "switch.node", "too long or not text"),
        ("s" * 300, "switch.node", "too long or not text"),
    ],
)
def test_what_slurm_does_not_say_is_said(address: str, pattern: str, reason: str) -> None:
    environ = {"SLURM_TOPOLOGY_ADDR": address, "SLURM_TOPOLOGY_ADDR_PATTERN": pattern, "SLURMD_NODENAME": "tux1"}
    hints = SlurmSource().look(environ, LIMIT_S)
    assert not hints.levels
    assert reason in hints.reason
    assert hints.reason.isprintable()


def test_slurm_is_known_by_the_number_of_a_job_and_names_of_nodes_may_have_dots() -> None:
    environ = {"SLURM_TOPOLOGY_ADDR": "s4.s0.tux1.site", "SLURM_TOPOLOGY_ADDR_PATTERN": "switch.switch.node",
               "SLURMD_NODENAME": "tux1.site"}  # fmt: skip
    found = SlurmSource().look(environ, LIMIT_S).levels
    assert [level[:2] for level in found] == [("spine", "s4"), ("leaf", "s0")]
    assert SlurmSource().is_likely({"SLURM_JOB_ID": "7"})
    assert not SlurmSource().is_likely({"SLURM_CONF": "/etc/slurm.conf"})


# Signs of clouds

MACHINES = {
    "aws": {"sys/class/dmi/id/sys_vendor": "Amazon EC2\n"},
    "aws on Xen": {"sys/class/dmi/id/sys_vendor": "Xen\n", "sys/hypervisor/uuid": "ec2e1916-9099-7caf-fd21-01234\n"},
    "gce": {"sys/class/dmi/id/product_name": "Google Compute Engine\n", "sys/class/dmi/id/sys_vendor": "Google\n"},
    "azure": {"sys/class/dmi/id/chassis_asset_tag": "7783-7084-3265-9085-8269-3286-77\n",
              "sys/class/dmi/id/sys_vendor": "Microsoft Corporation\n"},
    "oci": {"sys/class/dmi/id/chassis_asset_tag": "OracleCloud.com\n", "sys/class/dmi/id/sys_vendor": "QEMU\n"},
    "nothing: a desktop under Hyper-V": {"sys/class/dmi/id/sys_vendor": "Microsoft Corporation\n",
                                         "sys/class/dmi/id/product_name": "Virtual Machine\n"},
    "nothing: a Chromebook": {"sys/class/dmi/id/sys_vendor": "Google\n", "sys/class/dmi/id/product_name": "Eve\n"},
    "nothing: a sandbox": {},
    "nothing: rubbish": {"sys/class/dmi/id/sys_vendor": "\x00", "sys/class/dmi/id/chassis_asset_tag": "7783"},
}  # fmt: skip


@pytest.mark.parametrize("machine", MACHINES)
def test_a_cloud_is_likely_only_where_the_firmware_says_so(machine: str, tmp_path: Path) -> None:
    for name, content in MACHINES[machine].items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    environ = {"AWS_REGION": "us-west-2", "GOOGLE_CLOUD_PROJECT": "p", "AZURE_TENANT_ID": "t", "OCI_REGION": "r"}
    found = [cloud for cloud in CLOUDS if CloudSource(cloud, root=str(tmp_path)).is_likely(environ)]
    assert found == [cloud for cloud in CLOUDS if machine.split(" ")[0] == cloud]
