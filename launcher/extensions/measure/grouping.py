"""From echoes to groups: which nodes answer one another fast while the network is full.

Round trips are compared by their logarithms, because what counts is how many times longer one takes. Otsu's method
cuts all of them into two classes; below a ratio of 3 between the classes nothing is told apart. Nodes are joined by
average linkage, which one odd pair does not mislead as it does single linkage, and only up to the cut. What was found
is held against the pairs again: groups that more than a few pairs contradict are noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from msgspec import Struct

RATIO_MIN = 3.0
MISFITS_MAX = 0.1  # of near pairs, and of far pairs
FLOOR_S = 50e-6
"""Shorter round trips count as this long: what a kernel takes to wake a thread says nothing of the network."""

Pair = tuple[int, int]  # of participants, the smaller one first
Groups = tuple[tuple[int, ...], ...]  # each in order, the one with the smallest member first


class Grouping(Struct, frozen=True, kw_only=True):
    """Nodes in groups of short round trips."""

    groups: Groups
    ratio: float = 1.0
    """Of a usual round trip between groups to one within a group, 1 for one group."""
    reason: str = ""
    """Why it is one group, or why the groups are doubtful; "" otherwise."""
    is_consistent: bool = True


def make_pair(one: int, other: int) -> Pair:
    return (one, other) if one < other else (other, one)


def cut(values: Sequence[float]) -> tuple[float, float]:
    """Return where Otsu's method cuts the values, and the distance between the means of the two classes."""
    ordered = np.sort(values)
    below, count = np.cumsum(ordered)[:-1], np.arange(1, len(ordered))
    apart = (ordered.sum() - below) / (len(ordered) - count) - below / count
    spread = np.where(np.diff(ordered) > 0, count * (len(ordered) - count) * apart**2, -1)
    at = int(spread.argmax())
    return float(ordered[at] + ordered[at + 1]) / 2, float(apart[at])


def find_groups(
    members: Sequence[int], round_trips_s: Mapping[Pair, float], *, ratio_min: float = RATIO_MIN
) -> Grouping:
    """Group the members by the usual round trip of each pair. Pairs that are missing say nothing.

    Fewer than two groups of more than one member are none: one node that is slow to all would be a group.
    """
    whole = (tuple(sorted(members)),)
    known = {pair: math.log(max(FLOOR_S, value)) for pair, value in round_trips_s.items() if {*pair} <= set(members)}
    if len(known) < 2:
        return Grouping(groups=whole, reason="there are too few pairs to compare")
    limit, distance = cut(list(known.values()))
    ratio = math.exp(distance)
    if ratio < ratio_min:
        return Grouping(groups=whole, ratio=ratio, reason=f"far round trips are {ratio:.1f} times as long as near ones")
    groups = _link(members, known, limit)
    if sum(len(group) > 1 for group in groups) < 2:
        return Grouping(groups=whole, ratio=ratio, reason="there are no two groups of several nodes")
    group_of = {member: index for index, group in enumerate(groups) for member in group}
    misfits = {True: [0, 0], False: [0, 0]}
    for (one, other), value in known.items():
        is_near = group_of[one] == group_of[other]
        misfits[is_near][0] += (value <= limit) != is_near
        misfits[is_near][1] += 1
    share = max(wrong / max(1, total) for wrong, total in misfits.values())
    is_consistent = share <= MISFITS_MAX
    reason = "" if is_consistent else f"{share:.0%} of the measured pairs do not match the groups found"
    return Grouping(groups=groups, ratio=ratio, reason=reason, is_consistent=is_consistent)


def _link(members: Sequence[int], known: Mapping[Pair, float], limit: float) -> Groups:
    """Join the two clusters with the least mean distance over known pairs, again and again, up to the limit."""
    place = {member: index for index, member in enumerate(members)}
    total, count = np.zeros((2, len(members), len(members)))  # distances of the pairs between two clusters, and pairs
    for (one, other), value in known.items():
        at = (place[one], place[other]), (place[other], place[one])
        total[at], count[at] = value, 1
    clusters = [[member] for member in members]
    while True:
        mean = np.divide(total, count, out=np.full_like(total, math.inf), where=count > 0)
        left, gone = np.unravel_index(mean.argmin(), mean.shape)
        if mean[left, gone] > limit:
            return order_groups(filter(None, clusters))
        clusters[left] += clusters[gone]
        clusters[gone] = []
        for sums in (total, count):
            sums[left] += sums[gone]
            sums[:, left] += sums[:, gone]
            sums[gone] = sums[:, gone] = sums[left, left] = 0


def order_groups(groups: Iterable[Sequence[int]]) -> Groups:
    """Return the groups in order: members by number, groups by their first member."""
    return tuple(sorted(tuple(sorted(group)) for group in groups))
