"""Plans of a network whose rates are known: seconds choose where J is blind, and keep ranks where they are."""

from __future__ import annotations

import numpy as np
import pytest

from launcher.model.mesh import parse
from launcher.model.node import Node
from launcher.model.rates import parse_rates
from launcher.model.topology import build_tree
from launcher.model.traffic import parse as parse_traffic
from launcher.placement.limits import AllOrNothing, Costs, Limits, Plan
from launcher.placement.planner import plan
from launcher.placement.problem.problem import Problem, make_problem
from launcher.placement.search.refine import lay_whole
from tests.support.placement.members import spell
from tests.support.placement.plans import count_moved

LEAVES = Limits(levels=("leaf",))


def on_leaves(*sizes: int, slots: int = 1, first: int = 0) -> list[Node]:
    leaves = [f"l{leaf}" for leaf, size in enumerate(sizes) for _ in range(size)]
    return [Node(id=f"h{first + at}", slot_count=slots, path=(leaf,)) for at, leaf in enumerate(leaves)]


def make_costs(mesh: str, traffic: str, rates: str) -> Costs:
    return Costs(traffic=parse_traffic(traffic, parse(mesh)), rates=parse_rates(rates))


def get_seconds(found: Plan) -> float:
    assert found.step_time is not None
    return round(found.step_time.seconds, 9)


@pytest.mark.parametrize(
    ("sizes", "mesh", "traffic", "rates", "seconds", "cost"),
    [
        # Rings over all leaves cost 6 hops more and no more time; stages then meet inside the leaves.
        ((5, 5, 2), "pp=2,dp=6", "dp=1MB,pp=300kB", "host=40Mbit,leaf=40Mbit", 0.454, 26.4),
        ((4, 4, 4), "pp=2,dp=6", "dp=1MB,pp=300kB", "host=40Mbit,leaf=40Mbit", 0.448, 25.8),
        # A dozen exchanges lead there, each of which leaves another link as full as before.
        ((4, 4, 4, 4, 4), "pp=4,dp=5", "dp=1MB,pp=2MB", "host=40Mbit,leaf=80Mbit", 0.68, None),
        # A slow leaf keeps whole replicas to itself.
        ((3, 3, 3), "pp=3,dp=12", "dp=1MB,pp=330kB", "host=40Mbit,leaf=80Mbit,leaf:l0=10Mbit", 2.6112, None),
    ],
)
def test_seconds_choose_between_layouts_where_j_is_blind(
    sizes: tuple[int, ...], mesh: str, traffic: str, rates: str, seconds: float, cost: float | None
) -> None:
    slots = 4 if mesh == "pp=3,dp=12" else 1
    costs = make_costs(mesh, traffic, rates)
    found = plan(on_leaves(*sizes, slots=slots), parse(mesh), LEAVES, costs, None)
    by_cost = plan(on_leaves(*sizes, slots=slots), parse(mesh), LEAVES, Costs(traffic=costs.traffic), None)
    assert get_seconds(found) == seconds
    assert cost is None or (found.cost, by_cost.cost < found.cost) == (cost, True)
    assert by_cost.step_time is None


def test_reasons_name_the_slowest_link_and_of_equals_the_plan_of_least_j_is_made() -> None:
    mesh, rates = "pp=2,dp=6", "host=40Mbit,leaf=40Mbit,leaf:l2=30Mbit"
    timed = plan(on_leaves(5, 5, 2), parse(mesh), LEAVES, make_costs(mesh, "dp=1MB,pp=300kB", rates), None)
    assert spell(timed.reasons[-1]) == "step-time step_s=0.534 axes=dp link=leaf l0's uplink part_s=0.4"
    shares = plan(on_leaves(5, 5, 2), parse(mesh), LEAVES, make_costs(mesh, "dp=10,pp=3", rates), None)
    assert spell(shares.reasons[-1]).startswith("slowest-link axes=dp link=leaf l0's uplink share=0.71")
    assert shares.step_time is not None
    assert not shares.step_time.is_absolute
    # Whole replicas on the slow leaf would be 6.5 % faster by the prediction, for a higher J.
    mesh, nodes = "pp=3,dp=12", on_leaves(3, 3, 3, slots=4)
    costs = make_costs(mesh, "dp=1MB,pp=270kB", "host=40Mbit,leaf=80Mbit,leaf:l0=10Mbit")
    found = plan(nodes, parse(mesh), LEAVES, costs, None)
    assert (found.cost, get_seconds(found)) == (28.44, 2.752)
    again = plan(nodes, parse(mesh), LEAVES, costs, found)
    assert (again.moved, again.ranks) == (0, found.ranks)


