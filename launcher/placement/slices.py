"""What gets units: a node, or a whole domain of nodes where domains are used entirely or not at all.

A TPU slice is such a domain. Its hosts are wired to each other in a fixed order, so a slice that lacks one host is of
no use, and inside a complete one the order of the hosts is not the planner's to choose: it is the index that each
host brings along or, if none does, that of the names. For the rest of the planner a slice is one large node.
"""

from __future__ import annotations

from collections.abc import Sequence

from launcher.node import Node
from launcher.placement import AllOrNothing
from launcher.placement.units import find_usual_slot_count
from launcher.topology import Tree
from rendezvous.values import NamedTuple

_NAMES_MAX = 4  # missing hosts that a sentence names


class Item(NamedTuple):
    """A node, or the nodes of a whole domain in the order of their ranks.

    `room`: units it can hold. `position`: of its first node in the tree.
    """

    nodes: tuple[Node, ...]
    room: int
    position: int


class UnusedNodes(NamedTuple):
    """Nodes that can hold nothing, and why."""

    nodes: tuple[Node, ...]
    reason: str


def find_slices(
    tree: Tree, all_or_nothing: AllOrNothing
) -> tuple[list[tuple[int, tuple[Node, ...]]], list[UnusedNodes]]:
    """The complete domains, each as the position of its first node and its nodes in order; and the others."""
    level = tree.levels.index(all_or_nothing.level)
    members: dict[int, list[int]] = {}
    for position, domain in enumerate(tree.domains[level]):
        members.setdefault(domain, []).append(position)
    complete: list[tuple[str, int, tuple[Node, ...]]] = []
    unused: list[UnusedNodes] = []
    for domain, positions in members.items():
        nodes = tuple(tree.nodes[position] for position in positions)
        name = f"{all_or_nothing.level} {tree.names[level][domain]}"
        fault = _find_fault(nodes, level, all_or_nothing, name)
        if fault:
            unused.append(UnusedNodes(nodes, fault))
        else:
            in_order = sorted(nodes, key=lambda node: node.index or 0)  # by name still, where nobody has an index
            complete.append((name, positions[0], tuple(in_order)))
    # Slices of two kinds make no common unit: the kind that brings the most devices stays.
    usual = find_usual_slot_count(nodes[0] for _, _, nodes in complete) if complete else 0
    for name, _, nodes in complete:
        if nodes[0].slot_count != usual:
            unused.append(UnusedNodes(nodes, f"{name} has {nodes[0].slot_count} devices per host, others {usual}"))
    return [(position, nodes) for _, position, nodes in complete if nodes[0].slot_count == usual], unused


def _find_fault(nodes: Sequence[Node], level: int, all_or_nothing: AllOrNothing, name: str) -> str | None:
    """Why these nodes are no complete domain."""
    count = len(nodes)
    if count == 1 and all_or_nothing.hosts > 1 and (len(nodes[0].path) <= level or nodes[0].path[level] is None):
        return f"node {nodes[0].id} has no known {all_or_nothing.level}"
    if count < all_or_nothing.hosts:
        return f"{name} has {count} of {all_or_nothing.hosts} hosts{_describe_missing(nodes, all_or_nothing)}"
    if count > all_or_nothing.hosts:
        return f"{name} has {count} hosts, {all_or_nothing.hosts} make a complete one"
    if any(node.slot_count != nodes[0].slot_count for node in nodes):
        return f"{name} has hosts with {', '.join(str(node.slot_count) for node in nodes)} devices"
    indices = [node.index for node in nodes if node.index is not None]
    if indices and sorted(indices) != list(range(count)):
        return f"{name} has hosts with the indices {', '.join(map(str, sorted(indices)))}, not 0 to {count - 1}"
    return None


def _describe_missing(nodes: Sequence[Node], all_or_nothing: AllOrNothing) -> str:
    """ " and lacks worker 2 (train-0-2)", where the hosts that are there say which they are."""
    absent = sorted(set(range(all_or_nothing.hosts)) - {node.index for node in nodes if node.index is not None})
    if any(node.index is None for node in nodes) or not absent:
        return ""
    from launcher.overview.ranges import format_ranges  # only where a sentence is needed

    pattern = nodes[0].host_pattern
    named = [pattern.replace("{}", str(index), 1) for index in absent[:_NAMES_MAX]] if pattern else []
    more = f" and {len(absent) - len(named)} more" if named and len(absent) > len(named) else ""
    names = f" ({', '.join(named)}{more})" if named else ""
    what = "worker" if all_or_nothing.level == "slice" else "host"  # a TPU host is known by its worker id
    return f" and lacks {what}{'s' * (len(absent) > 1)} {format_ranges(absent)}{names}"
