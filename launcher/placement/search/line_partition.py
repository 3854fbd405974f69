"""Partitions the line of units among domains: which comes next, and how much of its room it uses.

The cut profile is, for each gap between two units on the line, the weight of all hops that cross it. Domains are
segments of given sizes, put on the line end to end. Segments of 7, 8, 8 and 8 on rows of 7 units: the first fits; the
others would end in the middle of a row, but if there is room to spare, each can take 7 as well. The rest at the end are
the spares. `partition_greedily` takes the cheapest cut at each step; `partition_by_beam` follows several partitions at
once and is slower.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any, NamedTuple

BEAM_SMALL, BEAM_LARGE = 8, 2
CHILDREN_SMALL = 40
TAKES = 3
"""How many amounts are tried per kind of domain: its full room, and the best of fewer."""

Partition = list[tuple[int, int]]
"""Kind and amount of each domain along the line."""


class RoomKind(NamedTuple):
    """`number` domains with the same `room`."""

    room: int
    number: int


def find_only_partition(kinds: Sequence[RoomKind], amount: int, step: int) -> Partition | None:
    """Return the partition if there is only one."""
    if len(kinds) > 1 or kinds[0].room * kinds[0].number - amount >= step:
        return None
    room = kinds[0].room
    return [(0, min(room, amount - done)) for done in range(0, amount, room)]


def _compute_scale(kinds: Sequence[RoomKind], cut: Sequence[int]) -> tuple[int, int, int]:
    """Return the slack, a usual room, and the usual cost of a cut: an expensive cut is worth it if it covers much."""
    amount = len(cut) - 1
    total = sum(kind.room * kind.number for kind in kinds)
    return total - amount, max(1, total // sum(kind.number for kind in kinds)), sum(cut) // amount


def partition_greedily(kinds: Sequence[RoomKind], cut: Sequence[int], step: int) -> Partition:
    """Partition a line with this profile, each time with the domain whose end is the cheapest cut for its size."""
    amount = len(cut) - 1
    slack, usual_room, usual_cut = _compute_scale(kinds, cut)
    left = [kind.number for kind in kinds]
    chosen: Partition = []
    position = 0
    rooms = [kind.room for kind in kinds]
    live = [*range(len(kinds))]
    while position < amount:
        best_key, best_index, best_take = 0, -1, 0
        rest = amount - position
        for index in live:
            room = rooms[index]
            takes = (room,) if slack < step and room <= rest else _list_takes(room, rest, slack, step, cut, position)
            for take in takes:
                key = cut[position + take] * usual_room - usual_cut * take
                if key < best_key or best_index < 0:
                    best_key, best_index, best_take = key, index, take
        chosen.append((best_index, best_take))
        left[best_index] -= 1
        if not left[best_index]:
            live.remove(best_index)
        slack -= rooms[best_index] - best_take
        position += best_take
    return chosen


BeamState = tuple[int, int, int, int, int, Any]
"""Key, kinds used (a number with a digit for each kind), position, cost, slack, and its history:
(kind, amount, the previous state)."""


def partition_by_beam(kinds: Sequence[RoomKind], cut: Sequence[int], step: int) -> Partition:
    """Partition a line with this profile, following several partitions at once."""
    amount = len(cut) - 1
    width = BEAM_SMALL if sum(kind.number for kind in kinds) <= CHILDREN_SMALL else BEAM_LARGE
    slack, usual_room, usual_cut = _compute_scale(kinds, cut)
    digits: list[int] = [1]
    for kind in kinds:
        digits.append(digits[-1] * (kind.number + 1))
    states: list[BeamState] = [(0, 0, 0, 0, slack, None)]
    best: BeamState | None = None
    while states:
        following: dict[tuple[int, int], BeamState] = {}
        for _, used, position, cost, slack, last in states:
            for index, (room, number) in enumerate(kinds):
                digit = digits[index]
                if used // digit % (number + 1) == number:
                    continue
                for take in _list_takes(room, amount - position, slack, step, cut, position):
                    end = position + take
                    spent = cost + cut[end]
                    key = spent * usual_room - usual_cut * end
                    found = following.get((end, used + digit))
                    if found is None or key < found[0]:
                        state = (key, used + digit, end, spent, slack - room + take, (index, take, last))
                        following[end, used + digit] = state
        states = []
        for state in heapq.nsmallest(width, following.values()):
            if best is not None and state[3] >= best[3]:
                continue
            if state[2] == amount:
                best = state
            else:
                states.append(state)
    assert best is not None  # the rooms suffice
    chosen: Partition = []
    last = best[5]
    while last is not None:
        index, take, last = last
        chosen.append((index, take))
    return chosen[::-1]


def _list_takes(room: int, left: int, slack: int, step: int, cut: Sequence[int], position: int) -> Sequence[int]:
    """Amounts worth trying: as much as possible, and where the cuts are cheapest among those that slack allows."""
    most = min(room, left)
    least = max(step, room - slack)
    if least >= most:
        return (most,)
    fewer = range(most - step, least - 1, -step)
    if len(fewer) >= TAKES:
        fewer_best = sorted(fewer, key=lambda take: cut[position + take])[: TAKES - 1]
        return (most, *fewer_best)
    return (most, *fewer)
