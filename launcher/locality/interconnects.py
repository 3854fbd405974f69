"""What the hardware of this node says of its position: its TPU slice and its NVLink domain.

Both wire devices of several nodes to each other, in a way that no switch of the network shows. The identifiers of
InfiniBand adapters and of the firmware only look like positions: a node GUID names the adapter and not the switch
behind it (Linux, Documentation/ABI/stable/sysfs-class-infiniband). Nothing of it was tried on hardware.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from launcher.hardware import slice_identity
from launcher.hardware.metadata_server import LIMIT_S
from launcher.locality.contract import Hints, Level
from launcher.model.node import Device


class SliceSource:
    """The TPU slice that this node is a host of, from the same variables or metadata server as the chips.

    `identity`: what `look` found, None before that or if there is no slice. Besides the level it has the host's number
    and the number of hosts of a whole slice, which are no hints but required for the chips to run.
    """

    name = "slice"

    def __init__(self, devices: Sequence[Device] = ()) -> None:
        self._devices = devices
        self.identity: slice_identity.SliceIdentity | None = None

    def is_likely(self, environ: Mapping[str, str]) -> bool:
        if self._devices and self._devices[0].kind != "tpu":
            return False
        return bool(self._devices) or slice_identity.has_identity_variable(environ)

    def look(self, environ: Mapping[str, str], limit_s: float) -> Hints:
        origin = slice_identity.HOSTNAMES
        found, reason = slice_identity.read_identity(environ)
        if self._devices and not slice_identity.has_identity_variable(environ):
            answer = slice_identity.fetch_metadata(environ, limit_s=min(limit_s, LIMIT_S))
            if answer.variables:
                found, reason = slice_identity.read_identity({**environ, **answer.variables})
                origin = f"{origin} {answer.reason}"
            else:
                reason = f"{reason}; {answer.reason}"
        self.identity = found
        if found is None or not found.name:
            return Hints((), reason)
        return Hints((Level("slice", found.name, origin),), reason)


class NvlinkSource:
    """The NVLink domain of this node's GPUs, which their driver reported during detection: `Device.domain`.

    The fabric's manager gives each GPU a cluster and, inside it, a clique: the partition that can communicate. Where
    the GPUs of a node are not all in one, no level is returned, as GPU Feature Discovery does for its label
    nvidia.com/gpu.clique (k8s-device-plugin, internal/lm/imex.go).
    """

    name = "nvlink"

    def __init__(self, devices: Sequence[Device] = ()) -> None:
        self._domains = [device.domain for device in devices if device.kind == "nvidia"]  # AMD's hives are of one node

    def is_likely(self, environ: Mapping[str, str]) -> bool:
        return any(self._domains)

    def look(self, environ: Mapping[str, str], limit_s: float) -> Hints:
        count = len(self._domains)
        if not any(self._domains):
            return Hints((), "no GPU here is on an NVLink fabric of several nodes")
        if without := self._domains.count(""):
            return Hints((), f"{without} of {count} GPUs are on no NVLink fabric")
        if len(set(self._domains)) > 1:
            return Hints((), f"the {count} GPUs are in {len(set(self._domains))} NVLink domains")
        level = Level("nvl", self._domains[0], "clusterUuid.cliqueId of the GPUs' fabric")
        return Hints((level,), f"all {count} GPUs are in one")
