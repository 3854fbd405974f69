"""Sentences about worlds: the reason of one and, where there is none, what is missing.

Each names the relevant numbers and, where few nodes are unusual, the nodes: "mesh pp=4,dp=*,tp=8 needs at least 4 nodes
with 8 devices; 3 are present, and node c has 4". They are for users who do not know the planner.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from launcher.model.mesh import Mesh
from launcher.model.node import Node
from launcher.model.topology import HOST, Tree, sort_nodes
from launcher.placement.limits import Limits
from launcher.placement.rules import Constraint, build_layers, compute_class_size
from launcher.placement.units import Item, UnusedNodes, compute_grid, find_usual_slot_count, list_elastic_sizes

NAMES_MAX = 8  # more would make a log line too long


def format_nodes(nodes: Iterable[Node]) -> str:
    """Format the nodes' ids, the first few by name and the rest by number."""
    return join_names([node.id for node in nodes])


def join_names(ids: Sequence[str]) -> str:
    return ", ".join(ids[:NAMES_MAX]) + (f" and {len(ids) - NAMES_MAX:,} more" if len(ids) > NAMES_MAX else "")


def format_node_count(count: int) -> str:
    return "1 node" if count == 1 else f"{count:,} nodes"


def pluralize(level: str) -> str:
    """Return the plural of a level."""
    return f"{level[:-1]}ves" if level.endswith("leaf") else f"{level}s"


def format_mesh(mesh: Mesh, elastic_size: int) -> str:
    """Format the mesh with the elastic axis' size in place of the star."""
    return str(mesh).replace("*", str(elastic_size))


def format_percent(part: int, whole: int) -> str:
    """Return `part` of `whole` in percent, rounded down."""
    tenths = part * 1000 // whole
    return f"{tenths // 10:,}{f'.{tenths % 10}' if tenths % 10 else ''} %" if tenths else "less than 0.1 %"


def format_amount(scaled: int, scale: int) -> str:
    """Format `scaled` / `scale` for reading: 1,008; 2.5; 1,397,981.3."""
    whole, rest = divmod(scaled, scale)
    if not rest:
        return f"{whole:,}"
    if whole >= 100:
        tenths = scaled * 10 // scale
        return f"{tenths // 10:,}.{tenths % 10}"
    return f"{scaled / scale:.4g}"


def describe_too_small(block_size: int) -> str:
    return f"{block_size} ranks must sit on one node"


def describe_world(size: int, node_count: int, present_count: int, reason: str, limits: Limits) -> str:
    """Return the whole sentence about a world. `reason`: from `explain_size`."""
    ranks = "1 rank" if size == 1 else f"{size:,} ranks"
    most = f" on at most {format_node_count(node_count)}" if limits.nodes_max == node_count < present_count else ""
    return f"world of {ranks} on {node_count:,} of {format_node_count(present_count)}: {reason}{most}"


def explain_size(mesh: Mesh, elastic_size: int, is_most_allowed: bool, is_held_back: bool, limits: Limits) -> str:
    """Explain the size of the world. `is_held_back`: there are devices for more, but a rule forbids it."""
    if mesh.elastic_axis is None:
        return f"mesh {mesh} has a fixed size"
    name = f"{mesh.elastic_axis.name}={elastic_size}"
    if is_most_allowed:
        return f"{name} is the most that is allowed"
    rules = [f"{axis} within a {level}" for axis, level in limits.within.items()] if is_held_back else []
    rules += [f"whole {pluralize(limits.all_or_nothing.level)}"] if is_held_back and limits.all_or_nothing else []
    return f"{name} is the largest whole number of replicas{' with ' if rules else ''}{' and '.join(rules)}"


def describe_too_few_nodes(
    present: Sequence[Node],
    items: Sequence[Item],
    unused: Sequence[UnusedNodes],
    mesh: Mesh,
    block_size: int,
    limits: Limits,
) -> str:
    usable_count = sum(len(item.nodes) for item in items)
    are = "is" if usable_count == 1 else "are"
    least = f"at least {format_node_count(limits.nodes_min)} must be active"
    if usable_count == len(present):
        return f"{least}, {usable_count} {are} present"
    if limits.all_or_nothing:
        return (
            f"{least}, {usable_count} in complete {pluralize(limits.all_or_nothing.level)} {are} "
            f"present{_describe_unused(unused)}"
        )
    return (
        f"{least}, {usable_count} with the {block_size} devices that a unit of mesh {mesh} needs {are} present"
        f"{_describe_odd_nodes(present, block_size)}"
    )


