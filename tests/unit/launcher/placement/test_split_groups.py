"""Groups that fit a node and are split because their size does not divide it: when they are found, and what is said."""

from __future__ import annotations

import pytest

from launcher.model.mesh import parse
from launcher.model.node import Node
from launcher.placement.limits import Costs, Limits
from launcher.placement.planner import plan
from launcher.placement.split_groups import explain_split_groups
from tests.support.placement.members import spell


def nodes(count: int, slot_count: int = 8) -> list[Node]:
    return [Node(id=f"h{index}", slot_count=slot_count) for index in range(count)]


@pytest.mark.parametrize(
    ("mesh", "axes"),
    [
        ("dp=*,tp=7", "tp=7"),
        ("dp=*,tp=6", "tp=6"),  # units of 2
        ("dp=*,cp=3,tp=2", "cp=3,tp=2"),
        ("dp=21,tp=3", "tp=3"),
        ("dp=*,tp=8", ""),
        ("dp=*,tp=4", ""),
        ("dp=*,tp=16", ""),  # fits no node
        ("dp=*,pp=3,tp=8", ""),  # so does a pipeline
        ("dp=*", ""),
    ],
)
def test_groups_that_would_fit_are_found(mesh: str, axes: str) -> None:
    grid, present = parse(mesh), nodes(8)
    found = explain_split_groups(plan(present, grid, Limits(), Costs(), None), present, grid, Limits())
    assert (found.values["axes"] if found else "") == axes


def test_groups_that_stay_on_a_node_or_in_a_unit_of_the_users_are_not_split() -> None:
    grid = parse("dp=2,tp=3")  # one node has room for all
    assert explain_split_groups(plan(nodes(1), grid, Limits(), Costs(), None), nodes(1), grid, Limits()) is None
    grid = parse("dp=4,tp=3")
    for present, limits in ((nodes(3), Limits(within={"tp": "host"})), (nodes(2), Limits())):
        assert explain_split_groups(plan(present, grid, limits, Costs(), None), present, grid, limits) is None
    grid, limits = parse("dp=*,tp=4"), Limits(block_size=2)
    present = nodes(3, 6)
    assert explain_split_groups(plan(present, grid, limits, Costs(), None), present, grid, limits) is None
    assert explain_split_groups(plan(present, grid, Limits(), Costs(), None), present, grid, Limits()) is not None


def test_the_other_choice_is_told_with_its_price_or_why_it_is_none() -> None:
    grid, present = parse("pp=3,dp=*,tp=7"), nodes(32)
    found = plan(present, grid, Limits(), Costs(), None)
    unpriced = explain_split_groups(found, present, grid, Limits())
    told = explain_split_groups(found, present, grid, Limits(), Costs())
    assert unpriced is not None
    assert told is not None
    other = plan(present, grid, Limits(block_size=7), Costs(), None)
    for said, cost in ((unpriced, "0"), (told, f"{float(other.cost):g}")):
        assert spell(said) == (
            "split-groups axes=tp=7 devices=8 split=26 groups=36 ranks=7 "
            f"then=(unsplit ranks=210 nodes=30 now_ranks=252 now_nodes=32 cost={cost} now_cost=8024)"
        )
    fixed, few = parse("dp=9,tp=7"), nodes(8)
    told = explain_split_groups(plan(few, fixed, Limits(), Costs(), None), few, fixed, Limits(), Costs())
    assert told is not None
    assert spell(told).endswith(
        "then=(none-unsplit why=(nodes-missing mesh=dp=9,tp=7 nodes=9 devices=8 present=8 most=0))"
    )
