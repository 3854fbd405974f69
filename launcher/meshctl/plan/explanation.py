"""Explains a plan's cost: J by level and communicator, the time of a step, and other orders to compare it with.

For every leaf, pod and host the traffic that leaves it is counted. Per level that is a number for each axis; times the
level's cost, and summed up, they are J exactly. The group that spans most domains is affected most by a slow network.

The other orders are those of a job without a planner: the same number of ranks on the first nodes in the order in
which they joined, of their addresses as text (torchrun sorts like this), of their addresses as numbers, of their
paths. Nodes are filled one after the other with as many whole runs as the plan gives to nodes. Such an order may
break a rule that the plan keeps; its cost is reported in any case, with the rule.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np
from msgspec import Struct

from launcher.model.mesh import Mesh
from launcher.model.node import Node
from launcher.model.topology import build_tree, make_natural_key
from launcher.model.traffic import Communicator
from launcher.placement.explain import Holders, PlanView, find_holders, measure_spread
from launcher.placement.limits import Costs, Limits, Plan, StepTime
from launcher.placement.problem.hops import Labels, Traffic
from launcher.placement.problem.problem import Layout, Problem
from rendezvous.reasons import Reason


class LevelTraffic(Struct, frozen=True, kw_only=True):
    """The traffic that leaves the domains of one level; "host" is the last."""

    name: str
    level_cost: Fraction
    leaving: tuple[Fraction, ...]
    """Per communicator. A hop counts once, though it leaves one domain and enters another."""
    spreads: tuple[int, ...]
    """Per communicator: how many domains the widest group touches."""

    @property
    def cost(self) -> Fraction:
        return self.level_cost * sum(self.leaving)


class ComparedOrder(Struct, frozen=True, kw_only=True):
    """Another order of the nodes."""

    name: str
    cost: Fraction
    faults: tuple[Reason, ...]
    """The rules that it breaks."""
    step_time: StepTime | None
    """None where no link limits it."""


class Explanation(Struct, frozen=True, kw_only=True):
    """Where a plan's traffic goes, and what other orders of ranks would cost."""

    communicators: tuple[Communicator, ...]
    levels: tuple[LevelTraffic, ...]
    """From the outermost to the host."""
    baselines: tuple[ComparedOrder, ...]
    """Without those for which the nodes lack data."""

    @property
    def cost(self) -> Fraction:
        """J, the sum over the levels."""
        return sum((level.cost for level in self.levels), Fraction(0))


def explain(plan: Plan, nodes: Sequence[Node], mesh: Mesh, limits: Limits, costs: Costs) -> Explanation:
    """Explain a plan's cost. `nodes`: all that were available to the planner, the plan's included."""
    tree = build_tree(nodes, limits.levels)
    view = PlanView(plan.shape, mesh, tree, costs)
    problem, layout = view.make_problem(find_holders(plan.ranks, tree))
    return Explanation(
        communicators=view.communicators,
        levels=tuple(_explain_levels(view, problem, layout)),
        baselines=tuple(_compare_orders(view, problem.traffic.block_size, limits)),
    )


def _explain_levels(view: PlanView, problem: Problem, layout: Layout) -> Iterator[LevelTraffic]:
    traffic = problem.traffic
    cost_scale = traffic.scale // traffic.weight_scale
    for index, domains in enumerate(problem.labels):
        labels = domains[layout]
        leaving = dict.fromkeys(view.communicators, 0)
        for part in traffic.parts:
            leaving[part.communicator] += part.weight * part.count_leaving(labels)
        yield LevelTraffic(
            name=view.levels[index],
            level_cost=Fraction(traffic.level_costs[index], cost_scale),
            leaving=tuple(Fraction(leaving[one], traffic.weight_scale) for one in view.communicators),
            spreads=tuple(_measure_spread(view, one.axes, labels, traffic) for one in view.communicators),
        )


def _measure_spread(view: PlanView, axes: Sequence[str], labels: Labels, traffic: Traffic) -> int:
    names = [axis.name for axis in view.mesh.axes]
    return measure_spread(labels.reshape(traffic.grid), [names.index(axis) for axis in axes])


def _list_orders(nodes: Sequence[Node]) -> dict[str, list[int]]:
    """Return the orders of a job without a planner, as positions. `nodes`: along the tree."""
    orders = {"join order": sorted(range(len(nodes)), key=lambda at: (nodes[at].order, nodes[at].id))}
    if any(node.address for node in nodes):
        # Nodes without an address come last, in the order of joining.
        joined = sorted(range(len(nodes)), key=lambda at: (not nodes[at].address, nodes[at].order))
        texts = [(not node.address, node.address) for node in nodes]
        numbers = [(not node.address, make_natural_key(node.address)) for node in nodes]
        orders["address order, as text"] = sorted(joined, key=texts.__getitem__)
        orders["address order, as numbers"] = sorted(joined, key=numbers.__getitem__)
    orders["path order"] = list(range(len(nodes)))
    return orders


def _fill_in_order(view: PlanView, order: Sequence[int], block_size: int) -> Holders:
    room = [view.tree.nodes[at].slot_count // block_size * block_size for at in order]
    return np.repeat(np.array(order, dtype=np.int32), room)[: math.prod(view.shape)]


def _compare_orders(view: PlanView, block_size: int, limits: Limits) -> Iterator[ComparedOrder]:
    for name, order in _list_orders(view.tree.nodes).items():
        problem, layout = view.make_problem(_fill_in_order(view, order, block_size))
        yield ComparedOrder(
            name=name,
            cost=Fraction(problem.compute_cost(layout), problem.traffic.scale),
            faults=tuple(_find_faults(view, problem, layout, limits)),
            step_time=view.explain_time(problem, layout),
        )


def _find_faults(view: PlanView, problem: Problem, layout: Layout, limits: Limits) -> Iterator[Reason]:
    """Yield the rules that an order breaks."""
    for axis, level in limits.within.items():
        if _measure_spread(view, [axis], problem.labels[view.levels.index(level)][layout], problem.traffic) > 1:
            yield Reason.of("placement/leaves-domain", axis=axis, level=level)
    used = np.unique(layout)
    if limits.all_or_nothing:
        parts = np.bincount(problem.labels[view.levels.index(limits.all_or_nothing.level)][used])
        if (parts[parts > 0] != limits.all_or_nothing.hosts).any():
            yield Reason.of("placement/uses-part", level=limits.all_or_nothing.level)
    if limits.nodes_max is not None and len(used) > limits.nodes_max:
        yield Reason.of("placement/uses-nodes", nodes=len(used))
