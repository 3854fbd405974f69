"""The placement problem for the search: items with room for units, domains as numbers, traffic as arrays.

An item holds units: it is a node, or a whole domain of nodes where domains are used entirely or not at all.
Items have the canonical order of the tree, and a layout maps every unit to its item. Names, paths and devices do not
appear here, so that the search is pure arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from launcher.model.mesh import Mesh
from launcher.model.topology import HOST, Tree, resolve_level_costs
from launcher.model.traffic import make_default_traffic
from launcher.placement.limits import Costs, Limits
from launcher.placement.problem.cost import Labels, compute_cost
from launcher.placement.problem.hops import Traffic, make_traffic

Layout = NDArray[np.int32]
"""unit -> item that holds it."""


class ClassRule(NamedTuple):
    """Units of one class stay inside one domain of a level.

    `level` is an index into `Problem.labels`; `class_of[unit]` numbers the classes from 0, all of the same size.
    """

    level: int
    class_of: NDArray[np.int32]


@dataclass(frozen=True, kw_only=True, eq=False)
class Problem:
    """The valid layouts, and their costs.

    `capacity[item]`: most units it holds. `labels[level][item]`: the item's domain, numbered from 0 within its
    level in the order of the items; levels as in `traffic.level_costs`, outermost first, the host's last; a domain lies
    inside one of the level before. `is_contiguous`: the units of an item are consecutive. `active_min` and
    `active_max` bound how many items hold units. An item need not be filled.
    """

    traffic: Traffic
    capacity: NDArray[np.int32]
    labels: tuple[NDArray[np.int32], ...]
    rules: tuple[ClassRule, ...] = ()
    is_contiguous: bool = True
    active_min: int = 1
    active_max: int | None = None

    def make_labels(self, layout: Layout) -> list[Labels]:
        """Return for every level: unit -> domain."""
        return [level[layout] for level in self.labels]

    def compute_cost(self, layout: Layout) -> int:
        """Return J, in the traffic's scaled numbers."""
        return compute_cost(self.traffic, self.make_labels(layout))


def find_fault(problem: Problem, layout: Layout) -> str | None:
    """Return what makes a layout invalid, or None."""
    if len(layout) != problem.traffic.block_count:
        return f"{len(layout)} units are placed, not {problem.traffic.block_count}"
    held = np.bincount(layout, minlength=len(problem.capacity))
    if (held > problem.capacity).any():
        return f"item {int(np.argmax(held > problem.capacity))} holds more than it can"
    active_count = int(np.count_nonzero(held))
    if active_count < problem.active_min or (problem.active_max is not None and active_count > problem.active_max):
        return f"{active_count} items are active"
    if problem.is_contiguous and np.count_nonzero(np.diff(layout)) + 1 != active_count:
        return "the units of an item are not consecutive"
    for rule in problem.rules:
        pairs = np.unique(np.stack((rule.class_of, problem.labels[rule.level][layout])), axis=1)
        if pairs.shape[1] != int(rule.class_of.max()) + 1:
            return f"a class of units lies in several domains of level {rule.level}"
    return None


def make_problem(
    tree: Tree,
    mesh: Mesh,
    shape: Sequence[int],
    block_size: int,
    limits: Limits,
    costs: Costs,
    capacity: Sequence[int],
    members: Sequence[int] | None = None,
) -> Problem:
    """Return the problem of a world of `shape` in units of `block_size` ranks on the nodes of `tree`.

    `capacity`: units per item. `members[item]`: position in `tree.nodes` of the item, or of the first node of a
    domain that is used as a whole, rising; None: every node is an item. Raises ValueError if a unit is no box of the
    mesh, and KeyError if `limits.within` names an unknown axis or level.
    """
    positions = np.arange(len(tree.nodes)) if members is None else np.array(members, dtype=np.int64)
    labels = [_renumber(np.array(level, dtype=np.int32)[positions]) for level in tree.domains]
    labels.append(np.arange(len(positions), dtype=np.int32))
    names = [axis.name for axis in mesh.axes]
    talk = make_traffic(
        shape,
        names,
        block_size,
        costs.traffic or make_default_traffic(mesh),
        resolve_level_costs(tree.levels, costs.level_costs),
    )
    hosts = limits.all_or_nothing.hosts if limits.all_or_nothing else 1
    return Problem(
        traffic=talk,
        capacity=np.array(capacity, dtype=np.int32),
        labels=tuple(labels),
        rules=make_class_rules(talk.grid, names, (*tree.levels, HOST), limits.within),
        is_contiguous=limits.is_contiguous,
        active_min=-(-limits.nodes_min // hosts),
        active_max=None if limits.nodes_max is None else limits.nodes_max // hosts,
    )


def make_class_rules(
    grid: Sequence[int], axes: Sequence[str], levels: Sequence[str], within: Mapping[str, str]
) -> tuple[ClassRule, ...]:
    """Return the rules of `within` for units: one per level that it names, outermost first.

    Units inside one leaf are inside one pod as well; and units that share a domain with the same unit share it with
    each other. So a rule's class is the box over all axes that are bound to its level or to a deeper one.
    """
    depth = {level: index for index, level in enumerate(levels)}
    bound = {axes.index(axis) if axis in axes else _raise_unknown(axis): depth[level] for axis, level in within.items()}
    rules: list[ClassRule] = []
    for level in sorted(set(bound.values())):
        free = [1 if bound.get(axis, -1) >= level else size for axis, size in enumerate(grid)]
        classes = np.arange(np.prod(free), dtype=np.int32).reshape(free)
        class_of = np.ascontiguousarray(np.broadcast_to(classes, grid)).ravel()
        if int(class_of.max()) + 1 < class_of.size:  # else every unit is a class of its own
            rules.append(ClassRule(level, class_of))
    return tuple(rules)


def _raise_unknown(axis: str) -> int:
    raise KeyError(axis)


def _renumber(labels: Labels) -> Labels:
    """Return the same domains, numbered from 0 without gaps: some may have lost all their items."""
    return np.unique(labels, return_inverse=True)[1].astype(np.int32).reshape(labels.shape)
