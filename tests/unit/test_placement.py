"""The planner: tables for what people will ask about, properties for what must hold always."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.errors import UsageError
from launcher.mesh import Mesh, parse
from launcher.node import Node
from launcher.placement import Costs, Limits, Plan, feasibility
from launcher.placement import plan as plan_with_costs
from launcher.placement.capacity import unit_size, usual_slot_count
from launcher.placement.patch import tile
from launcher.topology import in_order, nearness

REFERENCE = parse("pp=4,dp=*,tp=8")


def plan(nodes: list[Node], mesh: Mesh, limits: Limits, previous: Plan | None) -> Plan:
    return plan_with_costs(nodes, mesh, limits, Costs(), previous)


def cluster(count: int, slot_count: int = 8, leaf: int = 8) -> list[Node]:
    return [
        Node(id=f"h{index}", slot_count=slot_count, path=(f"leaf-{index // leaf}",), order=index + 1)
        for index in range(count)
    ]


def nodes_of(*slot_counts: int) -> list[Node]:
    return [Node(id="abcdefgh"[index], slot_count=count) for index, count in enumerate(slot_counts)]


def without(nodes: list[Node], *ids: str) -> list[Node]:
    return [node for node in nodes if node.id not in ids]


def coordinates(answer: Plan, mesh: Mesh) -> dict[tuple[int, ...], str]:
    return {mesh.coordinates(rank, answer.shape): node for node, ranks in answer.ranks.items() for rank in ranks}


def count_moved(before: Plan, after: Plan, mesh: Mesh) -> int:
    """Counted from the definition, independently of the planner's own arithmetic."""
    old = coordinates(before, mesh)
    return sum(old.get(place, node) != node for place, node in coordinates(after, mesh).items())


def refusal(nodes: list[Node], mesh: str, limits: Limits | None = None) -> str:
    limits = limits or Limits()
    with pytest.raises(UsageError) as caught:
        plan(nodes, parse(mesh), limits, None)
    answer = feasibility(nodes, parse(mesh), limits)
    assert (answer.world_size, answer.node_count, answer.is_full) == (0, 0, False)
    assert answer.reason == str(caught.value)
    return str(caught.value)


# The order of nodes


def test_numbers_in_names_and_domains_sort_as_numbers() -> None:
    ids = ["10.0.0.10", "10.0.0.9", "10.0.0.2", "10.0.0.100"]
    assert [node.id for node in in_order(Node(id=name, slot_count=1) for name in ids)] == [
        "10.0.0.2",
        "10.0.0.9",
        "10.0.0.10",
        "10.0.0.100",
    ]
    leaves = [Node(id=leaf, slot_count=1, path=(leaf,)) for leaf in ("leaf-10", "leaf-9")]
    assert [node.id for node in in_order(leaves)] == ["leaf-9", "leaf-10"]


def test_unknown_locality_comes_last_at_its_level() -> None:
    nodes = [
        Node(id="nowhere", slot_count=1),
        Node(id="half", slot_count=1, path=("zone", None)),
        Node(id="known", slot_count=1, path=("zone", "leaf")),
    ]
    assert [node.id for node in in_order(nodes)] == ["known", "half", "nowhere"]


def test_names_that_read_as_the_same_number_keep_their_order_in_the_store() -> None:
    nodes = [Node(id="h1", slot_count=1, order=7), Node(id="h01", slot_count=1, order=8)]
    assert [node.id for node in in_order(reversed(nodes))] == ["h1", "h01"]


@pytest.mark.parametrize(
    ("one", "other", "levels"),
    [
        (("z", "s", "l"), ("z", "s", "l"), 3),
        (("z", "s", "l"), ("z", "s", "m"), 2),
        (("z", "s", "l"), ("y", "s", "l"), 0),
        (("z", None, "l"), ("z", None, "l"), 2),
        (("z", None), ("z", None), 1),
        ((), ("z",), 0),
    ],
)
def test_nearness_counts_the_domains_two_nodes_share(
    one: tuple[str | None, ...], other: tuple[str | None, ...], levels: int
) -> None:
    assert nearness(Node(id="a", slot_count=1, path=one), Node(id="b", slot_count=1, path=other)) == levels


# Units and worlds


