"""Keeping ranks where they are from one round to the next.

What must not move is a *coordinate*: the worker at pp=1, dp=3 finds its checkpoint shard, its compiled
programs and its page cache on the node where it was. When the elastic axis shrinks, coordinates beyond its
new size vanish and all others live on, though their rank numbers may change; when it grows, new ones appear.

Everything below counts in units (see `capacity`) along the line of the new world's ranks. A node holds one
run of consecutive units. `stay` moves nobody and gives each hole to a spare. Where that is impossible,
because every slot is needed and runs no longer meet end to end, `tile` cuts the line into full nodes and
gives each piece to the node that held most of it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from launcher.mesh import Mesh
from launcher.node import Node
from launcher.placement import Plan
from launcher.topology import nearness


class Run(NamedTuple):
    """Consecutive units on one node."""

    node: str
    start: int
    length: int

    @property
    def end(self) -> int:
        return self.start + self.length


def holders(previous: Plan | None, mesh: Mesh, shape: tuple[int, ...]) -> list[str | None]:
    """For every rank of a world of `shape`: the node that held its coordinates before; None where they are new."""
    owners: list[str | None] = [None] * math.prod(shape)
    if previous is None or not _is_same_but_elastic(previous.shape, shape, mesh):
        return owners
    elastic = next((index for index, axis in enumerate(mesh.axes) if axis.size is None), 0)
    inner = math.prod(shape[elastic + 1 :])
    size_before, size_now = previous.shape[elastic], shape[elastic]
    for node, ranks in previous.ranks.items():
        for rank in ranks:
            outer_and_elastic, low = divmod(rank, inner)
            outer, index = divmod(outer_and_elastic, size_before)
            if index < size_now:
                owners[(outer * size_now + index) * inner + low] = node
    return owners


def _is_same_but_elastic(before: tuple[int, ...], now: tuple[int, ...], mesh: Mesh) -> bool:
    return len(before) == len(now) and all(
        old == new for old, new, axis in zip(before, now, mesh.axes, strict=True) if axis.size is not None
    )


def by_unit(owners: Sequence[str | None], unit: int) -> list[str | None]:
    """For every unit: the node that held all of its ranks."""
    return [
        owners[start] if all(owner == owners[start] for owner in owners[start : start + unit]) else None
        for start in range(0, len(owners), unit)
    ]


def moved_count(owners: Sequence[str | None], runs: Sequence[Run], unit: int) -> int:
    """Ranks whose coordinates another node held before; coordinates that are new do not count."""
    return sum(
        owner is not None and owner != run.node for run in runs for owner in owners[run.start * unit : run.end * unit]
    )


def stay(held: Sequence[str | None], nodes: Sequence[Node], capacity: Mapping[str, int]) -> list[Run] | None:
    """Runs in which nobody who is still here moves, and each hole is filled; None if there is no such thing.

    `held`: unit -> node that held it; `nodes`: the usable ones in order. A hole goes to the next node along the
    line if it has room, else to the free node that fits it best and, of equals, stands nearest to the hole's ends.
    """
    runs = _kept(held, capacity)
    if any(left.end > right.start for left, right in itertools.pairwise(runs)):
        return None  # a node between two parts of another: these ranks were not laid out by this planner
    by_id = {node.id: node for node in nodes}
    kept = {run.node for run in runs}
    free = [node for node in nodes if node.id not in kept]
    filled: list[Run] = []
    for right in [*runs, None]:
        hole_start = filled[-1].end if filled else 0
        hole_end = right.start if right else len(held)
        left = filled[-1] if filled else None
        left_room = capacity[left.node] - left.length if left else 0
        right_room = capacity[right.node] - right.length if right else 0
        takers: list[tuple[str, int]] = []
        missing = hole_end - hole_start
        if max(left_room, right_room) < missing:
            ends = [by_id[run.node] for run in (left, right) if run]
            while missing and free:
                taker = _best(free, missing, ends, capacity)
                free.remove(taker)
                takers.append((taker.id, min(missing, capacity[taker.id])))
                missing -= takers[-1][1]
        # What is still missing makes the neighbours' runs longer, which moves none of their ranks.
        from_left = min(missing, left_room)
        from_right = missing - from_left
        if from_right > right_room:
            return None
        if left and from_left:
            filled[-1] = left._replace(length=left.length + from_left)
        start = hole_start + from_left
        for name, length in takers:
            filled.append(Run(name, start, length))
            start += length
        if right:
            filled.append(Run(right.node, start, right.length + from_right))
    return filled


def tile(held: Sequence[str | None], nodes: Sequence[Node], capacity: Mapping[str, int]) -> list[Run] | None:
    """Runs that fill every node but the last, each given to the node that held most of it.

    None if the nodes are of different sizes: then the cuts depend on who comes where, which is a search.
    """
    if len(set(capacity.values())) != 1:
        return None
    length = next(iter(capacity.values()))
    run_count = math.ceil(len(held) / length)
    overlap: dict[tuple[int, str], int] = {}
    for unit, name in enumerate(held):
        if name is not None and name in capacity:
            overlap[unit // length, name] = overlap.get((unit // length, name), 0) + 1
    takers: dict[int, str] = {}
    taken: set[str] = set()
    # `overlap` was filled along the line, so equals keep that order whatever the order of the nodes.
    for index, name in sorted(overlap, key=lambda piece: (-overlap[piece], piece[0])):
        if index not in takers and name not in taken:
            takers[index] = name
            taken.add(name)
    by_id = {node.id: node for node in nodes}
    free = [node for node in nodes if node.id not in taken]
    for index in range(run_count):
        if index not in takers:
            ends = [by_id[takers[end]] for end in (index - 1, index + 1) if end in takers]
            taker = _best(free, length, ends, capacity)
            free.remove(taker)
            takers[index] = taker.id
    return [Run(takers[index], index * length, min(length, len(held) - index * length)) for index in range(run_count)]


def _kept(held: Sequence[str | None], capacity: Mapping[str, int]) -> list[Run]:
    """For each node still usable, the stretch from its first to its last unit, cut to what it can hold."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for unit, name in enumerate(held):
        if name is not None and name in capacity:
            first.setdefault(name, unit)
            last[name] = unit
    return [Run(name, start, min(last[name] + 1 - start, capacity[name])) for name, start in first.items()]


def _best(free: Sequence[Node], missing: int, ends: Sequence[Node], capacity: Mapping[str, int]) -> Node:
    """The smallest node that can fill the hole alone, else the largest; of equals the nearest, then the first."""

    def rank(node: Node) -> tuple[bool, int, int]:
        room = capacity[node.id]
        fits = room >= missing
        return not fits, room if fits else -room, -sum(nearness(node, end) for end in ends)

    return min(free, key=rank)
