"""The planner between many nodes: names for people, who succeeds, and members that cannot take part."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from launcher.model import mesh as meshes
from launcher.placement.adapter.description import Description, decode_assignment
from launcher.placement.adapter.planner_adapter import NAMES_MAX, SUCCESSORS, PlannerAdapter
from launcher.placement.limits import Costs, Limits, Plan
from rendezvous.events import MakePlan, PlanReady, PlanRefused
from tests.support.placement.members import node, plan, roster, size, told, try_plan


def planner() -> PlannerAdapter:
    return PlannerAdapter(meshes.parse("dp=*,tp=2"), Limits(), Costs())


def test_sentences_name_nodes_and_not_members() -> None:
    planned = plan(*(node(f"h{number}") for number in range(1, 8)), mesh="pp=2,dp=*,tp=2", limits=Limits(nodes_max=5))
    assert planned.reasons[0] == (
        "world of 8 ranks on 4 of 7 nodes: dp=2 is the largest whole number of replicas; 3 spares: h5, h6, h7"
    )
    assert set(planned.spare_reasons.values()) == {"the largest world is 8 ranks, dp=2 on 4 nodes"}
    assert len(planned.spare_reasons) == 3


def test_the_round_in_a_few_words_is_told_to_every_node() -> None:
    planned = plan(*(node(f"h{number}") for number in range(1, 6)), mesh="pp=2,dp=*,tp=2")
    summaries = {decode_assignment(share).summary for share in planned.assignments.values()}
    assert summaries == {"4 of 5 nodes, 8 ranks, dp=2; spare h5"}
    planned = plan(*(node(f"h{number}") for number in range(1, 21)), limits=Limits(nodes_max=4))
    summary = decode_assignment(next(iter(planned.assignments.values()))).summary
    assert summary.startswith("4 of 20 nodes, 8 ranks, dp=4; spares h5, h6, ")
    assert summary.endswith(f" and {16 - NAMES_MAX} more")


def test_one_machine_needs_no_summary() -> None:
    alone = Description(slot_count=2, address="127.0.0.1", role="default")
    assert decode_assignment(plan(alone).assignments[f"{1:016x}"]).summary == ""
    assert decode_assignment(plan(node("h1")).assignments[f"{1:016x}"]).summary == "1 of 1 node, 2 ranks, dp=1"


def test_who_waits_is_told_who_is_there() -> None:
    found = size(node("h1"), node("h2"), limits=Limits(nodes_min=3))
    assert (found.world_size, found.reason) == (0, "at least 3 nodes must be active, 2 are present; joined: h1, h2")


def test_a_member_whose_description_cannot_be_read_is_left_out_by_name() -> None:
    planned = plan(node("h1"), "rubbish", node("h3"))
    assert planned.world_size == 4
    reason = "0000000000000002 cannot take part: its description is not JSON, so it was not written by meshrun"
    assert planned.spare_reasons["0000000000000002"] == reason
    assert reason in planned.remarks
    found = size("rubbish", node("h2"), limits=Limits(nodes_min=2))
    assert found.world_size == 0
    assert found.reason.endswith(
        "; joined: h2; n cannot take part: its description is not JSON, so it was not written by meshrun"
    )


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "169.254.1.1", "fe80::1%eth0", "localhost"])
def test_a_loopback_address_is_refused_once_another_machine_has_joined(address: str) -> None:
    planned = plan(node("h1"), node("h2", address=address))
    reason = f"h2 publishes the address {address}, which is the loopback of every machine: give it --local-addr"
    assert planned.spare_reasons["0000000000000002"] == reason
    assert planned.world_size == 2
    one_machine = {"address": address, "machine": "m"}
    assert plan(node("h1", **one_machine), node("h2", **one_machine)).world_size == 4


def test_successors_are_of_different_domains_first_then_in_joining_order() -> None:
    nodes = [node(f"h{number}", f"leaf=l{number // 4}") for number in range(1, 9)]
    planned = plan(*nodes, mesh="dp=*")
    assert [int(member_id, 16) for member_id in planned.successors] == [1, 4, 8, 2]
    assert len(planned.successors) == SUCCESSORS
    assert len(plan(node("h1"), node("h1"), node("h2")).successors) == 2  # one name is one machine


def test_two_nodes_with_one_name_run_and_it_is_said() -> None:
    planned = plan(node("h1"), node("h1"))
    assert planned.world_size == 4
    assert "2 nodes have the name h1: give each its own --node-name" in planned.remarks


def test_unreadable_assignments_of_the_last_round_are_no_precedent() -> None:
    members = roster(node("h1"), node("h2"))
    planned = told(planner().plan(MakePlan(7, 2, members, {members[0].member_id: "rubbish"})))
    assert isinstance(planned, PlanReady)
    assert any("cannot be read" in reason for reason in planned.remarks)


def test_nobody_who_can_be_used_is_no_plan() -> None:
    assert isinstance(try_plan("rubbish"), PlanRefused)


def test_a_node_that_comes_back_as_another_member_keeps_its_ranks() -> None:
    texts = [node(f"h{number}") for number in (1, 2, 3)]
    first = told(planner().plan(MakePlan(1, 1, roster(*texts), {})))
    assert isinstance(first, PlanReady)
    back = [*roster(*texts)]
    back[0] = replace(back[0], member_id="f" * 16, order=9)
    lost = roster(*texts)[0].member_id
    second = told(planner().plan(MakePlan(2, 2, tuple(back), first.assignments, {lost: "h1"})))
    assert isinstance(second, PlanReady)
    assert decode_assignment(second.assignments["f" * 16]).ranks == decode_assignment(first.assignments[lost]).ranks
    assert "0 of 6 ranks change their node" in second.reasons


def test_a_lost_node_is_still_called_by_its_name_when_another_plans() -> None:
    members = roster(node("h1"), node("h2"), node("h3"))
    first = told(planner().plan(MakePlan(1, 1, members[:2], {})))
    assert isinstance(first, PlanReady)
    second = told(planner().plan(MakePlan(2, 2, members[::2], first.assignments, {members[1].member_id: "h2"})))
    assert isinstance(second, PlanReady)
    assert any("without h2; with h3" in reason for reason in second.reasons)


def test_a_plan_costs_no_sum_over_all_nodes_for_each_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Plan] = []

    def world_size(self: Plan) -> int:
        asked.append(self)
        return sum(map(len, self.ranks.values()))

    monkeypatch.setattr(Plan, "world_size", property(world_size))
    plan(*(node(f"h{number}") for number in range(1, 3)))
    few = len(asked)
    plan(*(node(f"h{number}") for number in range(1, 41)))
    assert 0 < few == len(asked) - few