@pytest.mark.parametrize(
    ("mesh", "slot_count", "unit"),
    [
        ("pp=4,dp=*,tp=8", 8, 8),
        ("dp=*,tp=16", 8, 8),
        ("dp=*,cp=2,tp=2", 8, 4),
        ("dp=*,cp=4,tp=4", 8, 8),
        ("dp=*,tp=12", 8, 4),
        ("dp=*,cp=2,tp=12", 8, 4),
        ("dp=*,tp=3", 8, 1),
        ("tp=8,dp=*", 8, 1),
        ("pp=2,tp=4", 8, 8),
        ("dp=*", 8, 1),
    ],
)
def test_the_unit_is_the_innermost_axes_that_fill_a_node(mesh: str, slot_count: int, unit: int) -> None:
    assert unit_size(parse(mesh), slot_count) == unit


def test_the_unit_is_made_for_the_kind_of_node_that_brings_the_most_slots() -> None:
    assert usual_slot_count(nodes_of(8, 8, 8, 7, 16)) == 8
    assert usual_slot_count(nodes_of(8, 4, 4)) == 8


@pytest.mark.parametrize(
    ("mesh", "slot_counts", "limits", "world_size", "node_count", "is_full"),
    [
        ("pp=4,dp=*,tp=8", [8] * 31, Limits(), 224, 28, False),
        ("pp=4,dp=*,tp=8", [8] * 32, Limits(nodes_max=32), 256, 32, True),
        ("pp=4,dp=*,tp=8", [8] * 28, Limits(nodes_max=30), 224, 28, True),
        ("pp=4,dp=*,tp=8", [8] * 27, Limits(nodes_max=30), 192, 24, False),
        ("pp=4,tp=8", [8] * 5, Limits(), 32, 4, True),
        ("dp=*", [8], Limits(nodes_max=1), 8, 1, True),
        ("dp=*", [3, 5], Limits(), 8, 2, False),
        ("dp=*", [1, 1, 8, 8], Limits(nodes_max=2), 16, 2, True),
        ("dp=*,tp=8", [8, 8, 7], Limits(), 16, 2, False),
        ("dp=*,tp=3", [8], Limits(), 6, 1, False),
        ("dp=4", [4, 2, 2, 2], Limits(nodes_min=2), 4, 2, True),
    ],
)
def test_the_world_is_the_largest_whole_number_of_replicas(
    mesh: str, slot_counts: list[int], limits: Limits, world_size: int, node_count: int, is_full: bool
) -> None:
    nodes = [Node(id=f"h{index}", slot_count=count) for index, count in enumerate(slot_counts)]
    answer = feasibility(nodes, parse(mesh), limits)
    assert (answer.world_size, answer.node_count, answer.is_full) == (world_size, node_count, is_full)
    assert plan(nodes, parse(mesh), limits, None).world_size == world_size


def test_the_reason_names_the_world_and_the_spares() -> None:
    assert plan(cluster(31), REFERENCE, Limits(), None).reasons == (
        "world of 224 ranks on 28 of 31 nodes: dp=7 is the largest whole number of replicas; 3 spares: h28, h29, h30",
    )
    assert plan(cluster(1, 2), parse("dp=2"), Limits(), None).reasons == (
        "world of 2 ranks on 1 of 1 node: mesh dp=2 has a fixed size",
    )
    assert plan(nodes_of(8, 8, 7), parse("dp=*,tp=8"), Limits(), None).reasons == (
        "world of 16 ranks on 2 of 3 nodes: dp=2 is the largest whole number of replicas",
        "not usable, as 8 ranks must sit on one node: c",
    )
    assert plan(nodes_of(8), parse("dp=*,tp=3"), Limits(), None).reasons == (
        "world of 6 ranks on 1 of 1 node: dp=2 is the largest whole number of replicas",
        "2 slots of active nodes stay idle",
    )


def test_a_world_that_cannot_be_says_what_is_missing() -> None:
    assert refusal([], "dp=*") == "no node is present"
    assert (
        refusal(nodes_of(8, 8, 4, 8), "pp=4,dp=*,tp=8")
        == "mesh pp=4,dp=*,tp=8 needs at least 4 nodes with 8 devices; 3 are present, and node c has 4"
    )
    assert refusal(nodes_of(2), "tp=4") == "mesh tp=4 needs 4 devices, 2 are present on 1 node"
    assert (
        refusal(cluster(9), "pp=4,dp=*,tp=8", Limits(nodes_max=3))
        == "mesh pp=4,dp=*,tp=8 needs at least 4 nodes with 8 devices; at most 3 may be active"
    )
    assert refusal(cluster(2), "dp=*", Limits(nodes_min=3)) == "at least 3 nodes must be active, 2 are present"
    assert (
        refusal(nodes_of(8, 8, 4), "dp=*,tp=8", Limits(nodes_min=3)) == "at least 3 nodes must be active, "
        "2 with the 8 devices that a unit of mesh dp=*,tp=8 needs are present, and node c has 4"
    )
    assert (
        refusal(cluster(31), "pp=4,dp=*,tp=8", Limits(nodes_min=30, nodes_max=31))
        == "mesh pp=4,dp=7,tp=8 makes a world of 224 ranks on 28 nodes, but at least 30 must be active"
    )


