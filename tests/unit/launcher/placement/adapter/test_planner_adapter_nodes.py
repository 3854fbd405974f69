"""The planner between many nodes: names for people, who succeeds, and members that cannot take part."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from launcher.model import mesh as meshes
from launcher.placement.adapter.description import Description, decode_assignment
from launcher.placement.adapter.planner_adapter import SUCCESSORS, PlannerAdapter
from launcher.placement.limits import NAMES_MAX, Costs, Limits
from rendezvous.events import MakePlan, PlanReady, PlanRefused
from tests.support.placement.members import node, plan, roster, size, told, try_plan


def planner() -> PlannerAdapter:
    return PlannerAdapter(meshes.parse("dp=*,tp=2"), Limits(), Costs())


def test_sentences_name_nodes_and_who_waits_is_told_who_is_there() -> None:
    planned = plan(*(node(f"h{number}") for number in range(1, 8)), mesh="pp=2,dp=*,tp=2", limits=Limits(nodes_max=5))
    assert planned.reasons[0] == (
        "world ranks=8 nodes=4 present=7 why=(largest size=dp=2 rules=) is_most=False; spares nodes=(names "
        "names=h5,h6,h7 count=3)"
    )
    assert set(planned.spare_reasons.values()) == {"spare ranks=8 sizes=dp=2 nodes=4"}
    assert len(planned.spare_reasons) == 3
    found = size(node("h1"), node("h2"), limits=Limits(nodes_min=3))
    assert (found.world_size, found.reason) == (
        0,
        "too-few-nodes least=3 present=2; joined nodes=(names names=h1,h2 count=2)",
    )


def test_the_round_in_a_few_words_is_told_to_every_node() -> None:
    planned = plan(*(node(f"h{number}") for number in range(1, 6)), mesh="pp=2,dp=*,tp=2")
    summaries = {str(decode_assignment(share).summary) for share in planned.assignments.values()}
    assert summaries == {
        "placement/summary nodes=4 present=5 ranks=8 sizes=dp=2; "
        "placement/spares nodes=(placement/names names=h5 count=1)"
    }
    planned = plan(*(node(f"h{number}") for number in range(1, 21)), limits=Limits(nodes_max=4))
    summary = str(decode_assignment(next(iter(planned.assignments.values()))).summary)
    assert "nodes=(placement/names names=h5,h6," in summary
    assert summary.count(",h") == NAMES_MAX - 1
    assert summary.endswith(" count=16)")


def test_one_machine_needs_no_summary_and_nobody_who_can_be_used_is_no_plan() -> None:
    alone = Description(slot_count=2, address="127.0.0.1", role="default")
    assert decode_assignment(plan(alone).assignments[f"{1:016x}"]).summary is None
    assert decode_assignment(plan(node("h1")).assignments[f"{1:016x}"]).summary is not None
    assert isinstance(try_plan("rubbish"), PlanRefused)


def test_members_that_cannot_be_read_are_named_and_successors_of_other_domains() -> None:
    planned = plan(node("h1"), "rubbish", node("h3"))
    assert planned.world_size == 4
    what = "error=its description is not JSON, so it was not written by meshrun"
    reason = f"unreadable-node node=0000000000000002 {what}"
    assert planned.spare_reasons["0000000000000002"] == reason
    assert reason in planned.remarks
    found = size("rubbish", node("h2"), limits=Limits(nodes_min=2))
    assert found.world_size == 0
    assert found.reason.endswith(f"; joined nodes=(names names=h2 count=1); unreadable-node node=n {what}")
    nodes = [node(f"h{number}", f"leaf=l{number // 4}") for number in range(1, 9)]
    planned = plan(*nodes, mesh="dp=*")
    assert [int(member_id, 16) for member_id in planned.successors] == [1, 4, 8, 2]
    assert len(planned.successors) == SUCCESSORS
    assert len(plan(node("h1"), node("h1"), node("h2")).successors) == 2  # one name is one machine


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "169.254.1.1", "fe80::1%eth0", "localhost"])
def test_a_loopback_address_is_refused_once_another_machine_has_joined(address: str) -> None:
    planned = plan(node("h1"), node("h2", address=address))
    reason = f"loopback-address node=h2 address={address}"
    assert planned.spare_reasons["0000000000000002"] == reason
    assert planned.world_size == 2
    one_machine = {"address": address, "machine": "m"}
    assert plan(node("h1", **one_machine), node("h2", **one_machine)).world_size == 4


@pytest.mark.parametrize(
    ("places", "shared"),
    [
        ([("h1", "m1", "172.17.0.1"), ("h2", "m2", "172.17.0.1")], ["h1,h2"]),
        ([("h1", "m1", "fd00::1"), ("h2", "m2", "fd00::1"), ("h3", "m3", "fd00::3")], ["h1,h2"]),
        # Several agents of a machine may have one address; each machine is named once.
        ([("h1", "m1", "10.0.0.1"), ("h1-2", "m1", "10.0.0.1")], []),
        ([("h1", "m1", "10.0.0.1"), ("h1-2", "m1", "10.0.0.1"), ("h2", "m2", "10.0.0.1")], ["h1,h2"]),
        ([("h1", "m1", "10.0.0.1"), ("h2", "", "10.0.0.1")], []),  # nothing says which machine
    ],
)
def test_an_address_of_several_machines_is_told_once(places: list[tuple[str, str, str]], shared: list[str]) -> None:
    members = roster(*(node(name, machine=machine, address=address) for name, machine, address in places))
    asked, found = planner(), []
    for round in (1, 2):
        planned = told(asked.plan(MakePlan(round, round, members, {})))
        assert isinstance(planned, PlanReady)
        found.append([remark for remark in planned.remarks if "shared-address" in remark])
    address = places[0][2]
    assert found == [
        [f"shared-address address={address} nodes=(names names={names} count=2)" for names in shared],
        [],
    ]


def test_two_nodes_with_one_name_run_and_unreadable_assignments_are_no_precedent() -> None:
    planned = plan(node("h1"), node("h1"))
    assert planned.world_size == 4
    assert "duplicate-name name=h1 count=2" in planned.remarks
    members = roster(node("h1"), node("h2"))
    planned = told(planner().plan(MakePlan(7, 2, members, {members[0].member_id: "rubbish"})))
    assert isinstance(planned, PlanReady)
    assert any("previous-unreadable" in reason for reason in planned.remarks)


def test_a_node_keeps_its_ranks_and_name_as_another_member_or_under_another_leader() -> None:
    texts = [node(f"h{number}") for number in (1, 2, 3)]
    first = told(planner().plan(MakePlan(1, 1, roster(*texts), {})))
    assert isinstance(first, PlanReady)
    back = [*roster(*texts)]
    back[0] = replace(back[0], member_id="f" * 16, order=9)
    lost = roster(*texts)[0].member_id
    second = told(planner().plan(MakePlan(2, 2, tuple(back), first.assignments, {lost: "h1"})))
    assert isinstance(second, PlanReady)
    assert decode_assignment(second.assignments["f" * 16]).ranks == decode_assignment(first.assignments[lost]).ranks
    assert "moved moved=0 ranks=6" in second.reasons
    members = roster(node("h1"), node("h2"), node("h3"))
    first = told(planner().plan(MakePlan(1, 1, members[:2], {})))
    assert isinstance(first, PlanReady)
    second = told(planner().plan(MakePlan(2, 2, members[::2], first.assignments, {members[1].member_id: "h2"})))
    assert isinstance(second, PlanReady)
    assert any(
        "without nodes=(names names=h2 count=1); with nodes=(names names=h3" in reason for reason in second.reasons
    )
