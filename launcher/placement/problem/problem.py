"""The placement problem for the search: items with room for units, domains as numbers, traffic as arrays.

An item holds units: it is a node, or a whole domain of nodes where domains are used entirely or not at all.
Items have the canonical order of the tree, and a layout maps every unit to its item. Names, paths and devices do not
appear here, so that the search is pure arithmetic.

`round_weights`, `coarsen` and `restrict` make a simpler problem whose layouts are layouts of the given one. Symmetric
domains have the same rooms in the same arrangement, at all levels below, and exchanging two with the same parent
changes no cost. A search that visits domains in the order of their names may find a plan that it would miss with other
names, so `sort_by_kind` puts them in an order that depends on their structure only. And a layout from scratch may put
stage 0 on one leaf and stage 1 on another when the reverse would move no rank: `relabel_domains` gives each domain the
place of the symmetric one that held most of the same units before.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from launcher.model.mesh import Mesh
from launcher.model.topology import Tree, resolve_level_costs
from launcher.model.traffic import make_default_traffic
from launcher.placement.limits import NO_ITEM, Costs, Limits
from launcher.placement.problem.hops import BlockArray, Exchange, Graph, Hops, Ints, Traffic, make_traffic
from launcher.placement.units import Constraint, compute_grid, make_constraints

WEIGHT_BITS, LEVEL_COST_BITS = 32, 19
"""Sums of weights and of level costs of at most so many bits: their product is exact as a float, far from overflow."""

Layout = NDArray[np.int32]
"""unit -> item that holds it."""


class ClassRule(NamedTuple):
    """Units of one class stay inside one domain of a level.

    `level` is an index into `Problem.labels`; `class_of[unit]` numbers the classes from 0, all of the same size.
    """

    level: int
    class_of: BlockArray

    @property
    def class_size(self) -> int:
        return len(self.class_of) // (int(self.class_of.max()) + 1)


class Problem(Struct, frozen=True, kw_only=True, eq=False):
    """The valid layouts, in which the units of an item are consecutive, and their costs."""

    traffic: Traffic
    capacity: NDArray[np.int32]
    """Item to the most units that it holds. An item need not be filled."""
    labels: tuple[NDArray[np.int32], ...]
    """`labels[level][item]` is the item's domain, numbered from 0 within its level in the order of the items. Levels as
    in `traffic.level_costs`, outermost first, the host's last; a domain lies inside one of the level before.
    """
    rules: tuple[ClassRule, ...] = ()
    active_min: int = 1
    """How many items must hold units."""
    active_max: int | None = None
    """How many items may hold units."""

    def compute_cost(self, layout: Layout) -> int:
        """Return J, in the traffic's scaled numbers."""
        return self.traffic.compute_cost([level[layout] for level in self.labels])

    def list_levels(self) -> list[int]:
        """Return the levels above the host that cost something or that a rule names, outermost first."""
        level_costs, bound = self.traffic.level_costs, {rule.level for rule in self.rules}
        return [level for level in range(len(level_costs) - 1) if level_costs[level] or level in bound]


def is_valid(problem: Problem, layout: Layout) -> bool:
    """Return whether a layout keeps all rules of the problem."""
    held = np.bincount(layout, minlength=len(problem.capacity))
    active_count = int(np.count_nonzero(held))
    most = len(held) if problem.active_max is None else problem.active_max
    if len(layout) != problem.traffic.block_count or (held > problem.capacity).any():
        return False
    # The units of an item are consecutive.
    if not problem.active_min <= active_count <= most or np.count_nonzero(np.diff(layout)) + 1 != active_count:
        return False
    for rule in problem.rules:
        pairs = np.unique(np.stack((rule.class_of, problem.labels[rule.level][layout])), axis=1)
        if pairs.shape[1] != int(rule.class_of.max()) + 1:
            return False
    return True


def list_costs(problem: Problem, graph: Graph, layouts: NDArray[np.integer]) -> Ints:
    """Return J of several layouts of a graph's blocks, a row each, without what the graph leaves out."""
    total = np.zeros(len(layouts), dtype=np.int64)
    for level_cost, label in zip(problem.traffic.level_costs, problem.labels, strict=True):
        if level_cost:
            placed = label[layouts]
            total += level_cost * ((placed[:, graph.low] != placed[:, graph.high]) @ graph.weight)
    return total


