"""A lower bound of the cost of any layout, by a count for each level.

A domain with room for 8 units has room for two whole groups of 4, and for no whole group of 16. So at each level the
rooms say how many groups of a communicator can be inside a domain at most: all others cross the level. A group that
crosses is in two domains at least, or in as many as it needs if it is larger than the largest domain. A ring in so many
domains has at least as many hops between them, a line one less; in an exchange all units in one domain communicate with
all in the others, and least crosses if the group fills the largest domains.

Communicators and levels are counted each for itself. In truth they compete: the units of a leaf cannot be whole groups
along one axis and along another. So the bound is met where one layout suits all of them, and lies below elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from launcher.placement.problem.hops import Exchange, Hops
from launcher.placement.problem.problem import Problem


def compute_lower_bound(problem: Problem) -> int:
    """Return a number that J of no valid layout is below, scaled like `Problem.compute_cost`."""
    traffic = problem.traffic
    total = 0
    for level_cost, labels in zip(traffic.level_costs, problem.labels, strict=True):
        if level_cost:
            rooms = np.bincount(labels, weights=problem.capacity).astype(np.int64)
            crossing = sum(
                _count_crossing(part, traffic.block_count, rooms.tolist()) * part.weight for part in traffic.parts
            )
            total += level_cost * crossing
    return total


def _count_crossing(part: Hops | Exchange, block_count: int, rooms: Sequence[int]) -> int:
    """Return the least hops or pairs of a communicator that lead from one domain to another. `rooms`: of domains."""
    if isinstance(part, Exchange):
        group_count, size = block_count // part.size, part.size
    else:  # a ring has one closing hop, a line has one hop less than units
        group_count = part.closing or block_count - len(part.low)
        size = block_count // group_count
    count = max(0, group_count - sum(room // size for room in rooms))
    largest = min(max(rooms), size - 1)  # part of a group that crosses
    if isinstance(part, Exchange):
        full, rest = divmod(size, largest)
        return count * (math.comb(size, 2) - full * math.comb(largest, 2) - math.comb(rest, 2))
    domains = -(-size // largest)
    return count * (domains if part.communicator.kind == "ring" else domains - 1)
