"""Sentences about worlds: why this one and, where there is none, what is missing.

Each names the numbers that matter and, where few nodes are odd, the nodes: "mesh pp=4,dp=*,tp=8 needs at least 4 nodes
with 8 devices; 3 are present, and node c has 4". They are for people who did not write this planner.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from launcher.mesh import Mesh
from launcher.node import Node
from launcher.placement import Limits
from launcher.placement.rules import Bond, class_size, layers
from launcher.placement.slices import Item, Unused
from launcher.placement.units import elastic_sizes, grid, usual_slot_count
from launcher.topology import HOST, Tree, in_order

NAMES_MAX = 8  # as many names as a log line bears


def names(nodes: Iterable[Node]) -> str:
    """The nodes' ids, the first few by name and the rest by number."""
    return listed([node.id for node in nodes])


def listed(ids: Sequence[str]) -> str:
    return ", ".join(ids[:NAMES_MAX]) + (f" and {len(ids) - NAMES_MAX:,} more" if len(ids) > NAMES_MAX else "")


def count_nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count:,} nodes"


def several(level: str) -> str:
    """More than one domain of a level."""
    return f"{level[:-1]}ves" if level.endswith("leaf") else f"{level}s"


def sized(mesh: Mesh, elastic_size: int) -> str:
    """The mesh with the elastic axis' size in place of the star."""
    return str(mesh).replace("*", str(elastic_size))


def percent(part: int, whole: int) -> str:
    """What `part` is of `whole`, rounded down."""
    tenths = part * 1000 // whole
    return f"{tenths // 10:,}{f'.{tenths % 10}' if tenths % 10 else ''} %" if tenths else "less than 0.1 %"


def amount(scaled: int, scale: int) -> str:
    """`scaled` / `scale` as people read it: 1,008; 2.5; 1,397,981.3."""
    whole, rest = divmod(scaled, scale)
    if not rest:
        return f"{whole:,}"
    if whole >= 100:
        tenths = scaled * 10 // scale
        return f"{tenths // 10:,}.{tenths % 10}"
    return f"{scaled / scale:.4g}"


def too_small(unit: int) -> str:
    return f"{unit} ranks must sit on one node"


def world(size: int, node_count: int, present_count: int, reason: str, limits: Limits) -> str:
    """The whole sentence about a world. `reason`: what `why` gave."""
    ranks = "1 rank" if size == 1 else f"{size:,} ranks"
    most = f" on at most {count_nodes(node_count)}" if limits.nodes_max == node_count < present_count else ""
    return f"world of {ranks} on {node_count:,} of {count_nodes(present_count)}: {reason}{most}"


def why(mesh: Mesh, elastic_size: int, is_most_allowed: bool, is_held_back: bool, limits: Limits) -> str:
    """Why the world has this size. `is_held_back`: there are devices for more, but a rule forbids it."""
    if mesh.elastic is None:
        return f"mesh {mesh} has a fixed size"
    name = f"{mesh.elastic.name}={elastic_size}"
    if is_most_allowed:
        return f"{name} is the most that is allowed"
    rules = [f"{axis} within a {level}" for axis, level in limits.within.items()] if is_held_back else []
    rules += [f"whole {several(limits.whole.level)}"] if is_held_back and limits.whole else []
    return f"{name} is the largest whole number of replicas{' with ' if rules else ''}{' and '.join(rules)}"


def too_few_nodes(
    present: Sequence[Node], items: Sequence[Item], unused: Sequence[Unused], mesh: Mesh, unit: int, limits: Limits
) -> str:
    usable_count = sum(len(item.nodes) for item in items)
    are = "is" if usable_count == 1 else "are"
    least = f"at least {count_nodes(limits.nodes_min)} must be active"
    if usable_count == len(present):
        return f"{least}, {usable_count} {are} present"
    if limits.whole:
        return f"{least}, {usable_count} in complete {several(limits.whole.level)} {are} present{_broken(unused)}"
    return (
        f"{least}, {usable_count} with the {unit} devices that a unit of mesh {mesh} needs {are} present"
        f"{_odd(present, unit)}"
    )


