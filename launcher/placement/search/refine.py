"""Improves the time of layouts by exchanging items around the links that a step waits for.

A descent by the slowest link alone stops at once: where several links are full, one exchange relieves only one of them.
So of two layouts of equal time the one with the less crowded links counts as better, and a beam of layouts is continued
as long as the best of them becomes better. Exchanges that cannot relieve a slowest link are not tried, and all others
of a round are computed together. What is tried is limited by a count, so every machine finds the same layout.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, combinations, islice, product

import numpy as np
from numpy.typing import NDArray

from launcher.placement.problem.problem import Layout, Problem, is_valid
from launcher.placement.problem.step_time import Seconds, StepTimer
from launcher.placement.search.fit import DomainTree
from launcher.placement.search.line import compute_loads, list_orders, walk

WIDTH = 8
"""Layouts of a beam; with half as many one of 160 trees takes 10 % longer than the best known, now 8 %."""
CELLS_MAX = 200_000
"""Layouts tried times units in each, or items if these are more: 0.02 to 0.1 s. With 120,000, one of 160 trees of
benchmarks/time_search.py takes 11 % longer than the best known; with more, none becomes better."""
UNITS_MAX = 4096
"""Of larger problems too few exchanges could be tried."""
LINE_CELLS = 25_000
"""Lines times units in each, a few hundredths of a second; four times as many make no tree faster."""


def refine(problem: Problem, timer: StepTimer, layouts: Sequence[Layout]) -> list[tuple[float, Layout]]:
    """Return the fastest of these layouts, and better ones found from them, each with its time, the fastest first."""
    found: dict[bytes, tuple[float, float, int, Layout]] = {}

    def add(some: Sequence[Layout] | NDArray[np.int32]) -> list[Layout]:
        """Add the fastest valid ones of these layouts, as many as a beam has, and return those that are new."""
        times, crowds = timer.compute_all(np.asarray(some))
        chosen: list[Layout] = []
        for index in np.lexsort((crowds, times)).tolist():
            layout = some[index]
            if layout.tobytes() not in found and is_valid(problem, layout):
                found[layout.tobytes()] = (times[index], crowds[index], len(found), layout)
                chosen.append(layout)
                if len(chosen) == WIDTH:
                    break
        return chosen

    def list_found() -> list[tuple[float, float, int, Layout]]:
        return sorted(found.values(), key=lambda each: each[:3])

    beam, before = add(layouts), None
    width = max(problem.traffic.block_count, len(problem.capacity))
    left = CELLS_MAX if width <= UNITS_MAX else 0
    while beam and left > 0 and list_found()[0][:2] != before:
        before = list_found()[0][:2]
        share = max(1, left // (len(beam) * width))
        rows = np.concatenate([_list_neighbours(problem, timer, layout, share) for layout in beam])
        left -= len(rows) * width
        beam = add(rows) if len(rows) else []
    return [(seconds, layout) for seconds, _, _, layout in list_found()]


def _list_neighbours(problem: Problem, timer: StepTimer, layout: Layout, most: int) -> NDArray[np.int32]:
    """Return at most so many layouts in which two items hold what the other held, one of them at a crowded link."""
    room, every = problem.capacity, np.arange(len(problem.capacity))
    held, crowded = np.bincount(layout, minlength=len(room)), timer.find_crowded(layout)
    mine = crowded[:, None]
    may = (held[mine] <= room) & (held <= room[mine]) & (held[mine] + held > 0)
    may &= ~np.isin(every, crowded) | (mine < every)  # each pair once
    row, other = (each[:most, None] for each in np.nonzero(may))
    one = crowded[row]
    return np.where(layout == one, other, np.where(layout == other, one, layout)).astype(np.int32)


def lay_lines(problem: Problem, timer: StepTimer) -> Iterator[Layout]:
    """Yield layouts that put the items, domain by domain, along those orders of the mesh that suit usual domains.

    None where items differ in size, or no domain has room for a group: such lines fit nothing, and would only take the
    place of layouts of the search.

    A domain that holds no multiple of a group, such as a replica, tears one apart, and the next domain another. So
    there are also orders of items in which what is over of every domain comes last, together. Slow items come last in
    all, or the domains that have any: there a line has but one neighbour, and there are the spares.
    """
    tree, traffic, capacity = DomainTree(problem), problem.traffic, problem.capacity
    if capacity.min() != capacity.max():
        return
    grid, count = traffic.grid, traffic.block_count
    used = -(-count * len(tree.items) // int(capacity.sum()))  # items, if all were equally large
    places = np.array(np.unravel_index(np.arange(used) * count // used, grid))
    most, loads = max(2, LINE_CELLS // count), compute_loads(traffic)
    orders = (list_orders(grid, loads, max(1, room), most) for room in tree.list_usual_rooms())
    lines = [walk(places, grid, order, places[0] * 0) for order in dict.fromkeys(chain.from_iterable(orders))]
    groups = {math.prod(part) * used // count for length in range(len(grid)) for part in combinations(grid, length)}
    homes = problem.labels[max(0, len(problem.labels) - 2)][tree.items]
    sizes = np.diff(np.flatnonzero(np.diff(homes, prepend=-1)), append=len(homes))
    number, size = np.concatenate([np.arange(each) for each in sizes]), np.repeat(sizes, sizes)
    overs = [number >= size // group * group for group in sorted(groups) if 0 < group <= sizes.max()]
    for late, over, line in islice(product(_rank_by_slowness(problem, timer), overs, lines), most):
        ordered = tree.items[np.lexsort((over, late[tree.items]))]
        items = np.concatenate((ordered[np.argsort(line, kind="stable")], ordered[used:]))
        layout = np.repeat(items, capacity[items])[:count].astype(np.int32)
        if is_valid(problem, layout):
            yield layout


def _rank_by_slowness(problem: Problem, timer: StepTimer) -> Iterable[Seconds]:
    """Return for every level, from the innermost, how slow the slowest item is in the domain of each."""
    slow, found = timer.add_up_slowness(), {}
    for labels in reversed(problem.labels):
        slowest = np.zeros(len(labels))
        np.maximum.at(slowest, labels, slow)
        found[slowest[labels].tobytes()] = slowest[labels]
    return found.values()
