"""Plans after a plan: who stays, who moves, and what that is worth."""

from __future__ import annotations

import tracemalloc
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.model.mesh import Mesh, parse
from launcher.model.node import Node
from launcher.model.traffic import Communicator, make_default_traffic
from launcher.placement import choice
from launcher.placement.capacity import assess_feasibility
from launcher.placement.choice import compute_exchange_costs
from launcher.placement.limits import NO_ITEM, AllOrNothing, Costs, Limits, Plan
from launcher.placement.planner import plan
from launcher.placement.problem.hops import build_graph, make_traffic
from launcher.placement.problem.problem import Problem
from launcher.placement.stability import fill_holes, make_first_fit, tile
from launcher.placement.units import choose_block_size
from tests.support.placement.members import spell
from tests.support.placement.plans import coordinates, count_moved, domains, faults, meshes

REFERENCE = parse("pp=4,dp=*,tp=8")
LEAVES = Limits(levels=("spine", "leaf"))
LEVEL_COSTS = Costs(level_costs={"spine": 4, "leaf": 2, "host": 1})


FLAT = Costs(level_costs={"spine": 0, "leaf": 0, "host": 1})  # where nothing is gained by a move


def cluster(count: int, leaf: int = 8) -> list[Node]:
    return [Node(id=f"h{index}", slot_count=8, path=("s", f"l{index // leaf}")) for index in range(count)]


def nodes_of(*slot_counts: int) -> list[Node]:
    return [Node(id="abcdefgh"[index], slot_count=count) for index, count in enumerate(slot_counts)]


def without(nodes: list[Node], *ids: str) -> list[Node]:
    return [node for node in nodes if node.id not in ids]


# A node is lost


def test_a_loss_beside_a_wide_exchange_takes_little_memory() -> None:
    mesh, limits = parse("dp=*,ep=512"), Limits(levels=("leaf",))
    costs = Costs(traffic=(Communicator(axes=("ep",), kind="all", weight=1),))
    nodes = [Node(id=f"h{index}", slot_count=1, path=(f"l{index // 32}",)) for index in range(2049)]
    before = plan(nodes, mesh, limits, costs, None)
    tracemalloc.start()
    try:
        after = plan(without(nodes, "h17"), mesh, limits, costs, before)
        assert tracemalloc.get_traced_memory()[1] < 20e6
    finally:
        tracemalloc.stop()
    assert after.moved == 1


def test_a_lost_node_takes_its_replica_along_and_only_its_own_ranks_move() -> None:
    nodes = cluster(32)
    before = plan(nodes, REFERENCE, LEAVES, LEVEL_COSTS, None)
    after = plan(without(nodes, "h17"), REFERENCE, LEAVES, LEVEL_COSTS, before)
    assert (after.shape, after.cost, after.lower_bound) == ((4, 7, 8), 3752, 2744)
    assert after.moved == count_moved(before, after, REFERENCE) == 8
    # One node on each leaf held dp=7, which is gone; the one on the lost node's leaf takes its place.
    (taker,) = (name for name in after.ranks if before.ranks[name][0] % 64 == 56)
    assert taker in {f"h{index}" for index in range(16, 24)}
    assert tuple(map(spell, after.reasons)) == (
        "world ranks=224 nodes=28 present=31 why=(largest size=dp=7 rules=) is_most=False; "
        f"spares nodes=(names names={','.join(after.spares)} count=3)",
        "cost cost=3752 is_least=False",
        "slowest-link axes=pp link=leaf s/l0's uplink share=0.677419 is_assumed=True",
        f"moved moved=8 ranks=224; without nodes=(names names=h17 count=1); with nodes=(names names={taker} count=1)",
    )


