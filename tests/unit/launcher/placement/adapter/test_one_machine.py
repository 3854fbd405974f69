"""One machine without options of placement is planned without the planner, and gets what the planner would give it."""

from __future__ import annotations

from typing import cast

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from launcher.model import mesh as meshes
from launcher.model.errors import UsageError
from launcher.placement.adapter.description import Description, encode_description
from launcher.placement.adapter.one_machine import LIMITS, OneMachinePlanner
from launcher.placement.adapter.options import list_options, parse_limits_and_costs
from launcher.placement.adapter.planner_adapter import PlannerAdapter
from rendezvous.events import MakePlan, PlanReady, RosterMember
from rendezvous.policy.view import MemberView
from rendezvous.reasons import Reason
from rendezvous.records import Member

SIZES = st.one_of(st.none(), st.integers(1, 4))


def parse_fitting(sizes: list[int | None], slot_count: int) -> meshes.Mesh | None:
    """The mesh of these sizes, if a job of one machine may have it."""
    text = ",".join(f"a{index}={size or '*'}" for index, size in enumerate(sizes))
    try:
        mesh = meshes.parse(text)
        meshes.require_fit(mesh, slot_count)
    except UsageError:
        return None
    return mesh


@given(
    st.lists(SIZES, min_size=1, max_size=4), st.integers(1, 64), st.sampled_from([0, 29500]), st.text("abc", min_size=1)
)
def test_the_planner_gives_the_same(sizes: list[int | None], slots: int, port: int, role: str) -> None:
    mesh = parse_fitting(sizes, slots)
    if mesh is None:
        mesh = meshes.DEFAULT_MESH
    description = Description(slot_count=slots, address="127.0.0.1", role=role, master_port=port)
    text = encode_description(description)
    asked = parse_limits_and_costs({}, mesh, nodes_min=1, nodes_max=1)
    planner, alone = PlannerAdapter(mesh, *asked), OneMachinePlanner(mesh, description)
    member = MemberView(Member(member_id="m", node_name="n", boot_id="", description=text), 3, 3, 0.0)
    for members in ([], [member]):
        size = planner.compute_size(members)
        assert replace(alone.compute_size(members), reason=size.reason) == size

    first = MakePlan(1, 1, (RosterMember("m", text, 3),), {})
    planned = cast("PlanReady", planner.plan(first))
    assert planned.assignments
    assert replace(alone.plan(first), reasons=planned.reasons) == planned
    # The same after a failure, and after an agent that registered again.
    for name in ("m", "other"):
        again = MakePlan(2, 2, (RosterMember(name, text, 5),), {"m": planned.assignments["m"]}, {"m": "n"})
        expected = cast("PlanReady", planner.plan(again))
        assert replace(alone.plan(again), reasons=expected.reasons) == expected
    assert list_options(*asked) == LIMITS


def test_what_it_says_is_for_people() -> None:
    alone = OneMachinePlanner(meshes.DEFAULT_MESH, Description(slot_count=1, address="127.0.0.1", role="default"))
    planned = alone.plan(MakePlan(1, 1, (RosterMember("m", "", 3),), {}))
    member = MemberView(Member(member_id="m", node_name="n", boot_id="", description=""), 3, 3, 0.0)
    reason = Reason.of("placement/all-slots", ranks=1)
    assert (planned.reasons, alone.compute_size([member]).reason) == ((reason,), reason)  # both are in --events
    assert alone.compute_size([]).reason == Reason.of("placement/not-joined")
