"""The TPU slice that this node is a host of.

The hosts of a slice are wired to each other; slices are joined by the ordinary network. The data come from the same
source as the chips: variables that GKE and others set, or, on a Cloud TPU machine, the metadata server
(`slice_identity` and `cloud_metadata` in launcher/hardware/tpu). Besides the level this returns the host's number and
the number of hosts of a whole slice, which are no hints but required for the chips to run. Not tried on hardware.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from launcher.hardware.tpu import cloud_metadata, slice_identity
from launcher.locality.contract import Hints, Level
from launcher.model.node import Device


class Source:
    """`identity`: what `look` found, None before that or if there is no slice."""

    name = "slice"

    def __init__(self, devices: Sequence[Device] = ()) -> None:
        self._devices = devices
        self.identity: slice_identity.SliceIdentity | None = None

    def is_likely(self, environ: Mapping[str, str]) -> bool:
        if self._devices and self._devices[0].kind != "tpu":
            return False
        return bool(self._devices) or any(environ.get(name) for name in slice_identity.IDENTITY_VARIABLES)

    def look(self, environ: Mapping[str, str], limit_s: float) -> Hints:
        origin = slice_identity.HOSTNAMES
        found, reason = slice_identity.read_identity(environ)
        if found is None and self._devices and not any(environ.get(name) for name in slice_identity.IDENTITY_VARIABLES):
            answer = cloud_metadata.fetch_metadata(environ, limit_s=min(limit_s, cloud_metadata.LIMIT_S))
            if answer.variables:
                found, reason = slice_identity.read_identity({**environ, **answer.variables})
                origin = f"{origin} {answer.reason}"
            else:
                reason = f"{reason}; {answer.reason}"
        self.identity = found
        if found is None or not found.name:
            return Hints((), reason)
        return Hints((Level("slice", found.name, origin),), reason)
