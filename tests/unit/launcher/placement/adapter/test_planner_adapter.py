"""From members' texts to a plan and back to one text per node: what every node is told, and that all agree."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.model import mesh as meshes
from launcher.model.errors import describe
from launcher.model.node import Node
from launcher.placement.adapter.description import Description, NodeAssignment, encode_description
from launcher.placement.adapter.planner_adapter import PlannerAdapter
from launcher.placement.capacity import assess_feasibility
from launcher.placement.limits import AllOrNothing, Costs, Limits
from rendezvous.events import MakePlan, PlanReady, PlanRefused, RosterMember
from rendezvous.policy.view import MemberView, Size
from rendezvous.reasons import Reason
from rendezvous.records import Member
from tests.support.placement import members
from tests.support.placement.members import read_assignments, told


def candidate(name: str, order: int, slots: int = 2, role: str = "default", master_port: int = 0) -> RosterMember:
    described = Description(slot_count=slots, address=f"10.0.0.{order}", role=role, master_port=master_port)
    return RosterMember(name, encode_description(described), order)


def view(name: str, order: int, slots: int = 2) -> MemberView:
    text = candidate(name, order, slots).description
    return MemberView(Member(member_id=name, node_name=name, boot_id="", description=text), order, order, 0.0)


def planner(mesh: str = "dp=*", nodes_min: int = 1, nodes_max: int | None = None) -> PlannerAdapter:
    return PlannerAdapter(meshes.parse(mesh), Limits(nodes_min=nodes_min, nodes_max=nodes_max), Costs())


def plan(
    roster: Sequence[RosterMember], mesh: str = "dp=*", previous: Mapping[str, str] | None = None, **limits: int
) -> PlanReady:
    planned = planner(mesh, **limits).plan(MakePlan(7, 1, tuple(roster), previous or {}))
    assert isinstance(planned, PlanReady), planned
    return planned


def test_each_node_is_told_its_ranks_by_where_it_stands() -> None:
    planned = plan([candidate("a", 1), candidate("b", 2)], "dp=*,tp=2")
    told = read_assignments(planned)
    assert told["b"] == NodeAssignment(
        ranks=(2, 3), world_size=4, shape=(2, 2), group_rank=1, group_world_size=2, role_ranks=(2, 3),
        role_world_size=4, master_addr="10.0.0.1",
        summary=Reason.of("placement/summary", nodes=2, present=2, ranks=4, sizes=("dp=2",)),
    )  # fmt: skip
    assert (planned.id, planned.world_size) == (7, 4)
    assert (planned.coordinator, planned.coordinator_id) == ("10.0.0.1:0", "a")  # the port that a will offer
    stands = {"a": ("whole", 1), "b": ("whole", 0), "c": ("half", 0)}
    nodes = [members.node(name, f"slice={domain}", index=index) for name, (domain, index) in stands.items()]
    limits = Limits(all_or_nothing=AllOrNothing(level="slice", hosts=2))
    found = members.read_ranks(members.plan(*nodes, mesh="dp=*", limits=limits), *nodes)
    assert found == {"b": (0, 1), "a": (2, 3)}


def test_groups_that_fit_a_node_and_are_split_are_remarked_upon_once() -> None:
    roster = [candidate(name, order, slots=8) for order, name in enumerate("abcd", 1)]
    adapter = planner("dp=*,tp=3")
    rounds = [
        told(adapter.plan(MakePlan(1, round, tuple(roster[:count]), {}))) for round, count in ((1, 4), (1, 4), (2, 2))
    ]
    remarks = [planned.remarks for planned in rounds if isinstance(planned, PlanReady)]
    spelt = (
        "split-groups axes=tp=3 devices=8 split=2 groups=10 ranks=3 "
        "then=(unsplit ranks=24 nodes=4 now_ranks=30 now_nodes=4 cost=0 now_cost=520)"
    )
    assert remarks == [(spelt,), (spelt,), ()]
    for mesh, limits in (("dp=*,tp=2", Limits()), ("dp=*,tp=3", Limits(block_size=3))):
        quiet = PlannerAdapter(meshes.parse(mesh), limits, Costs()).plan(MakePlan(1, 1, tuple(roster), {}))
        assert isinstance(quiet, PlanReady)
        assert quiet.remarks == ()


def test_what_was_asked_last_is_answered_from_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def counted(nodes: Sequence[Node], mesh: meshes.Mesh, limits: Limits) -> Size:
        asked.append(len(nodes))
        return assess_feasibility(nodes, mesh, limits)

    monkeypatch.setattr("launcher.placement.adapter.planner_adapter.assess_feasibility", counted)
    asking, one = [view("a", 1), view("b", 2)], planner()
    sizes = [one.compute_size(some).world_size for some in (asking, list(asking), asking[:1], asking)]
    assert (sizes, asked) == ([4, 4, 2, 4], [2, 1, 2])
    assert one.compute_size([asking[0], view("b", 2, 4)]).world_size == 6


def test_a_master_port_that_was_asked_for_is_the_one_all_use_and_a_spare_is_told_nothing() -> None:
    planned = plan([candidate("a", 1, master_port=29500), candidate("b", 2, master_port=29500)])
    assert planned.coordinator == "10.0.0.1:29500"
    assert {share.master_port for share in read_assignments(planned).values()} == {29500}
    assert set(
        read_assignments(plan([candidate(name, order) for order, name in enumerate("abc", 1)], nodes_max=2))
    ) == {"a", "b"}


def test_who_stays_keeps_its_ranks_and_no_plan_is_a_sentence() -> None:
    nodes = {name: candidate(name, order) for order, name in enumerate("abcd", 1)}
    first = plan(list(nodes.values()), nodes_max=3)
    second = plan([nodes[name] for name in "bcd"], previous=first.assignments, nodes_max=3)
    before, after = read_assignments(first), read_assignments(second)
    assert {name: after[name].ranks for name in "bc"} == {name: before[name].ranks for name in "bc"}
    assert after["d"].ranks == before["a"].ranks
    assert after["b"].master_addr == "10.0.0.4", "the address of rank 0 moves with rank 0"
    refused = told(planner("dp=2,tp=4").plan(MakePlan(7, 1, (candidate("a", 1),), {})))
    assert refused == PlanRefused(7, "one-node-too-small mesh=dp=2,tp=4 ranks=8 devices=2 nnodes=0")


@pytest.mark.parametrize(("names", "size"), [("a", 0), ("ab", 4), ("abc", 6), ("abcd", 6)])
def test_the_size_of_a_world_is_known_before_it_is_planned(names: str, size: int) -> None:
    asking = [view(name, order) for order, name in enumerate(names, 1)]
    found = planner(nodes_min=2, nodes_max=3).compute_size(asking)
    assert (found.world_size, found.is_full) == (size, size == 6)
    assert isinstance(found, Size)
    assert found.reason


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(1, 4), st.sampled_from(["train", "eval"])), min_size=1, max_size=6))
def test_ranks_are_numbered_without_holes_in_the_world_and_in_every_role(nodes: list[tuple[int, str]]) -> None:
    roster = [candidate(f"n{order}", order, slots, role) for order, (slots, role) in enumerate(nodes, 1)]
    told = read_assignments(plan(roster))
    in_order = sorted(told.values(), key=lambda share: share.group_rank)
    assert [share.group_rank for share in in_order] == list(range(len(nodes)))
    assert list(itertools.chain(*(share.ranks for share in in_order))) == list(range(sum(slots for slots, _ in nodes)))
    for role in {role for _, role in nodes}:
        of_role = [told[f"n{order}"] for order, (_, own) in enumerate(nodes, 1) if own == role]
        numbers = sorted(itertools.chain(*(share.role_ranks for share in of_role)))
        assert numbers == list(range(of_role[0].role_world_size))
        assert {share.role_world_size for share in of_role} == {len(numbers)}
    assert len({(s.world_size, s.shape, s.group_world_size, s.master_addr, s.master_port) for s in in_order}) == 1


@pytest.mark.parametrize(
    ("mesh", "named"), [(meshes.DEFAULT_MESH, False), (meshes.parse("dp=*"), True), (meshes.parse("tp=4"), True)]
)
def test_an_axis_is_named_only_if_somebody_has_named_it(mesh: meshes.Mesh, named: bool) -> None:
    made = PlannerAdapter(mesh, Limits(nodes_min=1, nodes_max=None), Costs())
    planned = made.plan(MakePlan(7, 1, (candidate("a", 1), candidate("b", 2)), {}))
    size = made.compute_size([view("a", 1)])
    short = PlannerAdapter(
        mesh, Limits(nodes_min=1, nodes_max=None, block_size=8, elastic_min=4), Costs()
    ).compute_size([view("a", 1)])
    assert isinstance(planned, PlanReady)
    said = " ".join(map(describe, (read_assignments(planned)["a"].summary, size.reason, short.reason)))
    assert ("dp" in said or "tp" in said) == named, said
