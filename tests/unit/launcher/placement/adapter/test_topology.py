"""Where all members stand, taken together: levels, paths, what is said of it, and what the planner makes of it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from launcher.model import mesh as meshes
from launcher.model.locality_path import LEVELS
from launcher.placement.adapter.description import Description, encode_description
from launcher.placement.adapter.planner_adapter import PlannerAdapter
from launcher.placement.adapter.topology import LEVELS_MAX, build_topology, resolve_limits
from launcher.placement.limits import AllOrNothing, Costs, Limits
from rendezvous.events import MakePlan, PlanReady, PlanRefused, RosterMember
from tests.support.placement.members import node, plan, read_ranks, roster, size, spell, told, try_plan


def places(**texts: str) -> dict[str, Description]:
    return {name: node(name, text) for name, text in texts.items()}


@pytest.mark.parametrize(
    ("texts", "levels", "paths"),
    [
        ({"h1": "zone=a,leaf=l1", "h2": "zone=a,leaf=l2"}, ("zone", "leaf"), [("a", "l1"), ("a", "l2")]),
        ({"h1": "zone=a", "h2": "leaf=l2"}, ("zone", "leaf"), [("a", None), (None, "l2")]),
        ({"h1": "zone=a,row=r", "h2": "row=r,leaf=l"}, ("zone", "row", "leaf"), [("a", "r", None), ("a", "r", "l")]),
        ({"h1": "", "h2": ""}, (), [(), ()]),
    ],
)
def test_levels_of_all_nodes_are_one_list_and_missing_ones_are_unknown(
    texts: dict[str, str], levels: tuple[str, ...], paths: list[tuple[str | None, ...]]
) -> None:
    found = build_topology(places(**texts))
    assert (found.levels, list(found.paths.values())) == (levels, paths)


def test_nodes_without_a_level_are_named_once_and_contradictions_ordered_by_majority() -> None:
    found = build_topology(places(h1="zone=a,leaf=l1,x=1,y=1", h2="zone=a", h3="zone=a", h4="leaf=l2,nvl=n"))
    assert found.levels == ("zone", "leaf", "nvl")
    assert tuple(map(spell, found.remarks)) == (
        "level-unshared nodes=(names names=h1 count=1) levels=(names names=x,y count=2)",
        "level-unknown level=zone nodes=(names names=h4 count=1)",
        "level-unknown level=leaf nodes=(names names=h2,h3 count=2)",
    )
    found = build_topology(places(h1="row=r,rack=k", h2="row=r,rack=k", h3="rack=k,row=r"))
    assert found.levels == ("row", "rack")
    assert tuple(map(spell, found.remarks)) == (
        "remark text=rack is taken to be inside row, though 1 has it the other way round",
    )


def test_a_slice_that_is_wider_than_a_leaf_is_around_it() -> None:
    found = build_topology(
        places(h1="zone=a,leaf=l1,slice=s", h2="zone=a,leaf=l2,slice=s", h3="zone=a,leaf=l2,slice=t")
    )
    assert found.levels == ("zone", "slice", "leaf")
    assert found.paths["h2"] == ("a", "s", "l2")
    assert tuple(map(spell, found.remarks)) == (
        "level-around level=slice domain=s outer=leaf domains=(names names=l1,l2 count=2)",
    )
    assert build_topology(places(h1="leaf=l1,slice=s", h2="leaf=l1,slice=t", h3="leaf=l2,slice=u")).levels == (
        "leaf",
        "slice",
    )


@pytest.mark.parametrize(
    ("texts", "zones"),
    [
        ({"h1": "zone=a,leaf=l", "h2": "leaf=l", "h3": "zone=b,leaf=m"}, ["a", "a", "b"]),
        ({"h1": "zone=a,leaf=l", "h2": "leaf=l", "h3": "zone=b,leaf=l"}, ["a", None, "b"]),  # of two zones, each its l
        ({"h1": "zone=a,leaf=l", "h2": "leaf=k", "h3": "zone=b,leaf=m"}, ["a", None, "b"]),
        ({"h1": "zone=a,spine=s", "h2": "spine=s,leaf=l", "h3": "leaf=l"}, ["a", "a", "a"]),
    ],
    ids=["neighbours know", "they differ", "there are none", "neighbours of neighbours"],
)
def test_a_node_without_a_zone_is_in_its_neighbours_zone(texts: dict[str, str], zones: list[str | None]) -> None:
    found = build_topology(places(**texts))
    assert [path[0] for path in found.paths.values()] == zones
    assert bool([remark for remark in found.remarks if "zone" in spell(remark)]) == (None in zones)


def test_a_host_with_another_zone_than_its_slice_or_none_does_not_split_it() -> None:
    others = {f"h{at}": f"zone=a,leaf=l{at % 2},slice=t" for at in range(5, 8)}
    found = build_topology(
        places(h1="zone=a,slice=s", h2="zone=wrong,slice=s", h3="slice=s", h4="zone=a,slice=s", **others)
    )
    assert found.levels == ("zone", "slice", "leaf")
    assert {path[:2] for path in list(found.paths.values())[:4]} == {("a", "s")}
    assert "level-strays level=slice domain=s outer=zone usual=a nodes=(names names=h2 count=1)" in map(
        spell, found.remarks
    )
    assert not [remark for remark in found.remarks if "level-unknown level=zone" in spell(remark)]


def test_a_thousand_levels_are_cut_and_ranks_follow_the_leaves() -> None:
    known = places(**{f"h{at}": ",".join(f"x{at}-{each}=a" for each in range(16)) for at in range(1000)})
    known["h0"] = node("h0", "zone=a,leaf=l")
    known |= {name: node(name, "your-row=r") for name in ("h1", "h2")}
    found = build_topology(known)
    assert found.levels == ("your-row",), "more than one of them has it"
    assert len(build_topology(known, named=[f"x{at}-0" for at in range(1000)]).levels) <= LEVELS_MAX
    assert any(spell(remark).startswith(f"too-many-levels most={LEVELS_MAX} levels=") for remark in found.remarks)
    nodes = [node(f"h{at}", f"leaf={leaf}") for at, leaf in enumerate(("far", "near", "far", "near"), 1)]
    planned = plan(*nodes, mesh="pp=2,dp=2,tp=2")
    found = read_ranks(planned, *nodes)
    assert sorted((*found["h1"], *found["h3"])) in ([0, 1, 2, 3], [4, 5, 6, 7])
    assert planned.reasons[-3:] == (
        "axes-together axes=tp level=host",
        "axes-together axes=dp level=leaf",
        "axis-spread axis=pp domains=2 level=leaf",
    )


levels_said = st.lists(
    st.tuples(st.sampled_from([*LEVELS[:4], "leaf", "slice", "row", "rack"]), st.sampled_from("ab")),
    unique_by=lambda one: one[0], max_size=5,
)  # fmt: skip


@settings(max_examples=60)
@given(st.lists(levels_said, min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_who_joined_first_changes_nothing(said: list[list[tuple[str, str]]], chance: object) -> None:
    known = {f"h{at}": replace(node(f"h{at}"), locality=tuple(one)) for at, one in enumerate(said)}
    shuffled = list(known.items())
    chance.shuffle(shuffled)  # type: ignore[attr-defined]
    one, other = build_topology(known), build_topology(dict(shuffled))
    assert (one.levels, dict(one.paths), one.remarks) == (other.levels, dict(other.paths), other.remarks)


# What the planner makes of it


@pytest.mark.parametrize("place", ["", "region=r,zone=z,spine=s0,leaf=l2"])
def test_a_node_that_returns_and_knows_more_or_less_moves_nobody(place: str) -> None:
    """Ranks from scratch would be others, so it is the plan before that keeps them."""
    leaves = [f"zone=z,spine=s{at // 16},leaf=l{at // 8}" for at in range(32)]
    nodes = [node(f"h{at}", leaf, slot_count=8) for at, leaf in enumerate(leaves)]
    planner = PlannerAdapter(meshes.parse("pp=4,dp=*,tp=8"), Limits(), Costs())
    members = roster(*nodes)
    first = planner.plan(MakePlan(1, 1, members, {}))
    held = read_ranks(first)
    assert isinstance(first, PlanReady)
    back = RosterMember("f" * 16, encode_description(node("h17", place, slot_count=8)), 99)
    changed = tuple(back if at == 17 else one for at, one in enumerate(members))
    held[back.member_id] = held.pop(members[17].member_id)
    names = {one.member_id: known.name for one, known in zip(members, nodes, strict=True)}

    assert read_ranks(planner.plan(MakePlan(2, 2, changed, first.assignments, names))) == held
    assert read_ranks(planner.plan(MakePlan(3, 1, changed, {}))) != held


def test_a_rule_holds_among_nodes_that_joined_and_no_level_is_spoken_of_where_all_are_together() -> None:
    planned = plan(node("h1", "zone=a,leaf=l"), node("h2", "zone=a,leaf=l"))
    assert not [reason for reason in planned.reasons if "leaf" in reason or "host" in reason]
    assert planned.remarks == ()
    nodes = [node(f"h{at}", f"leaf={leaf}") for at, leaf in enumerate("abab", 1)]
    planned = plan(*nodes, mesh="dp=*,tp=4", limits=Limits(within={"tp": "leaf"}))
    found = read_ranks(planned, *nodes)
    assert sorted((*found["h1"], *found["h3"])) in ([0, 1, 2, 3], [4, 5, 6, 7])
    assert size(*nodes[:2], mesh="dp=*,tp=4", limits=Limits(within={"tp": "leaf"})).world_size == 0


def test_unknown_levels_are_said_and_nodes_of_one_kernel_share_a_machine() -> None:
    limits = Limits(within={"tp": "leaf"})
    spelt = "unknown-level option=--within tp=leaf level=leaf known=zone,host"
    found = size(node("h1", "zone=a"), node("h2"), limits=limits)
    assert (found.world_size, found.reason) == (0, f"{spelt}; joined nodes=(names names=h1,h2 count=2)")
    assert try_plan(node("h1"), limits=limits) == PlanRefused(7, spelt.replace("zone,", ""))
    assert size(node("h1"), limits=Limits(all_or_nothing=AllOrNothing(level="nvl", hosts=2))).reason.startswith(
        "unknown-level option=--whole nvl level=nvl known="
    )
    assert size(node("h1", "leaf=l"), limits=limits).world_size == 2
    known = places(h1="leaf=l", h2="leaf=l", h3="leaf=l")
    assert build_topology(known).levels == ("leaf",)
    known["h2"] = replace(known["h2"], machine="boot-h1")
    found = build_topology(known)
    assert found.levels == ("leaf", "machine")
    assert found.paths == {"h1": ("l", "boot-h1"), "h2": ("l", "boot-h1"), "h3": ("l", "boot-h3")}
    known["h3"] = replace(known["h3"], machine="boot-h1")
    assert build_topology(known).levels == ("leaf",)
    assert build_topology(known, named=["machine"]).levels == ("leaf", "machine")


def test_costs_of_absent_levels_and_unequal_nodes_are_said_once() -> None:
    planner = PlannerAdapter(meshes.parse("dp=*"), Limits(), Costs(level_costs={"leaf": 2, "host": 1}))
    remarks = []
    for number in (1, 2):
        found = told(planner.plan(MakePlan(number, number, roster(node("h1", "zone=a"), node("h2", "zone=b")), {})))
        assert isinstance(found, PlanReady)
        remarks.append(found.remarks)
    assert remarks == [("level-costs-unused levels=(names names=leaf count=1)",), ()]
    found = size(node("h1", slot_count=8), node("h2", slot_count=8), node("h3", slot_count=4), mesh="pp=3,tp=8")
    assert found.reason == (
        "nodes-missing mesh=pp=3,tp=8 nodes=3 devices=8 present=2 most=0; "
        "odd-nodes nodes=(names names=h3 (4) count=1); joined nodes=(names names=h1,h2,h3 count=3)"
    )


def tpu_host(name: str, slice: str, index: int, hosts: int = 2) -> Description:
    return node(name, f"slice={slice}", index=index, slice_hosts=hosts)


def test_slices_are_used_whole_by_default_unless_the_user_wants_another_level_whole() -> None:
    nodes = [tpu_host("h1", "t", 1), tpu_host("h2", "s", 1), tpu_host("h3", "t", 0), tpu_host("h4", "s", 0)]
    assert read_ranks(plan(*nodes), *nodes) == {"h4": (0, 1), "h2": (2, 3), "h3": (4, 5), "h1": (6, 7)}
    assert plan(*nodes[:3]).world_size == 4
    assert size(*nodes[:2]).world_size == 0
    wish = Limits(all_or_nothing=AllOrNothing(level="leaf", hosts=1))
    known = {"h1": tpu_host("h1", "s", 0)}
    assert resolve_limits(wish, build_topology(known), known.values())[0].all_or_nothing == wish.all_or_nothing


@pytest.mark.parametrize(
    "locality", [[["leaf", "\x1b[2Jx"]], [["leaf", "x" * 10_000_000]], {"leaf": "a"}], ids=range(3)
)
def test_a_member_with_a_place_that_cannot_be_is_left_out_and_harms_nobody(locality: object) -> None:
    bad = json.dumps({**json.loads(encode_description(node("h2"))), "locality": locality})
    found = plan(node("h1", "leaf=l"), bad)
    assert found.world_size == 2
    (remark,) = found.remarks
    assert remark.startswith(f"unreadable-node node={2:016x} error=it")
    assert len(remark) < 160
    assert remark.isprintable()
