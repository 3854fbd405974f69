"""How large a world the nodes can form, and on which nodes.

Ranks are handed out in *units*: aligned runs that stay on one node, so that the innermost axes, which talk
most, never leave it. A node of 8 slots holds one unit of 8 ranks, or two of 4; a node that is too small for
one unit cannot be used at all. The world is a whole number of replicas, never part of one: with three slots
left over there are three idle slots.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from launcher.mesh import Mesh
from launcher.node import Node
from launcher.placement import Feasibility, Limits
from launcher.topology import in_order

NAMES_MAX = 8  # as many names as a log line bears


class World(NamedTuple):
    """The largest world: `size` ranks in units of `unit`, on `active` nodes in order; size 0 if there is none.

    `capacity`: usable node id -> whole units it holds. `reason` is a sentence for either outcome.
    """

    size: int
    unit: int
    active: tuple[Node, ...]
    usable: tuple[Node, ...]
    unusable: tuple[Node, ...]
    capacity: dict[str, int]
    reason: str


def feasibility(nodes: Sequence[Node], mesh: Mesh, limits: Limits) -> Feasibility:
    """How large a world these nodes could form within the limits; quick, and never raises for too few of them."""
    world = largest_world(nodes, mesh, limits)
    return Feasibility(
        world_size=world.size,
        node_count=len(world.active),
        is_full=world.size > 0 and _is_full(world, mesh, limits),
        reason=world.reason,
    )


def unit_size(mesh: Mesh, slot_count: int) -> int:
    """Ranks that stay together on a node of `slot_count` slots.

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


def usual_slot_count(nodes: Iterable[Node]) -> int:
    """The slot count of the kind of node that brings the most slots.

    The unit is made for this kind, so neither one machine that lost a GPU nor one that is twice as large
    changes how everybody else is used.
    """
    slots: dict[int, int] = {}
    for node in nodes:
        slots[node.slot_count] = slots.get(node.slot_count, 0) + node.slot_count
    return max(slots, key=lambda slot_count: (slots[slot_count], slot_count))


