"""Oracle's metadata server: region, availability domain, and for machines with RDMA their blocks.

The blocks are available where the owner's tenancy has capacity topology; else a machine may still have its network
block and rack. Names are OCIDs, long and opaque; Oracle's own labels of Kubernetes nodes keep their last eleven
characters, and so does this module, so that a node with labels and one with the server have the same names.
"""

from __future__ import annotations

from launcher.hardware.metadata_server import HttpResponse, NoAnswer, Server, parse_object, strip_text
from launcher.locality.sources.cloud import CloudSource

_PATH = "/opc/v2/"
_REGION, _DOMAIN = "instance/canonicalRegionName", "instance/availabilityDomain"
_RDMA = ("customerLocalBlock", "customerNetworkBlock", "customerHPCIslandId", "customerGpuMemoryFabric")
_HOST = ("networkBlockId", "rackId")
_SUFFIX_LENGTH = 11


class Source(CloudSource):
    name = "oci"

    def ask(self, server: Server, values: dict[str, str]) -> str:
        for key in (_REGION, _DOMAIN):
            answer = _ask(server, key)
            if answer.status == 200:
                values[key] = strip_text(answer.text).rpartition(":")[2]
        if _read_blocks(server, values, "host/rdmaTopologyData", "rdmaTopologyData", _RDMA):
            return ""
        if _read_blocks(server, values, "host/", "host", _HOST):
            return ""
        return "no rdmaTopologyData: this machine has no RDMA network, or its tenancy no capacity topology"


def _read_blocks(server: Server, values: dict[str, str], path: str, prefix: str, keys: tuple[str, ...]) -> bool:
    answer = _ask(server, path)
    if answer.status != 200:
        return False
    found = parse_object(answer.text)
    blocks = {f"{prefix}: {key}": strip_text(found.get(key)).rpartition(".")[2][-_SUFFIX_LENGTH:] for key in keys}
    values.update(blocks)
    return any(blocks.values())


def _ask(server: Server, path: str) -> HttpResponse:
    answer = server.ask(_PATH + path, {"Authorization": "Bearer Oracle"})
    if answer.status not in (200, 404):
        raise NoAnswer(f"answers {answer.status} to {path}")
    return answer