def test_two_nodes_with_one_id_are_our_own_mistake() -> None:
    with pytest.raises(ValueError, match="same id"):
        feasibility([*cluster(1), *cluster(1)], parse("dp=*"), Limits())


# Patching


def test_a_lost_node_takes_its_replica_along_and_only_its_own_ranks_move() -> None:
    nodes = cluster(32)
    before = plan(nodes, REFERENCE, Limits(), None)
    after = plan(without(nodes, "h13"), REFERENCE, Limits(), before)
    assert after.shape == (4, 7, 8)
    assert after.moved == count_moved(before, after, REFERENCE) == 8
    # h7, h15, h23 and h31 held dp=7, which is gone; h15 stands on the leaf of h13's neighbours.
    assert coordinates(after, REFERENCE)[1, 5, 0] == "h15"
    assert after.spares == ("h7", "h23", "h31")
    assert after.reasons[-1] == "8 of 224 ranks change their node; without h13; with h15"


def test_a_lost_node_is_replaced_by_the_nearest_spare() -> None:
    nodes = cluster(32, leaf=8)
    before = plan(nodes, parse("pp=3,dp=8,tp=8"), Limits(), None)
    assert before.spares[0] == "h24"
    near = [*without(nodes, "h13"), Node(id="z", slot_count=8, path=("leaf-1",))]
    after = plan(near, parse("pp=3,dp=8,tp=8"), Limits(), before)
    assert after.ranks["z"] == before.ranks["h13"]
    assert after.moved == 8
    assert {name: ranks for name, ranks in after.ranks.items() if name != "z"} == {
        name: ranks for name, ranks in before.ranks.items() if name != "h13"
    }


def test_a_replica_that_arrives_moves_nobody() -> None:
    nodes = cluster(32)
    before = plan(nodes[:28], REFERENCE, Limits(), None)
    after = plan(nodes, REFERENCE, Limits(), before)
    assert after.shape == (4, 8, 8)
    assert after.moved == count_moved(before, after, REFERENCE) == 0


def test_an_arrival_that_makes_no_replica_changes_nothing() -> None:
    nodes = cluster(32)
    before = plan(nodes[:28], REFERENCE, Limits(), None)
    after = plan(nodes[:31], REFERENCE, Limits(), before)
    assert after.ranks == before.ranks
    assert after.moved == 0


def test_a_node_that_comes_back_gets_its_place_again() -> None:
    nodes = cluster(4)
    before = plan(nodes, parse("dp=*"), Limits(), None)
    assert plan(list(reversed(nodes)), parse("dp=*"), Limits(), before).ranks == before.ranks


def test_nodes_that_share_replicas_are_cut_anew_and_keep_what_they_can() -> None:
    # Two units per node, two stages: with dp=7 the stages meet inside a node, so the second stage must shift.
    mesh = parse("pp=2,dp=*,tp=4")
    nodes = cluster(8)
    before = plan(nodes, mesh, Limits(), None)
    after = plan(without(nodes, "h1"), mesh, Limits(), before)
    assert after.shape == (2, 7, 4)
    assert after.moved == count_moved(before, after, mesh) == 24
    assert after.ranks["h0"] == before.ranks["h0"]


def test_idle_slots_next_to_a_hole_fill_it_before_a_spare_is_taken() -> None:
    before = Plan(shape=(7,), ranks={"a": (0, 1, 2), "gone": (3,), "b": (4, 5, 6)}, spares=("c",), moved=0, reasons=())
    after = plan(nodes_of(4, 4, 4), parse("dp=7"), Limits(), before)
    assert after.ranks == {"a": (0, 1, 2, 3), "b": (4, 5, 6)}
    assert (after.spares, after.moved) == (("c",), 1)


