"""The same problem, made easier: larger units, smaller numbers, fewer choices.

Each function takes a problem and gives back one whose layouts are layouts of the first, so what is found for the easy
one holds for the other.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from launcher.placement.hops import Exchange, Hops, Traffic, Units, box
from launcher.placement.problem import Problem, Rule

WEIGHT_BITS, TOLL_BITS = 32, 19
"""Sums of weights and of tolls of at most so many bits: their product is exact in a float and far from overflow."""


def rounded(problem: Problem) -> Problem:
    """Numbers so large that sums could overflow become smaller ones in nearly the same proportion."""
    talk = problem.traffic
    total = sum(hops.weight * len(hops.low) for hops in talk.hops)
    total += sum(one.weight * talk.unit_count * one.size for one in talk.exchanges)
    weight_shift = max(0, total.bit_length() - WEIGHT_BITS)
    toll_shift = max(0, sum(talk.tolls).bit_length() - TOLL_BITS)
    if not weight_shift and not toll_shift:
        return problem
    smaller = replace(
        talk,
        hops=tuple(one._replace(weight=_shifted(one.weight, weight_shift)) for one in talk.hops),
        exchanges=tuple(one._replace(weight=_shifted(one.weight, weight_shift)) for one in talk.exchanges),
        tolls=tuple(_shifted(toll, toll_shift) for toll in talk.tolls),
    )
    return replace(problem, traffic=smaller)


def _shifted(number: int, bits: int) -> int:
    """Not down to nothing, unless it was."""
    return max(number >> bits, min(number, 1))


def coarse(problem: Problem) -> tuple[Problem, int]:
    """Every `size` consecutive units as one, where all items have room for a multiple of that; the problem and `size`.

    Runs of items then begin at multiples of `size`, which costs little: units are no boxes of the mesh otherwise.
    """
    size = math.gcd(*problem.capacity.tolist())
    talk = problem.traffic
    if size == 1 or not problem.is_contiguous or talk.unit_count % size:
        return problem, 1
    sides = box(talk.grid, size)
    most = len(problem.capacity) if problem.active_max is None else problem.active_max
    is_full = talk.unit_count == most * int(problem.capacity.max())
    if sides is None:
        # Only where every item is either full or empty it must be done all the same.
        if not is_full or talk.exchanges or problem.rules:
            return problem, 1
        grid: tuple[int, ...] = (talk.unit_count // size,)
        sides = (size,)
    else:
        grid = tuple(count // side for count, side in zip(talk.grid, sides, strict=True))
    hops: list[Hops] = []
    for one in talk.hops:
        low, high = one.low // size, one.high // size
        leaves = low != high
        if leaves.any():
            low, high = low[leaves], high[leaves]
            hops.append(Hops(one.communicator, np.minimum(low, high), np.maximum(low, high), one.weight))
    larger = Traffic(
        grid=grid,
        unit=talk.unit * size,
        hops=tuple(hops),
        exchanges=tuple(each for one in talk.exchanges if (each := _exchange(one, size)) is not None),
        tolls=talk.tolls,
        scale=talk.scale,
    )
    rules = tuple(Rule(rule.level, _numbered(rule.class_of, size)) for rule in problem.rules)
    return replace(problem, traffic=larger, capacity=problem.capacity // size, rules=rules), size


def _exchange(exchange: Exchange, size: int) -> Exchange | None:
    """A box has as many units in each class that it touches; two boxes touch the same classes or none in common."""
    inside = int(np.count_nonzero(exchange.class_of[:size] == exchange.class_of[0]))
    if inside == exchange.size:
        return None
    class_of = _numbered(exchange.class_of, size)
    return Exchange(exchange.communicator, class_of, exchange.size // inside, exchange.weight * inside * size)


def _numbered(class_of: Units, size: int) -> Units:
    least = class_of.reshape(-1, size).min(axis=1)
    found: Units = np.unique(least, return_inverse=True)[1].astype(np.int32).reshape(least.shape)
    return found


def restricted(problem: Problem) -> Problem | None:
    """Any layout of this one has as many active items as asked for; None if that goes without saying, or not at all.

    With at most so many items, only the largest are left. For at least so many, the largest are filled less, until
    one item fewer could not hold all.
    """
    capacity = problem.capacity.copy()
    count = problem.traffic.unit_count
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
        # One unit less for each of the largest, as long as the rest has room.
        capacity[np.flatnonzero(capacity == largest)] -= 1
    if int(capacity.sum()) < count or (capacity == problem.capacity).all():
        return None
    return replace(problem, capacity=capacity)
