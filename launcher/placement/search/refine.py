"""Improves the time of layouts by exchanging items, and whole domains, around the links that a step waits for.

A descent by the slowest link alone stops at once: where several links are full, one exchange relieves only one of them.
So of two layouts of equal time the one with the less crowded links counts as better, and a beam of layouts is continued
for a few rounds even if none becomes better. Exchanges that cannot relieve a slowest link are not tried, and all others
of a round are computed together. What is tried is limited by a count, so every machine finds the same layout.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, combinations, islice

import numpy as np
from numpy.typing import NDArray

from launcher.placement.problem.hops import Ints
from launcher.placement.problem.problem import Layout, Problem, is_valid
from launcher.placement.problem.step_time import StepTimer

WIDTH = 8
PATIENCE = 2
"""Rounds without a better layout before the search ends."""
CELLS_MAX = 1_500_000
"""Layouts tried times units in each, or items if these are more: 0.2 to 0.5 s."""
BLOCKS_MAX = 4096
"""Of larger problems too few exchanges could be tried."""
DOMAINS_MAX = 64


def refine(problem: Problem, timer: StepTimer, layouts: Sequence[Layout]) -> list[tuple[float, Layout]]:
    """Return the layouts given, and better ones found from them, each with its time, the fastest first."""
    found: dict[bytes, tuple[float, float, int, Layout]] = {}

    def add(some: Sequence[Layout] | NDArray[np.int32]) -> list[Layout]:
        """Add layouts; return the fastest valid ones, as many as a beam has."""
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

    beam, left, idle, best = add(layouts), CELLS_MAX, 0, None
    width = max(problem.traffic.block_count, len(problem.capacity))
    if problem.traffic.block_count > BLOCKS_MAX:
        left = 0
    while beam and left > 0 and idle < PATIENCE:
        now = min(found.values(), key=lambda each: each[:3])[:2]
        idle = 0 if now != best else idle + 1
        best = now
        share = max(1, left // (len(beam) * width))
        rows = np.concatenate([_list_neighbours(problem, timer, layout, share) for layout in beam])
        left -= len(rows) * width
        beam = add(rows) if len(rows) else []
    return [(seconds, layout) for seconds, _, _, layout in sorted(found.values(), key=lambda each: each[:3])]


def _list_neighbours(problem: Problem, timer: StepTimer, layout: Layout, most: int) -> NDArray[np.int32]:
    """Return at most so many layouts after one exchange that may relieve a slowest link, a row each."""
    count = len(problem.capacity)
    held, crowded = np.bincount(layout, minlength=count), np.zeros(count, dtype=np.bool_)
    crowded[timer.find_crowded(layout)] = True
    swaps = islice(chain(_list_domain_pairs(problem, held, crowded), _list_pairs(problem, held, crowded)), most)
    return np.array([_make_swap(count, one, other)[layout] for one, other in swaps], dtype=np.int32).reshape(
        -1, len(layout)
    )


def _make_swap(count: int, one: Ints, other: Ints) -> Ints:
    """Return item -> the item that takes over its units."""
    found = np.arange(count)
    found[one], found[other] = other, one
    return found


def _list_pairs(problem: Problem, held: Ints, crowded: NDArray[np.bool_]) -> Iterator[tuple[Ints, Ints]]:
    """Yield every two items that can exchange what they hold, one of them at a crowded link."""
    room, every = problem.capacity, np.arange(len(held))
    done = np.zeros(len(held), dtype=np.bool_)
    for one in np.flatnonzero(crowded):
        done[one] = True
        for other in np.flatnonzero(~done & (held[one] <= room) & (held <= room[one]) & (held[one] + held > 0)):
            yield every[one : one + 1], every[other : other + 1]


def _list_domain_pairs(problem: Problem, held: Ints, crowded: NDArray[np.bool_]) -> Iterator[tuple[Ints, Ints]]:
    """Yield the items of every two domains of a level that can exchange all they hold, one to one.

    One of them has an item at a crowded link.
    """
    room = problem.capacity
    for labels in problem.labels[:-1]:
        members = [np.flatnonzero(labels == domain) for domain in range(int(labels.max()) + 1)]
        if len(members) > DOMAINS_MAX:
            continue
        # The items with most units first, each beside its counterpart.
        members = [items[np.argsort(-held[items], kind="stable")] for items in members]
        for one, other in combinations(members, 2):
            if not (crowded[one].any() or crowded[other].any()):
                continue
            shared = min(len(one), len(other))
            mine, theirs = one[:shared], other[:shared]
            is_all = not held[one[shared:]].any() and not held[other[shared:]].any()
            if is_all and (held[mine] <= room[theirs]).all() and (held[theirs] <= room[mine]).all():
                yield mine, theirs


def lay_whole(problem: Problem, axis: int) -> Layout | None:
    """Return a layout that keeps the slices of an axis of the mesh whole where they fit: replicas, or stages.

    The innermost domains take as many whole slices as they hold, then the domains around them; what is left fills the
    gaps. None if that is no valid layout.
    """
    grid = problem.traffic.grid
    slices = np.moveaxis(np.arange(problem.traffic.block_count).reshape(grid), axis, 0).reshape(grid[axis], -1)
    room = problem.capacity.astype(np.int64)
    layout: Layout = np.full(problem.traffic.block_count, -1, dtype=np.int32)
    left = 0  # the first slice without a place
    for labels in reversed(problem.labels[:-1]):
        for domain in range(int(labels.max()) + 1):
            items = np.flatnonzero(labels == domain)
            places = np.repeat(items, room[items])
            count = min(len(places) // slices.shape[1], len(slices) - left)
            layout[slices[left : left + count]] = places[: count * slices.shape[1]].reshape(count, slices.shape[1])
            room -= np.bincount(places[: count * slices.shape[1]], minlength=len(room))
            left += count
    rest = slices[left:].ravel()
    layout[rest] = np.repeat(np.arange(len(room)), room)[: len(rest)]
    return layout if is_valid(problem, layout) else None
