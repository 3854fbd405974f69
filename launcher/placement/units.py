"""Units: the runs of ranks that stay together on one node.

Ranks are not assigned one by one but in units, aligned runs of `block_size` consecutive ranks, so that the innermost
axes, which have most traffic, never leave a node. With tp=8 on nodes of 8 devices a unit is 8 ranks and a node holds
one of them. A unit is always a box of the mesh: whole inner axes and perhaps a part of the next. So all are equal.

An item holds units: a node, or a whole domain of nodes where domains are used entirely or not at all. A TPU slice is
such a domain. Its hosts are wired to each other in a fixed order, so a slice that lacks one host is useless, and inside
a complete one the planner cannot choose the order of the hosts: it is the index in each host's description or, if none
has one, that of the names. For the rest of the planner a slice is one large node.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from launcher.model.errors import UsageError
from launcher.model.mesh import Mesh
from launcher.model.node import Node
from launcher.model.ranges import format_ranges
from launcher.model.topology import Tree
from launcher.placement.limits import AllOrNothing
from rendezvous.values import NamedTuple


# docs/internals/decisions/0010-placement-units-as-mesh-boxes.md
def choose_block_size(mesh: Mesh, slot_count: int) -> int:
    """Choose the number of ranks that stay together on a node of `slot_count` slots.

    The innermost axes as long as they fit, and of the first that does not fit the largest part that fills the
    node evenly: tp=8 on 8 slots is 8, tp=16 on 8 slots is 8, cp=2,tp=2 on 8 slots is 4, tp=3 on 8 slots is 1.
    The elastic axis ends the unit, as its size is not known yet.
    """
    unit = 1
    for axis in reversed(mesh.axes):
        if axis.size is None:
            break
        part = math.gcd(axis.size, slot_count // unit)
        unit *= part
        if part < axis.size:
            break
    return unit


def find_usual_slot_count(nodes: Iterable[Node]) -> int:
    """Return the slot count of the kind of node that has the most slots in total.

    The block size is chosen for this kind, so neither one machine that lost a GPU nor one that is twice as large
    changes how all others are used.
    """
    slots: dict[int, int] = {}
    for node in nodes:
        slots[node.slot_count] = slots.get(node.slot_count, 0) + node.slot_count
    return max(slots, key=lambda slot_count: (slots[slot_count], slot_count))


def compute_grid(shape: Sequence[int], block_size: int) -> tuple[int, ...] | None:
    """The units along each axis of a mesh of this shape; None if runs of `block_size` ranks are no boxes of it."""
    counts: list[int] = []
    left = block_size
    for size in reversed(shape):
        side = math.gcd(size, left)
        if side < size and side < left:
            return None
        counts.append(size // side)
        left //= side
    return tuple(reversed(counts)) if left == 1 else None


def compute_elastic_part(mesh: Mesh, block_size: int) -> int | None:
    """How far a unit reaches along the elastic axis if that is large; None if it fits the mesh at no size of it."""
    left = block_size
    for axis in reversed(mesh.axes):
        if axis.size is None:
            return left
        side = math.gcd(axis.size, left)
        if side < axis.size and side < left:
            return None
        left //= side
    return left if left == 1 else None


def list_elastic_sizes(mesh: Mesh, block_size: int, multiple: int, low: int, high: int) -> Sequence[int]:
    """Return the sizes of the elastic axis, rising, at which units are boxes and `multiple` ranks divide the world.

    From `low` to `high`; of a mesh without an elastic axis, 1 represents the whole mesh.
    """
    part = compute_elastic_part(mesh, block_size)
    replica = mesh.replica_size
    if mesh.elastic_axis is None:
        return (1,) if part and replica % multiple == 0 and low <= 1 <= high else ()
    if part is None:
        return ()
    step = math.lcm(part, multiple // math.gcd(multiple, replica))
    # Below `part` a unit covers the whole axis and extends into the next; from there on the axis is cut into parts.
    small = [
        size
        for size in range(low, min(high + 1, part))
        if size * replica % multiple == 0 and compute_grid(mesh.resolve_shape(size * replica), block_size)
    ]
    large = range(-(-max(low, part) // step) * step, high + 1, step)
    return [*small, *large] if small else large


def require_block_size(block_size: int, nodes: Iterable[Node], mesh: Mesh, host_slots: int | None) -> None:
    """Raise UsageError for a block size that fits no node or no world of this mesh, with those that would.

    `host_slots`: of the hosts that must be filled entirely, if any.
    """
    most = max(node.slot_count for node in nodes)
    if block_size > most:
        raise UsageError(
            f"unit {block_size} fits on no node: the largest has {most} devices", _suggest_block_sizes(mesh, most)
        )
    if block_size < 1 or compute_elastic_part(mesh, block_size) is None:
        raise UsageError(
            f"unit {block_size}: {block_size} consecutive ranks are no even part of mesh {mesh}, counted from its "
            "last axis",
            _suggest_block_sizes(mesh, most),
        )
    if host_slots is not None and host_slots % block_size:
        raise UsageError(
            f"unit {block_size} does not divide the {host_slots} devices of a host, and none may stay idle"
        )


def _suggest_block_sizes(mesh: Mesh, most: int) -> str:
    fitting = [str(unit) for unit in range(1, most + 1) if compute_elastic_part(mesh, unit)]
    return f"{' or '.join([', '.join(fitting[:-1]), fitting[-1]] if len(fitting) > 1 else fitting)} would fit"


_NAMES_MAX = 4  # missing hosts that a sentence names


class Item(NamedTuple):
    """A node, or the nodes of a whole domain in the order of their ranks.

    `room`: units it can hold. `position`: of its first node in the tree.
    """

    nodes: tuple[Node, ...]
    room: int
    position: int


class UnusedNodes(NamedTuple):
    """Nodes that can hold no units, and the reason."""

    nodes: tuple[Node, ...]
    reason: str


def find_slices(
    tree: Tree, all_or_nothing: AllOrNothing
) -> tuple[list[tuple[int, tuple[Node, ...]]], list[UnusedNodes]]:
    """Return the complete domains, each as the position of its first node and its nodes in order; and the others."""
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
            in_order = sorted(nodes, key=lambda node: node.index or 0)  # by name still, where no node has an index
            complete.append((name, positions[0], tuple(in_order)))
    # Slices of two kinds have no common block size: the kind with the most devices in total stays.
    usual = find_usual_slot_count(nodes[0] for _, _, nodes in complete) if complete else 0
    for name, _, nodes in complete:
        if nodes[0].slot_count != usual:
            unused.append(UnusedNodes(nodes, f"{name} has {nodes[0].slot_count} devices per host, others {usual}"))
    return [(position, nodes) for _, position, nodes in complete if nodes[0].slot_count == usual], unused


def _find_fault(nodes: Sequence[Node], level: int, all_or_nothing: AllOrNothing, name: str) -> str | None:
    """Return why these nodes are no complete domain."""
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
    """Return " and lacks worker 2 (train-0-2)", if the present hosts show which ones are missing."""
    absent = sorted(set(range(all_or_nothing.hosts)) - {node.index for node in nodes if node.index is not None})
    if any(node.index is None for node in nodes) or not absent:
        return ""
    pattern = nodes[0].host_pattern
    named = [pattern.replace("{}", str(index), 1) for index in absent[:_NAMES_MAX]] if pattern else []
    more = f" and {len(absent) - len(named)} more" if named and len(absent) > len(named) else ""
    names = f" ({', '.join(named)}{more})" if named else ""
    what = "worker" if all_or_nothing.level == "slice" else "host"  # a TPU host is identified by its worker id
    return f" and lacks {what}{'s' * (len(absent) > 1)} {format_ranges(absent)}{names}"
