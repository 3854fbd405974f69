"""Simulated annealing over layouts: slow, patient, and of no use to anybody but the benchmark.

A layout is tried to death: something is exchanged, the cost goes up or down, a change for the worse is accepted as long
as the temperature allows, and the temperature falls. Two kernels: `anneal_places` where every item holds one block or
none, so that a move is some exchanges; `anneal_runs` where items hold runs of different lengths and a move shifts what
lies between. What decides is the exact difference of the cost, in integers.

With numba installed the kernels are compiled and make about a million moves a second. Without it they are the same
Python, some hundred times slower: good for a look, too slow for a record.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """The function as machine code, or as it is where there is no numba."""
    try:
        from numba import njit  # type: ignore[import-not-found]
    except ImportError:
        return function
    found: Function = njit(cache=True)(function)
    return found


EXCHANGES_MAX = 64  # in one move


class Board(NamedTuple):
    """What stays as it is while the layout changes.

    Blocks along the line of ranks talk to `to[start[b]:start[b + 1]]` with `weight`; `kind` is 0 for traffic and else
    numbers a rule. `domain[item, level]`, outermost level first, the host's last. `far[kind, level]` is the price of
    two blocks whose items part at that level, of a rule what it costs to break it. `members` are the items of each
    domain of a level, from `first[level, domain]` on in row `level`. `stride`, `extent`: axes, in blocks.
    """

    start: Any
    to: Any
    weight: Any
    kind: Any
    domain: Any
    far: Any
    members: Any
    first: Any
    stride: Any
    extent: Any
    capacity: Any


@compiled
def parting(domain: Any, one: int, other: int) -> int:
    for level in range(domain.shape[1]):
        if domain[one, level] != domain[other, level]:
            return level
    return int(domain.shape[1])


@compiled
def change(board: Any, before: Any, after: Any, blocks: Any) -> int:
    """What the cost changes by from one layout to another, which differ in some of these blocks, each named once."""
    delta = 0
    for block in blocks:
        if block >= len(board.start) - 1 or before[block] == after[block]:
            continue
        for edge in range(board.start[block], board.start[block + 1]):
            other = board.to[edge]
            if other < block and before[other] != after[other]:
                continue  # counted from its other end
            far = board.far[board.kind[edge]]
            was = parting(board.domain, before[block], before[other])
            now = parting(board.domain, after[block], after[other])
            delta += board.weight[edge] * (far[now] - far[was])
    return delta


@compiled
def draw_near(board: Any, item: int, level: int) -> int:
    """An item of the same domain of this level."""
    domain = board.domain[item, level]
    return int(board.members[level, np.random.randint(board.first[level, domain], board.first[level, domain + 1])])


@compiled
def box(board: Any, active: int, corner: int, found: Any) -> int:
    """Positions of a random box of the grid, from `corner` on; how many."""
    found[0] = corner
    count = 1
    for _ in range(1 + np.random.randint(2)):
        axis = np.random.randint(len(board.stride))
        length = 1 + np.random.randint(min(board.extent[axis], EXCHANGES_MAX))
        if np.random.random() < 0.5:
            length = min(length, 1 + np.random.randint(6))
        layer = count
        for step in range(1, length):
            for index in range(layer):
                position = found[index] + step * board.stride[axis]
                if position < active and count < EXCHANGES_MAX:
                    found[count] = position
                    count += 1
    return int(count)


@compiled
def propose(board: Any, place: Any, where: Any, active: int, ps: Any, qs: Any) -> int:
    """Pairs of positions to exchange; how many."""
    levels = board.domain.shape[1]
    draw = np.random.random()
    p = np.random.randint(active)
    if draw < 0.15 or board.start[p] == board.start[p + 1]:
        ps[0], qs[0] = p, np.random.randint(len(place))
        return 1
    level = 0
    if levels > 1:
        level = levels - 2 if np.random.random() < 0.7 else np.random.randint(levels - 1)
    if draw < 0.65:  # next to somebody it talks to
        edge = np.random.randint(board.start[p], board.start[p + 1])
        ps[0], qs[0] = p, where[draw_near(board, place[board.to[edge]], level)]
        return 1
    count = box(board, active, p, ps)
    if draw < 0.85:  # a box with its like elsewhere
        axis = np.random.randint(len(board.stride))
        shift = board.stride[axis] * (1 + np.random.randint(board.extent[axis]))
        if np.random.random() < 0.5:
            shift = -shift
        kept = 0
        for index in range(count):
            if 0 <= ps[index] + shift < active:
                ps[kept], qs[kept] = ps[index], ps[index] + shift
                kept += 1
        return kept
    # A box becomes a domain.
    near = board.domain[place[np.random.randint(len(place))], level]
    low, high = board.first[level, near], board.first[level, near + 1]
    count = min(count, high - low)
    for index in range(count):
        qs[index] = where[board.members[level, low + index]]
    return int(count)


@compiled
def anneal_places(board: Any, place: Any, active: int, hot: float, cold: float, move_count: int, seed: int) -> int:
    """Change `place` (position -> item, spares behind `active`) into the best layout met; by how much the cost fell."""
    np.random.seed(seed)
    where = np.argsort(place)
    after, best = place.copy(), place.copy()
    ps = np.empty(EXCHANGES_MAX, dtype=np.int64)
    qs = np.empty(EXCHANGES_MAX, dtype=np.int64)
    moved = np.empty(2 * EXCHANGES_MAX, dtype=np.int64)
    best_cost = cost = 0
    for move in range(move_count):
        moved_count = 0
        for index in range(propose(board, place, where, active, ps, qs)):
            p, q = ps[index], qs[index]
            if p != q and after[p] == place[p] and after[q] == place[q]:  # each position takes part once
                after[p], after[q] = place[q], place[p]
                moved[moved_count], moved[moved_count + 1] = p, q
                moved_count += 2
        delta = change(board, place, after, moved[:moved_count])
        if delta > 0 and np.random.random() >= math.exp(-delta / (hot * (cold / hot) ** (move / move_count))):
            for position in moved[:moved_count]:
                after[position] = place[position]
            continue
        for position in moved[:moved_count]:
            place[position] = after[position]
            where[place[position]] = position
        cost += delta
        if cost < best_cost:
            best_cost = cost
            best[:] = place
    place[:] = best
    return int(best_cost)


@compiled
def shuffle_runs(board: Any, runs: Any, active: int, layout: Any, where: Any) -> int:
    """One random change to a sequence of runs; the new number of active items, or -1 if it came to nothing."""
    order, length = runs[0], runs[1]
    draw = np.random.random()
    i = np.random.randint(active)
    if draw < 0.5:  # to where one of its partners is
        block = np.random.randint(len(layout))
        if board.start[block] == board.start[block + 1]:
            return -1
        edge = np.random.randint(board.start[block], board.start[block + 1])
        i = where[layout[block]]
        j = where[draw_near(board, layout[board.to[edge]], max(0, board.domain.shape[1] - 2))]
    elif draw < 0.7:
        j = i + 1 + np.random.randint(4)
    else:
        j = np.random.randint(len(order))
    i, j = min(i, j), max(i, j)
    if j >= len(order) or i == j or i >= active:
        return -1
    kind = np.random.random()
    if kind < 0.25:  # the items change places, the runs stay
        if board.capacity[order[i]] < length[j] or board.capacity[order[j]] < length[i]:
            return -1
        order[i], order[j] = order[j], order[i]
        return active
    if kind < 0.5:  # a block from one to the other, which may be a spare
        if j < active and np.random.random() < 0.5:
            i, j = j, i
        if length[j] >= board.capacity[order[j]]:
            return -1
        if j >= active:
            order[j], order[active] = order[active], order[j]
            j = active
            active += 1
        length[i] -= 1
        length[j] += 1
        if length[i] > 0:
            return active
        gone = order[i]
        runs[:, i : active - 1] = runs[:, i + 1 : active].copy()
        order[active - 1], length[active - 1] = gone, 0
        return active - 1
    if j >= active:
        return -1
    if kind < 0.6:  # a stretch the other way round
        j = min(j, i + 24)
        runs[:, i:j] = runs[:, i:j][:, ::-1].copy()
        return active
    # Two short stretches change places.
    end, stop = min(i + np.random.randint(0, 4), j), min(j + np.random.randint(1, 4), active)
    runs[:, i:stop] = np.concatenate((runs[:, j:stop], runs[:, end:j], runs[:, i:end]), axis=1)
    return active


@compiled
def anneal_runs(
    board: Any, runs: Any, active: int, hot: float, cold: float, move_count: int, seed: int
) -> tuple[int, int]:
    """Change `runs` (items, spares behind `active`, over their lengths) into the best met; (fall, active)."""
    np.random.seed(seed)
    blocks = np.arange(len(board.start) - 1)
    layout, where = np.repeat(runs[0, :active], runs[1, :active]), np.argsort(runs[0])
    best, best_active = runs.copy(), active
    best_cost = cost = 0
    for move in range(move_count):
        new = runs.copy()
        new_active = shuffle_runs(board, new, active, layout, where)
        if new_active < 0:
            continue
        new_layout = np.repeat(new[0, :new_active], new[1, :new_active])
        delta = change(board, layout, new_layout, blocks)
        if delta > 0 and np.random.random() >= math.exp(-delta / (hot * (cold / hot) ** (move / move_count))):
            continue
        cost += delta
        runs[:], active, layout, where = new, new_active, new_layout, np.argsort(new[0])
        if cost < best_cost:
            best[:], best_active, best_cost = runs, active, cost
    runs[:] = best
    return int(best_cost), int(best_active)