def test_idle_slots_take_what_no_spare_can() -> None:
    mesh = parse("dp=*,tp=3")
    before = plan(nodes_of(8, 8), mesh, Limits(), None)  # 15 ranks: one slot of b is idle
    after = plan(nodes_of(8, 8, 8), mesh, Limits(), before)
    assert after.world_size == 24
    assert after.moved == 0
    assert after.ranks["b"] == tuple(range(8, 16))


def test_staying_ends_where_too_many_nodes_would_be_active() -> None:
    before = Plan(shape=(6,), ranks={"a": (0, 1), "b": (2, 3), "c": (4, 5)}, spares=(), moved=0, reasons=())
    after = plan(nodes_of(4, 4, 4), parse("dp=*"), Limits(nodes_max=2), before)
    assert {name: len(ranks) for name, ranks in after.ranks.items()} == {"a": 4, "c": 4}
    assert after.moved == 2


def test_full_nodes_go_to_whoever_held_most_of_them() -> None:
    nodes = nodes_of(3, 3, 3)
    held = ["x", "x", "a", "a", "a", "b", "b", "b", "c"]
    runs = tile(held, nodes, {"a": 3, "b": 3, "c": 3})
    assert runs == [("c", 0, 3), ("a", 3, 3), ("b", 6, 3)]


def test_a_node_that_returns_smaller_keeps_what_it_can_hold() -> None:
    mesh = parse("dp=*")
    before = plan(nodes_of(4, 4, 4), mesh, Limits(), None)
    after = plan(nodes_of(4, 2, 4), mesh, Limits(), before)
    assert after.world_size == 10
    assert after.ranks["a"] == (0, 1, 2, 3)
    assert after.moved == count_moved(before, after, mesh)


def test_a_plan_of_another_mesh_is_no_precedent() -> None:
    before = plan(cluster(4), parse("dp=*,tp=8"), Limits(), None)
    after = plan(cluster(4), parse("pp=2,dp=*,tp=4"), Limits(), before)
    assert after == plan(cluster(4), parse("pp=2,dp=*,tp=4"), Limits(), None)


# What holds always

meshes = st.sampled_from(
    [
        "dp=*",
        "dp=*,tp=2",
        "dp=*,tp=4",
        "pp=2,dp=*,tp=2",
        "tp=2,dp=*",
        "pp=2,dp=*",
        "dp=*,cp=2,tp=3",
        "pp=2,tp=4",
        "tp=3",
    ]
).map(parse)
domains = st.sampled_from([None, "a", "b", "c2", "c10"])


@st.composite
def node_lists(draw: st.DrawFn, *, size_min: int = 1, is_equal: bool = False) -> list[Node]:
    names = draw(st.lists(st.integers(0, 30), min_size=size_min, max_size=12, unique=True))
    usual = draw(st.sampled_from([1, 2, 4, 6, 8]))
    slots = st.just(usual) if is_equal else st.one_of(st.just(usual), st.integers(1, 8))
    return [
        Node(id=f"h{name}", slot_count=draw(slots), path=(draw(domains), draw(domains)), order=draw(st.integers(0, 3)))
        for name in names
    ]


