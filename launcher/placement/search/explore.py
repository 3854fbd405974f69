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

from launcher.placement.problem.hops import Ints, build_graph, make_matrix
from launcher.placement.problem.problem import Layout, Problem, is_valid

FAR = np.int64(-(1 << 60))


class _CostTerm(NamedTuple):
    """Pairs of blocks and pairs of bins: J falls by `weight[u, v] * shared[bin of u, bin of v]`."""

    weight: Ints
    shared: Ints


class _SwapModel(NamedTuple):
    """Blocks (units, then dummies) and bins: places that are equal.

    `bin_of[place]` and `item_of[place]`; places of a bin are adjacent.
    """

    block_count: int
    bin_of: Ints
    item_of: Ints
    terms: tuple[_CostTerm, ...]


def explore(problem: Problem, starts: list[Layout], beam_width: int, steps: int, target: int) -> Layout | None:
    """Return the cheapest valid layout of a beam after `steps`, or of `starts`; stops at `target`."""
    model = _make_swap_model(problem)
    best = min(starts, key=problem.compute_cost, default=None)
    best_cost = problem.compute_cost(best) if best is not None else None
    beam = _Beam(model, np.stack([_make_start(model, starts, row) for row in range(beam_width)]))
    unshared = int(model.terms[0].weight.sum()) // 2 * sum(problem.traffic.level_costs)
    lowest = beam.total.copy()
    for step in range(steps):
        beam.step(step)
        better = np.flatnonzero(beam.total < lowest)
        lowest = np.minimum(lowest, beam.total)
        for row in better.tolist():
            if best_cost is not None and int(beam.total[row]) + unshared >= best_cost:
                continue
            layout = np.empty(len(model.item_of), dtype=np.int32)
            layout[beam.at[row]] = model.item_of
            layout = layout[: model.block_count]
            cost = problem.compute_cost(layout)
            # Where rules count as traffic, a row's total does not tell whether its layout is cheaper.
            if (best_cost is None or cost < best_cost) and is_valid(problem, layout):
                best, best_cost = layout, cost
        if best_cost is not None and best_cost <= target:
            break
    return best


def _make_swap_model(problem: Problem) -> _SwapModel:
    count, level_costs = problem.traffic.block_count, problem.traffic.level_costs
    capacity = np.minimum(problem.capacity, count).astype(np.int64)
    kept = problem.list_levels()
    item_of = np.repeat(np.arange(len(capacity)), capacity)
    # Items of one unit in the same innermost domain are equal; an item of several units is a bin of its own.
    keys = [problem.labels[level][item_of] for level in kept]
    keys.append(np.where(capacity[item_of] > 1, item_of, -1))
    bin_of = np.unique(np.stack(keys), axis=1, return_inverse=True)[1].ravel()
    order = np.argsort(bin_of, kind="stable")
    item_of, bin_of = item_of[order], bin_of[order]
    starts = np.unique(bin_of, return_index=True)[1]
    items = item_of[starts]
    is_large = capacity[items] > 1
    same_item = (items[:, None] == items) & is_large[:, None]
    alike = {level: problem.labels[level][items][:, None] == problem.labels[level][items] for level in kept}
    shared = level_costs[-1] * same_item.astype(np.int64)
    for level in kept:
        shared += level_costs[level] * alike[level]

    def spread(pairs: Ints) -> Ints:
        """Return the matrix of units with the dummies behind them."""
        found = np.zeros((len(item_of), len(item_of)), dtype=np.int64)
        found[:count, :count] = pairs
        return found

    weight = spread(make_matrix(build_graph(problem.traffic)))
    penalty = int(weight.max()) * max(1, int(shared.max()))
    terms = [_CostTerm(weight, shared)]
    for rule in problem.rules:
        together = (rule.class_of[:, None] == rule.class_of) & ~np.eye(count, dtype=np.bool_)
        terms.append(_CostTerm(spread(together * penalty), alike.get(rule.level, same_item).astype(np.int64)))
    units = np.arange(count)
    for room in np.unique(capacity[items[is_large]]).tolist():
        apart = spread((np.abs(units[:, None] - units) >= room) * -penalty)
        terms.append(_CostTerm(apart, (same_item & (capacity[items] == room)).astype(np.int64)))
    return _SwapModel(count, bin_of, item_of, tuple(terms))


