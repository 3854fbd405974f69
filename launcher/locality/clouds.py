"""The metadata servers of clouds: where the machine under this node is, by the cloud's own word.

A cloud is a row of `CLOUDS`: the function that asks its server for a few keys; `keys` has the levels of these. A server
is asked only where the firmware has a sign of the cloud (`launcher.hardware.cloud_firmware`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from launcher.hardware import metadata_server as metadata
from launcher.hardware.cloud_firmware import has_cloud_signature
from launcher.hardware.metadata_server import NoAnswer, Server
from launcher.locality.contract import Hints
from launcher.locality.keys import derive_levels


class CloudSource:
    """`root`: the directory above /sys, and `address`: the server's, for tests."""

    def __init__(self, name: str, *, root: str = "/", address: tuple[str, int] = metadata.LINK_LOCAL) -> None:
        self.name = name
        self._root = root
        self._address = address

    def is_likely(self, environ: Mapping[str, str]) -> bool:
        return has_cloud_signature(self.name, self._root)

    def look(self, environ: Mapping[str, str], limit_s: float) -> Hints:
        if self.name == "aws" and metadata.is_amazon_off(environ):
            return Hints((), f"{metadata.AMAZON_OFF} is set")
        values: dict[str, str] = {}
        try:
            told = CLOUDS[self.name](Server(self._address, min(limit_s, metadata.LIMIT_S)), values)
        except NoAnswer as error:
            told = f"the metadata server {error}"
        found = derive_levels(self.name, values)
        server_name = "" if not found.levels else "IMDSv2" if self.name == "aws" else "metadata server"
        return Hints(found.levels, "; ".join(filter(None, (server_name, told, *found.remarks))))


# Amazon: IMDSv2 has region and zone, and no switches. The network nodes above a machine are available from an API that
# needs a permission, and on Kubernetes from labels that AWS's controller sets.

_NO_SWITCHES = (
    "it knows no switches: `aws ec2 describe-instance-topology` and the node labels "
    "topology.k8s.aws/network-node-layer-N name them"
)


def _ask_aws(server: Server, values: dict[str, str]) -> str:
    headers = {metadata.AMAZON_TOKEN: metadata.fetch_amazon_token(server, 60)}
    for key in ("placement/region", "placement/availability-zone"):
        values[key] = metadata.strip_text(server.ask(f"/latest/meta-data/{key}", headers).get_text(key))
    return _NO_SWITCHES


# Google: machines for accelerators and some for HPC have a position below the zone, where they were placed compactly or
# reserved. It is an attribute in one of two spellings; both occur in public code that reads them, neither in Google's
# documentation. Under GKE a proxy of GKE's may answer instead, which has the zone and hides attributes.

_GCE_ZONE, _GCE_HOST = "instance/zone", "instance/attributes/physical_host"
_GCE_TOPOLOGY = "instance/attributes/physical_host_topology"
_GCE_PARTS = ("cluster", "block", "subblock")


def _ask_gce(server: Server, values: dict[str, str]) -> str:
    if zone := metadata.strip_text(metadata.ask_google(server, _GCE_ZONE)).rpartition("/")[2]:
        values[_GCE_ZONE] = zone
        values[f"{_GCE_ZONE}: before the last dash"] = zone.rpartition("-")[0]
    topology = metadata.ask_google(server, _GCE_TOPOLOGY)
    if topology is not None:
        found = metadata.parse_object(topology)
        blocks = {f"{_GCE_TOPOLOGY}: {part}": metadata.strip_text(found.get(part)) for part in _GCE_PARTS}
        values.update(blocks)
        if any(blocks.values()):
            return ""
    parts = metadata.strip_text(metadata.ask_google(server, _GCE_HOST)).strip("/").split("/")
    if len(parts) == 3:
        values[f"{_GCE_HOST}: first part"], values[f"{_GCE_HOST}: second part"] = parts[:2]
        return ""
    return "no physical_host: this machine has no such place, or GKE hides it and the node's labels have it"


