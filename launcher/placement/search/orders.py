"""Candidate orders: walks through a mesh so that most traffic of any stretch stays inside it.

A plan can be made by laying units out along a line and giving the domains one stretch each. Rank order is one such
line: it goes through the mesh row by row. Where rows are long and domains small, it is better to go through the
mesh tile by tile, as a 4 x 4 tile has a shorter border than a row of 16; where domains have odd sizes, by strips,
narrow bands along one axis, because any stretch of a narrow band is nearly a tile.

    rows            tiles           strips (bands of 2, along the longer axis)
    0 1 2 3         0 1 4 5         0 2 4 6
    4 5 6 7         2 3 6 7         1 3 5 7

An order is defined by digits, slowest first, each a part of one axis' coordinate. A snake reverses at the end of
each row, so that neighbours on the line are always neighbours in the mesh.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from launcher.placement.problem.hops import Traffic

Ints = NDArray[np.int64]

STRIPS = 4


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


def list_orders(grid: Sequence[int], loads: Sequence[AxisLoad], room: int, most: int | None = None) -> list[WalkOrder]:
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
    if most is not None and 2 * len(chosen) > most:
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


def walk(coordinates: Ints, grid: Sequence[int], order: WalkOrder, region: Ints | None = None) -> Ints:
    """Return positions sorted by the order's digits, region by region. `coordinates[axis][position]`."""
    key = np.zeros(coordinates.shape[1], dtype=np.int64) if region is None else region
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
    for hops in traffic.hops:
        here, there = np.unravel_index(hops.low, traffic.grid), np.unravel_index(hops.high, traffic.grid)
        for axis, load in enumerate(loads):
            load[0] += hops.weight * int(np.count_nonzero(here[axis] != there[axis])) // traffic.block_count
    for exchange in traffic.exchanges:
        places = np.unravel_index(np.flatnonzero(exchange.class_of == exchange.class_of[0]), traffic.grid)
        for axis, load in enumerate(loads):
            if np.ptp(places[axis]):
                load[1] += exchange.weight * (exchange.size // len(np.unique(places[axis])))
    return [AxisLoad(*load) for load in loads]


def measure_border(grid: Sequence[int], loads: Sequence[AxisLoad], widths: Sequence[int]) -> int:
    """Return the traffic that leaves a tile of these widths, per unit, times a factor for integer comparison."""
    total = 0
    for size, load, width in zip(grid, loads, widths, strict=True):
        if 0 < width < size:
            total += (load.hops << 20) // width + (load.exchange << 19) * (size - width)
    return total
