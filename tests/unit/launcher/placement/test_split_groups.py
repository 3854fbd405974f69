"""Groups that fit a node and are split because their size does not divide it: when they are found, and what is said."""

from __future__ import annotations

import pytest

from launcher.model.mesh import parse
from launcher.model.node import Node
from launcher.placement.limits import Costs, Limits
from launcher.placement.planner import plan
from launcher.placement.split_groups import (
    SplitGroups,
    explain_split_groups,
    find_split_groups,
    find_unsplit_world,
)
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
    found = find_split_groups(plan(present, grid, Limits(), Costs(), None), present, grid, Limits())
    assert (found.axes if found else "") == axes


def test_groups_that_stay_on_a_node_all_the_same_are_not_split() -> None:
    grid = parse("dp=2,tp=3")  # one node has room for all
    assert find_split_groups(plan(nodes(1), grid, Limits(), Costs(), None), nodes(1), grid, Limits()) is None
    grid = parse("dp=4,tp=3")
    for present, limits in ((nodes(3), Limits(within={"tp": "host"})), (nodes(2), Limits())):
        assert find_split_groups(plan(present, grid, limits, Costs(), None), present, grid, limits) is None


def test_a_unit_of_the_users_is_no_surprise() -> None:
    grid, limits = parse("dp=*,tp=4"), Limits(block_size=2)
    present = nodes(3, 6)
    assert find_split_groups(plan(present, grid, limits, Costs(), None), present, grid, limits) is None
    assert find_split_groups(plan(present, grid, Limits(), Costs(), None), present, grid, Limits()) is not None


def test_the_other_choice_is_told_with_its_price_or_why_it_is_none() -> None:
    grid, present = parse("pp=3,dp=*,tp=7"), nodes(32)
    found = plan(present, grid, Limits(), Costs(), None)
    split = find_split_groups(found, present, grid, Limits())
    assert split is not None
    said = explain_split_groups(split, found, find_unsplit_world(split, present, grid, Limits()), 1)
    assert spell(said) == (
        "split-groups axes=tp=7 devices=8 split=26 groups=36 ranks=7 "
        "then=(unsplit ranks=210 nodes=30 now_ranks=252 now_nodes=32 cost=1 now_cost=8024)"
    )
    fixed, few = parse("dp=9,tp=7"), nodes(8)
    found = plan(few, fixed, Limits(), Costs(), None)
    split = SplitGroups(axes="tp=7", group_size=7, slot_count=8, split_count=7, group_count=9)
    said = explain_split_groups(split, found, find_unsplit_world(split, few, fixed, Limits()))
    assert spell(said).endswith(
        "then=(none-unsplit why=(nodes-missing mesh=dp=9,tp=7 nodes=9 devices=8 present=8 most=0))"
    )
