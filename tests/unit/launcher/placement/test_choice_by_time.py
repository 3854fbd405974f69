"""Plans by the time of a step: it chooses where J is blind, with told rates and assumed ones, and keeps ranks."""

from __future__ import annotations

import numpy as np
import pytest

from launcher.model.mesh import parse
from launcher.model.node import Node
from launcher.model.rates import parse_rates
from launcher.model.topology import build_tree
from launcher.model.traffic import parse as parse_traffic
from launcher.placement import choice
from launcher.placement.limits import AllOrNothing, Costs, Limits, Plan
from launcher.placement.planner import plan
from launcher.placement.problem.problem import Problem, make_problem
from launcher.placement.problem.step_time import StepTimer
from launcher.placement.search.refine import lay_lines
from tests.support.placement.members import spell
from tests.support.placement.plans import count_moved

LEAVES = Limits(levels=("leaf",))


def on_leaves(*sizes: int, slots: int = 1, first: int = 0) -> list[Node]:
    leaves = [f"l{leaf}" for leaf, size in enumerate(sizes) for _ in range(size)]
    return [Node(id=f"h{first + at}", slot_count=slots, path=(leaf,)) for at, leaf in enumerate(leaves)]


def make_costs(mesh: str, traffic: str, rates: str) -> Costs:
    return Costs(traffic=parse_traffic(traffic, parse(mesh)), rates=parse_rates(rates) if rates else None)


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
    nodes = on_leaves(*sizes, slots=slots)
    found = plan(nodes, parse(mesh), LEAVES, costs, None)
    assert get_seconds(found) == seconds
    if cost is not None:  # all links are alike, which is what is assumed of unknown ones
        blind = plan(nodes, parse(mesh), LEAVES, Costs(traffic=costs.traffic), None)
        assert (found.cost, blind.cost, blind.ranks) == (cost, cost, found.ranks)
        assert blind.step_time is not None
        assert (blind.step_time.is_absolute, blind.step_time.assumed) == (False, ("leaf", "host"))
        assert spell(blind.reasons[-1]).endswith("is_assumed=True")


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


@pytest.mark.parametrize("rates", ["host=40Mbit", "host=40Mbit,leaf=40Mbit"])
def test_ranks_move_for_a_third_of_the_time_but_not_where_all_of_it_is_assumed(rates: str) -> None:
    mesh, nodes, traffic = "pp=2,dp=6", on_leaves(5, 5, 2), "dp=1MB,pp=300kB"
    slow = Plan(shape=(2, 6), ranks={f"h{rank}": (rank,) for rank in range(12)}, spares=(), moved=0, reasons=())
    assert plan(nodes, parse(mesh), LEAVES, make_costs(mesh, traffic, ""), slow).moved == 0
    costs = make_costs(mesh, traffic, rates)
    fast = plan(nodes, parse(mesh), LEAVES, costs, slow)
    assert (fast.moved > 0, get_seconds(fast)) == (True, 0.454)
    assert plan(nodes, parse(mesh), LEAVES, costs, fast).moved == 0


def test_among_many_nodes_more_j_must_buy_much_time_where_rates_are_assumed(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes, mesh = on_leaves(10, 7, 3, 9, 11, 13, 4), parse("pp=4,dp=*")
    guarded = plan(nodes, mesh, LEAVES, Costs(), None)
    monkeypatch.setattr(choice, "TRUSTED_MAX", len(nodes))
    trusted = plan(nodes, mesh, LEAVES, Costs(), None)
    more, less = trusted.cost / guarded.cost, get_seconds(guarded) / get_seconds(trusted)
    assert (more > 1.1, 1.1 < less < more**4) == (True, True)


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


def test_a_slow_node_is_replaced() -> None:
    mesh, nodes = "pp=2,dp=6", on_leaves(4, 4, 4, 4)
    rates = "host=40Mbit,leaf=80Mbit"
    before = plan(nodes, parse(mesh), LEAVES, make_costs(mesh, "dp=1MB,pp=300kB", rates), None)
    slow = next(iter(before.ranks))
    costs = make_costs(mesh, "dp=1MB,pp=300kB", f"{rates},host:{slow}=5Mbit")
    after = plan(nodes, parse(mesh), LEAVES, costs, before)
    assert (after.moved, slow in after.ranks) == (1, False)
    assert get_seconds(after) == get_seconds(before)


def test_lines_keep_groups_in_leaves_and_leave_out_what_is_slow() -> None:
    # A whole replica of three on each leaf; what is over makes the fourth. One after the other, two would be whole.
    problem, timer = make_units((4, 4, 4), "pp=3,dp=4")
    found = [(layout // 4).reshape(3, 4) for layout in lay_lines(problem, timer)]
    assert max(np.count_nonzero((stages == stages[0]).all(axis=0)) for stages in found) == 3
    leaf_of = np.array([0] * 5 + [1] * 3 + [2] * 4)
    problem, timer = make_units((5, 3, 4), "pp=2,dp=4", rates="leaf=1Gbit,leaf:l2=10Mbit,host=1Gbit")
    assert all(2 not in leaf_of[layout] for layout in lay_lines(problem, timer))
    # A slow host: it is left out, or the whole of its leaf.
    problem, timer = make_units((5, 3, 4), "pp=2,dp=4", rates="leaf=1Gbit,host:h6=10Mbit,host=1Gbit")
    found = [set(layout.tolist()) for layout in lay_lines(problem, timer)]
    assert not any(6 in held for held in found)
    assert any({5, 6, 7}.isdisjoint(held) for held in found)


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


def test_what_is_assumed_is_said_unless_a_step_has_but_one_part() -> None:
    nodes = on_leaves(2, 2)
    one, two = (plan(nodes, parse(mesh), LEAVES, Costs(), None) for mesh in ("dp=4", "pp=2,dp=2"))
    assert [spell(reason).partition(" ")[0] for reason in one.reasons] == ["world", "cost"]
    assert one.step_time is not None
    assert one.step_time.assumed == ("leaf", "host")
    assert spell(two.reasons[-1]).endswith("is_assumed=True")


def test_nodes_with_numbers_and_a_lone_node_have_a_time_as_well() -> None:
    numbered = [Node(id=f"h{at}", slot_count=1, path=("l0",), rank=at) for at in range(3)]
    found = plan(numbered, parse("dp=3"), LEAVES, make_costs("dp=3", "dp=1MB", "host=8Mbit,rack=1Gbit"), None)
    assert (get_seconds(found), spell(found.reasons[-1])) == (
        1.0,
        "remark text=rates of rack are not used: no node has a rack",
    )
    alone = plan(on_leaves(1, slots=4), parse("dp=4"), LEAVES, make_costs("dp=4", "dp=1MB", "device=1MB"), None)
    assert get_seconds(alone) == 1.0


def make_units(sizes: tuple[int, ...], mesh: str, rates: str = "") -> tuple[Problem, StepTimer]:
    grid, tree = parse(mesh), build_tree(on_leaves(*sizes), ("leaf",))
    rooms, shape = [1] * len(tree.nodes), grid.resolve_shape(grid.replica_size)
    costs, every = Costs(rates=parse_rates(rates) if rates else None), range(len(rooms))
    problem = make_problem(tree, grid, shape, 1, Limits(), costs, rooms, every)
    return problem, StepTimer(problem, tree, every, grid, shape, costs)
