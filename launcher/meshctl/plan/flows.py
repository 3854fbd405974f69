"""The groups that cross domains: the traffic of a plan between the domains of one level.

The drawn level is the innermost one whose domains have room beside each other; below all levels come the
hosts. Amounts are in the user's own weights: a hop of dp with weight 10 carries 10.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from launcher.model.mesh import Mesh
from launcher.model.node import Node
from launcher.model.topology import Tree, build_tree
from launcher.model.traffic import Communicator
from launcher.placement.explain import Explanation, explain
from launcher.placement.limits import Costs, Limits, Plan
from launcher.placement.problem.hops import Exchange, Hops, Labels, make_traffic

DOMAINS_MAX = 128


class Arc(NamedTuple):
    """Traffic between two domains of the drawn level, numbered from the left."""

    low: int
    high: int
    amount: Fraction


class Flow(Struct, frozen=True, kw_only=True):
    """The traffic of one communicator.

    `leaving`: per level, the host's last, what leaves its domains; `cost`: its part of J. `crossing_count` of
    `group_count` groups touch several domains of the drawn level, and `arcs` are those domains, heaviest first.
    """

    communicator: Communicator
    leaving: tuple[Fraction, ...]
    cost: Fraction
    crossing_count: int
    group_count: int
    arcs: tuple[Arc, ...]


class TrafficSummary(Struct, frozen=True, kw_only=True):
    """All flows, the most expensive first. `level`: index of the drawn level in `levels`; None: none has room.

    `names`: of its domains in use; `outer_names`: the domain around each, empty at the outermost level.
    """

    explanation: Explanation
    levels: tuple[str, ...]
    level_costs: tuple[Fraction, ...]
    level: int | None
    names: tuple[str, ...]
    outer_names: tuple[str, ...]
    flows: tuple[Flow, ...]

    @property
    def crossing_flows(self) -> list[Flow]:
        """The flows with arcs to draw."""
        return [flow for flow in self.flows if flow.arcs]


def summarize_traffic(plan: Plan, nodes: Sequence[Node], mesh: Mesh, limits: Limits, costs: Costs) -> TrafficSummary:
    """Summarize the cost of the plan's traffic, and its paths."""
    tree, explanation = build_tree(nodes, limits.levels), explain(plan, nodes, mesh, limits, costs)
    # Without costs of levels the weights are scaled alone.
    traffic = make_traffic(plan.shape, [axis.name for axis in mesh.axes], 1, explanation.communicators, ())
    scale = Fraction(1, traffic.scale)  # from scaled weights to the user's
    holder = np.zeros(plan.world_size, dtype=np.int32)
    for position, node in enumerate(tree.nodes):
        holder[list(plan.ranks.get(node.id, ()))] = position
    labels = [np.array(level, dtype=np.int32)[holder] for level in (*tree.domains, range(len(tree.nodes)))]
    level = _choose_level(labels)
    names, outer_names, drawn = _list_used_domains(tree, level, labels)
    grid = drawn.reshape(plan.shape)
    flows = []
    for index, communicator in enumerate(explanation.communicators):
        along = tuple(place for place, axis in enumerate(mesh.axes) if axis.name in communicator.axes)
        spread = grid.max(axis=along) != grid.min(axis=along)
        flows.append(
            Flow(
                communicator=communicator,
                leaving=tuple(each.leaving[index] for each in explanation.levels),
                cost=sum((each.level_cost * each.leaving[index] for each in explanation.levels), Fraction(0)),
                crossing_count=int(np.count_nonzero(spread)),
                group_count=int(np.size(spread)),
                arcs=_make_arcs([part for part in traffic.parts if part.communicator is communicator], drawn, scale),
            )
        )
    flows.sort(key=lambda flow: (-flow.cost, -flow.communicator.weight, flow.communicator.name))
    return TrafficSummary(
        explanation=explanation,
        levels=tuple(each.name for each in explanation.levels),
        level_costs=tuple(each.level_cost for each in explanation.levels),
        level=level,
        names=names,
        outer_names=outer_names,
        flows=tuple(flows),
    )


def _choose_level(labels: Sequence[Labels]) -> int | None:
    """Choose the level to draw: the innermost with 2 to DOMAINS_MAX used domains; hosts only if no other has two."""
    counts = [len(np.unique(level)) for level in labels]
    fitting = [index for index, count in enumerate(counts) if 2 <= count <= DOMAINS_MAX]
    above = [index for index in fitting if index < len(labels) - 1]
    return max(above or fitting, default=None)


def _list_used_domains(
    tree: Tree, level: int | None, labels: Sequence[Labels]
) -> tuple[tuple[str, ...], tuple[str, ...], NDArray[np.int64]]:
    """For the drawn level: the names of the domains with ranks, their outer domains, and rank -> number among them.

    Without a level all ranks are in one domain without a name.
    """
    if level is None:
        return (), (), np.zeros(len(labels[-1]), dtype=np.int64)
    used, first, drawn = np.unique(labels[level], return_index=True, return_inverse=True)
    all_names = (*tree.names, [node.id for node in tree.nodes])
    names = [all_names[level][domain] for domain in used]
    outer = [tree.names[level - 1][domain] for domain in labels[level - 1][first]] if level else [""] * len(used)
    if level < len(tree.levels):
        names = [name.removeprefix(f"{above}/") for name, above in zip(names, outer, strict=True)]
    return tuple(names), tuple(outer), drawn.reshape(-1)


def _make_arcs(transfers: Sequence[Hops | Exchange], domain_of: NDArray[np.int64], scale: Fraction) -> tuple[Arc, ...]:
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
