"""Lays out items of different sizes, each with a run of consecutive ranks, in parallel rows.

Where every item holds one unit, a leaf can have any tile of the mesh. Where items hold runs, a tile has to consist of
whole runs, and runs of 3 and 4 units rarely fill a row of 9. So, like bricks, some adjacent rows of the mesh are filled
together, and each item goes to the row that is furthest behind. The items of a leaf then form a patch with ragged ends
and without gaps. At the end of a row comes an item that fits, if the leaf or the next ones have any.

    a a a a b b b c c c c c d d
    a a b b b b c c c d d d d d     two rows; leaf a has runs of 4 and 2, leaf b of 3 and 4, ...
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from launcher.placement.problem.domains import DomainTree
from launcher.placement.problem.problem import Layout

ROWS_MAX = 16
LOOKAHEAD = 32
"""How many items after the next are searched for one that fits."""


def lay_rows(tree: DomainTree, grid: Sequence[int]) -> Iterator[Layout]:
    """Yield layouts of rows filled together, for every sensible number of them; for each end of the axes as rows."""
    rooms = tree.capacity.tolist()
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
            laid = _lay(rooms, row_count, length, together)
            if laid is not None:
                yield tree.items[laid].astype(np.int32)


def _lay(rooms: Sequence[int], row_count: int, length: int, together: int) -> list[int] | None:
    """Return unit -> place in `rooms`; None if the items are used up before the rows are full."""
    found = [0] * (row_count * length)
    waiting = list(range(len(rooms) - 1, -1, -1))
    slack, largest = sum(rooms) - len(found), max(rooms)
    for first in range(0, row_count, together):
        band = range(first, min(first + together, row_count))
        ends = dict.fromkeys(band, 0)
        while ends:
            row = min(ends, key=lambda each: (ends[each], each))
            left = length - ends[row]
            if not waiting:
                return None
            take = _choose_next(waiting, rooms, left, largest)
            room = rooms[take]
            slack -= max(0, room - left)
            if slack < 0:
                return None
            start = row * length + ends[row]
            found[start : start + min(room, left)] = [take] * min(room, left)
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