def make_problem(
    tree: Tree,
    mesh: Mesh,
    shape: Sequence[int],
    block_size: int,
    limits: Limits,
    costs: Costs,
    capacity: Sequence[int],
    members: Sequence[int],
) -> Problem:
    """Return the problem of a world of `shape` in units of `block_size` ranks on the nodes of `tree`.

    `capacity`: units per item. `members[item]`: position in `tree.nodes` of the item, or of the first node of a
    domain that is used as a whole, rising. Raises ValueError if a unit is no box of the mesh, and UsageError if
    `limits` name an unknown axis or level.
    """
    positions = np.array(members, dtype=np.int64)
    traffic = make_traffic(
        shape,
        [axis.name for axis in mesh.axes],
        block_size,
        costs.traffic or make_default_traffic(mesh),
        resolve_level_costs(tree.levels, costs.level_costs),
    )
    hosts = limits.all_or_nothing.hosts if limits.all_or_nothing else 1
    return Problem(
        traffic=traffic,
        capacity=np.array(capacity, dtype=np.int32),
        labels=(
            *(renumber(np.array(level, dtype=np.int32)[positions]) for level in tree.domains),
            np.arange(len(positions), dtype=np.int32),
        ),
        rules=_make_class_rules(traffic.grid, make_constraints(mesh, limits, tree.levels)),
        active_min=-(-limits.nodes_min // hosts),
        active_max=None if limits.nodes_max is None else limits.nodes_max // hosts,
    )


def _make_class_rules(grid: Sequence[int], constraints: Sequence[Constraint]) -> tuple[ClassRule, ...]:
    """Return the constraints for units, outermost first; those that bind no two units are left out."""
    rules: list[ClassRule] = []
    for constraint in reversed(constraints):
        free = [1 if axis in constraint.axes else size for axis, size in enumerate(grid)]
        classes = np.arange(np.prod(free), dtype=np.int32).reshape(free)
        class_of = np.ascontiguousarray(np.broadcast_to(classes, grid)).ravel()
        if int(class_of.max()) + 1 < class_of.size:
            rules.append(ClassRule(constraint.level, class_of))
    return tuple(rules)


def renumber(labels: BlockArray) -> BlockArray:
    """Return the same numbers without gaps, from 0."""
    found: BlockArray = np.unique(labels, return_inverse=True)[1].astype(np.int32).reshape(labels.shape)
    return found


# Simpler problems


def round_weights(problem: Problem) -> Problem:
    """Replace numbers so large that sums could overflow by smaller ones in nearly the same proportion."""
    traffic = problem.traffic
    total = sum(
        part.weight * (len(part.low) if isinstance(part, Hops) else traffic.block_count * part.size)
        for part in traffic.parts
    )
    weight_shift = max(0, total.bit_length() - WEIGHT_BITS)
    cost_shift = max(0, sum(traffic.level_costs).bit_length() - LEVEL_COST_BITS)
    if not weight_shift and not cost_shift:
        return problem

    def shift(number: int, bits: int) -> int:
        return max(number >> bits, min(number, 1))  # not to 0 unless it was

    smaller = replace(
        traffic,
        parts=tuple(part._replace(weight=shift(part.weight, weight_shift)) for part in traffic.parts),
        level_costs=tuple(shift(level_cost, cost_shift) for level_cost in traffic.level_costs),
    )
    return replace(problem, traffic=smaller)


def coarsen(problem: Problem) -> tuple[Problem, int]:
    """Merge every `size` consecutive units, if all items have room for a multiple of that; return problem and `size`.

    Runs of items then begin at multiples of `size`, which costs little: units are no boxes of the mesh otherwise.
    """
    size = math.gcd(*problem.capacity.tolist())
    traffic = problem.traffic
    if size == 1 or traffic.block_count % size:
        return problem, 1
    grid = compute_grid(traffic.grid, size)
    if grid is None:
        # It is required only where every item is either full or empty.
        most = len(problem.capacity) if problem.active_max is None else problem.active_max
        is_full = traffic.block_count == most * int(problem.capacity.max())
        if not is_full or any(isinstance(part, Exchange) for part in traffic.parts) or problem.rules:
            return problem, 1
        grid = (traffic.block_count // size,)
    parts: list[Hops | Exchange] = []
    for part in traffic.parts:
        if isinstance(part, Hops):
            low, high = part.low // size, part.high // size
            leaves = low != high
            if leaves.any():
                low, high = low[leaves], high[leaves]
                parts.append(Hops(part.communicator, np.minimum(low, high), np.maximum(low, high), part.weight))
            continue
        # A box has as many units in each class that it touches; two boxes touch the same classes or none in common.
        inside = int(np.count_nonzero(part.class_of[:size] == part.class_of[0]))
        if inside < part.size:
            class_of, weight = _coarsen_classes(part.class_of, size), part.weight * inside * size
            parts.append(Exchange(part.communicator, class_of, part.size // inside, weight))
    larger = replace(traffic, grid=grid, block_size=traffic.block_size * size, parts=tuple(parts))
    rules = tuple(ClassRule(rule.level, _coarsen_classes(rule.class_of, size)) for rule in problem.rules)
    return replace(problem, traffic=larger, capacity=problem.capacity // size, rules=rules), size


def _coarsen_classes(class_of: BlockArray, size: int) -> BlockArray:
    return renumber(class_of.reshape(-1, size).min(axis=1))


def restrict(problem: Problem) -> Problem | None:
    """Make any layout have as many active items as required; None if that is always so, or impossible.

    With at most so many items, only the largest are kept. For at least so many, the largest are filled less, until
    one item fewer could not hold all.
    """
    capacity = problem.capacity.copy()
    count = problem.traffic.block_count
    most = problem.active_max
    if int(capacity.max()) == 1:
        return None
    if most is not None and most < len(capacity):
        capacity[np.argsort(-capacity, kind="stable")[most:]] = 0
    fewer = problem.active_min - 1
    while fewer > 0 and int(np.sort(capacity)[::-1][:fewer].sum()) >= count:
        largest = int(capacity.max())
        if largest <= 1:
            return None
        # One unit less for each of the largest, as long as the others have room.
        capacity[np.flatnonzero(capacity == largest)] -= 1
    if int(capacity.sum()) < count or (capacity == problem.capacity).all():
        return None
    return replace(problem, capacity=capacity)


# Symmetric domains


def sort_by_kind(problem: Problem) -> tuple[Problem, Layout]:
    """Return the problem with its items in an order that no name decides, and for each place its item.

    Siblings are sorted from the largest to the smallest; only symmetric ones keep their order.
    """
    keys: list[Ints] = []
    for level, kinds in zip(problem.labels, _classify_domains(problem), strict=True):
        keys += [kinds[level], level.astype(np.int64)]
    order = np.lexsort(keys[::-1]).astype(np.int32)
    labels = (level[order] for level in problem.labels)
    in_order = tuple(np.cumsum(np.diff(each, prepend=each[:1]) != 0, dtype=np.int32) for each in labels)
    return replace(problem, capacity=problem.capacity[order], labels=in_order), order


def relabel_domains(problem: Problem, layout: Layout, held: Layout) -> Layout:
    """Return a layout of the same cost that keeps as many units on their items as renaming finds, greedily."""
    known = np.flatnonzero(held != NO_ITEM)
    goal = np.zeros(1, dtype=np.int64)  # domain of the layout -> the domain that takes its place, one level up
    above = np.zeros(len(problem.capacity), dtype=np.int64)  # item -> its domain one level up
    for level, kinds in zip(problem.labels, _classify_domains(problem), strict=True):
        labels = level.astype(np.int64)
        count = len(kinds)
        parent = np.zeros(count, dtype=np.int64)
        parent[labels] = above
        new, old = labels[layout[known]], labels[held[known]]
        may = (kinds[new] == kinds[old]) & (goal[parent[new]] == parent[old])
        pairs, overlap = np.unique(new[may] * count + old[may], return_counts=True)
        best_first = pairs[np.lexsort((pairs, -overlap))]
        goal = _match_domains(best_first // count, best_first % count, goal[parent], parent, kinds)
        above = labels
    return goal[layout].astype(np.int32)


def _match_domains(new: Ints, old: Ints, wanted_parent: Ints, parent: Ints, kinds: Ints) -> Ints:
    """Map domain -> domain, one to one: the given pairs as long as both are free, then the others in order."""
    count = len(kinds)
    goal = np.full(count, -1, dtype=np.int64)
    is_taken = np.zeros(count, dtype=np.bool_)
    for one, other in zip(new.tolist(), old.tolist(), strict=True):
        if goal[one] < 0 and not is_taken[other]:
            goal[one] = other
            is_taken[other] = True
    # A domain without a pair stays if it can, and else follows in order among its equals below the same parent.
    stays = (goal < 0) & ~is_taken & (wanted_parent == parent)
    goal[stays] = np.flatnonzero(stays)
    is_taken[stays] = True
    lost, free = np.flatnonzero(goal < 0), np.flatnonzero(~is_taken)
    lost = lost[np.lexsort((lost, kinds[lost], wanted_parent[lost]))]
    goal[lost] = free[np.lexsort((free, kinds[free], parent[free]))]
    return goal


def _classify_domains(problem: Problem) -> Sequence[Ints]:
    """Per level, outermost first: domain -> a number that symmetric ones share; of a level's, the largest are first."""
    found: list[Ints] = []
    keys: list[tuple[int, ...]] = [(-room,) for room in problem.capacity.tolist()]  # of the hosts: one item each
    for inner, level in zip(problem.labels[::-1], (*problem.labels[-2::-1], None), strict=True):
        number = {key: index for index, key in enumerate(sorted(set(keys)))}
        kinds = [number[key] for key in keys]
        found.append(np.array(kinds, dtype=np.int64))
        if level is not None:
            holder = np.zeros(len(kinds), dtype=np.int64)
            holder[inner] = level
            parts: list[list[int]] = [[] for _ in range(int(level.max()) + 1)]
            for domain, kind in zip(holder.tolist(), kinds, strict=True):
                parts[domain].append(kind)
            rooms = np.bincount(level, weights=problem.capacity).astype(np.int64).tolist()
            keys = [(-room, *sorted(each)) for room, each in zip(rooms, parts, strict=True)]
    return found[::-1]