def assert_valid(answer: Plan, nodes: list[Node], mesh: Mesh, limits: Limits) -> None:
    slots = {node.id: node.slot_count for node in nodes}
    unit = unit_size(mesh, usual_slot_count(nodes))
    assert sorted(itertools.chain(*answer.ranks.values())) == list(range(answer.world_size))
    assert answer.shape == mesh.shape(answer.world_size)
    for name, ranks in answer.ranks.items():
        assert 0 < len(ranks) <= slots[name]
        assert ranks == tuple(range(ranks[0], ranks[0] + len(ranks)))
        assert ranks[0] % unit == len(ranks) % unit == 0
    assert limits.nodes_min <= len(answer.ranks) <= (limits.nodes_max or len(nodes))
    assert sorted([*answer.ranks, *answer.spares]) == sorted(slots)
    answerable = sorted((slots_of // unit * unit for slots_of in slots.values()), reverse=True)
    room = sum(answerable[: limits.nodes_max])
    assert answer.world_size == feasibility(nodes, mesh, limits).world_size
    if mesh.elastic is not None:
        assert room - answer.world_size < mesh.replica_size


@st.composite
def histories(draw: st.DrawFn, *, is_equal: bool = False) -> tuple[list[Node], list[Node]]:
    """Nodes before and after: some lost, some new, none changed."""
    everybody = draw(node_lists(size_min=2, is_equal=is_equal))
    before = [node for node in everybody if draw(st.integers(0, 3))]
    after = [node for node in everybody if draw(st.integers(0, 3))]
    return before, after


@given(nodes=node_lists(), mesh=meshes, nodes_max=st.one_of(st.none(), st.integers(1, 12)))
def test_every_plan_is_valid(nodes: list[Node], mesh: Mesh, nodes_max: int | None) -> None:
    limits = Limits(nodes_max=nodes_max)
    if feasibility(nodes, mesh, limits).world_size:
        assert_valid(plan(nodes, mesh, limits, None), nodes, mesh, limits)
    else:
        with pytest.raises(UsageError):
            plan(nodes, mesh, limits, None)


@settings(max_examples=150)
@given(history=histories(), mesh=meshes)
def test_every_patched_plan_is_valid_and_counts_its_moves_truly(
    history: tuple[list[Node], list[Node]], mesh: Mesh
) -> None:
    then, now = history
    if feasibility(then, mesh, Limits()).world_size and feasibility(now, mesh, Limits()).world_size:
        before = plan(then, mesh, Limits(), None)
        after = plan(now, mesh, Limits(), before)
        assert_valid(after, now, mesh, Limits())
        assert after.moved == count_moved(before, after, mesh)
        assert after.moved <= count_moved(before, plan(now, mesh, Limits(), None), mesh)


@given(history=histories(), mesh=meshes, data=st.data())
def test_the_order_of_the_nodes_changes_nothing(
    history: tuple[list[Node], list[Node]], mesh: Mesh, data: st.DataObject
) -> None:
    then, now = history
    shuffled = data.draw(st.permutations(now))
    assert feasibility(now, mesh, Limits()) == feasibility(shuffled, mesh, Limits())
    if feasibility(then, mesh, Limits()).world_size and feasibility(now, mesh, Limits()).world_size:
        before = plan(then, mesh, Limits(), None)
        one, other = plan(now, mesh, Limits(), before), plan(shuffled, mesh, Limits(), before)
        assert one == other
        assert list(one.ranks) == list(other.ranks)


@given(
    history=histories(is_equal=True), mesh=st.sampled_from(["dp=*", "dp=4", "dp=3,tp=2", "pp=2,dp=2,tp=2"]).map(parse)
)
def test_survivors_stay_when_every_hole_has_a_spare(history: tuple[list[Node], list[Node]], mesh: Mesh) -> None:
    then, now = history
    if not (feasibility(then, mesh, Limits()).world_size and feasibility(now, mesh, Limits()).world_size):
        return
    before = plan(then, mesh, Limits(), None)
    after = plan(now, mesh, Limits(), before)
    if after.shape == before.shape:
        here = {node.id for node in now}
        held = coordinates(after, mesh)
        for place, name in coordinates(before, mesh).items():
            assert held[place] == name or name not in here


@given(
    history=histories(is_equal=True),
    mesh=st.sampled_from(["pp=2,dp=*,tp=8", "dp=*,tp=8", "pp=3,dp=*,tp=16"]).map(parse),
)
def test_with_whole_nodes_as_units_only_lost_coordinates_move(
    history: tuple[list[Node], list[Node]], mesh: Mesh
) -> None:
    then, now = history
    if not (feasibility(then, mesh, Limits()).world_size and feasibility(now, mesh, Limits()).world_size):
        return
    if unit_size(mesh, now[0].slot_count) != now[0].slot_count:
        return
    before = plan(then, mesh, Limits(), None)
    after = plan(now, mesh, Limits(), before)
    here = {node.id for node in now}
    old = coordinates(before, mesh)
    assert after.moved == sum(old.get(place, "") not in {"", *here} for place in coordinates(after, mesh))


@given(nodes=node_lists(), mesh=meshes, nodes_max=st.one_of(st.none(), st.integers(1, 12)))
def test_one_more_node_of_the_usual_kind_never_makes_the_world_smaller(
    nodes: list[Node], mesh: Mesh, nodes_max: int | None
) -> None:
    limits = Limits(nodes_max=nodes_max)
    more = [*nodes, Node(id="new", slot_count=usual_slot_count(nodes), path=("a",))]
    assert feasibility(more, mesh, limits).world_size >= feasibility(nodes, mesh, limits).world_size
