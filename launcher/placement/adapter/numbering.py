"""Assigns members to node numbers, where the user has set them: one member for each number, and the missing numbers.

A number may have two members for a while: a node that returns is a new member before its old one is found dead,
and a replacement may be present before the node it replaces has left. Then the first to join is the node, and the
other is a spare. It may also be a mistake that only the user can correct, so the message names both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from launcher.model.ranges import format_ranges
from launcher.placement.adapter.description import Description


class Numbering(NamedTuple):
    """`nodes`: member ids in the order of their numbers; `others`: member id -> why it is a spare; `missing` numbers.

    `error`: why the numbers cannot be kept, "" if they can.
    """

    nodes: tuple[str, ...]
    others: Mapping[str, str]
    missing: tuple[int, ...]
    error: str = ""


def resolve_numbering(members: Mapping[str, tuple[Description, int]], node_count: int) -> Numbering:
    """`members`: member id -> its description, and its create revision."""
    holders: dict[int, str] = {}
    others: dict[str, str] = {}
    for member_id in sorted(members, key=lambda member_id: members[member_id][1]):
        description = members[member_id][0]
        name, number = description.name or member_id, description.node_rank
        if number is None or number >= node_count:
            others[member_id] = f"{name} has no node rank from 0 to {node_count - 1}"
        elif number in holders:
            first = members[holders[number]][0].name or holders[number]
            others[member_id] = (
                f"{describe_duplicate_rank(name, first, number)}: {name} stands by until {first} is gone"
            )
        else:
            holders[number] = member_id
    nodes = tuple(holders[number] for number in sorted(holders))
    missing = tuple(number for number in range(node_count) if number not in holders)
    return Numbering(nodes, others, missing, _check_slice_numbers(members[member_id][0] for member_id in nodes))


def describe_duplicate_rank(name: str, other: str, number: int) -> str:
    """Return the sentence about two nodes with one number."""
    return f"{name} and {other} are both given --node-rank {number}"


def describe_missing_ranks(missing: Iterable[int], node_count: int) -> str:
    """ "node ranks 1, 5-7 of 8 are missing" """
    absent = sorted(missing)
    one = len(absent) == 1
    return f"node rank{'' if one else 's'} {format_ranges(absent)} of {node_count} {'is' if one else 'are'} missing"


def _check_slice_numbers(nodes: Iterable[Description]) -> str:
    """Why the numbers of TPU hosts cannot be kept, as ranks follow the worker ids inside a slice; "" if they can."""
    slices: dict[str, tuple[int, int]] = {}  # slice -> worker id and number of its first host
    for node in nodes:
        domain, number = dict(node.locality).get("slice"), node.node_rank
        if domain is None or node.index is None or number is None:
            continue
        first = slices.setdefault(domain, (node.index, number))
        if node.index - first[0] != number - first[1]:
            return (
                f"{node.name} is worker {node.index} of slice {domain} and is given --node-rank {number}: the numbers "
                "of a slice's hosts must follow their worker ids one by one"
            )
    return ""
