"""Simulated annealing over layouts: slow, patient, and of no use to anybody but the benchmark.

A layout is tried to death: something is exchanged, the cost goes up or down, a change for the worse is accepted as long
as the temperature allows, and the temperature falls. Two kernels: `anneal_places` where every item holds one block or
none, so that a move is a chain of exchanges; `anneal_runs` where items hold runs of different lengths and a move shifts
what lies between. What decides is the exact difference of the cost, in integers.

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


MEMBERS_MAX = 64  # exchanges in one move


class Board(NamedTuple):
    """What stays as it is while the layout changes.

    Blocks along the line of ranks talk to `to[start[b]:start[b + 1]]` with `weight`; `kind` is 0 for traffic and else
    numbers a rule. `domain[item, level]`, outermost level first, the host's last. `far[kind, level]` is the price of
    two blocks whose items part at that level, `broken[kind, level]` whether that breaks the rule. `members` are the
    items of each domain of a level, from `first[level, domain]` on in row `level`. `stride`, `extent`: axes, in blocks.
    """

    start: Any
    to: Any
    weight: Any
    kind: Any
    domain: Any
    far: Any
    broken: Any
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
def exchange_delta(board: Any, place: Any, active: int, p: int, q: int) -> tuple[int, int]:
    """What the cost and the number of broken rules change by if positions `p` and `q` exchange their items."""
    here, there = place[p], place[q]
    delta = 0
    breaks = 0
    for _side in range(2):
        if p < active:
            for edge in range(board.start[p], board.start[p + 1]):
                other = board.to[edge]
                if other == q:
                    continue
                item = place[other]
                kind = board.kind[edge]
                before, after = parting(board.domain, here, item), parting(board.domain, there, item)
                delta += board.weight[edge] * (board.far[kind, after] - board.far[kind, before])
                breaks += board.broken[kind, after] - board.broken[kind, before]
        p, q = q, p
        here, there = there, here
    return delta, breaks


@compiled
def box(board: Any, active: int, corner: int, found: Any) -> int:
    """Positions of a random box of the grid, from `corner` on; how many."""
    axes = len(board.stride)
    found[0] = corner
    count = 1
    for _ in range(1 + np.random.randint(2)):
        axis = np.random.randint(axes)
        stride = board.stride[axis]
        length = 1 + np.random.randint(min(board.extent[axis], MEMBERS_MAX))
        if np.random.random() < 0.5:
            length = min(length, 1 + np.random.randint(6))
        layer = count
        for step in range(1, length):
            for index in range(layer):
                position = found[index] + step * stride
                if position < active and count < MEMBERS_MAX:
                    found[count] = position
                    count += 1
    return int(count)


@compiled
def propose(board: Any, place: Any, where: Any, active: int, ps: Any, qs: Any) -> int:
    """Pairs of positions to exchange one after the other; how many."""
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
        edge = board.start[p] + np.random.randint(board.start[p + 1] - board.start[p])
        near = board.domain[place[board.to[edge]], level]
        low, high = board.first[level, near], board.first[level, near + 1]
        ps[0], qs[0] = p, where[board.members[level, low + np.random.randint(high - low)]]
        return 1
    count = box(board, active, p, ps)
    if draw < 0.85:  # a box with its like elsewhere
        axis = np.random.randint(len(board.stride))
        shift = board.stride[axis] * (1 + np.random.randint(board.extent[axis]))
        if np.random.random() < 0.5:
            shift = -shift
        kept = 0
        for index in range(count):
            q = ps[index] + shift
            if 0 <= q < active:
                ps[kept], qs[kept] = ps[index], q
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
def anneal_places(
    board: Any, place: Any, active: int, hot: float, cold: float, move_count: int, seed: int, fine: int
) -> int:
    """Change `place` (position -> item, spares behind `active`) into the best layout met; by how much the cost fell.

    `fine` is the price of a broken rule on the way; the result breaks no more of them than `place` did.
    """
    np.random.seed(seed)
    where = np.empty(len(place), dtype=np.int64)
    for position in range(len(place)):
        where[place[position]] = position
    ps = np.empty(MEMBERS_MAX, dtype=np.int64)
    qs = np.empty(MEMBERS_MAX, dtype=np.int64)
    best = place.copy()
    best_cost = cost = breaks = 0
    is_kept = True
    temperature = hot
    for move in range(move_count):
        if move % 256 == 0:
            temperature = hot * math.exp(math.log(cold / hot) * move / move_count)
        count = propose(board, place, where, active, ps, qs)
        delta = 0
        more = 0
        for index in range(count):
            p, q = ps[index], qs[index]
            if place[p] == place[q] or (p >= active and q >= active):
                continue
            change, broken = exchange_delta(board, place, active, p, q)
            delta += change
            more += broken
            place[p], place[q] = place[q], place[p]
            where[place[p]], where[place[q]] = p, q
        rise = delta + fine * more
        is_taken = rise <= 0 or np.random.random() < math.exp(-rise / temperature)
        if is_taken and (delta > 0 or more > 0) and not is_kept:
            for index in range(count - 1, -1, -1):
                p, q = ps[index], qs[index]
                if p < active or q < active:
                    place[p], place[q] = place[q], place[p]
            best[:] = place
            is_kept = True
            for index in range(count):
                p, q = ps[index], qs[index]
                if p < active or q < active:
                    place[p], place[q] = place[q], place[p]
        if is_taken:
            cost += delta
            breaks += more
            if cost < best_cost and breaks <= 0:
                best_cost = cost
                is_kept = False
            continue
        for index in range(count - 1, -1, -1):
            p, q = ps[index], qs[index]
            if p < active or q < active:
                place[p], place[q] = place[q], place[p]
                where[place[p]], where[place[q]] = p, q
    if is_kept:
        place[:] = best
    return int(best_cost)


@compiled
def shuffle_runs(board: Any, order: Any, length: Any, active: int, layout: Any, where: Any) -> int:
    """One random change to a sequence of runs; the new number of active items, or -1 if it came to nothing."""
    draw = np.random.random()
    i = np.random.randint(active)
    if draw < 0.5:  # to where one of its partners is
        level = max(0, board.domain.shape[1] - 2)
        u = np.random.randint(len(layout))
        if board.start[u] == board.start[u + 1]:
            return -1
        edge = board.start[u] + np.random.randint(board.start[u + 1] - board.start[u])
        near = board.domain[layout[board.to[edge]], level]
        low, high = board.first[level, near], board.first[level, near + 1]
        i = where[layout[u]]
        j = where[board.members[level, low + np.random.randint(high - low)]]
    elif draw < 0.7:
        j = i + 1 + np.random.randint(4)
    else:
        j = np.random.randint(len(order))
    if j >= len(order) or i == j:
        return -1
    if i > j:
        i, j = j, i
    if i >= active:
        return -1
    kind = np.random.random()
    if j >= active:  # a spare takes over, as much as it can
        order[i], order[j] = order[j], order[i]
        over = length[i] - board.capacity[order[i]]
        if over > 0:
            length[i] -= over
        for _ in range(40):
            if over <= 0:
                return active
            k = np.random.randint(active + 1)
            if k == active:
                if active < len(order):
                    length[active] = min(over, board.capacity[order[active]])
                    over -= length[active]
                    active += 1
            elif length[k] < board.capacity[order[k]]:
                length[k] += 1
                over -= 1
        return -1
    if kind < 0.15:  # the items change places, the runs stay
        if board.capacity[order[i]] < length[j] or board.capacity[order[j]] < length[i]:
            return -1
        order[i], order[j] = order[j], order[i]
        return active
    if kind < 0.35:  # a block from one to the other
        if np.random.random() < 0.5:
            i, j = j, i
        if length[j] >= board.capacity[order[j]]:
            return -1
        length[i] -= 1
        length[j] += 1
        if length[i] == 0:
            gone = order[i]
            for k in range(i, active - 1):
                order[k], length[k] = order[k + 1], length[k + 1]
            order[active - 1] = gone
            length[active - 1] = 0
            return active - 1
        return active
    if kind < 0.45 and j - i < 24:  # a stretch the other way round
        while i < j:
            order[i], order[j] = order[j], order[i]
            length[i], length[j] = length[j], length[i]
            i += 1
            j -= 1
        return active
    # Two short stretches change places.
    one = np.random.randint(0, 4)
    two = np.random.randint(1, 4)
    end = min(i + one, j)
    stop = min(j + two, active)
    orders = np.concatenate((order[j:stop], order[end:j], order[i:end]))
    lengths = np.concatenate((length[j:stop], length[end:j], length[i:end]))
    order[i:stop] = orders
    length[i:stop] = lengths
    return active


@compiled
def spread_runs(order: Any, length: Any, active: int, layout: Any, where: Any) -> None:
    """Write out which item holds each block."""
    position = 0
    for index in range(active):
        for _ in range(length[index]):
            layout[position] = order[index]
            position += 1
    for index in range(len(order)):
        where[order[index]] = index


@compiled
def layout_delta(board: Any, before: Any, after: Any) -> int:
    delta = 0
    for u in range(len(before)):
        if before[u] == after[u]:
            continue
        for edge in range(board.start[u], board.start[u + 1]):
            v = board.to[edge]
            if v < u and before[v] != after[v]:
                continue
            was = parting(board.domain, before[u], before[v])
            now = parting(board.domain, after[u], after[v])
            delta += board.weight[edge] * (board.far[0, now] - board.far[0, was])
    return delta


@compiled
def anneal_runs(
    board: Any, order: Any, length: Any, active: int, hot: float, cold: float, move_count: int, seed: int
) -> tuple[int, int]:
    """Change `order` (items, spares behind `active`) and their run lengths into the best met; (fall, active)."""
    np.random.seed(seed)
    block_count = len(board.start) - 1
    layout = np.empty(block_count, dtype=np.int64)
    where = np.empty(len(order), dtype=np.int64)
    spread_runs(order, length, active, layout, where)
    new_layout = layout.copy()
    new_where = where.copy()
    new_order = order.copy()
    new_length = length.copy()
    best_order, best_length, best_active = order.copy(), length.copy(), active
    best_cost = cost = 0
    temperature = hot
    for move in range(move_count):
        if move % 256 == 0:
            temperature = hot * math.exp(math.log(cold / hot) * move / move_count)
        new_order[:] = order
        new_length[:] = length
        new_active = shuffle_runs(board, new_order, new_length, active, layout, where)
        if new_active < 0:
            continue
        spread_runs(new_order, new_length, new_active, new_layout, new_where)
        delta = layout_delta(board, layout, new_layout)
        if delta > 0 and np.random.random() >= math.exp(-delta / temperature):
            continue
        cost += delta
        active = new_active
        order[:] = new_order
        length[:] = new_length
        layout[:] = new_layout
        where[:] = new_where
        if cost < best_cost:
            best_cost = cost
            best_order[:] = order
            best_length[:] = length
            best_active = active
    order[:] = best_order
    length[:] = best_length
    return int(best_cost), int(best_active)