@pytest.mark.parametrize(("mesh", "count"), [("pp=4,dp=*,tp=8", 511), ("pp=8,dp=64,tp=8", 513), ("dp=*,tp=16", 513)])
def test_one_node_lost_of_512_moves_two_nodes_ranks_at_most(mesh: str, count: int) -> None:
    nodes = cluster(count, leaf=15)
    before = plan(nodes, parse(mesh), LEAVES, LEVEL_COSTS, None)
    left = without(nodes, list(before.ranks)[100])
    after = plan(left, parse(mesh), LEAVES, LEVEL_COSTS, before)
    assert after.moved == count_moved(before, after, parse(mesh)) <= 16
    assert after.cost <= plan(left, parse(mesh), LEAVES, LEVEL_COSTS, None).cost * 1.0025


def test_a_hole_goes_to_the_cheapest_spare_and_spares_are_named_in_that_order() -> None:
    # The hole's tensor-parallel other half stands on leaf b, its pipeline neighbour on leaf a.
    mesh = parse("pp=2,tp=16")
    places = {"s0": "a", "s1": "a", "t0": "b", "lost": "b", "near-pp": "a", "near-tp": "b"}
    nodes = [Node(id=name, slot_count=8, path=(leaf,)) for name, leaf in places.items()]
    order = ("s0", "s1", "t0", "lost")
    ranks = {name: tuple(range(8 * index, 8 * index + 8)) for index, name in enumerate(order)}
    before = Plan(shape=(2, 16), ranks=ranks, spares=("near-pp", "near-tp"), moved=0, reasons=())
    after = plan(without(nodes, "lost"), mesh, Limits(), Costs(), before)
    assert after.ranks == {**{name: ranks[name] for name in order if name != "lost"}, "near-tp": ranks["lost"]}
    assert after.moved == 8
    places = ["a", *["b"] * 4, *["c"] * 3]
    nodes = [Node(id=f"h{index}", slot_count=8, path=("s", leaf)) for index, leaf in enumerate(places)]
    small = Node(id="small", slot_count=4, path=("s", "b"))
    answer = plan([*nodes, small], parse("dp=5,tp=8"), LEAVES, Costs(), None)
    assert set(answer.ranks) == {"h1", "h2", "h3", "h4", "h5"}
    assert answer.spares == ("h6", "h7", "h0", "small")  # on leaf c there is somebody active, on leaf a nobody
    spelt = "unused why=(too-small ranks=8) nodes=(names names=small count=1)"
    assert spelt in map(spell, answer.reasons)


