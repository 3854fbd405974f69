"""Nodes that the user has numbered: who is which, in which order, and what is said of those that are missing."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.placement.adapter.description import Description
from launcher.placement.adapter.numbering import Numbering, resolve_numbering
from launcher.placement.limits import Limits
from rendezvous.reasons import Reason
from tests.support.placement.members import node, plan, read_assignments, size


def numbered(name: str, number: int | None, slot_count: int = 2, **fields: object) -> Description:
    known: dict[str, object] = {"master_addr": "head", "master_port": 29500, **fields}
    return node(name, node_rank=number, slot_count=slot_count, **known)


def asked(node_count: int, mesh: str = "dp=*") -> dict[str, Any]:
    return {"mesh": mesh, "limits": Limits(nodes_min=node_count, nodes_max=node_count), "node_count": node_count}


def given(*nodes: Description, node_count: int, mesh: str = "dp=*") -> dict[str, tuple[int, ...]]:
    """Which ranks each node gets; that the numbers, the address and the port arrive is checked on the way."""
    planned = plan(*nodes, **asked(node_count, mesh))
    assert planned.coordinator == "head:29500"
    numbers = {one.name: one.node_rank for one in nodes}
    told = read_assignments(planned, *nodes)
    for name, share in told.items():
        assert (share.group_rank, share.group_world_size) == (numbers[name], node_count)
        assert (share.master_addr, share.master_port) == ("head", 29500)
    return {name: share.ranks for name, share in told.items()}


def test_ranks_follow_the_numbers_and_neither_names_nor_sizes_nor_a_shorter_order() -> None:
    nodes = [numbered("h1", 2), numbered("h9", 0), numbered("h10", 1)]
    for order in (nodes, nodes[::-1]):
        assert given(*order, node_count=3) == {"h9": (0, 1), "h10": (2, 3), "h1": (4, 5)}
    nodes = [numbered(f"h{number}", number, locality=(("leaf", f"leaf{number % 2}"),)) for number in range(4)]
    ranks = given(*nodes, node_count=4, mesh="dp=*,tp=4")
    assert ranks == {"h0": (0, 1), "h1": (2, 3), "h2": (4, 5), "h3": (6, 7)}
    nodes = [numbered("h1", 0, 1), numbered("h2", 1, 4), numbered("h3", 2, 2)]
    assert given(*nodes, node_count=3) == {"h1": (0,), "h2": (1, 2, 3, 4), "h3": (5, 6)}


def test_each_node_has_the_address_given_and_the_first_of_two_the_number() -> None:
    nodes = numbered("h1", 0, master_addr="localhost"), numbered("h2", 1)
    told = read_assignments(plan(*nodes, **asked(2)), *nodes)
    assert {name: share.master_addr for name, share in told.items()} == {"h1": "localhost", "h2": "head"}
    found = size(numbered("h1", 0), numbered("h2", 1), numbered("h3", 1), **asked(3))
    assert found.reason == (
        "missing-node-ranks ranks=2 count=1 nodes=3; joined nodes=(names names=h1 (0),h2 (1) count=2); waits "
        "why=(same-node-rank node=h3 other=h2 rank=1) node=h3 other=h2"
    )
    assert given(numbered("h1", 0), numbered("h2", 1), numbered("h3", 1), node_count=2) == {"h1": (0, 1), "h2": (2, 3)}


def test_a_world_waits_for_every_number_and_says_when_nobody_else_can_come() -> None:
    found = size(numbered("h1", 3), numbered("h2", 0), numbered("h3", 5), **asked(8))
    assert (found.world_size, found.is_full) == (0, False)
    assert found.reason == (
        "missing-node-ranks ranks=1-2, 4, 6-7 count=5 nodes=8; joined nodes=(names names=h2 (0),h1 (3),h3 (5) count=3)"
    )
    assert size(**asked(2)).reason == "missing-node-ranks ranks=0-1 count=2 nodes=2; none-joined"
    full = size(numbered("h1", 1), numbered("h2", 0), **asked(2))
    assert (full.world_size, full.is_full) == (4, True)
    nodes = numbered("h1", 1), numbered("h2", 0)
    waiting, complete = (size(*nodes[:count], **asked(2, "dp=4,tp=2")) for count in (1, 2))
    assert (waiting.world_size, waiting.is_complete) == (0, False)
    assert (complete.world_size, complete.is_complete) == (0, True)


@pytest.mark.parametrize("number", [None, 2])
def test_who_has_no_number_of_this_job_stands_by(number: int | None) -> None:
    members = {"a": (numbered("h1", 0), 1), "b": (numbered("h2", 1), 2), "c": (numbered("h3", number), 3)}
    why = Reason.of("placement/no-node-rank", node="h3", last=1)
    assert resolve_numbering(members, 2) == Numbering(("a", "b"), {"c": why})