def describe_too_few_slots(
    present: Sequence[Node],
    items: Sequence[Item],
    unused: Sequence[UnusedNodes],
    mesh: Mesh,
    block_size: int,
    limits: Limits,
) -> str:
    least = limits.elastic_min if mesh.elastic_axis else 1
    rank_count = mesh.replica_size * least
    whose = f"mesh {mesh}"
    if mesh.elastic_axis and least > 1:
        whose += f" with {mesh.elastic_axis.name} of at least {least}"
    if limits.all_or_nothing:
        return _describe_too_few_slices(items, unused, whose, rank_count, limits)
    slot_count = find_usual_slot_count(present)
    node_count = math.ceil(rank_count / max(1, slot_count // block_size * block_size))
    devices = "1 device" if slot_count == 1 else f"{slot_count} devices"
    if len(present) == 1 or limits.nodes_max == 1:
        most = max(node.slot_count for node in present)
        are = "is" if most == 1 else "are"
        return f"{whose} needs {rank_count:,} devices, {most:,} {are} present on {format_node_count(1)}"
    needs = f"{whose} needs at least {format_node_count(node_count)} with {devices}"
    alike = sum(1 for node in present if node.slot_count == slot_count)
    if limits.nodes_max is not None and limits.nodes_max < min(node_count, alike + 1):
        return f"{needs}; at most {limits.nodes_max} may be active"
    are = "is" if alike == 1 else "are"
    return f"{needs}; {alike} {are} present{_describe_odd_nodes(present, slot_count)}"


def _describe_too_few_slices(
    items: Sequence[Item], unused: Sequence[UnusedNodes], subject: str, rank_count: int, limits: Limits
) -> str:
    assert limits.all_or_nothing is not None
    level, hosts = limits.all_or_nothing.level, limits.all_or_nothing.hosts
    are = "is" if len(items) == 1 else "are"
    if not items:
        return (
            f"{subject} needs complete {pluralize(level)} of {hosts} hosts; none is present{_describe_unused(unused)}"
        )
    ranks = hosts * items[0].nodes[0].slot_count
    count = math.ceil(rank_count / ranks)
    needs = f"{subject} needs at least {count} complete {level if count == 1 else pluralize(level)} of {hosts} hosts"
    if len(items) >= count:
        return f"{needs}; at most {format_node_count(limits.nodes_max or 0)} may be active"
    return f"{needs}; {len(items)} {are} present{_describe_unused(unused)}"


def describe_no_even_size(mesh: Mesh, block_size: int, item_ranks: int, low: int, high: int, limits: Limits) -> str:
    """Explain that there are enough devices, but no world that they could form is even."""
    what = (
        f"whole {pluralize(limits.all_or_nothing.level)} of {item_ranks} ranks"
        if limits.all_or_nothing
        else f"units of {block_size} ranks"
    )
    if mesh.elastic_axis is None:
        return f"mesh {mesh} does not consist of {what}"
    sizes = f"{low}" if low == high else f"{low} to {high}"
    return (
        f"mesh {mesh} does not consist of {what} for {mesh.elastic_axis.name} of {sizes}, which is what could be formed"
    )


def describe_no_room(
    items: Sequence[Item],
    constraints: Sequence[Constraint],
    tree: Tree | None,
    mesh: Mesh,
    block_size: int,
    low: int,
    limits: Limits,
) -> str:
    """Explain that there are enough devices, but not as `within` requires: the innermost broken rule."""
    if tree is None or not constraints:
        return f"mesh {mesh} fits on no {limits.nodes_max} of the nodes present"
    block = items[0].room * block_size if limits.all_or_nothing else 1
    size = next(iter(list_elastic_sizes(mesh, block_size, block, low, low + block_size * block)), low)
    shape = mesh.resolve_shape(size * mesh.replica_size)
    counts = compute_grid(shape, block_size) or shape
    levels = (*tree.levels, HOST)
    rooms = [item.room for item in items]
    domains: list[list[int]] = []
    sizes: list[int] = []
    for rule in constraints:
        place = (*tree.domains, range(len(tree.nodes)))[rule.level]
        domains.append([place[item.position] for item in items])
        sizes.append(math.lcm(sizes[-1] if sizes else 1, compute_class_size(rule, counts)))
        axes = "+".join(mesh.axes[axis].name for axis in rule.axes)
        found = build_layers(rooms, domains, sizes)
        level = levels[rule.level]
        if max(found[-2].rooms) == 0:
            inside = build_layers(rooms, domains, [*sizes[:-1], sizes[-2] if len(sizes) > 1 else 1])[-2].rooms
            return (
                f"{sizes[-1] * block_size:,} ranks of {axes} must sit in one {level} for mesh "
                f"{format_mesh(mesh, size)}, "
                f"the largest {level} has room for {max(inside) * block_size:,}"
            )
        needed, present = math.prod(counts) // sizes[-1], found[-1].rooms[0] // sizes[-1]
        if present < needed:
            return (
                f"mesh {format_mesh(mesh, size)} needs {needed:,} times {sizes[-1] * block_size:,} ranks of {axes}, "
                "each in one "
                f"{level}; there is room for {present:,}"
            )
    return f"mesh {mesh} fits on no {limits.nodes_max or len(tree.nodes)} of the nodes present with these rules"


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
