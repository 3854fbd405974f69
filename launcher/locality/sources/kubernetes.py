"""Kubernetes: the labels of the node that this pod runs on.

Clouds and operators write rack, block and zone into labels of the Node object, which is in no namespace. A pod gets
them in one of two ways. The pod's definition provides them: by the downward API, as far as Kubernetes copies labels of
the node to the pod, or in a file that an init container has written. Or the agent queries the API server for its own
node (`node_object`), if the account of the pod may `get` nodes. Provided labels have precedence, and if they name
switches the server is not queried.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from launcher.hardware.metadata_server import NoAnswer
from launcher.hardware.tpu import slice_identity
from launcher.locality.contract import Hints, Level
from launcher.locality.keys import TIERS
from launcher.locality.labels import LabelsError, parse_labels
from launcher.locality.levels_from_keys import derive_levels, sort_levels
from launcher.locality.sources import cloud_detection
from launcher.locality.sources.node_object import read_node_labels

LABELS, LABELS_FILE = "LAUNCHER_NODE_LABELS", "LAUNCHER_NODE_LABELS_FILE"
PODINFO = "etc/podinfo"
"""The mount point of a downward API volume in Kubernetes' own examples."""

_PODINFO_FILES = ("labels", "annotations")
_FILE_MAX = 1 << 20


class Source:
    """`root`: the directory above /etc and /var, for tests."""

    name = "kubernetes"

    def __init__(self, *, root: str = "/") -> None:
        self._root = root

    def is_likely(self, environ: Mapping[str, str]) -> bool:
        is_handed_in = bool(environ.get(LABELS) or environ.get(LABELS_FILE))
        return is_handed_in or cloud_detection.is_pod(environ, self._root)

    def look(self, environ: Mapping[str, str], limit_s: float) -> Hints:
        found: dict[str, Level] = {}
        told: list[str] = []
        for name, text in self._read_label_texts(environ):
            told.append(_merge_text(name, text, found))
        if not any(level in TIERS for level in found):
            try:
                labels = read_node_labels(environ, limit_s, self._root)
                told.append(_merge_labels("node label", labels, found))
            except NoAnswer as error:
                told.append(str(error))
        if any(environ.get(name) for name in slice_identity.IDENTITY_VARIABLES):
            found.pop("slice", None)  # from the TPU itself; the pool's other name would be a conflict
        zone = found.get("zone")
        if zone and zone.domain.isdecimal() and cloud_detection.find_cloud_signature("azure", self._root):
            # Where Azure has no zones, its cloud provider writes the fault domain there (cloud-provider-azure, #10222).
            del found["zone"]
            told.append(f"zone {zone.domain} is none, but a fault domain of Azure's")
        return Hints(sort_levels(found.values()), "; ".join(told))

    def _read_label_texts(self, environ: Mapping[str, str]) -> Iterator[tuple[str, str | OSError]]:
        """Yield name and text of everything that contains labels."""
        if environ.get(LABELS):
            yield LABELS, environ[LABELS]
        named = environ.get(LABELS_FILE)
        path = named or os.path.join(self._root, PODINFO)
        files = [os.path.join(path, file) for file in _PODINFO_FILES] if os.path.isdir(path) else [named]
        for file in files:
            if file and (file == named or os.path.exists(file)):
                yield file, _read_file(file)


def _read_file(path: str) -> str | OSError:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(_FILE_MAX)
    except OSError as error:
        return error


def _merge_text(name: str, text: str | OSError, found: dict[str, Level]) -> str:
    """Add the levels that a text of labels names, and describe the result."""
    if isinstance(text, OSError):
        return f"{name} cannot be read: {text.strerror}"
    try:
        return _merge_labels(f"{name}:", parse_labels(text), found)
    except LabelsError as error:
        return f"{name}: {error}"


def _merge_labels(what: str, labels: Mapping[str, str], found: dict[str, Level]) -> str:
    levels, remarks = derive_levels("kubernetes", labels, what)
    for level in levels:
        found.setdefault(level.name, level)
    called = what.removesuffix(":") if what.endswith(":") else f"{what}s"
    return "; ".join((called if levels else f"{called}: none of them names a place", *remarks))
