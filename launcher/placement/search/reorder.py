"""Exchanges items of different sizes along the ranks, which shifts all items between them.

`improve` exchanges blocks of one size. Where nodes of 3 and 4 units form a line, exchanging two of them shifts all
runs between, so the gain has to be computed again, hop by hop: for many exchanges at once, and only of items that are
near each other, in clusters that are not large.

Where no exchange helps any more, one that costs a little may lead to a better layout: `perturb` finds those.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from launcher.placement.problem.graph import Graph, Ints, build_graph
from launcher.placement.problem.problem import Layout, Problem, find_fault

REACH = 24
ROUNDS = 20
CELLS_MAX = 1 << 21
"""Exchanges times communicating pairs of units, in a round."""
CHUNK = 128


def reorder(problem: Problem, layout: Layout) -> Layout:
    """Return a valid layout that costs no more, for contiguous runs."""
    for _ in range(ROUNDS):
        tried = _try_exchanges(problem, layout)
        if tried is None:
            return layout
        items, lengths, pairs, costs = tried
        now = problem.compute_cost(layout)
        gains = now - costs
        chosen: list[tuple[int, int]] = []
        for index in np.argsort(-gains, kind="stable").tolist():
            one, other = pairs[index]
            if gains[index] <= 0:
                break
            # Distant exchanges hardly interact; of near ones, only the best is made.
            if all(other + REACH < low or high + REACH < one for low, high in chosen):
                chosen.append((one, other))
        found = layout
        for count in (len(chosen), 1):
            order = np.arange(len(items))
            for one, other in chosen[:count]:
                order[[one, other]] = order[[other, one]]
            found = np.repeat(items[order], lengths[order]).astype(np.int32)
            if problem.compute_cost(found) < problem.compute_cost(layout) and find_fault(problem, found) is None:
                break
        else:
            return layout
        layout = found
    return layout


def perturb(problem: Problem, layout: Layout, count: int) -> Iterator[Layout]:
    """Yield the `count` cheapest layouts that are one exchange away, though each may cost more than `layout`."""
    tried = _try_exchanges(problem, layout)
    if tried is not None:
        items, lengths, pairs, costs = tried
        for index in np.argsort(costs, kind="stable")[:count].tolist():
            yield next(_apply_exchanges(items, lengths, [pairs[index]]))[0].astype(np.int32)


def _try_exchanges(problem: Problem, layout: Layout) -> tuple[Ints, Ints, list[tuple[int, int]], Ints] | None:
    """Return items and lengths of the runs, exchanges of unequal ones, and the cost of each; None if too many."""
    graph = build_graph(problem.traffic)
    starts = np.flatnonzero(np.diff(layout, prepend=-1))
    items, lengths = layout[starts].astype(np.int64), np.diff([*starts.tolist(), len(layout)])
    pairs = [
        (one, other)
        for one in range(len(items))
        for other in range(one + 1, min(len(items), one + REACH + 1))
        if lengths[one] != lengths[other]
    ]
    if not pairs or len(pairs) * len(graph.low) > CELLS_MAX:
        return None
    costs = np.concatenate([_compute_costs(problem, graph, each) for each in _apply_exchanges(items, lengths, pairs)])
    return items, lengths, pairs, costs


def _apply_exchanges(items: Ints, lengths: Ints, pairs: list[tuple[int, int]]) -> Iterator[Ints]:
    """Yield the layouts after each exchange, some at a time."""
    for start in range(0, len(pairs), CHUNK):
        some = np.array(pairs[start : start + CHUNK])
        order = np.repeat(np.arange(len(items))[None, :], len(some), axis=0)
        rows = np.arange(len(some))
        order[rows, some[:, 0]], order[rows, some[:, 1]] = some[:, 1], some[:, 0]
        yield np.repeat(items[order].ravel(), lengths[order].ravel()).reshape(len(some), -1)


def _compute_costs(problem: Problem, graph: Graph, layouts: NDArray[np.integer]) -> Ints:
    """Return J of each layout."""
    total = np.zeros(len(layouts), dtype=np.int64)
    for level_cost, label in zip(problem.traffic.level_costs, problem.labels, strict=True):
        if level_cost:
            placed = label[layouts]
            total += level_cost * ((placed[:, graph.low] != placed[:, graph.high]) @ graph.weight)
    return total
