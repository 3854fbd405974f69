"""Ray: the labels of the Ray node that this agent runs on.

`launcher.hosts.ray` hands all labels of a Ray node to its agent, in the variable that also takes labels of Kubernetes.
Ray fills in some by itself, from the cloud's variables and from the TPU, and its users add others, which are keys of
the source `kubernetes`. Names: ray/_raylet and docs.ray.io, "Use labels to control scheduling".
"""

from __future__ import annotations

from collections.abc import Mapping

from launcher.locality.contract import Hints
from launcher.locality.keys import derive_levels
from launcher.locality.kubernetes import LABELS, LabelsError, parse_labels

PREFIX = "ray.io/"


class Source:
    name = "ray"

    def is_likely(self, environ: Mapping[str, str]) -> bool:
        return PREFIX in environ.get(LABELS, "")

    def look(self, environ: Mapping[str, str], limit_s: float) -> Hints:
        try:
            labels = parse_labels(environ.get(LABELS, ""))
        except LabelsError as error:
            return Hints((), f"{LABELS}: {error}")
        derived = derive_levels("ray", labels, f"{LABELS}:")
        reason = "labels of the Ray node" if derived.levels else "no label of the Ray node names a place"
        return Hints(derived.levels, "; ".join((reason, *derived.remarks)))
