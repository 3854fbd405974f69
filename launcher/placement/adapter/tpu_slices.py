"""Numbers the TPU slices of a round: slices are joined by number, and rank 0's slice is number 0.

A controller has numbered the slices of a job too. Its numbers stay valid for a host and its slice, but not for a
round: a slice may be lost, and then the others count from 0 without gaps, in the order of their ranks.

A host of a slice may be present twice for a while, as in `numbering`: a replacement joins before the one it replaces is
found dead. The first to join is the host, and the other a spare, or else one mistaken node would make a whole slice
useless.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from launcher.placement.adapter.description import Description

SLICE_LEVEL = "slice"


def number_slices(ranks: Mapping[str, tuple[int, ...]], known: Mapping[str, Description]) -> dict[str, tuple[int, int]]:
    """Node -> (number of its slice in this round, number of slices). Empty unless all that are used are TPU hosts.

    `ranks`: of the nodes that are used. A host that names no slice is one of its own.
    """
    if not all(known[name].slice_hosts for name in ranks):
        return {}
    numbers: dict[tuple[str, bool], int] = {}
    found: dict[str, int] = {}
    for name in sorted(ranks, key=lambda name: ranks[name]):
        # The name of a slice of one host may be that of all slices of a job.
        domain = dict(known[name].locality).get(SLICE_LEVEL) if known[name].slice_hosts > 1 else None
        found[name] = numbers.setdefault((name, False) if domain is None else (domain, True), len(numbers))
    return {name: (index, len(numbers)) for name, index in found.items()}


def find_standby_hosts(members: Mapping[str, tuple[Description, int]]) -> dict[str, str]:
    """Return member id -> why it is no host of the slice that it names. `members`: with their create revisions."""
    hosts: dict[str, list[str]] = {}  # slice -> its members, the first to join first
    for member_id in sorted(members, key=lambda member_id: members[member_id][1]):
        domain = dict(members[member_id][0].locality).get(SLICE_LEVEL)
        if domain is not None:
            hosts.setdefault(domain, []).append(member_id)
    others: dict[str, str] = {}
    for domain, member_ids in hosts.items():
        said = [members[member_id][0].slice_hosts for member_id in member_ids]
        counts = Counter(said)  # of equals the first to join
        usual = max(counts, key=counts.__getitem__)
        holders: dict[int, str] = {}
        for member_id, size in zip(member_ids, said, strict=True):
            name, index = members[member_id][0].name or member_id, members[member_id][0].index
            if size != usual:
                others[member_id] = f"{name} says that slice {domain} has {size} hosts, and others say {usual}"
            elif size > 1 and index is not None and index in holders:
                first = holders[index]
                if name == first:
                    both = f"{name} is here twice, as worker {index} of slice {domain}"
                    others[member_id] = f"{both}: who came later stands by until the other is gone"
                else:
                    both = f"{name} and {first} are both worker {index} of slice {domain}"
                    others[member_id] = f"{both}: {name} stands by until {first} is gone"
            elif index is not None:
                holders[index] = name
    return others