def largest_world(nodes: Sequence[Node], mesh: Mesh, limits: Limits) -> World:
    """The largest whole number of replicas that at most `nodes_max` of the nodes can hold."""
    ordered = tuple(in_order(nodes))
    if len({node.id for node in ordered}) < len(ordered):
        raise ValueError("two nodes have the same id")
    if not ordered:
        return World(0, 1, (), (), (), {}, "no node is present")
    unit = unit_size(mesh, usual_slot_count(ordered))
    usable = tuple(node for node in ordered if node.slot_count >= unit)
    unusable = tuple(node for node in ordered if node.slot_count < unit)
    capacity = {node.id: node.slot_count // unit for node in usable}

    def none(reason: str) -> World:
        return World(0, unit, (), usable, unusable, capacity, reason)

    if len(usable) < limits.nodes_min:
        return none(_too_few_nodes(ordered, usable, mesh, unit, limits))
    replica_units = mesh.replica_size // unit
    replica_count = sum(sorted(capacity.values(), reverse=True)[: limits.nodes_max]) // replica_units
    if replica_count == 0:
        return none(_too_few_slots(ordered, mesh, unit, limits))
    if mesh.elastic is None:
        replica_count = 1
    active = _choose(usable, capacity, replica_count * replica_units, limits)
    size = replica_count * mesh.replica_size
    if len(active) < limits.nodes_min:
        return none(
            f"mesh {_sized(mesh, replica_count)} makes a world of {size} ranks on {_nodes(len(active))}, "
            f"but at least {limits.nodes_min} must be active"
        )
    return World(
        size, unit, active, usable, unusable, capacity, _reason(size, mesh, replica_count, active, ordered, limits)
    )


def _choose(usable: tuple[Node, ...], capacity: dict[str, int], unit_count: int, limits: Limits) -> tuple[Node, ...]:
    """Nodes for `unit_count` units: the first in order; the largest if those are too many, the smallest if too few."""

    def fill(nodes: Iterable[Node]) -> list[Node]:
        chosen: list[Node] = []
        left = unit_count
        for node in nodes:
            if left <= 0:
                break
            chosen.append(node)
            left -= capacity[node.id]
        return chosen

    chosen = fill(usable)
    if limits.nodes_max is not None and len(chosen) > limits.nodes_max:
        chosen = fill(sorted(usable, key=lambda node: -capacity[node.id]))
    elif len(chosen) < limits.nodes_min:
        smallest = fill(sorted(usable, key=lambda node: capacity[node.id]))
        if limits.nodes_max is None or len(smallest) <= limits.nodes_max:
            chosen = smallest
    names = {node.id for node in chosen}
    return tuple(node for node in usable if node.id in names)


def _is_full(world: World, mesh: Mesh, limits: Limits) -> bool:
    """Whether nodes like the largest present could not add another replica."""
    if mesh.elastic is None:
        return True
    if limits.nodes_max is None:
        return False
    most = limits.nodes_max * max(world.capacity.values()) * world.unit
    return len(world.usable) >= limits.nodes_max or most < world.size + mesh.replica_size


def names(nodes: Iterable[Node]) -> str:
    """The nodes' ids, the first few by name and the rest by number."""
    ids = [node.id for node in nodes]
    if len(ids) > NAMES_MAX:
        return f"{', '.join(ids[:NAMES_MAX])} and {len(ids) - NAMES_MAX} more"
    return ", ".join(ids)


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"


def _sized(mesh: Mesh, replica_count: int) -> str:
    return str(mesh).replace("*", str(replica_count))


def _reason(
    size: int, mesh: Mesh, replica_count: int, active: tuple[Node, ...], present: tuple[Node, ...], limits: Limits
) -> str:
    ranks = "1 rank" if size == 1 else f"{size} ranks"
    head = f"world of {ranks} on {len(active)} of {_nodes(len(present))}"
    if mesh.elastic is None:
        return f"{head}: mesh {mesh} has a fixed size"
    bound = f" on at most {_nodes(limits.nodes_max)}" if limits.nodes_max == len(active) < len(present) else ""
    return f"{head}: {mesh.elastic.name}={replica_count} is the largest whole number of replicas{bound}"


def _too_few_nodes(present: tuple[Node, ...], usable: tuple[Node, ...], mesh: Mesh, unit: int, limits: Limits) -> str:
    verb = "is" if len(usable) == 1 else "are"
    if len(usable) == len(present):
        return f"at least {_nodes(limits.nodes_min)} must be active, {len(present)} {verb} present"
    return (
        f"at least {_nodes(limits.nodes_min)} must be active, {len(usable)} with the {unit} devices that a unit of "
        f"mesh {mesh} needs {verb} present{_odd(present, unit)}"
    )


def _too_few_slots(present: tuple[Node, ...], mesh: Mesh, unit: int, limits: Limits) -> str:
    slot_count = usual_slot_count(present)
    node_count = math.ceil(mesh.replica_size / (slot_count // unit * unit))
    devices = "1 device" if slot_count == 1 else f"{slot_count} devices"
    if len(present) == 1 or limits.nodes_max == 1:
        most = max(node.slot_count for node in present)
        are = "is" if most == 1 else "are"
        return f"mesh {mesh} needs {mesh.replica_size} devices, {most} {are} present on {_nodes(1)}"
    needs = f"mesh {mesh} needs at least {_nodes(node_count)} with {devices}"
    alike = sum(1 for node in present if node.slot_count == slot_count)
    if limits.nodes_max is not None and limits.nodes_max < min(node_count, alike + 1):
        return f"{needs}; at most {limits.nodes_max} may be active"
    verb = "is" if alike == 1 else "are"
    return f"{needs}; {alike} {verb} present{_odd(present, slot_count)}"


def _odd(present: tuple[Node, ...], slot_count: int) -> str:
    """What to say of the nodes that are not of the usual kind."""
    odd = [node for node in present if node.slot_count != slot_count]
    if not odd:
        return ""
    if len(odd) > NAMES_MAX:
        return f", and {len(odd)} have other numbers"
    return ", and " + ", ".join(f"node {node.id} has {node.slot_count}" for node in odd)
