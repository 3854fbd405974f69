"""Simplifies a problem: larger units, smaller numbers, fewer choices.

Each function returns a problem whose layouts are layouts of its argument, so a solution of the simple one is one of
the other.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from launcher.placement.problem.hops import BlockArray, Exchange, Hops, Traffic, compute_box
from launcher.placement.problem.problem import ClassRule, Problem

WEIGHT_BITS, LEVEL_COST_BITS = 32, 19
"""Sums of weights and of level costs of at most so many bits: their product is exact as a float, far from overflow."""


def round_weights(problem: Problem) -> Problem:
    """Replace numbers so large that sums could overflow by smaller ones in nearly the same proportion."""
    talk = problem.traffic
    total = sum(hops.weight * len(hops.low) for hops in talk.hops)
    total += sum(one.weight * talk.block_count * one.size for one in talk.exchanges)
    weight_shift = max(0, total.bit_length() - WEIGHT_BITS)
    cost_shift = max(0, sum(talk.level_costs).bit_length() - LEVEL_COST_BITS)
    if not weight_shift and not cost_shift:
        return problem
    smaller = replace(
        talk,
        hops=tuple(one._replace(weight=_shift(one.weight, weight_shift)) for one in talk.hops),
        exchanges=tuple(one._replace(weight=_shift(one.weight, weight_shift)) for one in talk.exchanges),
        level_costs=tuple(_shift(level_cost, cost_shift) for level_cost in talk.level_costs),
    )
    return replace(problem, traffic=smaller)


def _shift(number: int, bits: int) -> int:
    """Reduce a number by bits, but not to 0 unless it was."""
    return max(number >> bits, min(number, 1))


def coarsen(problem: Problem) -> tuple[Problem, int]:
    """Merge every `size` consecutive units, if all items have room for a multiple of that; return problem and `size`.

    Runs of items then begin at multiples of `size`, which costs little: units are no boxes of the mesh otherwise.
    """
    size = math.gcd(*problem.capacity.tolist())
    talk = problem.traffic
    if size == 1 or not problem.is_contiguous or talk.block_count % size:
        return problem, 1
    sides = compute_box(talk.grid, size)
    most = len(problem.capacity) if problem.active_max is None else problem.active_max
    is_full = talk.block_count == most * int(problem.capacity.max())
    if sides is None:
        # It is required only where every item is either full or empty.
        if not is_full or talk.exchanges or problem.rules:
            return problem, 1
        grid: tuple[int, ...] = (talk.block_count // size,)
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
        block_size=talk.block_size * size,
        hops=tuple(hops),
        exchanges=tuple(each for one in talk.exchanges if (each := _coarsen_exchange(one, size)) is not None),
        level_costs=talk.level_costs,
        scale=talk.scale,
    )
    rules = tuple(ClassRule(rule.level, _renumber(rule.class_of, size)) for rule in problem.rules)
    return replace(problem, traffic=larger, capacity=problem.capacity // size, rules=rules), size


def _coarsen_exchange(exchange: Exchange, size: int) -> Exchange | None:
    """A box has as many units in each class that it touches; two boxes touch the same classes or none in common."""
    inside = int(np.count_nonzero(exchange.class_of[:size] == exchange.class_of[0]))
    if inside == exchange.size:
        return None
    class_of = _renumber(exchange.class_of, size)
    return Exchange(exchange.communicator, class_of, exchange.size // inside, exchange.weight * inside * size)


def _renumber(class_of: BlockArray, size: int) -> BlockArray:
    least = class_of.reshape(-1, size).min(axis=1)
    found: BlockArray = np.unique(least, return_inverse=True)[1].astype(np.int32).reshape(least.shape)
    return found


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
