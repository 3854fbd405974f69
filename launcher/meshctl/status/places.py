"""The localities of nodes, for a table: the common part once, and the differing part in a column.

Names of domains are often long and differ in their last letters (`nn-67ec43a6722b34afb`), so those are kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from launcher.locality.order import order_levels
from launcher.meshctl.status.state import NodeState

_DOMAIN_MAX = 8
_HEADER_MAX = 18
_NAMES_MAX = 100  # names are foreign input
_LEVELS_MAX = 6  # the innermost ones; --json has all


class LocalityColumn(NamedTuple):
    """`common`: "zone a, spine s1", or empty. `head`: of the column; `cells`: by member id, empty without a column."""

    common: str
    header: str
    cells: Mapping[str, str]


def summarize_locality(nodes: Sequence[NodeState]) -> LocalityColumn:
    """Return what to show of these nodes' localities."""
    known = [dict(node.locality) for node in nodes]
    lists = Counter(tuple(level for level, _ in node.locality) for node in nodes if node.locality)
    names = {name for one in lists for name in one}
    levels = order_levels(lists).levels if len(names) <= _NAMES_MAX else ()
    located = [place for node, place in zip(nodes, known, strict=True) if node.slot_count or place]  # not of the lost
    shared = [level for level in levels if all(located) and len({place.get(level) for place in located}) == 1]
    rest = [level for level in levels if level not in shared][-_LEVELS_MAX:]
    common = ", ".join(f"{level} {_shorten(located[0][level])}" for level in shared)
    if not rest:
        return LocalityColumn(common, "", {})
    head = "/".join(rest)
    cells = {
        node.member_id: "/".join(_shorten(place.get(level, "?")) for level in rest) if place else "-"
        for node, place in zip(nodes, known, strict=True)
    }
    return LocalityColumn(common, head if len(head) <= _HEADER_MAX else "place", cells)


def _shorten(domain: str) -> str:
    return domain if len(domain) <= _DOMAIN_MAX else f"..{domain[2 - _DOMAIN_MAX :]}"
