"""Assigns runs of consecutive units to items with room for several.

The units of a leaf form runs: stretches of consecutive ranks. Every item holds consecutive units, so a run is divided
among items, and no item serves two runs. Short runs are served first, each by the largest items that fit into the rest
of it; the longest gets the remaining items, cut where that is cheapest.
"""

from __future__ import annotations

from collections.abc import Sequence

from launcher.placement.search.line_partition import RoomKind, partition_greedily

Allocation = list[tuple[int, int, int]]
"""Item, first position, how many."""


def cut_up(rooms: Sequence[int], runs: Sequence[tuple[int, int]], cut: Sequence[int]) -> Allocation | None:
    """Divide the runs; None if the items do not suffice. `runs`: position and length; `cut`: see `line_partition`."""
    free: dict[int, list[int]] = {}
    for item in range(len(rooms) - 1, -1, -1):
        free.setdefault(rooms[item], []).append(item)
    taken: Allocation = []
    ordered = sorted(runs, key=lambda run: (run[1], run[0]))
    for index, (start, length) in enumerate(ordered):
        own = _count_remaining(free) if index == len(ordered) - 1 else _choose_for_run(free, length)
        if sum(room * count for room, count in own.items()) < length:
            return None
        kinds = [RoomKind(room, own[room]) for room in sorted(own, reverse=True)]
        # Inside a run only its own cuts count; at its end there is none.
        profile = [0, *cut[start + 1 : start + length], 0]
        for kind, take in partition_greedily(kinds, profile, 1):
            taken.append((free[kinds[kind].room].pop(), start, take))
            start += take
    return taken


def _count_remaining(free: dict[int, list[int]]) -> dict[int, int]:
    return {room: len(items) for room, items in free.items() if items}


def _choose_for_run(free: dict[int, list[int]], length: int) -> dict[int, int]:
    """Return how many items of each room for a run: the largest that fit, and for a rest the smallest that holds it."""
    own: dict[int, int] = {}
    left = length
    for room in sorted(free, reverse=True):
        count = min(len(free[room]), left // room) if room else 0
        if count:
            own[room] = count
            left -= count * room
    for room in sorted(free):
        while left > 0 and room and own.get(room, 0) < len(free[room]):
            own[room] = own.get(room, 0) + 1
            left -= room
    return own
