"""Sentences about what is missing where there is no world, and what would help.

Each names the relevant numbers and, where few nodes are unusual, the nodes: "mesh pp=4,dp=*,tp=8 needs at least 4 nodes
with 8 devices; 3 are present, and node c has 4". They are for users who do not know the planner.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

from launcher.model.node import Node
from launcher.model.topology import HOST, sort_nodes
from launcher.placement.sentences import (
    ADD_NODES,
    NAMES_MAX,
    format_mesh,
    format_node_count,
    pluralize,
)
from launcher.placement.units import (
    Supply,
    UnusedNodes,
    build_layers,
    compute_grid,
    find_usual_slot_count,
    list_elastic_sizes,
)


class Shortage(Struct, frozen=True):
    """Why there is no world, and what would help: more nodes are said to only where they do."""

    reason: str
    hint: str


def describe_shortage(supply: Supply, low: int, high: int) -> Shortage:
    """Explain why no world of `low` to `high` replicas can be formed. `high`: as many as there are devices for."""
    if 0 < len(supply.items) * supply.hosts < supply.limits.nodes_min:
        return _describe_too_few_nodes(supply)
    found = _describe_oversized_class(supply, low)
    if found is not None:  # before what more nodes would mend
        return found
    if high < low:
        return _describe_too_few_slots(supply)
    if not list_elastic_sizes(supply.mesh, supply.block_size, supply.item_ranks, low, high):
        return _describe_no_even_size(supply, low, high)
    return _describe_no_room(supply, low)


def _describe_oversized_class(supply: Supply, low: int) -> Shortage | None:
    """Explain that a rule keeps more ranks on one host than any host here has room for, if one does."""
    rule = supply.constraints[0] if supply.constraints else None  # the innermost
    if rule is None or supply.tree is None or rule.level < len(supply.tree.levels) or supply.limits.all_or_nothing:
        return None
    mesh, block_size = supply.mesh, supply.block_size
    size, counts = _find_least_grid(supply, low)
    if counts is None:
        return None
    class_size, most = rule.compute_class_size(counts), max((item.room for item in supply.items), default=0)
    if class_size <= most:
        return None
    axes = "+".join(mesh.axes[axis].name for axis in rule.axes)
    needs = f"{class_size * block_size:,} ranks of {axes} must sit on one host for mesh {format_mesh(mesh, size)}"
    rules = ",".join(f"{axis}={level}" for axis, level in supply.limits.within.items() if level == HOST)
    return Shortage(
        f"{needs}, the largest host has room for {most * block_size:,}",
        f"no number of such nodes helps: make {axes} smaller, or leave out --within {rules}",
    )


def _find_least_grid(supply: Supply, low: int) -> tuple[int, tuple[int, ...] | None]:
    """Find the least even size of the elastic axis from `low` on, and the units along each axis then, if it is one."""
    mesh, block_size, block = supply.mesh, supply.block_size, supply.item_ranks
    size = next(iter(list_elastic_sizes(mesh, block_size, block, low, low + block_size * block)), low)
    shape = mesh.resolve_shape(size * mesh.replica_size)
    return size, compute_grid(shape, block_size)


def _describe_too_few_nodes(supply: Supply) -> Shortage:
    limits = supply.limits
    count = sum(len(item.nodes) for item in supply.items)
    present = "is present" if count == 1 else "are present"
    least, hint = f"at least {format_node_count(limits.nodes_min)} must be active", "add nodes, or lower --nnodes"
    if count == len(supply.nodes):
        return Shortage(f"{least}, {count} {present}", hint)
    if limits.all_or_nothing:
        slices = f"complete {pluralize(limits.all_or_nothing.level)}"
        return Shortage(f"{least}, {count} in {slices} {present}{_describe_unused(supply.unused)}", hint)
    devices = f"the {supply.block_size} devices that a unit of mesh {supply.mesh} needs"
    odd = _describe_odd_nodes(supply.nodes, supply.block_size)
    return Shortage(f"{least}, {count} with {devices} {present}{odd}", hint)


def _describe_too_few_slots(supply: Supply) -> Shortage:
    mesh, limits = supply.mesh, supply.limits
    least = limits.elastic_min if mesh.elastic_axis else 1
    rank_count = mesh.replica_size * least
    whose = f"mesh {mesh}"
    if mesh.elastic_axis and least > 1:
        whose += f" with {mesh.elastic_axis.name} of at least {least}"
    if limits.all_or_nothing:
        return _describe_too_few_slices(supply, whose, rank_count)
    slot_count = find_usual_slot_count(supply.nodes)
    node_count = math.ceil(rank_count / max(1, slot_count // supply.block_size * supply.block_size))
    devices = "1 device" if slot_count == 1 else f"{slot_count} devices"
    allow_more = f"raise --nnodes to {node_count} or more, or ask for a smaller mesh"
    if len(supply.nodes) == 1 or limits.nodes_max == 1:
        most = max(node.slot_count for node in supply.nodes)
        are = "is" if most == 1 else "are"
        reason = f"{whose} needs {rank_count:,} devices, {most:,} {are} present on {format_node_count(1)}"
        return Shortage(reason, allow_more if limits.nodes_max == 1 else ADD_NODES)
    needs = f"{whose} needs at least {format_node_count(node_count)} with {devices}"
    alike = sum(1 for node in supply.nodes if node.slot_count == slot_count)
    if limits.nodes_max is not None and limits.nodes_max < min(node_count, alike + 1):
        return Shortage(f"{needs}; at most {limits.nodes_max} may be active", allow_more)
    are = "is" if alike == 1 else "are"
    return Shortage(f"{needs}; {alike} {are} present{_describe_odd_nodes(supply.nodes, slot_count)}", ADD_NODES)


def _describe_too_few_slices(supply: Supply, subject: str, rank_count: int) -> Shortage:
    limits, present = supply.limits, len(supply.items)
    assert limits.all_or_nothing is not None
    level, hosts = limits.all_or_nothing.level, limits.all_or_nothing.hosts
    unused = _describe_unused(supply.unused)
    if not present:
        reason = f"{subject} needs complete {pluralize(level)} of {hosts} hosts; none is present{unused}"
        return Shortage(reason, f"add nodes until a {level} is complete")
    count = math.ceil(rank_count / (hosts * supply.items[0].nodes[0].slot_count))
    needs = f"{subject} needs at least {count} complete {level if count == 1 else pluralize(level)} of {hosts} hosts"
    if present >= count:
        reason = f"{needs}; at most {format_node_count(limits.nodes_max or 0)} may be active"
        return Shortage(reason, f"raise --nnodes to {count * hosts} or more, or ask for a smaller mesh")
    return Shortage(f"{needs}; {present} {'is' if present == 1 else 'are'} present{unused}", ADD_NODES)


def _describe_no_even_size(supply: Supply, low: int, high: int) -> Shortage:
    """Explain that there are enough devices, but no world that they could form is even."""
    mesh, domains = supply.mesh, supply.limits.all_or_nothing
    what, change = f"units of {supply.block_size} ranks", "--unit"
    if domains:
        what, change = f"whole {pluralize(domains.level)} of {supply.item_ranks} ranks", "--whole"
    hint = f"no number of nodes helps: choose other sizes of the mesh, or another {change}"
    if mesh.elastic_axis is None:
        return Shortage(f"mesh {mesh} does not consist of {what}", hint)
    sizes = f"{low}" if low == high else f"{low} to {high}"
    axis, most = mesh.elastic_axis.name, supply.limits.elastic_max
    # Even sizes repeat with this period.
    farther = high + supply.block_size * supply.item_ranks
    last = farther if most is None else min(most, farther)
    larger = list_elastic_sizes(mesh, supply.block_size, supply.item_ranks, high + 1, last)
    if larger:
        hint = f"add nodes, up to {axis}={larger[0]}; or choose other sizes of the mesh"
    return Shortage(
        f"mesh {mesh} does not consist of {what} for {axis} of {sizes}, which is what could be formed", hint
    )


def _describe_no_room(supply: Supply, low: int) -> Shortage:
    """Explain that there are enough devices, but not as `within` requires: the innermost broken rule."""
    mesh, tree, limits, block_size = supply.mesh, supply.tree, supply.limits, supply.block_size
    if tree is None or not supply.constraints:
        return Shortage(f"mesh {mesh} fits on no {limits.nodes_max} of the nodes present", ADD_NODES)
    size, grid = _find_least_grid(supply, low)
    counts = grid or mesh.resolve_shape(size * mesh.replica_size)
    rooms = [item.room for item in supply.items]
    domains: list[list[int]] = []
    sizes: list[int] = []
    for rule in supply.constraints:
        place = (*tree.domains, range(len(tree.nodes)))[rule.level]
        domains.append([place[item.position] for item in supply.items])
        sizes.append(math.lcm(sizes[-1] if sizes else 1, rule.compute_class_size(counts)))
        level, axes = (*tree.levels, HOST)[rule.level], "+".join(mesh.axes[axis].name for axis in rule.axes)
        ranks = f"{sizes[-1] * block_size:,} ranks of {axes}"
        layers = build_layers(rooms, domains, sizes)
        if max(layers[-2].rooms) == 0:
            most = max(build_layers(rooms, domains, [*sizes[:-1], sizes[-2] if len(sizes) > 1 else 1])[-2].rooms)
            needs = f"{ranks} must sit in one {level} for mesh {format_mesh(mesh, size)}"
            hint = f"add nodes to one {level}, make {axes} smaller, or change --within"
            return Shortage(f"{needs}, the largest {level} has room for {most * block_size:,}", hint)
        needed, present = math.prod(counts) // sizes[-1], layers[-1].rooms[0] // sizes[-1]
        if present < needed:
            needs = f"mesh {format_mesh(mesh, size)} needs {needed:,} times {ranks}, each in one {level}"
            return Shortage(f"{needs}; there is room for {present:,}", ADD_NODES)
    count = limits.nodes_max or len(tree.nodes)
    return Shortage(
        f"mesh {mesh} fits on no {count} of the nodes present with these rules", "change --within, or add nodes"
    )


def _describe_odd_nodes(present: Sequence[Node], slot_count: int) -> str:
    """Describe the nodes that are not of the usual kind."""
    odd = sort_nodes(node for node in present if node.slot_count != slot_count)
    if not odd:
        return ""
    if len(odd) > NAMES_MAX:
        return f", and {len(odd)} have other numbers"
    return ", and " + ", ".join(f"node {node.id} has {node.slot_count}" for node in odd)


def _describe_unused(unused: Sequence[UnusedNodes]) -> str:
    if len(unused) > NAMES_MAX:
        return f"; {len(unused)} others are incomplete or odd"
    return "".join(f"; {each.reason}" for each in unused)
