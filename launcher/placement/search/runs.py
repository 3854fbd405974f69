"""Layouts of items of different sizes, each with a run of consecutive ranks.

Where every item holds one unit, a leaf can have any tile of the mesh. Where items hold runs, a tile has to consist of
whole runs, and runs of 3 and 4 units rarely fill a row of 9. So, like bricks, `lay_rows` fills some adjacent rows of
the mesh together, and each item goes to the row that is furthest behind. The items of a leaf then form a patch with
ragged ends and without gaps. At the end of a row comes an item that fits, if the leaf or the next ones have any.

    a a a a b b b c c c c c d d
    a a b b b b c c c d d d d d     two rows; leaf a has runs of 4 and 2, leaf b of 3 and 4, ...

`improve` exchanges blocks of one size. Exchanging two runs of unequal length shifts all runs between, so the gain has
to be computed again, hop by hop: `reorder` does so for many exchanges at once, of items that are near each other, in
clusters that are not large.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from launcher.placement.problem.hops import Ints, build_graph
from launcher.placement.problem.problem import Layout, Problem, is_valid, list_costs

ROWS_MAX = 16
LOOKAHEAD = 32
"""How many items after the next are searched for one that fits."""
REACH = 24
ROUNDS = 20
CELLS_MAX = 1 << 21
"""Exchanges times communicating pairs of units, in a round."""
CHUNK = 128


def lay_rows(items: NDArray[np.integer], rooms: Sequence[int], grid: Sequence[int]) -> Iterator[Layout]:
    """Yield layouts of rows filled together, for every sensible number of them; for each end of the axes as rows.

    `rooms`: of the items, in the order in which they are used.
    """
    seen: set[tuple[int, int]] = set()
    for axis in range(1, len(grid)):
        length = math.prod(grid[axis:])
        row_count = math.prod(grid[:axis])
        if row_count == 1 or length < max(rooms):
            continue
        for together in range(2, min(row_count, ROWS_MAX) + 1):
            if (length, together) in seen or (row_count % together and together > row_count // 2 + 1):
                continue
            seen.add((length, together))
            laid = _fill_rows(rooms, row_count, length, together)
            if laid is not None:
                yield items[laid].astype(np.int32)


def _fill_rows(rooms: Sequence[int], row_count: int, length: int, together: int) -> list[int] | None:
    """Return unit -> place in `rooms`; None if the items are used up before the rows are full."""
    found = [0] * (row_count * length)
    waiting = list(range(len(rooms) - 1, -1, -1))
    slack, largest = sum(rooms) - len(found), max(rooms)
    for first in range(0, row_count, together):
        ends = dict.fromkeys(range(first, min(first + together, row_count)), 0)
        while ends:
            row = min(ends, key=lambda each: (ends[each], each))
            left = length - ends[row]
            if not waiting:
                return None
            taken = _choose_next(waiting, rooms, left, largest)
            room = rooms[taken]
            slack -= max(0, room - left)
            if slack < 0:
                return None
            start = row * length + ends[row]
            found[start : start + min(room, left)] = [taken] * min(room, left)
            ends[row] += room
            if ends[row] >= length:
                del ends[row]
    return found


def _choose_next(waiting: list[int], rooms: Sequence[int], left: int, largest: int) -> int:
    """Return the next item; at the end of a row one of the next that fills it, or as much of it as possible."""
    best = len(waiting) - 1
    if left <= largest:
        ahead = range(best, max(-1, best - LOOKAHEAD), -1)
        fitting = [index for index in ahead if rooms[waiting[index]] <= left]
        if fitting:
            best = max(fitting, key=lambda index: rooms[waiting[index]])
        else:
            best = min(ahead, key=lambda index: rooms[waiting[index]])
    return waiting.pop(best)


# Exchanges


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
        for count in (len(chosen), 1):
            order = np.arange(len(items))
            for one, other in chosen[:count]:
                order[[one, other]] = order[[other, one]]
            found = np.repeat(items[order], lengths[order]).astype(np.int32)
            if problem.compute_cost(found) < now and is_valid(problem, found):
                layout = found
                break
        else:
            return layout
    return layout


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
    costs = np.concatenate([list_costs(problem, graph, each) for each in _apply_exchanges(items, lengths, pairs)])
    return items, lengths, pairs, costs


def _apply_exchanges(items: Ints, lengths: Ints, pairs: list[tuple[int, int]]) -> Iterator[Ints]:
    """Yield the layouts after each exchange, some at a time."""
    for start in range(0, len(pairs), CHUNK):
        some = np.array(pairs[start : start + CHUNK])
        order = np.repeat(np.arange(len(items))[None, :], len(some), axis=0)
        rows = np.arange(len(some))
        order[rows, some[:, 0]], order[rows, some[:, 1]] = some[:, 1], some[:, 0]
        yield np.repeat(items[order].ravel(), lengths[order].ravel()).reshape(len(some), -1)
