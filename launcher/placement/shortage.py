"""What is missing where there is no valid world size.

Each reason has the relevant numbers and, where few nodes are unusual, the nodes. They are for users who do not know the
planner, so a hint speaks of more nodes only where they would help.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from launcher.model.topology import HOST, sort_nodes
from launcher.placement import units
from launcher.placement.limits import name_some
from launcher.placement.units import Supply
from rendezvous.reasons import Reason


def explain_shortage(supply: Supply, low: int, high: int) -> Reason:
    """Explain why no world of `low` to `high` replicas is valid. `high`: as many as there are devices for."""
    present = len(supply.items) * supply.hosts
    if 0 < present < supply.limits.nodes_min:
        least = Reason.of("placement/too-few-nodes", least=supply.limits.nodes_min, present=present)
        return least.add(*units.explain_unused(supply.unused))
    found = _explain_oversized_class(supply, low)
    if found is not None:
        return found
    if high < low:
        return _explain_too_few_slots(supply)
    if not units.list_elastic_sizes(supply.mesh, supply.block_size, supply.item_ranks, low, high):
        return _explain_no_even_size(supply, low, high)
    return _explain_no_room(supply, low)


def _explain_oversized_class(supply: Supply, low: int) -> Reason | None:
    """Explain that a rule keeps more ranks on one host than any host here has room for, if one does."""
    rule = supply.constraints[0] if supply.constraints else None  # the innermost
    if rule is None or supply.tree is None or rule.level < len(supply.tree.levels) or supply.limits.all_or_nothing:
        return None
    size, counts = _find_least_grid(supply, low)
    if counts is None:
        return None
    class_size, most = rule.compute_class_size(counts), max((item.room for item in supply.items), default=0)
    if class_size <= most:
        return None
    axes = "+".join(supply.mesh.axes[axis].name for axis in rule.axes)
    return _explain_small_domain(supply, size, HOST, axes, class_size, most)


def _explain_small_domain(supply: Supply, size: int, level: str, axes: str, needed: int, most: int) -> Reason:
    """`needed`, `most`: units."""
    return Reason.of(
        "placement/domain-too-small",
        ranks=needed * supply.block_size,
        axes=axes,
        level=level,
        mesh=units.format_mesh(supply.mesh, size),
        room=most * supply.block_size,
        rules=tuple(f"{axis}={other}" for axis, other in supply.limits.within.items() if other == level),
    )


def _find_least_grid(supply: Supply, low: int) -> tuple[int, tuple[int, ...] | None]:
    """Find the least even size of the elastic axis from `low` on, and the units along each axis then, if it is one."""
    mesh, block_size, block = supply.mesh, supply.block_size, supply.item_ranks
    size = next(iter(units.list_elastic_sizes(mesh, block_size, block, low, low + block_size * block)), low)
    shape = mesh.resolve_shape(size * mesh.replica_size)
    return size, units.compute_grid(shape, block_size)


def _explain_too_few_slots(supply: Supply) -> Reason:
    limits = supply.limits
    least = limits.elastic_min if supply.mesh.elastic_axis else 1
    mesh = supply.mesh.given_name.replace("=*", f">={least}" if least > 1 else "=*")
    rank_count = supply.mesh.replica_size * least
    if limits.all_or_nothing:
        return _explain_too_few_slices(supply, mesh, rank_count)
    slot_count = units.find_usual_slot_count(supply.nodes)
    node_count = math.ceil(rank_count / max(1, slot_count // supply.block_size * supply.block_size))
    if len(supply.nodes) == 1 or limits.nodes_max == 1:
        most = max(node.slot_count for node in supply.nodes)
        nnodes = node_count if limits.nodes_max == 1 else 0
        return Reason.of("placement/one-node-too-small", mesh=mesh, ranks=rank_count, devices=most, nnodes=nnodes)
    alike = sum(1 for node in supply.nodes if node.slot_count == slot_count)
    is_limited = limits.nodes_max is not None and limits.nodes_max < min(node_count, alike + 1)
    most = limits.nodes_max or 0 if is_limited else 0
    reason = Reason.of(
        "placement/nodes-missing", mesh=mesh, nodes=node_count, devices=slot_count, present=alike, most=most
    )
    odd = sort_nodes(node for node in supply.nodes if node.slot_count != slot_count)
    if is_limited or not odd:
        return reason
    names = name_some([f"{node.id} ({node.slot_count})" for node in odd])
    return reason.add(Reason.of("placement/odd-nodes", nodes=names))


def _explain_too_few_slices(supply: Supply, mesh: str, rank_count: int) -> Reason:
    whole, present = supply.limits.all_or_nothing, len(supply.items)
    assert whole is not None
    unused = units.explain_unused(supply.unused)
    if not present:
        return Reason.of("placement/no-slice", mesh=mesh, level=whole.level, hosts=whole.hosts).add(*unused)
    count = math.ceil(rank_count / (whole.hosts * supply.items[0].nodes[0].slot_count))
    most = supply.limits.nodes_max or 0 if present >= count else 0
    level, hosts = whole.level, whole.hosts
    reason = Reason.of(
        "placement/slices-missing", mesh=mesh, slices=count, level=level, hosts=hosts, present=present, most=most
    )
    return reason if most else reason.add(*unused)


def _explain_no_even_size(supply: Supply, low: int, high: int) -> Reason:
    """Explain that there are enough devices, but no world that they could form is even."""
    mesh, domains = supply.mesh, supply.limits.all_or_nothing
    larger: Sequence[int] = ()
    if mesh.elastic_axis:
        farther = high + supply.block_size * supply.item_ranks  # even sizes repeat with this period
        last = min(supply.limits.elastic_max or farther, farther)
        larger = units.list_elastic_sizes(mesh, supply.block_size, supply.item_ranks, high + 1, last)
    return Reason.of(
        "placement/uneven",
        mesh=mesh.given_name,
        ranks=supply.item_ranks if domains else supply.block_size,
        level=domains.level if domains else "",
        axis=mesh.elastic_axis.name if mesh.elastic_axis and mesh.given_name else "",
        low=low,
        high=high,
        larger=larger[0] if larger else 0,
    )


def _explain_no_room(supply: Supply, low: int) -> Reason:
    """Explain that there are enough devices, but not as `within` requires: the innermost broken rule."""
    mesh, tree, limits, block_size = supply.mesh, supply.tree, supply.limits, supply.block_size
    count = limits.nodes_max or len(supply.nodes)
    if tree is None or not supply.constraints:
        return Reason.of("placement/no-fit", mesh=mesh.given_name, nodes=count, has_rules=False)
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
        layers = units.build_layers(rooms, domains, sizes)
        if max(layers[-2].rooms) == 0:
            most = max(units.build_layers(rooms, domains, [*sizes[:-1], sizes[-2] if len(sizes) > 1 else 1])[-2].rooms)
            return _explain_small_domain(supply, size, level, axes, sizes[-1], most)
        needed, present = math.prod(counts) // sizes[-1], layers[-1].rooms[0] // sizes[-1]
        if present < needed:
            return Reason.of(
                "placement/too-few-domains",
                mesh=units.format_mesh(mesh, size),
                times=needed,
                ranks=sizes[-1] * block_size,
                axes=axes,
                level=level,
                room=present,
            )
    return Reason.of("placement/no-fit", mesh=mesh.given_name, nodes=count, has_rules=True)
