"""What holds for every plan, on small clusters drawn at random: valid, nobody's luck, and no worse with more nodes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from launcher.model.mesh import Mesh, parse
from launcher.model.node import Node
from launcher.model.rates import parse_rates
from launcher.model.topology import build_tree
from launcher.model.traffic import parse as parse_traffic
from launcher.placement.limits import Costs, Limits, NoWorldError, Plan
from launcher.placement.planner import plan
from launcher.placement.problem.problem import Layout, Problem, is_valid, make_problem
from tests.support.placement.plans import faults

UNIT = 4
LEVELS = ("zone", "spine", "leaf")

# Derandomized: the search is a heuristic, and a test that meets its rare weak spots now and then tells nobody anything.
small = settings(max_examples=6, derandomize=True)

meshes = st.sampled_from(
    ["pp=2,dp=*,tp=4", "pp=3,dp=*,tp=4", "dp=*,cp=2,tp=4", "pp=2,dp=*,cp=2,tp=4", "dp=*,ep=3,tp=4", "dp=*,tp=8"]
)
worlds = st.sampled_from(["pp=2,dp=3,tp=4", "pp=3,dp=3,tp=4", "dp=4,cp=2,tp=4", "dp=2,ep=3,tp=4", "dp=3,tp=8"])


@st.composite
def clusters(draw: st.DrawFn, leaves_max: int = 5) -> list[Node]:
    """1 to 4 nodes on every leaf, most of them of one unit; a leaf may be unknown."""
    nodes: list[Node] = []
    zone = spine = 0
    for leaf in range(draw(st.integers(1, leaves_max))):
        name = None if draw(st.integers(0, 9)) == 9 else f"l{leaf}"
        for slots in draw(st.lists(st.sampled_from([4, 4, 4, 8, 6]), min_size=1, max_size=4)):
            path = (f"z{zone}", f"s{spine}", name)
            nodes.append(Node(id=f"h{len(nodes)}", slot_count=slots, path=path, address=f"10.0.0.{len(nodes)}"))
        spine += draw(st.booleans())
        zone = spine // 2
    return nodes


WITHIN = ({}, {"tp": "leaf"}, {"cp": "leaf", "ep": "leaf"}, {"cp": "spine", "ep": "spine", "pp": "zone"})


@st.composite
def limits(draw: st.DrawFn) -> Limits:
    """`within` may name axes that a mesh lacks; see `bound_to`."""
    return Limits(
        levels=LEVELS, block_size=UNIT, nodes_max=draw(st.sampled_from([None, 6])), within=draw(st.sampled_from(WITHIN))
    )


def bound_to(mesh: Mesh, rules: Limits) -> Limits:
    names = [axis.name for axis in mesh.axes]
    return replace(rules, within={axis: level for axis, level in rules.within.items() if axis in names})


def planned(
    nodes: Sequence[Node], mesh: Mesh, rules: Limits, costs: Costs | None = None, previous: Plan | None = None
) -> Plan | None:
    try:
        return plan(nodes, mesh, rules, costs or Costs(), previous)
    except NoWorldError:
        return None


def as_arrays(
    found: Plan, nodes: Sequence[Node], mesh: Mesh, rules: Limits, costs: Costs | None = None
) -> tuple[Problem, Layout]:
    """The plan in the search's terms, made from nothing but what the plan says."""
    place = build_tree(nodes, rules.levels)
    capacity = [node.slot_count // UNIT for node in place.nodes]
    every = range(len(capacity))
    problem = make_problem(place, mesh, found.shape, UNIT, rules, costs or Costs(), capacity, every)
    layout = np.full(problem.traffic.block_count, -1, dtype=np.int32)
    for position, node in enumerate(place.nodes):
        ranks = found.ranks.get(node.id, ())
        runs = [ranks[start : start + UNIT] for start in range(0, len(ranks), UNIT)]
        assert all(run == tuple(range(run[0], run[0] + UNIT)) and run[0] % UNIT == 0 for run in runs)
        units = [run[0] // UNIT for run in runs]
        assert (layout[units] == -1).all()
        layout[units] = position
    assert (layout >= 0).all()
    return problem, layout


TWO_LEAVES = [Node(id=f"h{index}", slot_count=4, path=("z0", "s0", f"l{index // 4}")) for index in range(8)]


@settings(small, max_examples=20)
@given(clusters(), meshes, limits(), st.booleans())
@example(TWO_LEAVES, "dp=*,tp=8", Limits(levels=LEVELS, block_size=UNIT, within={"tp": "leaf"}), True)
def test_a_plan_is_valid_costs_what_it_says_and_no_less_than_its_bound(
    nodes: list[Node], text: str, rules: Limits, is_outer_heavy: bool
) -> None:
    mesh = parse(text)
    # The outermost axis talks most: then what is valid and what is cheap are not the same.
    heavy = ",".join(f"{axis.name}={1 if index else 50}" for index, axis in enumerate(mesh.axes))
    costs = Costs(traffic=parse_traffic(heavy, mesh) if is_outer_heavy else None)
    rules = bound_to(mesh, rules)
    found = planned(nodes, mesh, rules, costs)
    assume(found is not None)
    assert found is not None
    problem, layout = as_arrays(found, nodes, mesh, rules, costs)
    assert not list(faults(found, nodes, mesh, rules, UNIT))
    assert is_valid(problem, layout)
    assert found.cost * problem.traffic.scale == problem.compute_cost(layout)
    assert 0 <= found.lower_bound <= found.cost


RATES = parse_rates("host=40Mbit,leaf=40Mbit,spine=80Mbit,zone=20Mbit,leaf:l1=10Mbit")


@small
@given(clusters(), meshes, limits(), st.randoms(use_true_random=False))
def test_with_rates_a_plan_is_valid_and_the_same_for_any_order_of_nodes(
    nodes: list[Node],
    text: str,
    rules: Limits,
    chance,  # type: ignore[no-untyped-def]
) -> None:
    mesh, costs = parse(text), Costs(rates=RATES)
    rules = bound_to(mesh, rules)
    found = planned(nodes, mesh, rules, costs)
    assume(found is not None)
    assert found is not None
    problem, layout = as_arrays(found, nodes, mesh, rules, costs)
    assert is_valid(problem, layout)
    assert found.cost * problem.traffic.scale == problem.compute_cost(layout)
    assert planned(chance.sample(nodes, len(nodes)), mesh, rules, costs) == found


@small
@given(clusters(), worlds, st.randoms(use_true_random=False))
def test_other_names_for_the_same_cluster_cost_the_same(nodes: list[Node], text: str, chance) -> None:  # type: ignore[no-untyped-def]
    rules = Limits(levels=LEVELS, block_size=UNIT)
    numbers = {name: str(chance.randrange(10**6)) for node in nodes for name in node.path if name is not None}
    numbers |= dict(zip((node.id for node in nodes), map(str, chance.sample(range(10**6), len(nodes))), strict=True))
    assume(len(set(numbers.values())) == len(numbers))
    others = [
        replace(node, id=numbers[node.id], path=tuple(None if part is None else numbers[part] for part in node.path))
        for node in nodes
    ]
    one, other = planned(nodes, parse(text), rules), planned(others, parse(text), rules)
    assert (one and one.cost) == (other and other.cost)


@small
@given(clusters(4), clusters(3), worlds)
def test_more_nodes_never_make_the_plan_of_a_fixed_world_worse(nodes: list[Node], more: list[Node], text: str) -> None:
    rules = Limits(levels=LEVELS, block_size=UNIT)
    added = [replace(node, id=f"new-{node.id}") for node in more]  # on the same leaves and on others
    few = planned(nodes, parse(text), rules)
    assume(few is not None)
    many = planned([*nodes, *added], parse(text), rules)
    assert few is not None
    assert many is not None
    assert many.cost <= few.cost


@small
@given(clusters(), meshes, st.data())
def test_a_plan_after_a_loss_is_as_valid_as_a_fresh_one(nodes: list[Node], text: str, data: st.DataObject) -> None:
    mesh, rules = parse(text), Limits(levels=LEVELS, block_size=UNIT)
    before = planned(nodes, mesh, rules)
    assume(before is not None)
    lost = data.draw(st.sampled_from(nodes))
    left = [node for node in nodes if node is not lost]
    after = planned(left, mesh, rules, previous=before)
    fresh = planned(left, mesh, rules)
    assert (after is None) == (fresh is None)
    if after is not None and fresh is not None:
        problem, layout = as_arrays(after, left, mesh, rules)
        assert is_valid(problem, layout)
        assert after.shape == fresh.shape
        # Moving everybody is worth 5 % of a plan's cost, so staying may not cost more than that.
        assert after.cost <= fresh.cost * 21 / 20