def test_time_is_worth_moves_where_a_third_is_won_and_none_where_nothing() -> None:
    """One node of four leaves is lost: J wants the spare of its leaf's ring elsewhere, the links have room."""
    mesh, nodes = "pp=4,dp=*", on_leaves(9, 8, 8, 8)
    costs = make_costs(mesh, "dp=1MB,pp=300kB", "host=40Mbit,leaf=400Mbit")
    before = plan(nodes, parse(mesh), LEAVES, costs, None)
    lost = next(node for node in nodes if node.path == ("l1",) and node.id in before.ranks)
    left = [node for node in nodes if node is not lost]
    after = plan(left, parse(mesh), LEAVES, costs, before)
    assert after.moved == count_moved(before, after, parse(mesh)) == 1
    assert get_seconds(after) == get_seconds(before)
    mesh, nodes = "pp=2,dp=6", on_leaves(5, 5, 2)
    rates, traffic = "host=40Mbit,leaf=40Mbit", "dp=1MB,pp=300kB"
    slow = plan(nodes, parse(mesh), LEAVES, Costs(traffic=parse_traffic(traffic, parse(mesh))), None)
    fast = plan(nodes, parse(mesh), LEAVES, make_costs(mesh, traffic, rates), slow)
    assert (fast.moved > 0, get_seconds(fast)) == (True, 0.454)


def test_slices_are_chosen_by_time_and_a_lone_one_with_fast_hosts() -> None:
    nodes = [
        Node(id=f"h{at}", slot_count=1, path=(f"z{at // 8}", f"s{at // 2}"), index=at % 2, host_pattern="{}")
        for at in range(16)
    ]
    limits = Limits(levels=("zone", "slice"), all_or_nothing=AllOrNothing(level="slice", hosts=2))
    costs = make_costs("dp=4,tp=2", "dp=1MB,tp=1MB", "host=100Mbit,slice=40Mbit,zone=10Mbit,slice:s0=10Mbit")
    found = plan(nodes, parse("dp=4,tp=2"), limits, costs, None)
    assert {node.path[0] for node in nodes if node.id in found.ranks} == {"z1"}
    assert get_seconds(found) == round(0.8 * 8 / 100 + 2 * 8 / 40, 9)
    nodes = [Node(id=f"h{at}", slot_count=1, path=(f"s{at // 2}",), index=at % 2, host_pattern="{}") for at in range(4)]
    limits = Limits(levels=("slice",), all_or_nothing=AllOrNothing(level="slice", hosts=2))
    found = plan(nodes, parse("dp=2"), limits, make_costs("dp=2", "dp=1MB", "host=1Gbit,host:h0=1Mbit"), None)
    assert (set(found.ranks), get_seconds(found)) == ({"h2", "h3"}, 0.008)


@pytest.mark.parametrize("rates", ["host=40Mbit", "device=1GB", "leaf:l9=1Gbit"])
def test_where_leaves_have_no_rate_j_decides_as_without_rates(rates: str) -> None:
    mesh, nodes = "pp=2,dp=8", on_leaves(4, 4, 4, 4)
    costs = make_costs(mesh, "dp=1MB,pp=300kB", rates)
    shuffled = [node.id for node in sorted(nodes, key=lambda node: int(node.id[1:]) * 7 % 16)]
    before = Plan(
        shape=(2, 8), ranks={name: (rank,) for rank, name in enumerate(shuffled)}, spares=(), moved=0, reasons=()
    )
    without = plan(nodes, parse(mesh), LEAVES, Costs(traffic=costs.traffic), before)
    assert without.moved > 0
    found = plan(nodes, parse(mesh), LEAVES, costs, before)
    assert (found.cost, found.moved) == (without.cost, without.moved)


