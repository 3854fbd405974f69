"""Who sends bulk data to whom in a round, and whom each node asks for echoes meanwhile.

Participants are numbers, the order in which they came. In every round each sends to one other and receives from one:
the load is one flow a node, and no two flows meet on the way into a node, where they would look like a full uplink.
What looks random is a hash of a seed and a number: the same everywhere, and in every run of a test.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence

from msgspec import Struct

NOBODY = -1
WARM_S = 0.12
"""From the start of the load to the first echo: flows have found their rate, and queues are full."""
WINDOW_S = 0.2
RATE_WINDOW_S = 0.32  # what has arrived is counted to a few percent
SETTLE_S = 0.04  # after a round the queues empty


class LoadRound(Struct, frozen=True, kw_only=True):
    """What every participant sends for a while."""

    window_s: float = WINDOW_S
    targets: tuple[int, ...] = ()
    """For each participant the one it sends to, NOBODY for none; empty if none sends."""
    paces_bps: tuple[int, ...] = ()
    """The most that each may send, in bits per second; empty for no limit."""

    @property
    def duration_s(self) -> float:
        return self.window_s + SETTLE_S + (WARM_S if self.targets else 0.0)


def shuffle(members: Collection[int], seed: int, turn: int) -> list[int]:
    """Return the members in an order that looks random: another one for every seed and turn."""

    def draw(member: int) -> bytes:
        return hashlib.blake2b(f"{seed}/{turn}/{member}".encode(), digest_size=8).digest()

    return sorted(members, key=draw)


def list_asked(own: int, count: int) -> tuple[int, ...]:
    """Return whom number `own` of `count` participants asks: the half of all that follows it.

    So each is asked as often as it asks, and every pair once (twice where two are opposite): an echo goes both ways.
    """
    return tuple((own + offset) % count for offset in range(1, count // 2 + 1))


def make_inside_round(count: int, groups: Sequence[Collection[int]], seed: int, turn: int) -> LoadRound:
    """Each sends to another of its own group, the next one of a circle in random order; who is alone does not send."""
    targets = [NOBODY] * count
    for circle in (shuffle(group, seed, turn) for group in groups if len(group) > 1):
        for member, target in zip(circle, (*circle[1:], circle[0]), strict=True):
            targets[member] = target
    return LoadRound(targets=tuple(targets))


def make_across_round(count: int, parents: Sequence[Sequence[Sequence[int]]], seed: int, turn: int) -> LoadRound:
    """Each sends to a member of another group with the same parent; `parents` hold groups, and groups hold members.

    A random circle, in which those who would send inside their group exchange targets with others. Where one group has
    more than half of all members, some find no one to exchange with, and do not send.
    """
    targets = [NOBODY] * count
    for groups in parents:
        group_of = {member: index for index, group in enumerate(groups) for member in group}
        order = shuffle(group_of, seed, turn)
        if not order:
            continue
        chosen = dict(zip(order, (*order[1:], order[0]), strict=True))
        for member in order:
            for other in order:
                if group_of[member] != group_of[chosen[member]]:
                    break
                is_better = group_of[member] != group_of[chosen[other]] and group_of[other] != group_of[chosen[member]]
                if is_better:
                    chosen[member], chosen[other] = chosen[other], chosen[member]
        for member, target in chosen.items():
            if group_of[member] != group_of[target]:
                targets[member] = target
    return LoadRound(targets=tuple(targets))
