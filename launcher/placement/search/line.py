"""The line of units: orders of it, its partition among domains, and that of runs of consecutive units among items.

A plan can be made by laying units out along a line and giving the domains one stretch each. Rank order is one such
line: it goes through the mesh row by row. Where rows are long and domains small, it is better to go through the
mesh tile by tile, as a 4 x 4 tile has a shorter border than a row of 16; where domains have odd sizes, by strips,
narrow bands along one axis, because any stretch of a narrow band is nearly a tile.

    rows            tiles           strips (bands of 2, along the longer axis)
    0 1 2 3         0 1 4 5         0 2 4 6
    4 5 6 7         2 3 6 7         1 3 5 7

An order is defined by digits, slowest first, each a part of one axis' coordinate. A snake reverses at the end of
each row, so that neighbours on the line are always neighbours in the mesh.

The cut profile of a line is, for each gap between two units, the weight of all hops that cross it. Domains are segments
of given sizes, put on the line end to end. Segments of 7, 8, 8 and 8 on rows of 7 units: the first fits; the others
would end in the middle of a row, but if there is room to spare, each can take 7 as well. The rest at the end are the
spares. `partition_greedily` takes the cheapest cut at each step; `partition_by_beam` follows several partitions at once
and is slower.

The units of a leaf form runs: stretches of consecutive ranks. Every item holds consecutive units, so `divide_runs`
divides a run among items, and no item serves two runs.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from launcher.placement.problem.hops import Hops, Ints, Traffic

STRIPS = 4
BEAM_SMALL, BEAM_LARGE = 8, 2
CHILDREN_SMALL = 40
TAKES = 3
"""How many amounts are tried per kind of domain: its full room, and the best of fewer."""


class Digit(NamedTuple):
    """`coordinate // divisor % modulus` of one axis; modulus 0 is none."""

    axis: int
    divisor: int
    modulus: int


class WalkOrder(NamedTuple):
    digits: tuple[Digit, ...]
    is_snake: bool


class AxisLoad(NamedTuple):
    """The traffic of one step along an axis per unit: by hops to the next, and by exchanges with every other."""

    hops: int
    exchange: int


def list_orders(grid: Sequence[int], loads: Sequence[AxisLoad], room: int, most: int) -> list[WalkOrder]:
    """Return orders to try where a usual domain has `room` units: rows of every kind first, then strips and tiles.

    `most`: keep about so many at most, those in which a stretch of `room` units has the least border. A mesh of
    five axes has 120 kinds of rows, and each order of a large mesh takes a while to try.
    """
    long = [axis for axis, size in enumerate(grid) if size > 1]
    found: dict[tuple[Digit, ...], None] = {}
    for permutation in itertools.permutations(long):
        found.setdefault(_make_digits(grid, permutation, {}))
    for axis in long:
        others = [other for other in long if other != axis]
        for widths in _choose_strips(grid, loads, room, axis, others)[:STRIPS]:
            found.setdefault(_make_digits(grid, (*others, axis), dict(zip(others, widths, strict=True))))
    chosen = list(found)
    if 2 * len(chosen) > most:
        least = sorted(
            (_measure_stretch_border(grid, loads, room, digits), index) for index, digits in enumerate(chosen)
        )
        chosen = [chosen[index] for index in sorted(index for _, index in least[: max(1, most // 2)])]
    return [WalkOrder(digits, is_snake) for digits in chosen for is_snake in (False, True)]


def _measure_stretch_border(grid: Sequence[int], loads: Sequence[AxisLoad], room: int, digits: Sequence[Digit]) -> int:
    """Return the border of the tile that a stretch of `room` units fills, from the fastest digit on."""
    widths = [1] * len(grid)
    for axis, divisor, modulus in reversed(digits):
        size = -(-grid[axis] // divisor)
        step = min(size, modulus or size, max(1, room // math.prod(widths)))
        widths[axis] = min(grid[axis], widths[axis] * step)
    return measure_border(grid, loads, widths)


def walk(coordinates: Ints, grid: Sequence[int], order: WalkOrder, region: Ints) -> Ints:
    """Return positions sorted by the order's digits, region by region. `coordinates[axis][position]`."""
    key = region
    for axis, divisor, modulus in order.digits:
        digit = coordinates[axis] // divisor if divisor > 1 else coordinates[axis]
        size = -(-grid[axis] // divisor)
        if 0 < modulus < size:
            digit = digit % modulus
            size = modulus
        if order.is_snake:
            digit = np.where(key & 1, size - 1 - digit, digit)
        key = key * size + digit
    return np.argsort(key, kind="stable")


def _make_digits(grid: Sequence[int], permutation: Sequence[int], widths: dict[int, int]) -> tuple[Digit, ...]:
    """Return strips of these widths in the order of `permutation`; inside a strip the narrowest axis is the fastest."""
    cut = {axis: width for axis, width in widths.items() if width < grid[axis]}
    narrow = sorted((axis for axis in permutation if axis in widths), key=lambda axis: -widths[axis])
    inside = [axis for axis in permutation if axis not in widths] + narrow
    digits = [Digit(axis, cut[axis], 0) for axis in permutation if axis in cut]
    digits += [Digit(axis, 1, cut.get(axis, 0)) for axis in inside if cut.get(axis) != 1]
    return tuple(digits)


def _choose_strips(
    grid: Sequence[int], loads: Sequence[AxisLoad], room: int, along: int, others: Sequence[int]
) -> list[tuple[int, ...]]:
    """Widths of strips along an axis, those with the least border per unit of a stretch of `room` units first."""
    scored: list[tuple[int, tuple[int, ...]]] = []
    for widths in itertools.product(*(_list_widths(min(grid[other], room)) for other in others)):
        volume = math.prod(widths)
        if volume <= room:
            box = dict(zip(others, widths, strict=True))
            box[along] = min(grid[along], room // volume)
            scored.append((measure_border(grid, loads, [box.get(axis, 1) for axis in range(len(grid))]), widths))
    return [widths for _, widths in sorted(scored)]


def _list_widths(most: int) -> list[int]:
    """Return every width while there are few; of long axes the sensible widths of a tile."""
    return [width for width in range(1, most + 1) if width <= 20 or width == most or width & (width - 1) == 0]


def compute_loads(traffic: Traffic) -> list[AxisLoad]:
    """Return the load of every axis, per unit."""
    loads = [[0, 0] for _ in traffic.grid]
    for part in traffic.parts:
        if isinstance(part, Hops):
            here, there = np.unravel_index(part.low, traffic.grid), np.unravel_index(part.high, traffic.grid)
            for axis, load in enumerate(loads):
                load[0] += part.weight * int(np.count_nonzero(here[axis] != there[axis])) // traffic.block_count
        else:
            places = np.unravel_index(np.flatnonzero(part.class_of == part.class_of[0]), traffic.grid)
            for axis, load in enumerate(loads):
                if np.ptp(places[axis]):
                    load[1] += part.weight * (part.size // len(np.unique(places[axis])))
    return [AxisLoad(*load) for load in loads]


def measure_border(grid: Sequence[int], loads: Sequence[AxisLoad], widths: Sequence[int]) -> int:
    """Return the traffic that leaves a tile of these widths, per unit, times a factor for integer comparison."""
    total = 0
    for size, load, width in zip(grid, loads, widths, strict=True):
        if 0 < width < size:
            total += (load.hops << 20) // width + (load.exchange << 19) * (size - width)
    return total


# Partitions


Partition = list[tuple[int, int]]
"""Kind and amount of each domain along the line."""


class RoomKind(NamedTuple):
    """`number` domains with the same `room`."""

    room: int
    number: int


def find_only_partition(kinds: Sequence[RoomKind], amount: int, step: int) -> Partition | None:
    """Return the partition if there is only one."""
    if len(kinds) > 1 or kinds[0].room * kinds[0].number - amount >= step:
        return None
    room = kinds[0].room
    return [(0, min(room, amount - done)) for done in range(0, amount, room)]


def _compute_scale(kinds: Sequence[RoomKind], cut: Sequence[int]) -> tuple[int, int, int]:
    """Return the slack, a usual room, and the usual cost of a cut: an expensive cut is worth it if it covers much."""
    amount = len(cut) - 1
    total = sum(kind.room * kind.number for kind in kinds)
    return total - amount, max(1, total // sum(kind.number for kind in kinds)), sum(cut) // amount


def partition_greedily(kinds: Sequence[RoomKind], cut: Sequence[int], step: int) -> Partition:
    """Partition a line with this profile, each time with the domain whose end is the cheapest cut for its size."""
    slack, usual_room, usual_cut = _compute_scale(kinds, cut)
    left = [kind.number for kind in kinds]
    live = [*range(len(kinds))]
    chosen: Partition = []
    position, rest = 0, len(cut) - 1
    while rest:
        best_key, best_index, best_take = 0, -1, 0
        for index in live:
            for take in _list_takes(kinds[index].room, rest, slack, step, cut, position):
                key = cut[position + take] * usual_room - usual_cut * take
                if key < best_key or best_index < 0:
                    best_key, best_index, best_take = key, index, take
        chosen.append((best_index, best_take))
        left[best_index] -= 1
        if not left[best_index]:
            live.remove(best_index)
        slack -= kinds[best_index].room - best_take
        position += best_take
        rest -= best_take
    return chosen


class _BeamState(NamedTuple):
    """A partition so far."""

    key: int
    used: int
    """A number with a digit for each kind."""
    position: int
    cost: int
    slack: int
    last: Any
    """Kind, amount, and the state before."""


def partition_by_beam(kinds: Sequence[RoomKind], cut: Sequence[int], step: int) -> Partition:
    """Partition a line with this profile, following several partitions at once."""
    amount = len(cut) - 1
    width = BEAM_SMALL if sum(kind.number for kind in kinds) <= CHILDREN_SMALL else BEAM_LARGE
    slack, usual_room, usual_cut = _compute_scale(kinds, cut)
    digits: list[int] = [1]
    for kind in kinds:
        digits.append(digits[-1] * (kind.number + 1))
    states = [_BeamState(0, 0, 0, 0, slack, None)]
    best: _BeamState | None = None
    while states:
        following: dict[tuple[int, int], _BeamState] = {}
        for _, used, position, cost, slack, last in states:
            for index, (room, number) in enumerate(kinds):
                digit = digits[index]
                if used // digit % (number + 1) == number:
                    continue
                for take in _list_takes(room, amount - position, slack, step, cut, position):
                    end = position + take
                    spent = cost + cut[end]
                    key = spent * usual_room - usual_cut * end
                    found = following.get((end, used + digit))
                    if found is None or key < found.key:
                        history = (index, take, last)
                        state = _BeamState(key, used + digit, end, spent, slack - room + take, history)
                        following[end, used + digit] = state
        states = []
        for state in heapq.nsmallest(width, following.values()):
            if best is None or state.cost < best.cost:
                if state.position == amount:
                    best = state
                else:
                    states.append(state)
    assert best is not None  # the rooms suffice
    chosen: Partition = []
    last = best.last
    while last is not None:
        index, take, last = last
        chosen.append((index, take))
    return chosen[::-1]


def _list_takes(room: int, left: int, slack: int, step: int, cut: Sequence[int], position: int) -> Sequence[int]:
    """Amounts worth trying: as much as possible, and where the cuts are cheapest among those that slack allows."""
    most = min(room, left)
    least = max(step, room - slack)
    if least >= most:
        return (most,)
    fewer = range(most - step, least - 1, -step)
    if len(fewer) >= TAKES:
        fewer_best = sorted(fewer, key=lambda take: cut[position + take])[: TAKES - 1]
        return (most, *fewer_best)
    return (most, *fewer)


def divide_runs(
    rooms: Sequence[int], runs: Sequence[tuple[int, int]], cut: Sequence[int]
) -> list[tuple[int, int, int]] | None:
    """Divide runs among items: item, first position, how many units; None if the items do not suffice.

    Short runs are served first, each by the largest items that fit into the rest of it; the longest gets the remaining
    items, cut where that is cheapest. `runs`: position and length; `cut`: the profile of the whole line.
    """
    free: dict[int, list[int]] = {}
    for item in range(len(rooms) - 1, -1, -1):
        free.setdefault(rooms[item], []).append(item)
    taken: list[tuple[int, int, int]] = []
    ordered = sorted(runs, key=lambda run: (run[1], run[0]))
    for index, (start, length) in enumerate(ordered):
        if index == len(ordered) - 1:
            own = {room: len(items) for room, items in free.items() if items}
        else:
            own = _choose_for_run(free, length)
        if sum(room * count for room, count in own.items()) < length:
            return None
        kinds = [RoomKind(room, own[room]) for room in sorted(own, reverse=True)]
        # Inside a run only its own cuts count; at its end there is none.
        profile = [0, *cut[start + 1 : start + length], 0]
        for kind, take in partition_greedily(kinds, profile, 1):
            taken.append((free[kinds[kind].room].pop(), start, take))
            start += take
    return taken


def _choose_for_run(free: dict[int, list[int]], length: int) -> dict[int, int]:
    """Return how many items of each room for a run: the largest that fit, and for a rest the smallest that holds it."""
    own: dict[int, int] = {}
    left = length
    for room in sorted(free, reverse=True):
        count = min(len(free[room]), left // room) if room else 0
        if count:
            own[room] = count
            left -= count * room
    for room in sorted(free):
        while left > 0 and room and own.get(room, 0) < len(free[room]):
            own[room] = own.get(room, 0) + 1
            left -= room
    return own
