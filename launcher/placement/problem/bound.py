"""A lower bound of the cost of any layout, by counting: the reference for every plan's cost.

However the units of the mesh are divided, a domain that has n of them sends at least so much to the others (see
`isoperimetric_bound`). The cheapest division that the domains have room for gives the least for a level, and the costs
add up the levels. Levels are bound to each other: the units of a pod are those of its leaves, and a spare is missing in
both. With few free places all divisions are computed, from the leaves upwards: by the number of places that a domain
leaves free, what it and everything in it pays at least. With many, every level is bounded separately and a unit gets a
price, which is easier and nearly as good.

The result is a true bound, met by regular clusters; for irregular ones finding the best layout is a hard problem, and
then the bound lies some percent below.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from launcher.placement.problem.hops import BlockArray
from launcher.placement.problem.isoperimetric_bound import (
    NEVER,
    Grid,
    Numbers,
    compute_least_between,
    compute_least_of_runs,
    find_class_axes,
    make_grid,
)
from launcher.placement.problem.problem import Problem

SIZES_MAX = 96  # different n that are distinguished on a level
RUN_MAX = 64  # longest run of units for which all positions on the line are tried
FREE_MAX = 192  # free places up to which all divisions are computed
LEVEL_COST_BITS = 58  # of the largest sum with level costs; above that these are rounded down
FRACTION = 64  # the price of a unit is tried in steps of 1 / FRACTION


class _LevelBound(NamedTuple):
    """`places[domain]`: the rooms of its parts together; `rooms[domain]`: the most units it can have, in multiples of
    `step`; `parents[domain]`: its domain in the level before. `least[n]`: what leaves a domain with n units, NEVER
    if none has n.
    """

    level_cost: int
    step: int
    parents: BlockArray
    places: Numbers
    rooms: Numbers
    least: Numbers


def compute_lower_bound(problem: Problem) -> int:
    """Return a number that J of no valid layout is below, scaled like `Problem.compute_cost`."""
    grid = make_grid(problem)
    if not grid.groups:
        return 0
    level_costs = problem.traffic.level_costs
    shift = max(0, (sum(level_costs) * grid.degree * grid.block_count).bit_length() - LEVEL_COST_BITS)
    levels, free = _make_levels(problem, grid, [level_cost >> shift for level_cost in level_costs])
    if free <= FREE_MAX:
        twice = _minimize_divisions(levels, free)
    else:
        twice = sum(level.level_cost * _bound_by_price(level, grid) for level in levels if level.level_cost)
    # Of a pipeline every touch of a line was counted, of which the first is no cut.
    first = sum(2 * talk.weight * (grid.block_count // talk.size) for talk in grid.groups if talk.kind == "line")
    twice -= first * sum(level.level_cost for level in levels)
    return max(0, -(-twice // 2)) << shift << grid.shift


def _make_levels(problem: Problem, grid: Grid, level_costs: Sequence[int]) -> tuple[list[_LevelBound], int]:
    """Return the levels from the innermost to the outermost, and how many places stay free."""
    rules = [_merge_rules(problem, grid, level) for level in range(len(level_costs))]
    rooms = problem.capacity.astype(np.int64)
    found: list[_LevelBound] = []
    children = np.arange(len(rooms))
    for level in range(len(level_costs) - 1, -1, -1):
        labels = problem.labels[level]
        first = np.unique(labels, return_index=True)[1]
        # A domain can hold what its parts can, in whole classes.
        step = rules[level][0]
        places = np.bincount(labels[children], weights=rooms).astype(np.int64)
        rooms = places // step * step
        parents = problem.labels[level - 1][first] if level else np.zeros(len(first), dtype=np.int32)
        found.append(_LevelBound(level_costs[level], step, parents, places, rooms, rooms))
        children = first
    free = int(rooms.sum()) - grid.block_count
    # A domain may leave free what others need, and what is no whole class in the enclosing domain.
    reach = free + sum(level.step - 1 for level in found)
    longest = min(int(problem.capacity.max()), grid.block_count)
    for index, (one, (_, tied)) in enumerate(zip(found, reversed(rules), strict=True)):
        least = (
            _compute_least(grid, one, reach, tied) if one.level_cost else np.zeros(grid.block_count + 1, dtype=np.int64)
        )
        if index == 0 and one.level_cost and problem.is_contiguous and 1 < longest <= RUN_MAX:
            runs = compute_least_of_runs(problem, grid, longest)
            least[: longest + 1] = np.maximum(least[: longest + 1], runs)
        found[index] = one._replace(least=least)
    return found, free


def _merge_rules(problem: Problem, grid: Grid, level: int) -> tuple[int, frozenset[int]]:
    """Return the rules for the domains of a level: the number of units is a multiple of the first; and along the axes
    that are the second, all lines that are touched are entirely inside."""
    rules = [rule.class_of for rule in problem.rules if rule.level >= level]
    sizes = [grid.block_count // (int(class_of.max()) + 1) for class_of in rules]
    axes = frozenset(axis for class_of in rules for axis in find_class_axes(class_of, problem.traffic.grid))
    tied = frozenset(index for index, block in enumerate(grid.axis_groups) if block <= axes)
    return math.lcm(1, *sizes), tied


def _compute_least(grid: Grid, level: _LevelBound, reach: int, tied: frozenset[int]) -> Numbers:
    """Return by n what a domain of a level pays."""
    least = np.full(grid.block_count + 1, NEVER, dtype=np.int64)
    rooms = np.unique(np.minimum(level.rooms, grid.block_count // level.step * level.step))
    wanted = np.zeros(len(least), dtype=np.bool_)
    for room in rooms.tolist():
        wanted[max(1, room - reach) : room + 1] = True
    sizes = np.flatnonzero(wanted & (np.arange(len(least)) % level.step == 0))
    least[0] = 0
    if len(sizes):
        parts = np.array_split(sizes, min(len(sizes), SIZES_MAX))
        low, high = np.array([part[0] for part in parts]), np.array([part[-1] for part in parts])
        for part, value in zip(parts, compute_least_between(grid, low, high, tied).tolist(), strict=True):
            least[part] = value
        full = rooms[rooms > 0][-SIZES_MAX:]
        least[full] = compute_least_between(grid, full, full, tied)
    return least


def _minimize_divisions(levels: Sequence[_LevelBound], free: int) -> int:
    """Return the least that all levels pay together, times their costs.

    Equal domains are of one kind: the places of their parts together and, by how many of these are free, the least cost
    of the traffic inside. Only kinds are computed, of which there are few.
    """
    reach = free + sum(level.step - 1 for level in levels)
    places, kind_of = np.unique(levels[0].places, return_inverse=True)
    kinds: list[tuple[int, Numbers]] = [(place, np.zeros(place + 1, dtype=np.int64)) for place in places.tolist()]
    for level in levels:
        parts = [_add_own(level, place, inside, reach) for place, inside in kinds]
        pairs, counts = np.unique(np.stack((level.parents, kind_of)), axis=1, return_counts=True)
        made_of: dict[int, list[tuple[int, int]]] = {}
        for (parent, kind), count in zip(pairs.T.tolist(), counts.tolist(), strict=True):
            made_of.setdefault(parent, []).append((kind, count))
        known: dict[tuple[tuple[int, int], ...], int] = {}
        # Parents come in rising order, and every one has a child.
        kind_of = np.array([known.setdefault(tuple(made), len(known)) for made in made_of.values()])
        kinds = [_combine_domains(parts, made, reach) for made in known]
    ((_, total),) = kinds
    return int(total[free])


def _add_own(level: _LevelBound, places: int, inside: Numbers, reach: int) -> tuple[int, Numbers]:
    """Return the room of a domain with these places in its parts; and by free places, what it and its inside pay."""
    room = places // level.step * level.step
    free = np.arange(min(room, reach) + 1)
    inside = inside[places - room :][: len(free)]
    units = room - free[: len(inside)]
    own = level.least[np.minimum(units, len(level.least) - 1)]
    is_possible = (units < len(level.least)) & (own < NEVER)
    return room, np.where(is_possible, np.minimum(inside + own * is_possible * level.level_cost, NEVER), NEVER)


def _combine_domains(
    parts: Sequence[tuple[int, Numbers]], made: Sequence[tuple[int, int]], reach: int
) -> tuple[int, Numbers]:
    """Combine several domains: their rooms, and by places that are free in all together, what they pay."""
    places = 0
    total = np.zeros(1, dtype=np.int64)
    for kind, count in made:
        room, power = parts[kind]
        places += room * count
        while count:  # one of them, two, four, ...
            if count % 2:
                total = _combine(total, power, reach + 1)
            power, count = _combine(power, power, reach + 1) if count > 1 else power, count // 2
    return places, total


def _combine(one: Numbers, other: Numbers, length: int) -> Numbers:
    """Return by free places of both together the least sum."""
    if len(one) > len(other):
        one, other = other, one
    found = np.full(min(len(one) + len(other) - 1, length), NEVER, dtype=np.int64)
    for free, value in enumerate(one.tolist()):
        part = found[free : free + len(other)]
        np.minimum(part, other[: len(part)] + value, out=part)
    return found


def _bound_by_price(level: _LevelBound, grid: Grid) -> int:
    """No more than the least of a level: each domain has its optimum at a price per unit; the best price counts."""
    sizes = np.arange(len(level.least))
    least = np.minimum(level.least, NEVER // FRACTION) * FRACTION
    rooms, counts = np.unique(np.minimum(level.rooms, grid.block_count), return_counts=True)

    def compute_worth(price: int) -> int:
        best = np.minimum.accumulate(least - price * sizes)[rooms]
        return price * grid.block_count + sum(map(int.__mul__, counts.tolist(), best.tolist()))

    low, high = -grid.degree * FRACTION, grid.degree * FRACTION
    while low < high:  # concave in the price
        middle = (low + high) // 2
        if compute_worth(middle) < compute_worth(middle + 1):
            low = middle + 1
        else:
            high = middle
    return -(-compute_worth(low) // FRACTION)
