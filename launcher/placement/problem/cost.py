"""The cost of a plan: J, exactly.

A hop pays the cost of every level at which its two ends lie in different domains. Summed by level, that is: for
every level its cost times the traffic that leaves that level's domains. This module computes the second form, on
which the lower bound and the explanation to users are based, too.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from launcher.placement.problem.hops import Traffic

Labels = NDArray[np.int32]
"""For one level: unit -> number of the domain in which it is placed."""


def sum_leaving_traffic(traffic: Traffic, labels: Labels) -> list[int]:
    """Return the scaled traffic that leaves the domains of one level: one number per hops, then one per exchange."""
    found = [hops.weight * int(np.count_nonzero(labels[hops.low] != labels[hops.high])) for hops in traffic.hops]
    for exchange in traffic.exchanges:
        # Pairs of units of a class in the same domain: sum of n (n - 1) / 2 over each domain's n units of it.
        # Sorting, because a table of all classes and domains would not fit into memory for a large cluster.
        keys = exchange.class_of.astype(np.int64) * (int(labels.max()) + 1) + labels
        together = np.unique(keys, return_counts=True)[1]
        pairs_inside = int((together * (together - 1) // 2).sum())
        class_count = len(labels) // exchange.size
        pairs = class_count * exchange.size * (exchange.size - 1) // 2
        found.append(exchange.weight * (pairs - pairs_inside))
    return found


def compute_cost(traffic: Traffic, labels: Sequence[Labels]) -> int:
    """Return J of a layout, scaled. `labels`: per level, outermost first, the host's last, one per level cost."""
    return sum(
        level_cost * sum(sum_leaving_traffic(traffic, level))
        for level_cost, level in zip(traffic.level_costs, labels, strict=True)
        if level_cost
    )
