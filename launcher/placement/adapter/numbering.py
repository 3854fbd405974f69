"""Which member is which node, where the user or a TPU slice has set numbers; and the numbers of slices in a round.

A number, or a place in a slice, may have two members for a while: a node that returns is a new member before its old
one is found dead, and a replacement may be present before the node it replaces has left. Then the first to join is the
node, and the other is a spare; else one mistaken node would make a whole slice useless. It may also be a mistake that
only the user can correct, so the message names both.

Slices are joined by number, and rank 0's slice is number 0. A controller has numbered the slices of a job too. Its
numbers stay valid for a host and its slice, but not for a round: a slice may be lost, and then the others count from 0
without gaps, in the order of their ranks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from msgspec import Struct

from launcher.model.ranges import format_ranges
from launcher.placement.adapter.description import Description
from rendezvous.reasons import Reason

SLICE_LEVEL = "slice"


class Numbering(Struct, frozen=True):
    """Members in the order of the numbers that the user gave their nodes."""

    nodes: tuple[str, ...]
    """Member ids in the order of their numbers."""
    others: Mapping[str, Reason]
    """Member id to the reason why it is a spare."""
    missing: Reason | None = None
    """The numbers that no member has, if any."""
    error: Reason | None = None
    """Why the numbers cannot be kept, if they cannot."""


def resolve_numbering(members: Mapping[str, tuple[Description, int]], node_count: int) -> Numbering:
    """`members`: member id -> its description, and its create revision."""
    holders: dict[int, str] = {}
    others: dict[str, Reason] = {}
    for member_id in _sort_by_joining(members):
        description = members[member_id][0]
        name, number = description.name or member_id, description.node_rank
        if number is None or number >= node_count:
            others[member_id] = Reason.of("placement/no-node-rank", node=name, last=node_count - 1)
        elif number in holders:
            first = members[holders[number]][0].name or holders[number]
            both = explain_duplicate_rank(name, first, number)
            others[member_id] = Reason.of("placement/waits", why=both, node=name, other=first)
        else:
            holders[number] = member_id
    nodes = tuple(holders[number] for number in sorted(holders))
    absent = [number for number in range(node_count) if number not in holders]
    missing = None
    if absent:
        ranks, count = format_ranges(absent), len(absent)
        missing = Reason.of("placement/missing-node-ranks", ranks=ranks, count=count, nodes=node_count)
    return Numbering(nodes, others, missing, _check_slice_numbers(members[member_id][0] for member_id in nodes))


def _sort_by_joining(members: Mapping[str, tuple[Description, int]]) -> list[str]:
    return sorted(members, key=lambda member_id: members[member_id][1])


def explain_duplicate_rank(name: str, other: str, number: int) -> Reason:
    """Explain that two nodes have one number."""
    return Reason.of("placement/same-node-rank", node=name, other=other, rank=number)


def _check_slice_numbers(nodes: Iterable[Description]) -> Reason | None:
    """Why the numbers of TPU hosts cannot be kept, as ranks follow the worker ids inside a slice, if they cannot."""
    slices: dict[str, tuple[int, int]] = {}  # slice -> worker id and number of its first host
    for node in nodes:
        domain, number = dict(node.locality).get(SLICE_LEVEL), node.node_rank
        if domain is None or node.index is None or number is None:
            continue
        first = slices.setdefault(domain, (node.index, number))
        if node.index - first[0] != number - first[1]:
            return Reason.of("placement/worker-order", node=node.name, worker=node.index, slice=domain, rank=number)
    return None


def find_standby_hosts(members: Mapping[str, tuple[Description, int]]) -> dict[str, Reason]:
    """Return member id -> why it is no host of the slice that it names. `members`: with their create revisions."""
    hosts: dict[str, list[str]] = {}  # slice -> its members, the first to join first
    for member_id in _sort_by_joining(members):
        domain = dict(members[member_id][0].locality).get(SLICE_LEVEL)
        if domain is not None:
            hosts.setdefault(domain, []).append(member_id)
    others: dict[str, Reason] = {}
    for domain, member_ids in hosts.items():
        counts = Counter(members[member_id][0].slice_hosts for member_id in member_ids)  # of equals the first to join
        usual = max(counts, key=counts.__getitem__)
        holders: dict[int, str] = {}
        for member_id in member_ids:
            description = members[member_id][0]
            name, index, size = description.name or member_id, description.index, description.slice_hosts
            if size != usual:
                others[member_id] = Reason.of("placement/slice-size", node=name, hosts=size, slice=domain, usual=usual)
            elif size > 1 and index is not None and index in holders:
                first = holders[index]
                if name == first:
                    why = Reason.of("placement/joined-twice", node=name, worker=index, slice=domain)
                else:
                    both = Reason.of("placement/same-worker", node=name, other=first, worker=index, slice=domain)
                    why = Reason.of("placement/waits", why=both, node=name, other=first)
                others[member_id] = why
            elif index is not None:
                holders[index] = name
    return others


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
