"""The groups that cross domains: the traffic of a plan between the domains of one level.

The drawn level is the innermost one whose domains have room beside each other; below all levels come the
hosts. Amounts are in the user's own weights: a hop of dp with weight 10 carries 10.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from launcher.model.mesh import Mesh
from launcher.model.node import Node
from launcher.model.topology import HOST, Tree, build_tree, resolve_level_costs
from launcher.model.traffic import Communicator, make_default_traffic, scale_to_integers
from launcher.placement.limits import Costs, Limits, Plan
from launcher.placement.problem.cost import Labels, sum_leaving_traffic
from launcher.placement.problem.hops import Exchange, Hops, compute_box, make_traffic

DOMAINS_MAX = 128


class Arc(NamedTuple):
    """Traffic between two domains of the drawn level, numbered from the left."""

    low: int
    high: int
    amount: float


@dataclass(frozen=True, kw_only=True)
class Flow:
    """The traffic of one communicator.

    `leaving`: per level, the host's last, what leaves its domains; `cost`: its part of J. `crossing_count` of
    `group_count` groups touch several domains of the drawn level, and `arcs` are those domains, heaviest first.
    """

    communicator: Communicator
    leaving: tuple[float, ...]
    cost: float
    crossing_count: int
    group_count: int
    arcs: tuple[Arc, ...]


@dataclass(frozen=True, kw_only=True)
class TrafficSummary:
    """All flows, the most expensive first. `level`: index of the drawn level in `levels`; None: none has room.

    `names`: of its domains in use; `outer`: the domain around each, empty at the outermost level.
    """

    levels: tuple[str, ...]
    level_costs: tuple[int | float, ...]
    level: int | None
    names: tuple[str, ...]
    outer_names: tuple[str, ...]
    flows: tuple[Flow, ...]


def summarize_traffic(plan: Plan, nodes: Sequence[Node], mesh: Mesh, limits: Limits, costs: Costs) -> TrafficSummary:
    """Summarize the cost of the plan's traffic, and its paths."""
    wood = build_tree(nodes, limits.levels)
    levels = (*wood.levels, HOST)
    level_costs = resolve_level_costs(wood.levels, costs.level_costs)
    communicators = make_default_traffic(mesh) if costs.traffic is None else costs.traffic
    unit = _find_block_size(plan)
    sent = make_traffic(plan.shape, [axis.name for axis in mesh.axes], unit, communicators, level_costs)
    domains = [np.array(level, dtype=np.int32) for level in (*wood.domains, range(len(wood.nodes)))]
    holder = _find_holders(plan, wood, unit)
    labels = [level[holder] for level in domains]
    level = _choose_level(labels)
    names, outer, drawn = _list_used_domains(wood, level, labels)
    by_level = [sum_leaving_traffic(sent, each) for each in labels]
    one = scale_to_integers(level_costs)[1] / sent.scale  # from scaled weights to the user's
    every: list[Hops | Exchange] = [*sent.hops, *sent.exchanges]
    flows = []
    for communicator in communicators:
        own = [index for index, each in enumerate(every) if each.communicator is communicator]
        left = tuple(sum(row[index] for index in own) * one for row in by_level)
        arcs: tuple[Arc, ...] = ()
        crossing_count = group_count = 0
        if level is not None:
            arcs = _make_arcs([every[index] for index in own], drawn, one)
            crossing_count, group_count = _count_crossing(communicator, mesh, plan, np.repeat(drawn, unit))
        flows.append(
            Flow(
                communicator=communicator,
                leaving=left,
                cost=sum(cost * amount for cost, amount in zip(level_costs, left, strict=True)),
                crossing_count=crossing_count,
                group_count=group_count,
                arcs=arcs,
            )
        )
    flows.sort(key=lambda flow: (-flow.cost, -flow.communicator.weight, flow.communicator.name))
    return TrafficSummary(
        levels=levels, level_costs=level_costs, level=level, names=names, outer_names=outer, flows=tuple(flows)
    )


