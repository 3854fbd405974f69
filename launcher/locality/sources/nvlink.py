"""The NVLink domain of this node's GPUs, which their driver reported during detection.

On racks such as NVL72 the GPUs of many nodes are wired to each other by NVLink, and the fabric's manager gives each a
cluster and, inside it, a clique: the partition that can communicate. Nodes of one clique are near each other in a way
that no switch of the network shows. Where the GPUs of a node are not all in one, no level is returned, as GPU Feature
Discovery does for its label nvidia.com/gpu.clique (k8s-device-plugin, internal/lm/imex.go). Not tried on hardware.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from launcher.locality.contract import Hints, Level
from launcher.model.node import Device

ORIGIN = "clusterUuid.cliqueId of the GPUs' fabric"


class Source:
    """`devices`: of this node, with their `domain`."""

    name = "nvlink"

    def __init__(self, devices: Sequence[Device] = ()) -> None:
        self._devices = devices

    def is_likely(self, environ: Mapping[str, str]) -> bool:
        return any(device.domain for device in self._devices if device.kind == "nvidia")

    def look(self, environ: Mapping[str, str], limit_s: float) -> Hints:
        domains = [device.domain for device in self._devices if device.kind == "nvidia"]  # AMD's hives are of one node
        if not any(domains):
            return Hints((), "no GPU here is on an NVLink fabric of several nodes")
        if len(set(domains)) > 1:
            without = domains.count("")
            if without:
                return Hints((), f"{without} of {len(domains)} GPUs are on no NVLink fabric")
            return Hints((), f"the {len(domains)} GPUs are in {len(set(domains))} NVLink domains")
        return Hints((Level("nvl", domains[0], ORIGIN),), f"all {len(domains)} GPUs are in one")
