"""A tabu search with a beam, for small clusters: many layouts in parallel, each moving to its best neighbour.

On two dozen nodes laying domains along a line is too coarse: no order on the line has the shape of the best layout.
There a search can afford to evaluate every swap of two units, from many layouts at once, and to continue where no
swap helps: it makes the least bad one and forbids its reversal for a while (tabu search).

A spare place holds a dummy without traffic, so moving to a spare is a swap, too. Rules are traffic of their own:
units of a class that are apart cost a penalty, as do units of one item that are not consecutive. So the search may
pass through invalid layouts, but only valid ones are kept.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from launcher.placement.problem.graph import Ints, build_graph, make_matrix
from launcher.placement.problem.problem import Layout, Problem, find_fault

FAR = np.int64(-(1 << 60))


class CostTerm(NamedTuple):
    """Pairs of blocks and pairs of bins: J falls by `weight[u, v] * shared[bin of u, bin of v]`."""

    weight: Ints
    shared: Ints


class SwapModel(NamedTuple):
    """Blocks (units, then dummies) and bins: places that are equal.

    `bin_of[place]` and `item_of[place]`; places of a bin are adjacent.
    """

    block_count: int
    bin_of: Ints
    item_of: Ints
    terms: tuple[CostTerm, ...]


def make_swap_model(problem: Problem) -> SwapModel:
    capacity = np.minimum(problem.capacity, problem.traffic.block_count).astype(np.int64)
    level_costs = problem.traffic.level_costs
    bound = {rule.level for rule in problem.rules}
    kept = [level for level in range(len(level_costs) - 1) if level_costs[level] or level in bound]
    item_of = np.repeat(np.arange(len(capacity)), capacity)
    # Items of one unit in the same innermost domain are equal; an item of several units is a bin of its own.
    keys = [problem.labels[level][item_of] for level in kept]
    keys.append(np.where(capacity[item_of] > 1, item_of, -1))
    order = np.lexsort(keys[::-1])
    item_of = item_of[order]
    rows = np.stack([key[order] for key in keys])
    starts = np.flatnonzero(np.concatenate(([True], (np.diff(rows) != 0).any(axis=0))))
    bin_of = np.repeat(np.arange(len(starts)), np.diff([*starts, len(item_of)]))
    items = item_of[starts]
    is_large = capacity[items] > 1
    same_item = (items[:, None] == items) & is_large[:, None]
    shared = level_costs[-1] * same_item.astype(np.int64)
    for level in kept:
        label = problem.labels[level][items]
        shared += level_costs[level] * (label[:, None] == label)
    count, places = problem.traffic.block_count, len(item_of)
    weight = np.zeros((places, places), dtype=np.int64)
    weight[:count, :count] = make_matrix(build_graph(problem.traffic))
    penalty = int(weight.max()) * max(1, int(shared.max()))
    layers = [CostTerm(weight, shared)]
    for rule in problem.rules:
        together = np.zeros_like(weight)
        together[:count, :count] = rule.class_of[:, None] == rule.class_of
        np.fill_diagonal(together, 0)
        domain = problem.labels[rule.level][items] if rule.level < len(level_costs) - 1 else items
        alike = domain[:, None] == domain if rule.level < len(level_costs) - 1 else same_item
        layers.append(CostTerm(together * penalty, alike.astype(np.int64)))
    if problem.is_contiguous:
        units = np.arange(count)
        for room in np.unique(capacity[items[is_large]]).tolist():
            apart = np.zeros_like(weight)
            apart[:count, :count] = np.abs(units[:, None] - units) >= room
            layers.append(CostTerm(apart * -penalty, (same_item & (capacity[items] == room)).astype(np.int64)))
    return SwapModel(count, bin_of, item_of, tuple(layers))


def draw_random(seed: int, shape: tuple[int, ...]) -> NDArray[np.uint64]:
    """Return pseudo-random numbers, the same on every machine (the mixing steps of splitmix64)."""
    size = int(np.prod(shape))
    numbers = (np.arange(size, dtype=np.uint64) + np.uint64(seed * size + 1)) * np.uint64(0x9E3779B97F4A7C15)
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    numbers ^= numbers >> np.uint64(31)
    found: NDArray[np.uint64] = numbers.reshape(shape)
    return found


def explore(problem: Problem, starts: list[Layout], beam_width: int, steps: int, target: int) -> Layout | None:
    """Return the cheapest valid layout of a beam after `steps`, or of `starts`; stops at `target`."""
    here = make_swap_model(problem)
    count, places = here.block_count, len(here.item_of)
    best: Layout | None = None
    best_cost = 0
    for layout in starts:
        cost = problem.compute_cost(layout)
        if best is None or cost < best_cost:
            best, best_cost = layout, cost
    walk = _Beam(here, np.stack([_make_start(here, starts, row) for row in range(beam_width)]))
    unshared = int(here.terms[0].weight.sum()) // 2 * sum(problem.traffic.level_costs)
    lowest = walk.total.copy()
    for step in range(steps):
        walk.step(step)
        better = np.flatnonzero(walk.total < lowest)
        lowest = np.minimum(lowest, walk.total)
        for row in better.tolist():
            if best is not None and int(walk.total[row]) + unshared >= best_cost:
                continue
            layout = np.empty(places, dtype=np.int32)
            layout[walk.at[row]] = here.item_of
            layout = layout[:count]
            if find_fault(problem, layout) is None:
                best, best_cost = layout, problem.compute_cost(layout)
        if best is not None and best_cost <= target:
            break
    return best


def _make_start(model: SwapModel, starts: list[Layout], row: int) -> Ints:
    """Return place -> block: as a layout has it, or in a random order."""
    places = len(model.item_of)
    if row < len(starts):
        return assign(model, starts[row])
    return np.argsort(draw_random(row, (places,)), kind="stable")


class _Beam:
    """The beam's layouts, and the data to compute the gain of every swap.

    Arrays have a row per layout and then one per place, so a swap exchanges rows; what depends on bins alone stays.
    `keeps[row, place, bin]`: the traffic that the block at the place would keep inside the bin.
    """

    def __init__(self, model: SwapModel, at: Ints) -> None:
        self.model, self.at = model, at
        self.rows = np.arange(len(at))
        bins = model.bin_of
        self.weights = [layer.weight[at[:, :, None], at[:, None, :]] for layer in model.terms]
        self.spreads = []
        for layer in model.terms:
            own = np.diagonal(layer.shared)[bins]
            self.spreads.append(own[:, None] + own - 2 * layer.shared[np.ix_(bins, bins)])
        self.keeps = np.zeros((*at.shape, int(bins[-1]) + 1), dtype=np.int64)
        for weight, layer in zip(self.weights, model.terms, strict=True):
            self.keeps += weight @ layer.shared[bins]
        # Swaps that change nothing: in one bin, or of two dummies.
        idle = at >= model.block_count
        self.barred = np.where((bins[:, None] == bins) | (idle[:, :, None] & idle[:, None, :]), FAR, 0)
        self.tabu = np.zeros_like(self.keeps)
        self.total = -self._read_own_keeps().sum(axis=1) // 2

    def _read_own_keeps(self) -> Ints:
        return self.keeps[:, np.arange(self.at.shape[1]), self.model.bin_of]

    def step(self, number: int) -> None:
        """Make in every layout the best swap that is not forbidden, though it may increase the cost."""
        places = self.at.shape[1]
        wins = self.keeps - self._read_own_keeps()[:, :, None]
        wins[self.tabu > number] = FAR // 4
        there = wins[:, :, self.model.bin_of]
        gain = there + there.transpose(0, 2, 1)
        gain += self.barred
        for weight, spread in zip(self.weights, self.spreads, strict=True):
            gain -= weight * spread
        chosen = gain.reshape(len(self.rows), -1).argmax(axis=1)
        one, other = np.divmod(chosen, places)
        won = gain[self.rows, one, other]
        self.total -= won
        self._swap(one, other)
        luck = draw_random(number, (len(self.rows),)) % np.uint64(places // 2 + 1)
        until = number + places // 2 + luck.astype(np.int64)
        bins = self.model.bin_of
        # The block from `one` is now at `other`, and may not go back for a while.
        for now, before in ((other, one), (one, other)):
            is_unit = self.at[self.rows, now] < self.model.block_count
            self.tabu[self.rows, now, bins[before]] = np.where(is_unit, until, 0)

    def _swap(self, one: Ints, other: Ints) -> None:
        rows, bins = self.rows, self.model.bin_of
        for weight, layer in zip(self.weights, self.model.terms, strict=True):
            change = weight[rows, one] - weight[rows, other]
            self.keeps += change[:, :, None] * (layer.shared[bins[other]] - layer.shared[bins[one]])[:, None, :]
        for array in (self.at, self.keeps, self.tabu, self.barred, *self.weights):
            array[rows, one], array[rows, other] = array[rows, other], array[rows, one]
        for array in (self.barred, *self.weights):
            array[rows, :, one], array[rows, :, other] = array[rows, :, other], array[rows, :, one]


def assign(model: SwapModel, layout: Layout) -> Ints:
    """Return place -> block of a layout."""
    at = np.empty(len(model.item_of), dtype=np.int64)
    places = np.argsort(model.item_of, kind="stable")
    units = np.argsort(layout, kind="stable")
    first = np.searchsorted(model.item_of[places], layout[units])
    rank = np.arange(len(units)) - np.searchsorted(layout[units], layout[units])
    taken = places[first + rank]
    at[taken] = units
    rest = np.ones(len(at), dtype=bool)
    rest[taken] = False
    at[rest] = np.arange(len(layout), len(at))
    return at
