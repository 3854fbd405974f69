"""Keeping ranks where they are from one round to the next.

What must not move is a *coordinate*: the worker at pp=1, dp=3 finds its checkpoint shard, its compiled programs and its
page cache on the node where it was. When the elastic axis shrinks, coordinates beyond its new size vanish and all
others stay, though their rank numbers may change; when it grows, new ones appear.

Everything below counts in units along the line of the new world's ranks, and an item (a node, or a slice) holds one run
of consecutive units. `fill_holes` moves no rank and gives each hole to a free item. Where that is impossible, because
every slot is needed and runs no longer meet end to end, `tile` cuts the line into full items and gives each piece to
the item that held most of it. An `ItemPicker` knows the costs and chooses the item for a hole.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from itertools import pairwise

from launcher.model.mesh import Mesh
from launcher.placement.limits import NO_ITEM, Plan, Run

ItemPicker = Callable[[Collection[int], int, int], int]
"""(free items in order, first unit of a hole, units missing there) -> the item that gets them, as far as it has room,
or NO_ITEM."""


def find_owners(previous: Plan, mesh: Mesh, shape: tuple[int, ...]) -> list[str | None] | None:
    """Return for every rank of a world of `shape` the node that held its coordinates before; None if they are new.

    None in place of the list if the plan was of another mesh, except perhaps for the size of the elastic axis.
    """
    if not mesh.has_shape(previous.shape):
        return None
    owners: list[str | None] = [None] * math.prod(shape)
    elastic = next((index for index, axis in enumerate(mesh.axes) if axis.size is None), 0)
    inner = math.prod(shape[elastic + 1 :])
    size_before, size_now = previous.shape[elastic], shape[elastic]
    for node, ranks in previous.ranks.items():
        done = 0
        while done < len(ranks):
            rank = ranks[done]
            outer_and_elastic, low = divmod(rank, inner)
            outer, index = divmod(outer_and_elastic, size_before)
            # Ranks of one step of the elastic axis stay together, so a run of them is written at once.
            count = min(inner - low, len(ranks) - done)
            if ranks[done + count - 1] != rank + count - 1:
                count = 1
            if index < size_now and outer * size_before < math.prod(previous.shape[: elastic + 1]):
                start = (outer * size_now + index) * inner + low
                owners[start : start + count] = [node] * count
            done += count
    return owners


def count_moved(owners: Sequence[str | None], node: str, start: int, end: int) -> int:
    """Count ranks from `start` to `end`, now on `node`, with coordinates that another held before; not new ones."""
    before = owners[start:end]
    return len(before) - before.count(None) - before.count(node)


def fill_holes(held: Sequence[int], rooms: Sequence[int], pick: ItemPicker) -> list[Run] | None:
    """Return runs in which no present item's units move, and each hole is filled; None if that is impossible.

    `held`: unit -> item that held it, or NO_ITEM; `rooms`: of the items, in units. A hole goes to the next item along
    the line if that has room, else to the free item that `pick` chooses.
    """
    kept = _find_kept_stretches(held, rooms)
    if any(end > start for (_, _, end), (_, start, _) in pairwise(kept)):
        return None  # an item between two parts of another: these ranks were not laid out by this planner
    taken = {item for item, _, _ in kept}
    free = dict.fromkeys(item for item in range(len(rooms)) if item not in taken)
    filled: list[Run] = []
    hole_start = 0
    for right, start, end in [*kept, (NO_ITEM, len(held), len(held))]:
        left, left_length = filled[-1] if filled else (NO_ITEM, 0)
        left_room = rooms[left] - left_length if left != NO_ITEM else 0
        right_room = rooms[right] - (end - start) if right != NO_ITEM else 0
        missing = start - hole_start
        takers: list[Run] = []
        if max(left_room, right_room) < missing:
            while missing and free:
                taker = pick(free, start - missing, missing)
                if taker == NO_ITEM:
                    return None
                del free[taker]
                takers.append((taker, min(missing, rooms[taker])))
                missing -= takers[-1][1]
        # The units still missing extend the neighbours' runs, which moves none of their ranks.
        from_left = min(missing, left_room)
        from_right = missing - from_left
        if from_right > right_room:
            return None
        if from_left:
            filled[-1] = (left, left_length + from_left)
        filled += takers
        if right != NO_ITEM:
            filled.append((right, end - start + from_right))
        hole_start = end
    return filled


def tile(held: Sequence[int], rooms: Sequence[int], pick: ItemPicker) -> list[Run] | None:
    """Return runs that fill every item but the last, each given to the item that held most of it.

    None if the items are of different sizes: then the cuts depend on the order of the items, which requires a search.
    """
    length = rooms[0]
    if any(room != length for room in rooms):
        return None
    pieces = [(start, min(length, len(held) - start)) for start in range(0, len(held), length)]
    overlap = Counter((unit // length, item) for unit, item in enumerate(held) if item != NO_ITEM)
    free = dict.fromkeys(range(len(rooms)))
    takers: dict[int, int] = {}
    # `overlap` was filled along the line, so equals keep that order whatever the order of the nodes.
    for index, item in sorted(overlap, key=lambda piece: (-overlap[piece], piece[0])):
        if index not in takers and item in free:
            takers[index] = item
            del free[item]
    for index, piece in enumerate(pieces):
        if index not in takers:
            takers[index] = pick(free, *piece)
            if takers[index] == NO_ITEM:
                return None
            del free[takers[index]]
    return [(takers[index], length) for index, (_, length) in enumerate(pieces)]


def make_first_fit(rooms: Sequence[int]) -> ItemPicker:
    """Where cost does not matter: the smallest item that can fill the hole alone, else the largest; then the first."""
    is_even = min(rooms) == max(rooms)

    def pick(free: Collection[int], _start: int, missing: int) -> int:
        if is_even:
            return next(iter(free))
        return min(free, key=lambda item: (rooms[item] < missing, abs(rooms[item] - missing)))

    return pick


def _find_kept_stretches(held: Sequence[int], rooms: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return each present item, its first unit and the one after its last, cut to its room."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for unit, item in enumerate(held):
        if item != NO_ITEM:
            first.setdefault(item, unit)
            last[item] = unit
    return [(item, start, min(last[item] + 1, start + rooms[item])) for item, start in first.items()]