def test_a_slow_node_is_replaced_and_replicas_laid_whole_where_there_is_room() -> None:
    mesh, nodes = "pp=2,dp=6", on_leaves(4, 4, 4, 4)
    rates = "host=40Mbit,leaf=80Mbit"
    before = plan(nodes, parse(mesh), LEAVES, make_costs(mesh, "dp=1MB,pp=300kB", rates), None)
    slow = next(iter(before.ranks))
    costs = make_costs(mesh, "dp=1MB,pp=300kB", f"{rates},host:{slow}=5Mbit")
    after = plan(nodes, parse(mesh), LEAVES, costs, before)
    assert (after.moved, slow in after.ranks) == (1, False)
    assert get_seconds(after) == get_seconds(before)
    problem = make_units((5, 3, 4), "pp=2,dp=6")
    layout = lay_whole(problem, 1)
    assert layout is not None
    leaves = np.array([0] * 5 + [1] * 3 + [2] * 4)[layout].reshape(2, 6)
    assert leaves.tolist() == [[0, 0, 1, 2, 2, 0], [0, 0, 1, 2, 2, 1]]
    # Replicas would have two stages on one node, whose ranks are not consecutive.
    assert lay_whole(make_units((3, 3), "pp=2,dp=6", room=2), 1) is None


@pytest.mark.parametrize(("lost", "moved", "seconds"), [("h14", 1, 0.832), ("h9", 2, 0.832), ("h4", 1, 0.724)])
def test_a_hole_is_filled_with_an_exchange_where_that_is_faster(lost: str, moved: int, seconds: float) -> None:
    """The spare is on the slow leaf: alone it makes one more ring leave that leaf, where another node would not."""
    mesh, nodes = "pp=3,dp=*", on_leaves(4, 4, 4, 4)
    costs = make_costs(mesh, "dp=1MB,pp=300kB", "host=40Mbit,leaf=40Mbit,leaf:l1=20Mbit")
    before = plan(nodes, parse(mesh), LEAVES, costs, None)
    assert {node.id for node in nodes} - before.ranks.keys() == {"h7"}
    left = [node for node in nodes if node.id != lost]
    after = plan(left, parse(mesh), LEAVES, costs, before)
    assert (after.moved, get_seconds(after)) == (moved, seconds)
    assert get_seconds(plan(left, parse(mesh), LEAVES, costs, None)) == seconds


def test_nodes_with_numbers_and_a_lone_node_have_a_time_as_well() -> None:
    numbered = [Node(id=f"h{at}", slot_count=1, path=("l0",), rank=at) for at in range(3)]
    found = plan(numbered, parse("dp=3"), LEAVES, make_costs("dp=3", "dp=1MB", "host=8Mbit,rack=1Gbit"), None)
    assert (get_seconds(found), spell(found.reasons[-1])) == (
        1.0,
        "remark text=rates of rack are not used: no node has a rack",
    )
    alone = plan(on_leaves(1, slots=4), parse("dp=4"), LEAVES, make_costs("dp=4", "dp=1MB", "device=1MB"), None)
    assert get_seconds(alone) == 1.0


def make_units(sizes: tuple[int, ...], mesh: str, room: int = 1) -> Problem:
    grid, tree = parse(mesh), build_tree(on_leaves(*sizes), ("leaf",))
    rooms, shape = [room] * len(tree.nodes), grid.resolve_shape(grid.replica_size)
    return make_problem(tree, grid, shape, 1, Limits(), Costs(), rooms, range(len(rooms)))
