"""Every key of a node's locality, and its level: one table, used by the code and the docs.

Every vendor has its own names for what we call leaf, spine and core: Kubernetes' labels alone come in a dozen families.
A row of this table is one key: the module of this package that reads it (`source`), its level, the software that sets
it, the requirements to read it, the citation, and how certain that is. Nothing of it was tried on the hardware in
question.

Keys that belong together, because their switches are of one tree, are a family. The families of a source are in the
order of trust: levels of switches come from the first family that has any, never from two, since two trees need not
be the same. A key without a level is known and means something else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

TIERS = ("leaf", "spine", "core", "tier-3", "tier-4", "tier-5", "tier-6", "tier-7", "tier-8", "tier-9")
"""Levels of switches, nearest to the node first."""

FROM_NEAR = "leaf, spine, core, tier-3 to tier-9, for N from 0"
FROM_FAR = "leaf, spine, core, tier-3 for N from the highest, which is 3 or 4, down to 1"

FROM_LAST = "leaf, spine, core, tier-3 to tier-9, from the last part to the first"

DOCUMENTED: Final = "documented"
IN_SOURCE: Final = "read in its source"
SECOND_HAND: Final = "second-hand"
Confidence = Literal["documented", "read in its source", "second-hand"]


class Key(NamedTuple):
    """`level` is empty for a key without one; for several levels it describes them in words.

    `N` at the end of `name` is a number, and `level` is FROM_NEAR or FROM_FAR then.
    """

    source: str
    family: str
    name: str
    level: str
    example: str
    set_by: str
    needs: str
    confidence: Confidence
    citation: str
    note: str = ""


def _make_family(
    source: str,
    family: str,
    set_by: str,
    needs: str,
    confidence: Confidence,
    citation: str,
    *rows: tuple[str, str, str] | tuple[str, str, str, str],
) -> tuple[Key, ...]:
    """Rows are name, level, example and perhaps a note."""
    return tuple(
        Key(source, family, row[0], row[1], row[2], set_by, needs, confidence, citation, *row[3:]) for row in rows
    )


_LABEL = "`get` on nodes, or labels copied to the pod"
_HEADER = "link-local HTTP with a header"
_NO_RDMA = "where rdmaTopologyData is missing"
_CLOUD_API = "needs the cloud's API and a permission"
_TOPOGRAPH = "github.com/NVIDIA/topograph, the reference of node labels"
_OKE = "github.com/oracle-quickstart/oci-hpc-oke"
_XPK = "github.com/AI-Hypercomputer/xpk"

KEYS: tuple[Key, ...] = (
    # Kubernetes: labels of nodes
    *_make_family(
        "kubernetes", "zones", "the cloud's controller, kubelet",
        "`get` on nodes; PodTopologyLabels copies zone and region to the pod", DOCUMENTED,
        "kubernetes.io/docs/reference/labels-annotations-taints",
        ("topology.kubernetes.io/region", "region", "us-central1"),
        ("topology.kubernetes.io/zone", "zone", "us-central1-a",
         "a bare number on a machine of Azure's is a fault domain, and not used"),
        ("kubernetes.io/hostname", "", "node-7", "the node itself"),
    ),
    *_make_family(
        "kubernetes", "zones of 1.33", "the alpha of PodTopologyLabels in Kubernetes 1.33", "nothing", IN_SOURCE,
        "github.com/kubernetes/kubernetes plugin/pkg/admission/podtopologylabels",
        ("topology.k8s.io/region", "region", "us-central1"),
        ("topology.k8s.io/zone", "zone", "us-central1-a"),
    ),
    *_make_family(
        "kubernetes", "gpu", "NVIDIA GPU Feature Discovery", _LABEL, IN_SOURCE,
        "github.com/NVIDIA/k8s-device-plugin",
        ("nvidia.com/gpu.clique", "nvl", "7b968a6d-0000-4000-8000-5c1f2e3d4a5b.1", "cluster UUID and clique, as NVML"),
    ),
    *_make_family(
        "kubernetes", "topograph 1", "topograph from 1.0.0 on", _LABEL, IN_SOURCE, _TOPOGRAPH,
        ("fabric.topograph.run/tier-N", FROM_NEAR, "sw-103", "0 is the switch next to the node"),
        ("accelerator.topograph.run/domain", "nvl", "nvl1",
         "as far as the provider knows: on Google's machines the sub-block, with NVLink between nodes or without"),
        ("accelerator.topograph.run/sub-domain", "", "nvl1.rack01", "within the domain"),
    ),
    *_make_family(
        "kubernetes", "topograph 0", "topograph before 1.0.0", _LABEL, IN_SOURCE, _TOPOGRAPH,
        ("network.topology.nvidia.com/leaf", "leaf", "leaf-1", "0.3 to 0.5"),
        ("network.topology.nvidia.com/block", "leaf", "block-1", "0.1"),
        ("network.topology.nvidia.com/spine", "spine", "spine-1"),
        ("network.topology.nvidia.com/core", "core", "core-1", "0.3 to 0.5"),
        ("network.topology.nvidia.com/datacenter", "core", "dc-1", "0.1"),
        ("network.topology.nvidia.com/accelerator", "nvl", "nvl1"),
    ),
    *_make_family(
        "kubernetes", "gce", "GKE", _LABEL, DOCUMENTED,
        "cloud.google.com/ai-hypercomputer/docs/workloads/schedule-gke-workloads-tas",
        ("cloud.google.com/gce-topology-subblock", "leaf", "5f3b0e6c"),
        ("cloud.google.com/gce-topology-block", "spine", "9d1c77aa"),
        ("cloud.google.com/gce-topology-host", "", "a3e49b12", "the physical host"),
    ),
    *_make_family(
        "kubernetes", "tpu", "GKE", _LABEL, IN_SOURCE, _XPK,
        ("cloud.google.com/gke-nodepool", "slice", "pool-v6e",
         "a pool of several TPU hosts is one slice: only beside a gke-tpu-topology of more than 8 chips, and not where "
         "slices are made of partitions, or TPU_WORKER_ID and TPU_WORKER_HOSTNAMES tell"),
        ("cloud.google.com/gke-tpu-topology", "", "4x4", "the shape of the slice"),
        ("cloud.google.com/gke-tpu-accelerator", "", "tpu-v6e-slice", "the kind of chip"),
        ("cloud.google.com/gke-tpu-slice-topology", "", "4x4x8",
         "an annotation of pods: the shape of a slice made of partitions"),
        ("cloud.google.com/gke-tpu-partition-4x4x4-id", "", "p-12", "a part of a larger slice"),
    ),
    *_make_family(
        "kubernetes", "aws", "the AWS cloud controller, on hpc, trn and p instances", _LABEL, IN_SOURCE,
        "github.com/kubernetes/cloud-provider-aws pkg/providers/v1/instances_v2.go",
        ("topology.k8s.aws/network-node-layer-N", FROM_FAR, "nn-67ec43a6722b34afb", "layer 1 is the farthest"),
        ("topology.k8s.aws/zone-id", "", "usw2-az1", "the same zone under the name that all accounts share"),
    ),
    *_make_family(
        "kubernetes", "aws ultraserver", "AWS Node Feature Discovery; HyperPod", _LABEL, SECOND_HAND, _TOPOGRAPH,
        ("topology.k8s.aws/ultraserver-id", "nvl", "us-0a1b2c3d"),
        ("topology.k8s.aws/capacity-block-id", "", "cr-0a1b2c3d",
         "what was reserved together: one UltraServer, or any number of other machines"),
    ),
    *_make_family(
        "kubernetes", "azure", "the Azure cloud provider", _LABEL, IN_SOURCE,
        "github.com/kubernetes-sigs/cloud-provider-azure pkg/consts, pkg/provider",
        ("topology.kubernetes.azure.com/interconnect-subgroup", "leaf", "0f0ba375-aaf1-4ac8-a579-a3b180d47de5",
         "one interconnect block, inside of which there is NVLink; announced in cloud-provider-azure, #10544"),
        ("topology.kubernetes.azure.com/interconnect-group", "spine", "2deed8b4-d1e9-42be-a40a-9882201aa9f5",
         "where InfiniBand reaches; older releases write the subgroup here too"),
        ("topology.kubernetes.azure.com/sub-fault-domain", "", "1", "what fails together, not what is near"),
    ),
    *_make_family(
        "kubernetes", "azure samples", "sample labelers, not AKS itself", _LABEL, IN_SOURCE,
        "github.com/Azure/ai-infrastructure-on-azure",
        ("ib/torset", "leaf", "torset-03"),
        ("hyperv/PhysicalHostName", "", "BN4PEPF000012A7", "the physical host"),
    ),
    *_make_family(
        "kubernetes", "oci rdma", "OKE, the labeler of oci-hpc-oke", _LABEL, IN_SOURCE, _OKE,
        ("oci.oraclecloud.com/rdma.local_block_id", "leaf", "q2xsn4ibrza",
         "the last 11 characters of the OCID; no-imds-data where nothing is known"),
        ("oci.oraclecloud.com/rdma.network_block_id", "spine", "7vx2mhqk3ta"),
        ("oci.oraclecloud.com/rdma.hpc_island_id", "core", "3fj6q5lpw2a"),
        ("oci.oraclecloud.com/rdma.host_id", "", "x4t7jz6e5na", "the physical host"),
    ),
    *_make_family(
        "kubernetes", "oci host", "OKE, the labeler of oci-hpc-oke", _LABEL, IN_SOURCE, _OKE,
        ("oci.oraclecloud.com/host.gpu_memory_fabric_id", "nvl", "pvtkj3zctga"),
        ("oci.oraclecloud.com/host.network_block_id", "spine", "7vx2mhqk3ta"),
        ("oci.oraclecloud.com/host.rack_id", "leaf", "k2d3xw5q7ra"),
        ("oci.oraclecloud.com/host.tray_index", "", "13", "the place within the NVLink domain"),
    ),
    *_make_family(
        "kubernetes", "volcano", "whoever set up Volcano's discovery by labels", _LABEL, IN_SOURCE,
        "github.com/volcano-sh/volcano docs/design, the sample configuration",
        ("volcano.sh/tor", "leaf", "tor-3"),
        ("volcano.sh/hypernode", "spine", "hn-1"),
        ("volcano.sh/hypercluster", "core", "hc-0"),
    ),
    # Slurm: the parts of SLURM_TOPOLOGY_ADDR, by the words of SLURM_TOPOLOGY_ADDR_PATTERN
    *_make_family(
        "slurm", "slurm", "slurmstepd, in every task", "nothing", IN_SOURCE,
        "github.com/SchedMD/slurm src/plugins/topology; srun(1) promises them for topology/tree",
        ("switch", FROM_LAST, "s0",
         "topology/tree; a level may be empty, or a list of switches"),
        ("block", "leaf", "b8", "topology/block, Slurm 24.05 and newer"),
        ("torus", "", "t0:1:2:3", "topology/torus3d: neighbours, but no domains"),
        ("node", "", "tux1", "the node itself; all there is under topology/flat"),
    ),
    # Metadata of clouds about a machine
    *_make_family(
        "aws", "aws", "EC2", f"{_HEADER} (IMDSv2); from a container a hop limit of 2", DOCUMENTED,
        "docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-categories.html",
        ("placement/region", "region", "us-west-2"),
        ("placement/availability-zone", "zone", "us-west-2a"),
        ("placement/availability-zone-id", "", "usw2-az1", "the same zone under the name that all accounts share"),
        ("placement/group-name", "", "train-pg", "what was asked of EC2, not where it is"),
        ("placement/partition-number", "", "2", "what fails together, not what is near"),
    ),
    *_make_family(
        "gce", "gce", "Compute Engine", _HEADER, SECOND_HAND,
        "github.com/allenai/OLMo-core; no page of Google's",
        ("instance/attributes/physical_host_topology: subblock", "leaf", "5f3b0e6c"),
        ("instance/attributes/physical_host_topology: block", "spine", "9d1c77aa"),
        ("instance/attributes/physical_host_topology: cluster", "core", "us-central1-c1"),
        ("instance/attributes/physical_host_topology: host", "", "a3e49b12", "the physical host"),
    ),
    *_make_family(
        "gce", "gce host", "Compute Engine", _HEADER, IN_SOURCE,
        "github.com/kubernetes-sigs/dranet; github.com/GoogleCloudPlatform/cluster-toolkit",
        ("instance/attributes/physical_host: second part", "leaf", "/9d1c77aa/5f3b0e6c/a3e49b12",
         "block, sub-block, host; an older script calls them cluster, rack, host"),
        ("instance/attributes/physical_host: first part", "spine", "/9d1c77aa/5f3b0e6c/a3e49b12"),
    ),
    *_make_family(
        "gce", "gce zones", "Compute Engine", _HEADER, DOCUMENTED,
        "cloud.google.com/compute/docs/metadata/predefined-metadata-keys",
        ("instance/zone", "zone", "projects/415/zones/us-central1-a"),
        ("instance/zone: before the last dash", "region", "us-central1"),
    ),
    *_make_family(
        "azure", "azure", "Azure, with api-version 2025-11-11", _HEADER, IN_SOURCE,
        "github.com/kubernetes-sigs/cloud-provider-azure pkg/provider; github.com/kubernetes-sigs/dranet",
        ("interconnectSubgroupId", "leaf", "0f0ba375-aaf1-4ac8-a579-a3b180d47de5",
         "one interconnect block, inside of which there is NVLink (dranet, #235)"),
        ("interconnectGroupId", "spine", "2deed8b4-d1e9-42be-a40a-9882201aa9f5", "where InfiniBand reaches"),
    ),
    *_make_family(
        "azure", "azure tag", "Azure", _HEADER, IN_SOURCE,
        "github.com/kubernetes-sigs/cloud-provider-azure pkg/provider",
        ("tagsList: Platform_Interconnect_Group", "leaf", "group-123", "stands for a subgroup where ids are missing"),
    ),
    *_make_family(
        "azure", "azure zones", "Azure", _HEADER, DOCUMENTED,
        "learn.microsoft.com/azure/virtual-machines/instance-metadata-service",
        ("location", "region", "eastus"),
        ("zone", "zone", "1", "written with the location, eastus-1, as AKS labels it"),
        ("platformFaultDomain", "", "0", "what fails together, not what is near"),
        ("platformUpdateDomain", "", "0", "what is updated together"),
        ("placementGroupId", "", "c6c749e8-a38b-470e-8c94-2a7d00001bf0", "what was asked of Azure, not where it is"),
    ),
    *_make_family(
        "azure", "azure host", "Hyper-V", "the file of the machine, in a container by hostPath", IN_SOURCE,
        "github.com/Azure/ai-infrastructure-on-azure",
        ("/var/lib/hyperv/.kvp_pool_3: PhysicalHostName", "", "BN4PEPF000012A7", "the physical host"),
    ),
    *_make_family(
        "oci", "oci rdma", "OCI, where capacity topology is on", _HEADER, IN_SOURCE,
        "github.com/NVIDIA/topograph, its provider for OCI; github.com/kubernetes-sigs/dranet",
        ("rdmaTopologyData: customerLocalBlock", "leaf", "ocid1.computelocalblock.oc1.iad.anu…7",
         "the last 11 characters, as OKE's labels have them"),
        ("rdmaTopologyData: customerNetworkBlock", "spine", "ocid1.computenetworkblock.oc1.iad.anu…k"),
        ("rdmaTopologyData: customerHPCIslandId", "core", "ocid1.computehpcisland.oc1.iad.anu…q"),
        ("rdmaTopologyData: customerGpuMemoryFabric", "nvl", "ocid1.computegpumemoryfabric.oc1.iad.anu…a"),
        ("rdmaTopologyData: customerHostId", "", "ocid1.computebaremetalhost.oc1.iad.anu…c", "the physical host"),
    ),
    *_make_family(
        "oci", "oci host", "OCI", _HEADER, IN_SOURCE, "github.com/kubernetes-sigs/dranet",
        ("host: networkBlockId", "spine", "ocid1.computenetworkblock.oc1.iad.anu…k", _NO_RDMA),
        ("host: rackId", "leaf", "k2d3xw5q7ra", _NO_RDMA),
    ),
    *_make_family(
        "oci", "oci zones", "OCI", _HEADER, DOCUMENTED,
        "docs.oracle.com/iaas/Content/Compute/Tasks/gettingmetadata.htm",
        ("instance/canonicalRegionName", "region", "us-phoenix-1"),
        ("instance/availabilityDomain", "zone", "EMIr:PHX-AD-1", "what stands before the colon is the tenancy's"),
    ),
)  # fmt: skip


class UnreadSource(NamedTuple):
    """A known source of locality that is not read; `why`."""

    where: str
    what: str
    why: str


UNREAD_SOURCES: tuple[UnreadSource, ...] = (
    UnreadSource("EC2 DescribeInstanceTopology", "network nodes, capacity block", _CLOUD_API),
    UnreadSource("GCE instances.get", "resourceStatus.physicalHostTopology", _CLOUD_API),
    UnreadSource("OCI ListComputeHosts", "blocks, rack", _CLOUD_API),
    UnreadSource("Nebius API", "Status.InfinibandTopologyPath", "needs the cloud's API and a token"),
    UnreadSource("ResourceSlices of dranet", "block, sub-block, rack of a device", "needs `list` on all of them"),
    UnreadSource("scontrol show topology", "Slurm's whole tree", "SLURM_TOPOLOGY_ADDR says the same of this node"),
    UnreadSource("ibnetdiscover", "the InfiniBand switches", "needs root on the device"),
    UnreadSource("LLDP", "the switch next to the node", "needs lldpd's socket or raw sockets"),
)  # fmt: skip


def list_keys(source: str) -> tuple[Key, ...]:
    """Return the keys that one source reads, the most trusted family first."""
    return tuple(key for key in KEYS if key.source == source)


def find_level(source: str, name: str) -> str:
    """Return the level of a key; empty for one without. Raises KeyError for a key that is not in the table."""
    for key in KEYS:
        if key.source == source and key.name == name:
            return key.level
    raise KeyError(f"{source} reads no {name}")


def list_families(source: str) -> Sequence[tuple[Key, ...]]:
    """Return the keys of one source by family, the most trusted first."""
    found: dict[str, list[Key]] = {}
    for key in list_keys(source):
        found.setdefault(key.family, []).append(key)
    return [tuple(keys) for keys in found.values()]
