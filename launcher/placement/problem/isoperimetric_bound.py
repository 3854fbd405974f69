"""The least traffic that can leave n units of a mesh, for any choice of the units.

The units are a body in a grid, one cell each. It touches p lines of an axis, that is groups of units that communicate
along it. A ring that is touched but not entirely inside has at least two hops that lead out of the body; a pipeline has
one cut fewer than it touches bodies; in an exchange all inside communicate with all outside. So touching few lines is
cheap. But few lines along one axis mean many along another: n units in a grid of r axes have p1 x p2 x ... x pr >=
n^(r-1), as the projections limit a body's size (Loomis and Whitney). So the cheapest projections give the least.

A hop between two bodies counts for both, so everything is counted twice. All numbers are integers. Where there are too
many cases, neighbouring ones are merged and each gets the best value of any of them, which makes the least a little
lower and never wrong.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from launcher.placement.problem.hops import BlockArray, Exchange, Hops
from launcher.placement.problem.problem import Problem

Numbers = NDArray[np.int64]

POWER_BITS = 62  # n^(r-1) stays below that; meshes of more axes have some taken as one
CASES_MAX = 1 << 18  # combinations of n and projections that are tried
PROJECTIONS_MAX = 512  # of one axis that are distinguished
BITS = 50  # of the largest sum; above that the weights are rounded down
NEVER = 1 << 60


class GroupTraffic(NamedTuple):
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
    """Axes of more than one unit; `blocks`: those of the mesh; `shift`: by how many bits weights are reduced."""

    block_count: int
    axis_groups: tuple[frozenset[int], ...]
    sizes: tuple[int, ...]
    groups: tuple[GroupTraffic, ...]
    shift: int

    @property
    def degree(self) -> int:
        """The total traffic that a unit sends and receives."""
        return sum(talk.degree for talk in self.groups)


def make_grid(problem: Problem) -> Grid:
    """Return the mesh and its traffic as the grid in which bodies are counted."""
    traffic = problem.traffic
    blocks = [frozenset([axis]) for axis, size in enumerate(traffic.grid) if size > 1]
    while len(blocks) > 2 and traffic.block_count.bit_length() * (len(blocks) - 1) > POWER_BITS:
        # Two axes as one: less is known of its projections, and what is known of the others' stays true.
        blocks.sort(key=lambda block: (math.prod(traffic.grid[axis] for axis in block), sorted(block)))
        blocks = [blocks[0] | blocks[1], *blocks[2:]]
    # The axis with the most lines last: its projection is not tried but follows from the others.
    blocks.sort(key=lambda block: (-math.prod(traffic.grid[axis] for axis in block), sorted(block)))
    everything: list[Hops | Exchange] = [*traffic.hops, *traffic.exchanges]
    talks = [_make_group_traffic(one, traffic.grid) for one in everything]
    largest = sum(talk.degree for talk in talks) * traffic.block_count
    shift = max(0, largest.bit_length() - BITS)
    rounded = []
    for talk in talks:
        whole = frozenset(index for index, block in enumerate(blocks) if block <= talk.along)
        part = frozenset(index for index, block in enumerate(blocks) if block > talk.along)
        # A line of two merged axes holds several of one of them, so it touches no more lines than that does.
        rounded.append(talk._replace(along=whole or part, weight=talk.weight >> shift))
    sizes = tuple(math.prod(traffic.grid[axis] for axis in block) for block in blocks)
    return Grid(traffic.block_count, tuple(blocks), sizes, tuple(rounded), shift)


def _make_group_traffic(one: Hops | Exchange, grid: Sequence[int]) -> GroupTraffic:
    """The axes are those along which the two ends of a hop differ, or along which a class extends."""
    if isinstance(one, Exchange):
        axes = find_class_axes(one.class_of, grid)
    else:
        ends = zip(np.unravel_index(one.low, grid), np.unravel_index(one.high, grid), strict=True)
        axes = [axis for axis, (low, high) in enumerate(ends) if (low != high).any()]
    return GroupTraffic(one.communicator.kind, frozenset(axes), math.prod(grid[axis] for axis in axes), one.weight)


def find_class_axes(class_of: BlockArray, grid: Sequence[int]) -> list[int]:
    """Return the axes along which units are of the same class."""
    return [axis for axis in range(len(grid)) if (np.diff(class_of.reshape(grid), axis=axis) == 0).any()]


def compute_least_between(grid: Grid, low: Numbers, high: Numbers, tied: frozenset[int]) -> Numbers:
    """Return a lower bound of what a body of `low` to `high` units pays, for arrays of both."""
    axes = len(grid.sizes)
    shape = (-1,) + (1,) * (axes - 1)
    low, high = low.reshape(shape), high.reshape(shape)
    lines = [grid.block_count // size for size in grid.sizes]
    touched: list[Numbers] = []
    product = np.ones((1,) * axes, dtype=np.int64)
    is_possible = np.ones((1,) * axes, dtype=np.bool_)
    per_axis = _compute_root(max(1, CASES_MAX // low.size), axes - 1) if axes > 2 else PROJECTIONS_MAX
    for axis, size in enumerate(grid.sizes[:-1]):
        fewest, most = _split_range(min(lines[axis], int(high.max())), per_axis)
        place = tuple(-1 if index == axis + 1 else 1 for index in range(axes))
        fewest, most = fewest.reshape(place), most.reshape(place)
        needed = -(-low // size)
        touched.append(np.maximum(fewest, needed))
        is_possible = is_possible & (most >= needed) & (fewest <= (high // size if axis in tied else high))
        product = product * most
    last = np.maximum(-(-(low ** (axes - 1)) // product), -(-low // grid.sizes[-1]))
    touched.append(last)
    is_possible = is_possible & (last <= np.minimum(lines[-1], high // grid.sizes[-1] if axes - 1 in tied else high))
    total = np.zeros(is_possible.shape, dtype=np.int64)
    for talk in grid.groups:
        total = total + talk.weight * _count_leaving(talk, _count_touched_lines(talk, grid, touched, low), low, high)
    total = np.where(is_possible, total, NEVER)
    found: Numbers = total.reshape(len(low), -1).min(axis=1)
    return found


def _count_touched_lines(group: GroupTraffic, grid: Grid, touched: Sequence[Numbers], low: Numbers) -> Numbers:
    """Return how many lines of a communicator a body touches at least; with several axes, what each of them needs."""
    found: Numbers = -(-low // group.size)
    for axis in sorted(group.along):
        found = np.maximum(found, -(-touched[axis] * min(grid.sizes[axis], group.size) // group.size))
    return found


def _count_leaving(group: GroupTraffic, p: Numbers, low: Numbers, high: Numbers) -> Numbers:
    """Return twice the hops, or the pairs, that lead out of a body which touches p lines."""
    if group.kind == "line":
        return 2 * p
    # With one unit on every line there are this many lines that the others can fill, and a rest.
    spare = np.maximum(high - p, 0)
    full = np.minimum(spare // (group.size - 1), p)
    partly: Numbers = p - full
    if group.kind == "ring":
        return 2 * partly
    rest = np.where(low == high, spare - full * (group.size - 1), 0)
    exact = (partly - 1) * (group.size - 1) + (1 + rest) * (group.size - 1 - rest)
    # Between the sizes at which lines become full the number of pairs is concave.
    found: Numbers = np.maximum(np.where(partly <= 0, 0, np.where(low == high, exact, p * group.size - high)), 0)
    return found


def _compute_root(number: int, degree: int) -> int:
    """Return the largest integer up to PROJECTIONS_MAX whose power is at most `number`."""
    root = 1
    while root < PROJECTIONS_MAX and (root + 1) ** degree <= number:
        root += 1
    return root


def _split_range(most: int, count: int) -> tuple[Numbers, Numbers]:
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


def compute_least_of_runs(problem: Problem, grid: Grid, longest: int) -> Numbers:
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
        members = np.argsort(exchange.class_of, kind="stable").astype(np.int32).reshape(-1, exchange.size)
        for apart in range(1, min(exchange.size, longest)):
            low, high = members[:, :-apart].ravel(), members[:, apart:].ravel()
            is_near = high - low < longest
            yield low[is_near], high[is_near], exchange.weight >> grid.shift