def _find_block_size(plan: Plan) -> int:
    """Return the longest aligned runs of ranks that the plan keeps on one node and that are boxes of its mesh."""
    unit = plan.world_size
    for ranks in plan.ranks.values():
        start = 0
        for index in range(1, len(ranks) + 1):
            if index == len(ranks) or ranks[index] != ranks[index - 1] + 1:
                unit = math.gcd(unit, ranks[start], index - start)
                start = index
    return next(size for size in range(unit, 0, -1) if unit % size == 0 and compute_box(plan.shape, size))


def _find_holders(plan: Plan, tree: Tree, block_size: int) -> NDArray[np.int64]:
    """Return for every unit the position in the tree of the node that holds it."""
    holder = np.zeros(plan.world_size // block_size, dtype=np.int64)
    for position, node in enumerate(tree.nodes):
        holder[[rank // block_size for rank in plan.ranks.get(node.id, ())[::block_size]]] = position
    return holder


def _choose_level(labels: Sequence[Labels]) -> int | None:
    """Choose the level to draw: the innermost with 2 to DOMAINS_MAX used domains; hosts only if no other has two."""
    counts = [len(np.unique(level)) for level in labels]
    fitting = [index for index, count in enumerate(counts) if 2 <= count <= DOMAINS_MAX]
    above = [index for index in fitting if index < len(labels) - 1]
    return max(above or fitting, default=None)


def _list_used_domains(
    tree: Tree, level: int | None, labels: Sequence[Labels]
) -> tuple[tuple[str, ...], tuple[str, ...], NDArray[np.int64]]:
    """For the drawn level: the names of the domains with ranks, their outer domains, and unit -> number among them."""
    if level is None:
        return (), (), np.zeros(0, dtype=np.int64)
    used, first, drawn = np.unique(labels[level], return_index=True, return_inverse=True)
    is_host = level == len(tree.levels)
    names = [tree.nodes[domain].id if is_host else tree.names[level][domain] for domain in used]
    above = [tree.names[level - 1][domain] for domain in labels[level - 1][first]] if level else [""] * len(used)
    inner = [
        name[len(outer) + 1 :] if not is_host and outer and name.startswith(outer + "/") else name
        for name, outer in zip(names, above, strict=True)
    ]
    return tuple(inner), tuple(above), drawn.reshape(-1)


def _make_arcs(transfers: Sequence[Hops | Exchange], domain_of: NDArray[np.int64], scale: float) -> tuple[Arc, ...]:
    """Return the traffic between any two domains, heaviest first."""
    count = int(domain_of.max()) + 1
    between = np.zeros((count, count), dtype=np.int64)
    for each in transfers:
        if isinstance(each, Hops):
            pairs = np.bincount(domain_of[each.low] * count + domain_of[each.high], minlength=count * count)
            found = pairs.reshape(count, count)
            between += (found + found.T) * each.weight
        else:
            class_count = int(each.class_of.max()) + 1
            held = np.bincount(each.class_of * count + domain_of, minlength=class_count * count)
            held = held.reshape(class_count, count)
            between += held.T @ held * each.weight
    low, high = np.nonzero(np.triu(between, 1))
    arcs = [Arc(int(a), int(b), int(between[a, b]) * scale) for a, b in zip(low, high, strict=True)]
    return tuple(sorted(arcs, key=lambda arc: (-arc.amount, arc.low, arc.high)))


def _count_crossing(
    communicator: Communicator, mesh: Mesh, plan: Plan, domain_of: NDArray[np.int64]
) -> tuple[int, int]:
    """Return how many groups touch several domains, and how many groups there are."""
    along = tuple(index for index, axis in enumerate(mesh.axes) if axis.name in communicator.axes)
    grid = domain_of.reshape(plan.shape)
    spread = grid.max(axis=along) != grid.min(axis=along)
    return int(np.count_nonzero(spread)), int(np.size(spread))
