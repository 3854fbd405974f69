"""Looks at a finished plan: how long a step's communication takes, and which axes stay together where.

What its traffic costs level by level, and what other orders of the nodes would cost, is explained to those who ask for
it, in `launcher/meshctl/plan/explanation.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from launcher.model.mesh import Mesh
from launcher.model.node import Node
from launcher.model.topology import HOST, Tree, build_tree
from launcher.model.traffic import make_default_traffic
from launcher.placement.limits import Costs, Limits, Plan, StepTime
from launcher.placement.problem.problem import Layout, Problem, make_problem
from launcher.placement.problem.step_time import StepTimer
from launcher.placement.units import compute_grid
from rendezvous.reasons import Reason

Holders = NDArray[np.int32]
"""rank -> position in the tree's nodes of the one that holds it."""


def compute_step_time(
    ranks: Mapping[str, Sequence[int]], shape: Sequence[int], tree: Tree, mesh: Mesh, costs: Costs
) -> StepTime | None:
    """Compute the time of a step's communication; None where no link limits it. `ranks`: by node."""
    view = PlanView(shape, mesh, tree, costs)
    return view.explain_time(*view.make_problem(find_holders(ranks, tree)))


def explain_locality(plan: Plan, nodes: Sequence[Node], mesh: Mesh, limits: Limits) -> list[Reason]:
    """Explain which axes stay together where, and which are spread.

    Levels at which all the plan's nodes are together made no difference; if that is all of them, it is empty.
    """
    place = build_tree(nodes, limits.levels)
    holders = find_holders(plan.ranks, place)
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
        spreads = {name: measure_spread(labels, [index]) for name, labels in rings}
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


def measure_spread(labels: NDArray[np.int32], along: Sequence[int]) -> int:
    """Return how many domains the widest group along these axes touches. `labels`: in the shape of the mesh."""
    inner = np.moveaxis(labels, along, range(labels.ndim - len(along), labels.ndim))
    groups = np.sort(inner.reshape(-1, math.prod(labels.shape[axis] for axis in along)), axis=1)
    return int((np.diff(groups, axis=1) != 0).sum(axis=1).max()) + 1


class PlanView:
    """One world on one tree of nodes: the values common to a plan and every other order."""

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
        every = range(len(self.tree.nodes))
        return StepTimer(problem, self.tree, every, self.mesh, self.shape, self.costs).explain(layout)


def find_holders(ranks: Mapping[str, Sequence[int]], tree: Tree) -> Holders:
    holders = np.empty(sum(map(len, ranks.values())), dtype=np.int32)
    for position, node in enumerate(tree.nodes):
        holders[list(ranks.get(node.id, ()))] = position
    return holders