def too_few_slots(
    present: Sequence[Node], items: Sequence[Item], unused: Sequence[Unused], mesh: Mesh, unit: int, limits: Limits
) -> str:
    least = limits.elastic_min if mesh.elastic else 1
    rank_count = mesh.replica_size * least
    whose = f"mesh {mesh}"
    if mesh.elastic and least > 1:
        whose += f" with {mesh.elastic.name} of at least {least}"
    if limits.whole:
        return _too_few_slices(items, unused, whose, rank_count, limits)
    slot_count = usual_slot_count(present)
    node_count = math.ceil(rank_count / max(1, slot_count // unit * unit))
    devices = "1 device" if slot_count == 1 else f"{slot_count} devices"
    if len(present) == 1 or limits.nodes_max == 1:
        most = max(node.slot_count for node in present)
        are = "is" if most == 1 else "are"
        return f"{whose} needs {rank_count:,} devices, {most:,} {are} present on {count_nodes(1)}"
    needs = f"{whose} needs at least {count_nodes(node_count)} with {devices}"
    alike = sum(1 for node in present if node.slot_count == slot_count)
    if limits.nodes_max is not None and limits.nodes_max < min(node_count, alike + 1):
        return f"{needs}; at most {limits.nodes_max} may be active"
    are = "is" if alike == 1 else "are"
    return f"{needs}; {alike} {are} present{_odd(present, slot_count)}"


def _too_few_slices(
    items: Sequence[Item], unused: Sequence[Unused], whose: str, rank_count: int, limits: Limits
) -> str:
    assert limits.whole is not None
    level, hosts = limits.whole.level, limits.whole.hosts
    are = "is" if len(items) == 1 else "are"
    if not items:
        return f"{whose} needs complete {several(level)} of {hosts} hosts; none is present{_broken(unused)}"
    ranks = hosts * items[0].nodes[0].slot_count
    count = math.ceil(rank_count / ranks)
    needs = f"{whose} needs at least {count} complete {level if count == 1 else several(level)} of {hosts} hosts"
    if len(items) >= count:
        return f"{needs}; at most {count_nodes(limits.nodes_max or 0)} may be active"
    return f"{needs}; {len(items)} {are} present{_broken(unused)}"


def no_even_size(mesh: Mesh, unit: int, item_ranks: int, low: int, high: int, limits: Limits) -> str:
    """There are devices enough, but no world that they could form is even."""
    what = f"whole {several(limits.whole.level)} of {item_ranks} ranks" if limits.whole else f"units of {unit} ranks"
    if mesh.elastic is None:
        return f"mesh {mesh} does not consist of {what}"
    sizes = f"{low}" if low == high else f"{low} to {high}"
    return f"mesh {mesh} does not consist of {what} for {mesh.elastic.name} of {sizes}, which is what could be formed"


def no_room(
    items: Sequence[Item], rules: Sequence[Bond], tree: Tree | None, mesh: Mesh, unit: int, low: int, limits: Limits
) -> str:
    """There are devices enough, but not as `within` wants them: the first rule, from the innermost, that is amiss."""
    if tree is None or not rules:
        return f"mesh {mesh} fits on no {limits.nodes_max} of the nodes present"
    block = items[0].room * unit if limits.whole else 1
    size = next(iter(elastic_sizes(mesh, unit, block, low, low + unit * block)), low)
    shape = mesh.shape(size * mesh.replica_size)
    counts = grid(shape, unit) or shape
    levels = (*tree.levels, HOST)
    rooms = [item.room for item in items]
    domains: list[list[int]] = []
    sizes: list[int] = []
    for rule in rules:
        place = (*tree.domains, range(len(tree.nodes)))[rule.level]
        domains.append([place[item.position] for item in items])
        sizes.append(math.lcm(sizes[-1] if sizes else 1, class_size(rule, counts)))
        axes = "+".join(mesh.axes[axis].name for axis in rule.axes)
        found = layers(rooms, domains, sizes)
        level = levels[rule.level]
        if max(found[-2].rooms) == 0:
            inside = layers(rooms, domains, [*sizes[:-1], sizes[-2] if len(sizes) > 1 else 1])[-2].rooms
            return (
                f"{sizes[-1] * unit:,} ranks of {axes} must sit in one {level} for mesh {sized(mesh, size)}, "
                f"the largest {level} has room for {max(inside) * unit:,}"
            )
        needed, present = math.prod(counts) // sizes[-1], found[-1].rooms[0] // sizes[-1]
        if present < needed:
            return (
                f"mesh {sized(mesh, size)} needs {needed:,} times {sizes[-1] * unit:,} ranks of {axes}, each in one "
                f"{level}; there is room for {present:,}"
            )
    return f"mesh {mesh} fits on no {limits.nodes_max or len(tree.nodes)} of the nodes present with these rules"


def _odd(present: Sequence[Node], slot_count: int) -> str:
    """What to say of the nodes that are not of the usual kind."""
    odd = in_order(node for node in present if node.slot_count != slot_count)
    if not odd:
        return ""
    if len(odd) > NAMES_MAX:
        return f", and {len(odd)} have other numbers"
    return ", and " + ", ".join(f"node {node.id} has {node.slot_count}" for node in odd)


def _broken(unused: Sequence[Unused]) -> str:
    if len(unused) > NAMES_MAX:
        return f"; {len(unused)} others are incomplete or odd"
    return "".join(f"; {each.reason}" for each in unused)