def _make_start(model: _SwapModel, starts: list[Layout], row: int) -> Ints:
    """Return place -> block: as a layout has it, or in a random order."""
    if row >= len(starts):
        return np.argsort(_draw_random(row, len(model.item_of)), kind="stable")
    layout = starts[row]
    at = np.full(len(model.item_of), -1, dtype=np.int64)
    places = np.argsort(model.item_of, kind="stable")
    units = np.argsort(layout, kind="stable")
    first = np.searchsorted(model.item_of[places], layout[units])
    at[places[first + np.arange(len(units)) - np.searchsorted(layout[units], layout[units])]] = units
    at[at < 0] = np.arange(len(layout), len(at))
    return at


def _draw_random(seed: int, size: int) -> NDArray[np.uint64]:
    """Return pseudo-random numbers, the same on every machine (the mixing steps of splitmix64)."""
    numbers = (np.arange(size, dtype=np.uint64) + np.uint64(seed * size + 1)) * np.uint64(0x9E3779B97F4A7C15)
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    found: NDArray[np.uint64] = numbers ^ (numbers >> np.uint64(31))
    return found


class _Beam:
    """The beam's layouts, and the data to compute the gain of every swap.

    Arrays have a row per layout and then one per place, so a swap exchanges rows; what depends on bins alone stays.
    `keeps[row, place, bin]`: the traffic that the block at the place would keep inside the bin.
    """

    def __init__(self, model: _SwapModel, at: Ints) -> None:
        self.model, self.at = model, at
        self.rows = np.arange(len(at))
        bins = model.bin_of
        self.weights = [term.weight[at[:, :, None], at[:, None, :]] for term in model.terms]
        self.spreads = []
        for term in model.terms:
            own = np.diagonal(term.shared)[bins]
            self.spreads.append(own[:, None] + own - 2 * term.shared[np.ix_(bins, bins)])
        self.keeps = np.zeros((*at.shape, int(bins[-1]) + 1), dtype=np.int64)
        for weight, term in zip(self.weights, model.terms, strict=True):
            self.keeps += weight @ term.shared[bins]
        # Swaps that change nothing: in one bin, or of two dummies.
        idle = at >= model.block_count
        self.barred = np.where((bins[:, None] == bins) | (idle[:, :, None] & idle[:, None, :]), FAR, 0)
        self.tabu = np.zeros_like(self.keeps)
        self.total = -self._read_own_keeps().sum(axis=1) // 2

    def _read_own_keeps(self) -> Ints:
        return self.keeps[:, np.arange(self.at.shape[1]), self.model.bin_of]

    def step(self, number: int) -> None:
        """Make in every layout the best swap that is not forbidden, though it may increase the cost."""
        rows, bins, places = self.rows, self.model.bin_of, self.at.shape[1]
        wins = self.keeps - self._read_own_keeps()[:, :, None]
        wins[self.tabu > number] = FAR // 4
        there = wins[:, :, bins]
        gain = there + there.transpose(0, 2, 1)
        gain += self.barred
        for weight, spread in zip(self.weights, self.spreads, strict=True):
            gain -= weight * spread
        one, other = np.divmod(gain.reshape(len(rows), -1).argmax(axis=1), places)
        self.total -= gain[rows, one, other]
        self._swap(one, other)
        luck = _draw_random(number, len(rows)) % np.uint64(places // 2 + 1)
        until = number + places // 2 + luck.astype(np.int64)
        # The block from `one` is now at `other`, and may not go back for a while.
        for now, before in ((other, one), (one, other)):
            is_unit = self.at[rows, now] < self.model.block_count
            self.tabu[rows, now, bins[before]] = np.where(is_unit, until, 0)

    def _swap(self, one: Ints, other: Ints) -> None:
        rows, bins = self.rows, self.model.bin_of
        for weight, term in zip(self.weights, self.model.terms, strict=True):
            change = weight[rows, one] - weight[rows, other]
            self.keeps += change[:, :, None] * (term.shared[bins[other]] - term.shared[bins[one]])[:, None, :]
        for array in (self.at, self.keeps, self.tabu, self.barred, *self.weights):
            array[rows, one], array[rows, other] = array[rows, other], array[rows, one]
        for array in (self.barred, *self.weights):
            array[rows, :, one], array[rows, :, other] = array[rows, :, other], array[rows, :, one]
