"""Derives levels from the keys and values of one source, by the table of keys.

Kubernetes is the difficult case. A node may have the labels of several families, each with a leaf and a spine of its
own; levels of switches are taken from one of them, because two trees need not be the same. Some families number their
switches from the node outwards, others from the outside in. And a label can exist without meaning: empty, or with
a value that is no name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod
from typing import NamedTuple

from launcher.locality.contract import Level
from launcher.locality.keys import FROM_FAR, FROM_NEAR, TIERS, Key, list_families
from launcher.model.locality_path import LEVELS, is_text

_TPU_POOL, _TPU_SHAPE = "cloud.google.com/gke-nodepool", "cloud.google.com/gke-tpu-topology"
_TPU_PARTS = ("cloud.google.com/gke-tpu-partition-", "cloud.google.com/gke-tpu-slice")
_HOST_CHIPS_MAX = 8  # a slice of more chips than any host has is of several hosts
# Values for "unknown"; all nodes with one of them would seem to be in one domain. The first is that of
# OKE's labeler (oracle-quickstart/oci-hpc-oke, labeler-configmap.yaml).
_PLACEHOLDERS = frozenset({"no-imds-data", "unknown", "none", "null", "n/a", "undefined"})
_LAYERS = (3, 4)  # the layers that AWS names; with fewer the leaf is ambiguous


class KeyLevels(NamedTuple):
    """`levels`: outermost first; `remarks`: values that could not be used, as clauses."""

    levels: tuple[Level, ...]
    remarks: tuple[str, ...]


def derive_levels(source: str, values: Mapping[str, str], what: str = "") -> KeyLevels:
    """Return the levels of `values`, by key. `what`: the kind of key, for the origin, like "node label"."""
    found: dict[str, Level] = {}
    remarks: list[str] = []
    tree: str | None = None
    for keys in list_families(source):
        family = keys[0].family
        for level, (domain, name) in _derive_family_levels(keys, values, remarks).items():
            if level in TIERS:
                tree = tree or family
                if tree != family:
                    continue
            found.setdefault(level, Level(level, domain, f"{what} {name}".lstrip()))
    return KeyLevels(sort_levels(found.values()), tuple(dict.fromkeys(remarks)))


def sort_levels(levels: Iterable[Level]) -> tuple[Level, ...]:
    """The same levels, outermost first."""
    return tuple(sorted(levels, key=lambda level: LEVELS.index(level.name)))


def _derive_family_levels(
    keys: Iterable[Key], values: Mapping[str, str], remarks: list[str]
) -> dict[str, tuple[str, str]]:
    """Return level -> its domain, and the key of it."""
    found: dict[str, tuple[str, str]] = {}
    for key in keys:
        if key.level in (FROM_NEAR, FROM_FAR):
            numbered = _find_numbered_keys(key.name.removesuffix("N"), values, remarks)
            tiers = (
                _assign_from_near(numbered, remarks) if key.level == FROM_NEAR else _assign_from_far(numbered, remarks)
            )
            for level, name in tiers.items():
                found.setdefault(level, (values[name], name))
        elif key.level and key.name in values and _is_usable(key.name, values, remarks):
            found.setdefault(key.level, (values[key.name], key.name))
    return found


def _is_usable(name: str, values: Mapping[str, str], remarks: list[str]) -> bool:
    if not is_text(values[name]):
        if values[name]:  # an empty label means none in Kubernetes
            remarks.append(f"{name} is no name")
        return False
    if values[name].lower() in _PLACEHOLDERS:
        remarks.append(f"{name} is {values[name]}")
        return False
    return name != _TPU_POOL or _is_slice(values)


def _is_slice(values: Mapping[str, str]) -> bool:
    """Whether the pool of this node is one slice of several hosts, and not a part of which slices are made."""
    if any(name.startswith(_TPU_PARTS) for name in values):
        return False
    sides = values.get(_TPU_SHAPE, "").split("x")
    if not all(side.isascii() and side.isdigit() and len(side) <= 5 for side in sides):
        return False
    return prod(int(side) for side in sides) > _HOST_CHIPS_MAX


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
        remarks.append(f"{numbered[last]} is the last layer, where 3 or 4 was expected: which is the leaf is not known")
        return {}
    return {TIERS[last - number]: name for number, name in numbered.items()}