@pytest.mark.parametrize("mesh", ["pp=2,dp=3,tp=4", "dp=4,ep=4", "dp=5", "pp=3,dp=2,cp=2", "dp=2,ep=3,tp=2"])
def test_what_an_exchange_of_two_units_costs_is_counted_without_trying_it(mesh: str) -> None:
    shape = parse(mesh).resolve_shape(parse(mesh).replica_size)
    talk = make_traffic(
        shape, [axis.name for axis in parse(mesh).axes], 1, make_default_traffic(parse(mesh)), (4, 2, 1)
    )
    items = np.arange(talk.block_count + 3, dtype=np.int32)
    labels = (items // 7, items // 3, items)
    problem = Problem(traffic=talk, capacity=np.ones(len(items), dtype=np.int32), labels=labels)
    layout = items[(np.arange(talk.block_count) * 5 + 1) % len(items)] if len(items) % 5 else items[::-1][:-3]
    unit = talk.block_count // 2
    changes = compute_exchange_costs(problem, build_graph(talk), layout, unit)
    for other in range(talk.block_count):
        exchanged = layout.copy()
        exchanged[[unit, other]] = layout[[other, unit]]
        assert problem.compute_cost(exchanged) - problem.compute_cost(layout) == changes[other]


def test_numbers_too_large_for_arrays_price_a_move_like_small_ones() -> None:
    nodes = cluster(32)
    mesh = parse("pp=4,dp=*,ep=7,tp=8")
    limits = Limits(levels=LEAVES.levels)

    def after_a_loss(factor: int) -> Plan:
        traffic = tuple(
            Communicator(axes=(axis,), kind=kind, weight=weight * factor)
            for axis, kind, weight in (("tp", "ring", 5), ("ep", "all", 2), ("dp", "ring", 1), ("pp", "line", 1))
        )
        level_costs = {level: level_cost * factor for level, level_cost in (("spine", 4), ("leaf", 2), ("host", 1))}
        costs = Costs(traffic=traffic, level_costs=level_costs)
        before = plan(nodes, mesh, limits, costs, None)
        gone = next(node for node in nodes if 0 in before.ranks.get(node.id, ()))
        return plan([node for node in nodes if node is not gone], mesh, limits, costs, before)

    small, large = after_a_loss(1), after_a_loss(10**9)
    assert large.ranks == small.ranks
    assert large.cost == small.cost * 10**18


# Nodes arrive


def test_nodes_that_arrive_or_come_back_move_nobody() -> None:
    nodes = cluster(32)
    before = plan(nodes[:28], REFERENCE, LEAVES, LEVEL_COSTS, None)
    after = plan(nodes, REFERENCE, LEAVES, FLAT, before)
    assert after.shape == (4, 8, 8)
    assert after.moved == count_moved(before, after, REFERENCE) == 0
    nodes = cluster(32)
    before = plan(nodes[:28], REFERENCE, LEAVES, FLAT, None)
    after = plan(nodes[:31], REFERENCE, LEAVES, FLAT, before)
    assert after.ranks == before.ranks
    assert after.moved == 0
    nodes = cluster(4)
    before = plan(nodes, parse("dp=*"), LEAVES, Costs(), None)
    assert plan(list(reversed(nodes)), parse("dp=*"), LEAVES, Costs(), before).ranks == before.ranks


def test_twice_the_nodes_are_laid_out_around_those_who_stay_and_slices_host_by_host() -> None:
    nodes = [Node(id=f"h{index}", slot_count=8, path=(f"s{index // 32}", f"l{index // 8}")) for index in range(64)]
    before = plan(nodes[:32], REFERENCE, LEAVES, LEVEL_COSTS, None)
    after = plan(nodes, REFERENCE, LEAVES, LEVEL_COSTS, before)
    fresh = plan(nodes, REFERENCE, LEAVES, LEVEL_COSTS, None)
    assert after.cost == fresh.cost
    assert (
        after.moved == count_moved(before, after, REFERENCE) < count_moved(before, fresh, REFERENCE) or not after.moved
    )
    limits = Limits(levels=("slice",), all_or_nothing=AllOrNothing(level="slice", hosts=4))
    nodes = [Node(id=f"t{index}", slot_count=4, path=(f"s{index // 4}",), index=3 - index % 4) for index in range(20)]
    mesh = parse("dp=4,tp=16")
    before = plan(nodes, mesh, limits, Costs(), None)
    lost = next(iter(before.ranks))
    after = plan(without(nodes, lost), mesh, limits, Costs(), before)
    assert not list(faults(after, without(nodes, lost), mesh, limits))
    assert after.moved == count_moved(before, after, mesh) == 16


# What moving is worth


def test_a_much_cheaper_plan_is_worth_its_moves_after_names_are_exchanged() -> None:
    # Eight stages of one node each on two leaves, every other stage on the other leaf: all 7 hops leave a leaf.
    mesh = parse("pp=8,tp=8")
    nodes = cluster(8, leaf=4)
    order = [f"h{index // 2 + index % 2 * 4}" for index in range(8)]
    ranks = {name: tuple(range(8 * index, 8 * index + 8)) for index, name in enumerate(order)}
    before = Plan(shape=(8, 8), ranks=ranks, spares=(), moved=0, reasons=())
    found = plan(nodes, mesh, LEAVES, LEVEL_COSTS, before)
    # 7 hops x 8 ranks x weight 3: 168 for the host, and for leaves 48 where one hop leaves its leaf, 336 where all do.
    assert found.cost == 168 + 48
    # Which leaf is the first is free; on either, two stages can stay where they are.
    assert found.moved == count_moved(before, found, mesh) == 32
    # The same plan, but for the names of leaves and of nodes in a leaf, which a plan from scratch would not keep.
    nodes = cluster(32)
    fresh = plan(nodes, REFERENCE, LEAVES, LEVEL_COSTS, None)
    renamed = {f"h{index}": f"h{(index + 8) % 32 // 8 * 8 + (index * 3 + 1) % 8}" for index in range(32)}
    ranks = {renamed[name]: ranks for name, ranks in fresh.ranks.items()}
    before = Plan(shape=fresh.shape, ranks=ranks, spares=(), moved=0, reasons=())
    after = plan(nodes, REFERENCE, LEAVES, LEVEL_COSTS, before)
    assert (after.moved, after.cost) == (0, fresh.cost)


def test_another_mesh_is_no_precedent_and_too_many_active_nodes_end_staying() -> None:
    before = plan(cluster(4), parse("dp=*,tp=8"), LEAVES, Costs(), None)
    after = plan(cluster(4), parse("pp=2,dp=*,tp=4"), LEAVES, Costs(), before)
    fresh = plan(cluster(4), parse("pp=2,dp=*,tp=4"), LEAVES, Costs(), None)
    assert (after.ranks, after.moved) == (fresh.ranks, 0)
    assert spell(after.reasons[-1]) == "other-mesh"
    before = Plan(shape=(6,), ranks={"a": (0, 1), "b": (2, 3), "c": (4, 5)}, spares=(), moved=0, reasons=())
    after = plan(nodes_of(4, 4, 4), parse("dp=*"), Limits(nodes_max=2), Costs(), before)
    assert {name: len(ranks) for name, ranks in after.ranks.items()} == {"a": 4, "c": 4}
    assert after.moved == 2


# Several units on a node


def test_idle_slots_fill_a_hole_beside_them_and_take_what_no_spare_can() -> None:
    before = Plan(shape=(7,), ranks={"a": (0, 1, 2), "gone": (3,), "b": (4, 5, 6)}, spares=("c",), moved=0, reasons=())
    after = plan(nodes_of(4, 4, 4), parse("dp=7"), Limits(), Costs(), before)
    assert after.ranks == {"a": (0, 1, 2, 3), "b": (4, 5, 6)}
    assert (after.spares, after.moved) == (("c",), 1)
    mesh = parse("dp=*,tp=3")
    before = plan(nodes_of(8, 8), mesh, Limits(), Costs(), None)  # 15 ranks: one slot of b is idle
    after = plan(nodes_of(8, 8, 8), mesh, Limits(), Costs(), before)
    assert after.world_size == 24
    assert after.moved == count_moved(before, after, mesh) == 0


def test_full_nodes_go_to_whoever_held_most_and_parts_of_others_cannot_all_stay() -> None:
    held = [NO_ITEM, NO_ITEM, 0, 0, 0, 1, 1, 1, 2]
    assert tile(held, [3, 3, 3], make_first_fit([3, 3, 3])) == [(2, 3), (0, 3), (1, 3)]
    assert fill_holes([0, 1, 0], [3, 1, 1], make_first_fit([3, 1, 1])) is None


@pytest.mark.parametrize(
    ("held", "rooms", "runs"),
    [
        ([0, 0, NO_ITEM, 1, 1], [3, 2], [(0, 3), (1, 2)]),
        ([0, 0, NO_ITEM, 1, 1], [2, 3], [(0, 2), (1, 3)]),
        ([0, NO_ITEM, 1, NO_ITEM], [1, 1, 1, 1], [(0, 1), (2, 1), (1, 1), (3, 1)]),
        ([0, NO_ITEM, NO_ITEM, 1], [2, 2], [(0, 2), (1, 2)]),
        ([0, NO_ITEM, 1], [1, 1], None),
    ],
)
def test_a_hole_goes_to_near_or_free_ones(
    held: list[int], rooms: list[int], runs: list[tuple[int, int]] | None
) -> None:
    assert fill_holes(held, rooms, make_first_fit(rooms)) == runs


def test_a_node_that_returns_smaller_and_shared_replicas_keep_what_they_can() -> None:
    mesh = parse("dp=*")
    before = plan(nodes_of(4, 4, 4), mesh, Limits(), Costs(), None)
    after = plan(nodes_of(4, 2, 4), mesh, Limits(), Costs(), before)
    assert after.world_size == 10
    assert after.moved == count_moved(before, after, mesh) <= 4
    # Two units per node, two stages: with dp=7 the stages meet inside a node, so the second stage must shift.
    mesh = parse("pp=2,dp=*,tp=4")
    nodes = cluster(8)
    before = plan(nodes, mesh, LEAVES, Costs(), None)
    after = plan(without(nodes, "h1"), mesh, LEAVES, Costs(), before)
    assert after.shape == (2, 7, 4)
    assert after.moved == count_moved(before, after, mesh) <= 24


# What holds always


@st.composite
def histories(draw: st.DrawFn, *, is_equal: bool = False) -> tuple[list[Node], list[Node]]:
    """Nodes before and after: some lost, some new, none changed. `is_equal`: of one size, and of unknown places."""
    names = draw(st.lists(st.integers(0, 30), min_size=2, max_size=12, unique=True))
    usual = draw(st.sampled_from([1, 2, 4, 6, 8]))
    slots = st.just(usual) if is_equal else st.one_of(st.just(usual), st.integers(1, 8))
    places = st.none() if is_equal else domains
    everybody = [
        Node(id=f"h{name}", slot_count=draw(slots), path=(draw(places), draw(places)), order=draw(st.integers(0, 3)))
        for name in names
    ]
    before = [node for node in everybody if draw(st.integers(0, 3))]
    after = [node for node in everybody if draw(st.integers(0, 3))]
    return before, after


def are_worlds(history: tuple[list[Node], list[Node]], mesh: Mesh, limits: Limits) -> bool:
    return all(assess_feasibility(nodes, mesh, limits).world_size for nodes in history)


@settings(max_examples=25)
@given(history=histories(), mesh=meshes, data=st.data())
def test_every_second_plan_is_valid_counts_its_moves_and_is_worth_them(
    history: tuple[list[Node], list[Node]], mesh: Mesh, data: st.DataObject
) -> None:
    then, now = history
    limits, costs = Limits(), Costs()
    if not are_worlds(history, mesh, limits):
        return
    # A layout that is merely valid is precedent and rival enough, and quickly found.
    with mock.patch.object(choice, "search", return_value=[]):
        before = plan(then, mesh, limits, costs, None)
        after = plan(now, mesh, limits, costs, before)
        fresh = plan(now, mesh, limits, costs, None)
        shuffled = plan(data.draw(st.permutations(now)), mesh, limits, costs, before)
    assert not list(faults(after, now, mesh, limits))
    assert after.moved == count_moved(before, after, mesh)
    worth = fresh.cost / 20 / fresh.world_size
    slack = fresh.cost / 20  # nearly as cheap is cheap enough
    total = fresh.cost + worth * count_moved(before, fresh, mesh)
    assert after.cost + worth * after.moved <= total + slack + 1e-9
    assert shuffled == after
    assert list(shuffled.ranks) == list(after.ranks)


@settings(max_examples=20)
@given(
    history=histories(is_equal=True),
    mesh=st.sampled_from(["pp=2,dp=*,tp=8", "dp=*,tp=8", "pp=3,dp=*,tp=16"]).map(parse),
)
def test_with_whole_nodes_as_units_only_lost_places_move(history: tuple[list[Node], list[Node]], mesh: Mesh) -> None:
    then, now = history
    if not are_worlds(history, mesh, Limits()) or choose_block_size(mesh, now[0].slot_count) != now[0].slot_count:
        return
    before = plan(then, mesh, Limits(), Costs(), None)
    after = plan(now, mesh, Limits(), Costs(), before)
    here = {node.id for node in now}
    old = coordinates(before, mesh)
    assert after.moved == sum(old.get(place, "") not in {"", *here} for place in coordinates(after, mesh))
