"""Members as the agreement hands them to the planner, and what they are told."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from launcher.model import mesh as meshes
from launcher.placement.adapter.description import Description, NodeAssignment, decode_assignment, encode_description
from launcher.placement.adapter.planner_adapter import PlannerAdapter
from launcher.placement.limits import Costs, Limits
from rendezvous.events import MakePlan, PlanReady, PlanRefused, RosterMember
from rendezvous.policy.view import MemberView, Size
from rendezvous.reasons import Reason
from rendezvous.records import Member

USUAL, FREE = Limits(), Costs()


def node(name: str, place: str = "", **fields: object) -> Description:
    """h3 at "zone=a,leaf=l1", with two slots, on a machine of its own."""
    number = int("".join(filter(str.isdigit, name)) or 0)
    known: dict[str, object] = {
        "slot_count": 2,
        "address": f"10.0.0.{number}",
        "role": "r",
        "machine": f"boot-{name}",
        "locality": tuple((level, domain) for level, _, domain in (each.partition("=") for each in place.split(",")))
        if place
        else (),
    }
    return Description(name=name, **{**known, **fields})  # type: ignore[arg-type]


def roster(*nodes: Description | str) -> tuple[RosterMember, ...]:
    """Members in the order in which they joined; a text is what a member wrote in place of a description."""
    texts = [one if isinstance(one, str) else encode_description(one) for one in nodes]
    return tuple(RosterMember(f"{at:016x}", text, at) for at, text in enumerate(texts, 1))


def spell(reason: Reason) -> str:
    """Kind and values on one line, for a table; without the package's name."""
    return str(reason).replace("placement/", "")


def told(found: Any) -> Any:
    """An answer of the planner with its reasons spelt out."""
    match found:
        case Size() | PlanRefused():
            return replace(found, reason=spell(found.reason))
        case PlanReady():
            return replace(
                found,
                reasons=tuple(map(spell, found.reasons)),
                remarks=tuple(map(spell, found.remarks)),
                spare_reasons={member_id: spell(reason) for member_id, reason in found.spare_reasons.items()},
            )


def plan(*nodes: Description | str, **options: Any) -> PlanReady:
    found = try_plan(*nodes, **options)
    assert isinstance(found, PlanReady), found
    return found


def try_plan(
    *nodes: Description | str, mesh: str = "dp=*,tp=2", limits: Limits = USUAL, costs: Costs = FREE, node_count: int = 0
) -> PlanReady | PlanRefused:
    adapter = PlannerAdapter(meshes.parse(mesh), limits, costs, node_count)
    return told(adapter.plan(MakePlan(7, 1, roster(*nodes), {})))


def size(*nodes: Description | str, mesh: str = "dp=*,tp=2", limits: Limits = USUAL, node_count: int = 0) -> Size:
    views = [
        MemberView(Member(member_id=one.member_id, node_name="n", boot_id="", description=one.description), at, at, 0)
        for at, one in enumerate(roster(*nodes), 1)
    ]
    return told(PlannerAdapter(meshes.parse(mesh), limits, Costs(), node_count).compute_size(views))


def read_assignments(planned: object, *nodes: Description) -> dict[str, NodeAssignment]:
    """What each member is told, by the name of its node if those are given, in their order."""
    assert isinstance(planned, PlanReady), planned
    named = {member.member_id: one.name for member, one in zip(roster(*nodes), nodes, strict=True)}
    return {named.get(member_id, member_id): decode_assignment(text) for member_id, text in planned.assignments.items()}


def read_ranks(planned: object, *nodes: Description) -> dict[str, tuple[int, ...]]:
    return {name: share.ranks for name, share in read_assignments(planned, *nodes).items()}
