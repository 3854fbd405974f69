"""SkyPilot's description of its cluster: the region and zone in which all of its nodes are.

SKYPILOT_CLUSTER_INFO is a JSON object that every task gets, with the cloud's own names, which its metadata server uses
too (read in SkyPilot 0.14's source; not tried on a cloud). Where a cluster of another system takes the place of a
cloud, the region is that cluster's name and says nothing about the network.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from launcher.locality.contract import Hints
from launcher.locality.keys import derive_levels
from launcher.model.locality_path import is_text

VARIABLE = "SKYPILOT_CLUSTER_INFO"
_NO_CLOUDS = ("kubernetes", "slurm", "ssh")


class Source:
    name = "skypilot"

    def is_likely(self, environ: Mapping[str, str]) -> bool:
        return bool(environ.get(VARIABLE))

    def look(self, environ: Mapping[str, str], limit_s: float) -> Hints:
        try:
            values = json.loads(environ.get(VARIABLE, ""))
        except (ValueError, RecursionError):
            return Hints((), f"{VARIABLE} is no JSON")
        if not isinstance(values, dict):
            return Hints((), f"{VARIABLE} is no JSON object")
        cloud = values.get("cloud")
        if isinstance(cloud, str) and cloud.lower() in _NO_CLOUDS:
            return Hints((), f"{VARIABLE} is about a cluster of {cloud}, whose name is no place in the network")
        texts = {name: value for name in ("region", "zone") if isinstance(value := values.get(name), str)}
        found = derive_levels(self.name, texts, VARIABLE)
        named = f"{VARIABLE} of {cloud}" if is_text(cloud) else VARIABLE
        return Hints(found.levels, "; ".join((named if found.levels else f"{VARIABLE} names no place", *found.remarks)))
