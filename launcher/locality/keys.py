"""Derives levels from the keys and values that one source has: which key names which level, and what counts of them.

Every vendor has its own names for what we call leaf, spine and core: Kubernetes' labels alone come in a dozen families.
Who sets each key, what reading it needs, and the citation are in docs/reference/locality.md; a test compares.

Keys that belong together, because their switches are of one tree, are a family. The families of a source are in the
order of trust: levels of switches come from the first family that has any, never from two, since two trees need not
be the same. A label can exist without meaning: empty, or with a value that is no name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod

from msgspec import Struct

from launcher.locality.contract import Level
from launcher.model.locality_path import LEVELS, is_text

TIERS = ("leaf", "spine", "core", "tier-3", "tier-4", "tier-5", "tier-6", "tier-7", "tier-8", "tier-9")
"""Levels of switches, nearest to the node first."""

FROM_NEAR, FROM_FAR = "near", "far"
"""The levels of a key that ends in N, a number: counted from the node, where 0 is the switch next to it; or towards the
node, where 1 is the farthest, and the highest is the switch next to it."""

FAMILIES: Mapping[str, Sequence[Mapping[str, str]]] = {
    "kubernetes": (
        {"topology.kubernetes.io/region": "region", "topology.kubernetes.io/zone": "zone"},
        {"topology.k8s.io/region": "region", "topology.k8s.io/zone": "zone"},
        {"nvidia.com/gpu.clique": "nvl"},
        {"fabric.topograph.run/tier-N": FROM_NEAR, "accelerator.topograph.run/domain": "nvl"},
        {
            "network.topology.nvidia.com/leaf": "leaf",
            "network.topology.nvidia.com/block": "leaf",
            "network.topology.nvidia.com/spine": "spine",
            "network.topology.nvidia.com/core": "core",
            "network.topology.nvidia.com/datacenter": "core",
            "network.topology.nvidia.com/accelerator": "nvl",
        },
        {"cloud.google.com/gce-topology-subblock": "leaf", "cloud.google.com/gce-topology-block": "spine"},
        {"cloud.google.com/gke-nodepool": "slice"},
        {"topology.k8s.aws/network-node-layer-N": FROM_FAR},
        {"topology.k8s.aws/ultraserver-id": "nvl"},
        {
            "topology.kubernetes.azure.com/interconnect-subgroup": "leaf",
            "topology.kubernetes.azure.com/interconnect-group": "spine",
        },
        {"ib/torset": "leaf"},
        {
            "oci.oraclecloud.com/rdma.local_block_id": "leaf",
            "oci.oraclecloud.com/rdma.network_block_id": "spine",
            "oci.oraclecloud.com/rdma.hpc_island_id": "core",
        },
        {
            "oci.oraclecloud.com/host.gpu_memory_fabric_id": "nvl",
            "oci.oraclecloud.com/host.network_block_id": "spine",
            "oci.oraclecloud.com/host.rack_id": "leaf",
        },
        {"volcano.sh/tor": "leaf", "volcano.sh/hypernode": "spine", "volcano.sh/hypercluster": "core"},
        {
            "ray.io/availability-region": "region",
            "ray.io/availability-zone": "zone",
            "ray.io/gpu-domain": "nvl",
            "ray.io/tpu-slice-name": "slice",
        },
    ),
    "aws": ({"placement/region": "region", "placement/availability-zone": "zone"},),
    "gce": (
        {
            "instance/attributes/physical_host_topology: subblock": "leaf",
            "instance/attributes/physical_host_topology: block": "spine",
            "instance/attributes/physical_host_topology: cluster": "core",
        },
        {
            "instance/attributes/physical_host: second part": "leaf",
            "instance/attributes/physical_host: first part": "spine",
        },
        {"instance/zone": "zone", "instance/zone: before the last dash": "region"},
    ),
    "azure": (
        {"interconnectSubgroupId": "leaf", "interconnectGroupId": "spine"},
        {"tagsList: Platform_Interconnect_Group": "leaf"},
        {"location": "region", "zone": "zone"},
    ),
    "oci": (
        {
            "rdmaTopologyData: customerLocalBlock": "leaf",
            "rdmaTopologyData: customerNetworkBlock": "spine",
            "rdmaTopologyData: customerHPCIslandId": "core",
            "rdmaTopologyData: customerGpuMemoryFabric": "nvl",
        },
        {"host: networkBlockId": "spine", "host: rackId": "leaf"},
        {"instance/canonicalRegionName": "region", "instance/availabilityDomain": "zone"},
    ),
}
"""Source -> its families of keys, the most trusted first: key -> level."""

_TPU_POOL, _TPU_SHAPE = "cloud.google.com/gke-nodepool", "cloud.google.com/gke-tpu-topology"
_TPU_PARTS = ("cloud.google.com/gke-tpu-partition-", "cloud.google.com/gke-tpu-slice")
_HOST_CHIPS_MAX = 8  # a slice of more chips than any host has is of several hosts
# Values for "unknown"; all nodes with one of them would seem to be in one domain. The first is that of
# OKE's labeler (oracle-quickstart/oci-hpc-oke, labeler-configmap.yaml).
_PLACEHOLDERS = frozenset({"no-imds-data", "unknown", "none", "null", "n/a", "undefined"})
_LAYERS = (3, 4)  # the layers that AWS names; with fewer the leaf is ambiguous


class RemarkedLevels(Struct, frozen=True):
    """`levels`: outermost first; `remarks`: what is contradictory or could not be used."""

    levels: tuple[Level, ...]
    remarks: tuple[str, ...]


def derive_levels(source: str, values: Mapping[str, str], what: str = "") -> RemarkedLevels:
    """Return the levels of `values`, by key. `what`: the kind of key, for the origin, like "node label"."""
    found: dict[str, Level] = {}
    remarks: list[str] = []
    tree: Mapping[str, str] | None = None
    for family in FAMILIES[source]:
        for level, name in _find_family_keys(family, values, remarks).items():
            if level in TIERS:
                tree = tree or family
                if tree is not family:
                    continue
            found.setdefault(level, Level(level, values[name], f"{what} {name}".lstrip()))
    return RemarkedLevels(sort_levels(found.values()), tuple(dict.fromkeys(remarks)))


def sort_levels(levels: Iterable[Level]) -> tuple[Level, ...]:
    """The same levels, outermost first."""
    return tuple(sorted(levels, key=lambda level: LEVELS.index(level.name)))


def _find_family_keys(family: Mapping[str, str], values: Mapping[str, str], remarks: list[str]) -> dict[str, str]:
    """Return level -> the key of its domain."""
    found: dict[str, str] = {}
    for key, level in family.items():
        if level in (FROM_NEAR, FROM_FAR):
            numbered = _find_numbered_keys(key.removesuffix("N"), values, remarks)
            assign = _assign_from_near if level == FROM_NEAR else _assign_from_far
            found.update(assign(numbered, remarks))
        elif key in values and _is_usable(key, values, remarks):
            found.setdefault(level, key)
    return found


def _is_usable(name: str, values: Mapping[str, str], remarks: list[str]) -> bool:
    if not is_text(values[name]):
        if values[name]:  # an empty label means none in Kubernetes
            remarks.append(f"{name} is not a valid name")
        return False
    if values[name].lower() in _PLACEHOLDERS:
        remarks.append(f"{name} is {values[name]}")
        return False
    return name != _TPU_POOL or _is_slice(values)


def _is_slice(values: Mapping[str, str]) -> bool:
    """Whether the pool of this node is one slice of several hosts, and not a part of which slices are made."""
    sides = values.get(_TPU_SHAPE, "").split("x")
    if any(name.startswith(_TPU_PARTS) for name in values):
        return False
    is_shape = all(side.isascii() and side.isdigit() and len(side) <= 5 for side in sides)
    return is_shape and prod(map(int, sides)) > _HOST_CHIPS_MAX


def _find_numbered_keys(prefix: str, values: Mapping[str, str], remarks: list[str]) -> dict[int, str]:
    """Return number -> key, for the keys that are `prefix` and a number."""
    found: dict[int, str] = {}
    for name in values:
        digits = name.removeprefix(prefix)
        is_number = digits != name and digits.isascii() and digits.isdigit() and len(digits) <= 3
        if is_number and _is_usable(name, values, remarks):
            found[int(digits)] = name
    return found


def _assign_from_near(numbered: Mapping[int, str], remarks: list[str]) -> dict[str, str]:
    """Return level -> key; 0 is the switch next to the node."""
    for number, name in sorted(numbered.items()):
        if number >= len(TIERS):
            remarks.append(f"{name} is further out than {TIERS[-1]}")
    return {TIERS[number]: name for number, name in numbered.items() if number < len(TIERS)}


def _assign_from_far(numbered: Mapping[int, str], remarks: list[str]) -> dict[str, str]:
    """Return level -> key; 1 is the farthest, and the highest is the switch next to the node."""
    if not numbered:
        return {}
    last = max(numbered)
    if last not in _LAYERS or 0 in numbered:
        remarks.append(f"{numbered[last]} is the last layer, where 3 or 4 was expected: the leaf is unknown")
        return {}
    return {TIERS[last - number]: name for number, name in numbered.items()}
