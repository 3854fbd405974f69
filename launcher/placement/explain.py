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
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from launcher.model.mesh import Mesh
from launcher.model.node import Node
from launcher.model.topology import HOST, Tree, build_tree, make_natural_key
from launcher.model.traffic import Communicator, make_default_traffic
from launcher.placement.limits import Costs, Limits, Plan, StepTime
from launcher.placement.problem.hops import Labels, Traffic
from launcher.placement.problem.problem import Layout, Problem, make_problem
from launcher.placement.problem.step_time import StepTimer
from launcher.placement.units import compute_grid
from rendezvous.reasons import Reason

Holders = NDArray[np.int32]
"""rank -> position in the tree's nodes of the one that holds it."""


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
    """None where no rates are known."""


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
    view = _ExplainContext(plan.shape, mesh, tree, costs)
    problem, layout = view.make_problem(_find_holders(plan.ranks, tree))
    return Explanation(
        communicators=view.communicators,
        levels=tuple(_explain_levels(view, problem, layout)),
        baselines=tuple(_compare_orders(view, problem.traffic.block_size, limits)),
    )


def compute_step_time(
    ranks: Mapping[str, Sequence[int]], shape: Sequence[int], tree: Tree, mesh: Mesh, costs: Costs
) -> StepTime | None:
    """Compute the time of a step's communication; None where no rates are known. `ranks`: by node."""
    view = _ExplainContext(shape, mesh, tree, costs)
    return view.explain_time(*view.make_problem(_find_holders(ranks, tree)))


def explain_locality(plan: Plan, nodes: Sequence[Node], mesh: Mesh, limits: Limits) -> list[Reason]:
    """Explain which axes stay together where, and which are spread.

    Levels at which all the plan's nodes are together made no difference; if that is all of them, it is empty.
    """
    place = build_tree(nodes, limits.levels)
    holders = _find_holders(plan.ranks, place)
    rings = [(HOST, holders.reshape(plan.shape))]
    for name, level in reversed(list(zip(place.levels, place.domains, strict=True))):
        labels = np.array(level, dtype=np.int32)[holders].reshape(plan.shape)
        if (labels != labels.flat[0]).any():
            rings.append((name, labels))
    if len(rings) == 1:
        return []
    inside: dict[str, list[str]] = {}
    across: list[Reason] = []
    for index, axis in enumerate(mesh.axes):
        if plan.shape[index] == 1:
            continue
        spreads = {name: _measure_spread(labels, [index]) for name, labels in rings}
        home = next((name for name, spread in spreads.items() if spread == 1), None)
        if home is not None:
            inside.setdefault(home, []).append(axis.name if mesh.given_name else "")
        else:
            name, spread = list(spreads.items())[-1]
            named = axis.name if mesh.given_name else ""
            across.append(Reason.of("placement/axis-spread", axis=named, domains=spread, level=name))
    homes = [name for name, _ in rings if name in inside]
    kept = [Reason.of("placement/axes-together", axes=tuple(inside[name]), level=name) for name in homes]
    return [*kept, *across]


def _measure_spread(labels: NDArray[np.int32], along: Sequence[int]) -> int:
    """Return how many domains the widest group along these axes touches. `labels`: in the shape of the mesh."""
    inner = np.moveaxis(labels, along, range(labels.ndim - len(along), labels.ndim))
    groups = np.sort(inner.reshape(-1, math.prod(labels.shape[axis] for axis in along)), axis=1)
    return int((np.diff(groups, axis=1) != 0).sum(axis=1).max()) + 1


class _ExplainContext:
    """One world on one tree of nodes: the values common to the plan and every other order."""

    def __init__(self, shape: Sequence[int], mesh: Mesh, tree: Tree, costs: Costs) -> None:
        self.shape, self.mesh, self.tree, self.costs = tuple(shape), mesh, tree, costs
        self.levels = (*tree.levels, HOST)
        self.communicators = costs.traffic or make_default_traffic(mesh)

    def make_problem(self, holders: Holders) -> tuple[Problem, Layout]:
        """Return the world in the longest runs of ranks that are boxes of the mesh and lie on one node each."""
        ends = np.flatnonzero(np.diff(holders)) + 1
        longest = math.gcd(holders.size, *ends.tolist())
        unit = next(unit for unit in range(longest, 0, -1) if longest % unit == 0 and compute_grid(self.shape, unit))
        capacity = [node.slot_count // unit for node in self.tree.nodes]
        every = range(len(capacity))
        problem = make_problem(self.tree, self.mesh, self.shape, unit, Limits(), self.costs, capacity, every)
        return problem, holders[::unit]

    def explain_time(self, problem: Problem, layout: Layout) -> StepTime | None:
        if not self.costs.rates:
            return None
        every = range(len(self.tree.nodes))
        return StepTimer(problem, self.tree, every, self.mesh, self.shape, self.costs).explain(layout)

    def measure_spread(self, axes: Sequence[str], labels: Labels, traffic: Traffic) -> int:
        names = [axis.name for axis in self.mesh.axes]
        return _measure_spread(labels.reshape(traffic.grid), [names.index(axis) for axis in axes])


def _find_holders(ranks: Mapping[str, Sequence[int]], tree: Tree) -> Holders:
    holders = np.empty(sum(map(len, ranks.values())), dtype=np.int32)
    for position, node in enumerate(tree.nodes):
        holders[list(ranks.get(node.id, ()))] = position
    return holders


def _explain_levels(view: _ExplainContext, problem: Problem, layout: Layout) -> Iterator[LevelTraffic]:
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
            spreads=tuple(view.measure_spread(one.axes, labels, traffic) for one in view.communicators),
        )


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


def _fill_in_order(view: _ExplainContext, order: Sequence[int], block_size: int) -> Holders:
    room = [view.tree.nodes[at].slot_count // block_size * block_size for at in order]
    return np.repeat(np.array(order, dtype=np.int32), room)[: math.prod(view.shape)]


def _compare_orders(view: _ExplainContext, block_size: int, limits: Limits) -> Iterator[ComparedOrder]:
    for name, order in _list_orders(view.tree.nodes).items():
        problem, layout = view.make_problem(_fill_in_order(view, order, block_size))
        yield ComparedOrder(
            name=name,
            cost=Fraction(problem.compute_cost(layout), problem.traffic.scale),
            faults=tuple(_find_faults(view, problem, layout, limits)),
            step_time=view.explain_time(problem, layout),
        )


def _find_faults(view: _ExplainContext, problem: Problem, layout: Layout, limits: Limits) -> Iterator[Reason]:
    """Yield the rules that an order breaks."""
    for axis, level in limits.within.items():
        if view.measure_spread([axis], problem.labels[view.levels.index(level)][layout], problem.traffic) > 1:
            yield Reason.of("placement/leaves-domain", axis=axis, level=level)
    used = np.unique(layout)
    if limits.all_or_nothing:
        parts = np.bincount(problem.labels[view.levels.index(limits.all_or_nothing.level)][used])
        if (parts[parts > 0] != limits.all_or_nothing.hosts).any():
            yield Reason.of("placement/uses-part", level=limits.all_or_nothing.level)
    if limits.nodes_max is not None and len(used) > limits.nodes_max:
        yield Reason.of("placement/uses-nodes", nodes=len(used))
