"""From what arrived at each node to the rates of hosts and of the uplinks of groups.

While each member of a group sends to some other group, the uplink carries the sum of what arrives from them, and the
links that lead back the sum of what arrives at them. Other groups' links may have been the limit, so the highest sums
of all rounds and both directions count. Links carry that much; a link that the hosts cannot fill may carry more.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from launcher.extensions.measure.schedule import NOBODY, LoadRound

SAME_MAX = 0.15
"""Domains this near to the median of their level have the usual rate: what measuring varies by."""
HOSTS_VARY = 0.3  # what a single flow varies by on a busy host


def measure_domains(
    domains: Sequence[Sequence[int]], rounds: Sequence[tuple[LoadRound, Mapping[int, int]]]
) -> tuple[int, ...]:
    """Return the rate of each domain's link in bits per second, 0 where nothing crossed it.

    `rounds`: each with what every receiver got, in bits per second.
    """
    sums: list[list[int]] = [[] for _ in domains]
    domain_of = {member: index for index, domain in enumerate(domains) for member in domain}
    for round, received_bps in rounds:
        now = [[0, 0] for _ in domains]
        for sender, receiver in enumerate(round.targets):
            rate = received_bps.get(receiver, 0) if receiver != NOBODY else 0
            source, target = domain_of.get(sender), domain_of.get(receiver)
            if source == target:
                continue
            for index, direction in ((source, 0), (target, 1)):
                if index is not None:
                    now[index][direction] += rate
        for every, new in zip(sums, now, strict=True):
            every += new
    return tuple(map(_average_highest, sums))


def _average_highest(sums: Sequence[int]) -> int:
    """Return the mean of the highest sum and those that differ from it no more than measuring does."""
    highest = [one for one in sums if one > (1 - SAME_MAX) * max(sums)]
    return round(sum(highest) / len(highest)) if highest else 0


def find_usual(rates_bps: Sequence[int]) -> int:
    """Return the rate in the middle of those that are known; 0 if none is."""
    return statistics.median_high(list(filter(None, rates_bps)) or [0])


def find_exceptions(rates_bps: Sequence[int], varies: float) -> tuple[int, ...]:
    """Return the positions of known rates that differ from the usual one by more than this part of it."""
    usual = find_usual(rates_bps)
    return tuple(index for index, rate in enumerate(rates_bps) if rate and abs(rate - usual) > varies * usual)
