"""A lower bound of the cost of any layout, by counting: the reference for every plan's cost.

However the units of the mesh are divided, a domain that has n of them sends at least so much to the others: the units
are a body in a grid, one cell each. It touches p lines of an axis, that is groups of units that communicate along it. A
ring that is touched but not entirely inside has at least two hops that lead out of the body; a pipeline has one cut
fewer than it touches bodies; in an exchange all inside communicate with all outside. So touching few lines is cheap.
But few lines along one axis mean many along another: n units in a grid of r axes have p1 x p2 x ... x pr >= n^(r-1), as
the projections limit a body's size (Loomis and Whitney). So the cheapest projections give the least for n units.

The cheapest division that the domains have room for gives the least for a level, and the costs add up the levels.
Levels are bound to each other: the units of a pod are those of its leaves, and a spare is missing in both. With few
free places all divisions are computed, from the leaves upwards: by the number of places that a domain leaves free, what
it and everything in it pays at least. With many, every level is bounded separately and a unit gets a price, which is
easier and nearly as good.

The result is a true bound, met by regular clusters; for irregular ones finding the best layout is a hard problem, and
then the bound lies some percent below. A hop between two bodies counts for both, so everything is counted twice. All
numbers are integers. Where there are too many cases, neighbouring ones are merged and each gets the best value of any
of them, which makes the least a little lower and never wrong.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from launcher.placement.problem.hops import BlockArray, Exchange, Hops, Ints
from launcher.placement.problem.problem import Problem

SIZES_MAX = 96  # different n that are distinguished on a level
RUN_MAX = 64  # longest run of units for which all positions on the line are tried
FREE_MAX = 192  # free places up to which all divisions are computed
LEVEL_COST_BITS = 58  # of the largest sum with level costs; above that these are rounded down
WEIGHT_BITS = 50  # of the largest sum of weights; above that these are rounded down
POWER_BITS = 62  # n^(r-1) stays below that; meshes of more axes have some taken as one
CASES_MAX = 1 << 18  # combinations of n and projections that are tried
PROJECTIONS_MAX = 512  # of one axis that are distinguished
FRACTION = 64  # the price of a unit is tried in steps of 1 / FRACTION
NEVER = 1 << 60


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
    first = sum(2 * group.weight * (grid.block_count // group.size) for group in grid.groups if group.kind == "line")
    twice -= first * sum(level.level_cost for level in levels)
    return max(0, -(-twice // 2)) << shift << grid.shift


# What leaves n units


class _GroupTraffic(NamedTuple):
    """A communicator whose groups are `size` units along some axes of the grid."""

    kind: str
    along: frozenset[int]
    size: int
    weight: int

    @property
    def degree(self) -> int:
        """The traffic that a unit sends and receives."""
        return self.weight * (self.size - 1 if self.kind == "all" else 2)


class Grid(NamedTuple):
    """Axes of more than one unit; `axis_groups`: those of the mesh; `shift`: by how many bits weights are reduced."""

    block_count: int
    axis_groups: tuple[frozenset[int], ...]
    sizes: tuple[int, ...]
    groups: tuple[_GroupTraffic, ...]
    shift: int

    @property
    def degree(self) -> int:
        """The total traffic that a unit sends and receives."""
        return sum(group.degree for group in self.groups)


def make_grid(problem: Problem) -> Grid:
    """Return the mesh and its traffic as the grid in which bodies are counted."""
    traffic = problem.traffic

    def multiply(axes: frozenset[int]) -> int:
        return math.prod(traffic.grid[axis] for axis in axes)

    blocks = [frozenset([axis]) for axis, size in enumerate(traffic.grid) if size > 1]
    while len(blocks) > 2 and traffic.block_count.bit_length() * (len(blocks) - 1) > POWER_BITS:
        # Two axes as one: less is known of its projections, and what is known of the others' stays true.
        blocks.sort(key=lambda block: (multiply(block), sorted(block)))
        blocks = [blocks[0] | blocks[1], *blocks[2:]]
    # The axis with the most lines last: its projection is not tried but follows from the others.
    blocks.sort(key=lambda block: (-multiply(block), sorted(block)))
    groups: list[_GroupTraffic] = []
    for one in traffic.parts:
        axes = frozenset(_find_axes(one, traffic.grid))
        groups.append(_GroupTraffic(one.communicator.kind, axes, multiply(axes), one.weight))
    largest = sum(group.degree for group in groups) * traffic.block_count
    shift = max(0, largest.bit_length() - WEIGHT_BITS)
    for number, group in enumerate(groups):
        whole = frozenset(index for index, block in enumerate(blocks) if block <= group.along)
        part = frozenset(index for index, block in enumerate(blocks) if block > group.along)
        # A line of two merged axes holds several of one of them, so it touches no more lines than that does.
        groups[number] = group._replace(along=whole or part, weight=group.weight >> shift)
    return Grid(traffic.block_count, tuple(blocks), tuple(map(multiply, blocks)), tuple(groups), shift)


def _find_axes(one: Hops | Exchange, grid: Sequence[int]) -> list[int]:
    """Return the axes along which the two ends of a hop differ, or along which a class extends."""
    if isinstance(one, Exchange):
        return _find_class_axes(one.class_of, grid)
    ends = zip(np.unravel_index(one.low, grid), np.unravel_index(one.high, grid), strict=True)
    return [axis for axis, (low, high) in enumerate(ends) if (low != high).any()]


def _find_class_axes(class_of: BlockArray, grid: Sequence[int]) -> list[int]:
    """Return the axes along which units are of the same class."""
    return [axis for axis in range(len(grid)) if (np.diff(class_of.reshape(grid), axis=axis) == 0).any()]


def compute_least_between(grid: Grid, low: Ints, high: Ints, tied: frozenset[int]) -> Ints:
    """Return a lower bound of what a body of `low` to `high` units pays, for arrays of both.

    `tied`: axes of which all lines that are touched are entirely inside.
    """
    axes = len(grid.sizes)
    shape = (-1,) + (1,) * (axes - 1)
    low, high = low.reshape(shape), high.reshape(shape)
    touched: list[Ints] = []
    product = np.ones((1,) * axes, dtype=np.int64)
    is_possible = np.ones((1,) * axes, dtype=np.bool_)
    per_axis = PROJECTIONS_MAX
    while axes > 2 and per_axis > 1 and per_axis ** (axes - 1) > max(1, CASES_MAX // low.size):
        per_axis -= 1
    for axis, size in enumerate(grid.sizes[:-1]):
        fewest, most = _split_range(min(grid.block_count // size, int(high.max())), per_axis)
        place = tuple(-1 if index == axis + 1 else 1 for index in range(axes))
        fewest, most = fewest.reshape(place), most.reshape(place)
        needed = -(-low // size)
        touched.append(np.maximum(fewest, needed))
        is_possible = is_possible & (most >= needed) & (fewest <= (high // size if axis in tied else high))
        product = product * most
    size = grid.sizes[-1]
    last = np.maximum(-(-(low ** (axes - 1)) // product), -(-low // size))
    touched.append(last)
    is_possible = is_possible & (
        last <= np.minimum(grid.block_count // size, high // size if axes - 1 in tied else high)
    )
    total = np.zeros(is_possible.shape, dtype=np.int64)
    for group in grid.groups:
        # The lines that a body touches; of a communicator with several axes, what each of them needs.
        lines: Ints = -(-low // group.size)
        for axis in sorted(group.along):
            lines = np.maximum(lines, -(-touched[axis] * min(grid.sizes[axis], group.size) // group.size))
        total = total + group.weight * _count_leaving(group, lines, low, high)
    found: Ints = np.where(is_possible, total, NEVER).reshape(len(low), -1).min(axis=1)
    return found


def _count_leaving(group: _GroupTraffic, p: Ints, low: Ints, high: Ints) -> Ints:
    """Return twice the hops, or the pairs, that lead out of a body which touches p lines."""
    if group.kind == "line":
        return 2 * p
    # With one unit on every line there are this many lines that the others can fill, and a rest.
    spare = np.maximum(high - p, 0)
    full = np.minimum(spare // (group.size - 1), p)
    partly: Ints = p - full
    if group.kind == "ring":
        return 2 * partly
    rest = np.where(low == high, spare - full * (group.size - 1), 0)
    exact = (partly - 1) * (group.size - 1) + (1 + rest) * (group.size - 1 - rest)
    # Between the sizes at which lines become full the number of pairs is concave.
    found: Ints = np.maximum(np.where(partly <= 0, 0, np.where(low == high, exact, p * group.size - high)), 0)
    return found


def _split_range(most: int, count: int) -> tuple[Ints, Ints]:
    """Split the numbers from 1 to `most` into at most about `count` intervals, wider the larger they are."""
    share = 0
    while True:
        starts = [1]
        while starts[-1] < most and len(starts) <= count:
            starts.append(starts[-1] + max(1, starts[-1] * share // 256))
        if starts[-1] >= most:
            break
        share = share * 5 // 4 + 1
    first = np.array([start for start in starts if start <= most], dtype=np.int64)
    return first, np.append(first[1:] - 1, most)


def compute_least_of_runs(problem: Problem, grid: Grid, longest: int) -> Ints:
    """Return the same for n consecutive units on the line of units, as those of a node are: all runs are tried."""
    pairs = list(_list_near_pairs(problem, grid, longest))
    least = np.zeros(longest + 1, dtype=np.int64)
    for length in range(1, longest + 1):
        change = np.zeros(grid.block_count + 1, dtype=np.int64)
        for low, high, weight in pairs:
            # A pair is inside the runs that start after `high - length` and not after `low`.
            is_near = high - low < length
            ends = np.maximum(high[is_near] - length + 1, 0), low[is_near] + 1
            starts, stops = (np.bincount(end, minlength=len(change)) for end in ends)
            change += weight * (starts - stops)
        inside = np.cumsum(change)[: grid.block_count - length + 1]
        least[length] = grid.degree * length - 2 * int(inside.max())
    return least


def _list_near_pairs(problem: Problem, grid: Grid, longest: int) -> Iterator[tuple[BlockArray, BlockArray, int]]:
    """Yield pairs of units that a run of this length can hold: lower, higher, and what they send each other."""
    for hops in problem.traffic.hops:
        is_near = hops.high - hops.low < longest
        yield hops.low[is_near], hops.high[is_near], hops.weight >> grid.shift
    for exchange in problem.traffic.exchanges:
        members = exchange.members.astype(np.int32)
        for apart in range(1, min(exchange.size, longest)):
            low, high = members[:, :-apart].ravel(), members[:, apart:].ravel()
            is_near = high - low < longest
            yield low[is_near], high[is_near], exchange.weight >> grid.shift


# What a level pays


class _LevelBound(NamedTuple):
    """`places[domain]`: the rooms of its parts together; `rooms[domain]`: the most units it can have, in multiples of
    `step`; `parents[domain]`: its domain in the level before. `least[n]`: what leaves a domain with n units, NEVER
    if none has n.
    """

    level_cost: int
    step: int
    tied: frozenset[int]
    parents: BlockArray
    places: Ints
    rooms: Ints
    least: Ints


def _make_levels(problem: Problem, grid: Grid, level_costs: Sequence[int]) -> tuple[list[_LevelBound], int]:
    """Return the levels from the innermost to the outermost, and how many places stay free."""
    rooms = problem.capacity.astype(np.int64)
    found: list[_LevelBound] = []
    children = np.arange(len(rooms))
    for level in range(len(level_costs) - 1, -1, -1):
        labels = problem.labels[level]
        first = np.unique(labels, return_index=True)[1]
        # A domain can hold what its parts can, in whole classes.
        rules = [rule for rule in problem.rules if rule.level >= level]
        step = math.lcm(1, *(rule.class_size for rule in rules))
        bound = frozenset(axis for rule in rules for axis in _find_class_axes(rule.class_of, problem.traffic.grid))
        tied = frozenset(index for index, block in enumerate(grid.axis_groups) if block <= bound)
        places = np.bincount(labels[children], weights=rooms).astype(np.int64)
        rooms = places // step * step
        parents = problem.labels[level - 1][first] if level else np.zeros(len(first), dtype=np.int32)
        found.append(_LevelBound(level_costs[level], step, tied, parents, places, rooms, rooms))
        children = first
    free = int(rooms.sum()) - grid.block_count
    # A domain may leave free what others need, and what is no whole class in the enclosing domain.
    reach = free + sum(level.step - 1 for level in found)
    found = [one._replace(least=_compute_least(grid, one, reach)) for one in found]
    longest = min(int(problem.capacity.max()), grid.block_count)
    if found[0].level_cost and problem.is_contiguous and 1 < longest <= RUN_MAX:
        least = found[0].least[: longest + 1]
        np.maximum(least, compute_least_of_runs(problem, grid, longest), out=least)
    return found, free


def _compute_least(grid: Grid, level: _LevelBound, reach: int) -> Ints:
    """Return by n what a domain of a level pays."""
    if not level.level_cost:
        return np.zeros(grid.block_count + 1, dtype=np.int64)
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
        for part, value in zip(parts, compute_least_between(grid, low, high, level.tied).tolist(), strict=True):
            least[part] = value
        full = rooms[rooms > 0][-SIZES_MAX:]
        least[full] = compute_least_between(grid, full, full, level.tied)
    return least


def _minimize_divisions(levels: Sequence[_LevelBound], free: int) -> int:
    """Return the least that all levels pay together, times their costs.

    Equal domains are of one kind: the places of their parts together and, by how many of these are free, the least cost
    of the traffic inside. Only kinds are computed, of which there are few.
    """
    reach = free + sum(level.step - 1 for level in levels)
    places, kind_of = np.unique(levels[0].places, return_inverse=True)
    kinds: list[tuple[int, Ints]] = [(place, np.zeros(place + 1, dtype=np.int64)) for place in places.tolist()]
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


def _add_own(level: _LevelBound, places: int, inside: Ints, reach: int) -> tuple[int, Ints]:
    """Return the room of a domain with these places in its parts; and by free places, what it and its inside pay."""
    room = places // level.step * level.step
    free = np.arange(min(room, reach) + 1)
    inside = inside[places - room :][: len(free)]
    units = room - free[: len(inside)]
    own = level.least[np.minimum(units, len(level.least) - 1)]
    is_possible = (units < len(level.least)) & (own < NEVER)
    return room, np.where(is_possible, np.minimum(inside + own * is_possible * level.level_cost, NEVER), NEVER)


def _combine_domains(
    parts: Sequence[tuple[int, Ints]], made: Sequence[tuple[int, int]], reach: int
) -> tuple[int, Ints]:
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


def _combine(one: Ints, other: Ints, length: int) -> Ints:
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