# Azure: machines with InfiniBand have a subgroup, one interconnect block such as the 18 machines of an NVLink rack, and
# a group, as far as InfiniBand reaches. Both came with a late version of the server's API; an older server refuses that
# version, and is asked again in an old one, where a tag may contain the subgroup.

_AZURE_PATH = "/metadata/instance/compute?format=json&api-version="
_AZURE_VERSIONS = ("2025-11-11", "2021-12-13")
_AZURE_SIZE_MAX = 1 << 18  # the machine's user data, up to 64 KiB in base64, are part of the answer
_AZURE_TAG = "Platform_Interconnect_Group"
_AZURE_IDS = ("interconnectSubgroupId", "interconnectGroupId")


def _ask_azure(server: Server, values: dict[str, str]) -> str:
    compute = _read_azure_compute(server)
    location, zone = metadata.strip_text(compute.get("location")).lower(), metadata.strip_text(compute.get("zone"))
    values.update({"location": location, "zone": f"{location}-{zone}" if location and zone else ""})
    interconnect = {key: metadata.strip_text(compute.get(key)) for key in _AZURE_IDS}
    tags = compute.get("tagsList")
    for tag in tags if isinstance(tags, list) else ():
        if isinstance(tag, dict) and tag.get("name") == _AZURE_TAG:
            interconnect.setdefault(f"tagsList: {_AZURE_TAG}", metadata.strip_text(tag.get("value")))
    values.update(interconnect)
    if any(interconnect.values()):
        return ""
    return "no interconnect group: this machine has no InfiniBand, or is in none"


def _read_azure_compute(server: Server) -> dict[str, Any]:
    for version in _AZURE_VERSIONS:
        answer = server.ask(_AZURE_PATH + version, {"Metadata": "true"}, size_max=_AZURE_SIZE_MAX)
        if answer.status == 200:
            return metadata.parse_object(answer.text)
        if answer.status != 400:  # 400: an unknown version
            break
    raise NoAnswer(f"answers {answer.status}")


# Oracle: blocks are known where the owner's tenancy has capacity topology; else a machine may still have its network
# block and rack. Names are OCIDs, long and opaque; Oracle's own labels of Kubernetes nodes keep their last eleven
# characters, and so does this, so that a node with labels and one with the server have the same names.

_OCI_RDMA = ("customerLocalBlock", "customerNetworkBlock", "customerHPCIslandId", "customerGpuMemoryFabric")
_OCI_HOST = ("networkBlockId", "rackId")
_OCID_SUFFIX_LENGTH = 11


def _ask_oci(server: Server, values: dict[str, str]) -> str:
    for key in ("instance/canonicalRegionName", "instance/availabilityDomain"):
        text = _ask_oci_path(server, key)
        if text is not None:
            values[key] = metadata.strip_text(text).rpartition(":")[2]
    for path, prefix, keys in (("host/rdmaTopologyData", "rdmaTopologyData", _OCI_RDMA), ("host/", "host", _OCI_HOST)):
        text = _ask_oci_path(server, path)
        if text is not None:
            found = metadata.parse_object(text)
            names = {key: metadata.strip_text(found.get(key)).rpartition(".")[2][-_OCID_SUFFIX_LENGTH:] for key in keys}
            values.update({f"{prefix}: {key}": name for key, name in names.items()})
            if any(names.values()):
                return ""
    return "no rdmaTopologyData: this machine has no RDMA network, or its tenancy no capacity topology"


def _ask_oci_path(server: Server, path: str) -> str | None:
    return server.ask(f"/opc/v2/{path}", {"Authorization": "Bearer Oracle"}).get_text(path)


CLOUDS: Mapping[str, Callable[[Server, dict[str, str]], str]] = {
    "aws": _ask_aws,
    "gce": _ask_gce,
    "azure": _ask_azure,
    "oci": _ask_oci,
}
"""Cloud -> what fills in key -> value and returns remarks. It raises NoAnswer, and what it has filled in counts."""
