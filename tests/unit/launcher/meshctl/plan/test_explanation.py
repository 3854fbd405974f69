"""J taken apart: levels and axes add up, by hand on clusters one can count and exactly on random ones."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.meshctl.plan.explanation import Explanation, explain
from launcher.meshctl.plan.generate import generate
from launcher.model import traffic as communicators
from launcher.model.mesh import parse
from launcher.model.node import Node
from launcher.model.topology import resolve_level_costs
from launcher.placement.limits import AllOrNothing, Costs, Limits, Plan
from launcher.placement.planner import plan
from launcher.placement.problem.hops import make_traffic
from tests.support.placement.members import spell


def nodes_on(leaves: list[int], devices: int = 8) -> list[Node]:
    """Nodes h0, h1, ... on leaves of these sizes; they joined last to first, and addresses count up."""
    total = sum(leaves)
    homes = [f"l{leaf}" for leaf, size in enumerate(leaves) for _ in range(size)]
    return [
        Node(id=f"h{at}", slot_count=devices, path=(home,), address=f"10.0.0.{at + 1}", order=total - at)
        for at, home in enumerate(homes)
    ]


def filled(ids: list[str], shape: tuple[int, ...], devices: int = 8) -> Plan:
    """The plan that fills these nodes one after the other."""
    ranks = {name: tuple(range(at * devices, (at + 1) * devices)) for at, name in enumerate(ids)}
    return Plan(shape=shape, ranks=ranks, spares=(), moved=0, reasons=())


PAPER = parse("pp=4,dp=*,tp=8")
LEAF = Limits(levels=("leaf",))


def papers_case() -> tuple[Plan, list[Node]]:
    """31 nodes on leaves of 7, 8, 8, 8 with the same seven of each leaf in use."""
    nodes = nodes_on([7, 8, 8, 8])
    used = [node.id for node in nodes if node.id not in ("h14", "h22", "h30")]
    return filled(used, (4, 7, 8)), nodes


def test_each_level_says_what_leaves_it_and_other_orders_are_priced_at_the_same_size() -> None:
    before, nodes = papers_case()
    found = explain(before, nodes, PAPER, LEAF, Costs())
    leaf, host = found.levels
    assert [one.name for one in found.communicators] == ["pp", "dp", "tp"]
    # 3 hops of pp x 56 lines x 3 leave a leaf; 4 rings of 7 hops x 8 x 10 leave the host; tp leaves nothing.
    assert leaf.leaving == (504, 0, 0)
    assert host.leaving == (504, 2240, 0)
    assert (leaf.level_cost, host.level_cost) == (2, 1)
    assert (leaf.cost, host.cost) == (1008, 2744)
    assert found.cost == 3752
    assert (leaf.spreads, host.spreads) == ((4, 1, 1), (4, 7, 1))  # the width of groups
    before, nodes = papers_case()
    found = explain(before, nodes, PAPER, LEAF, Costs(level_costs={"host": 0}))
    costs = {baseline.name: baseline.cost for baseline in found.baselines}
    assert costs["path order"] == costs["address order, as numbers"] == 1552  # takes 7 + 8 + 8 + 5
    # The other way round, 8 + 8 + 8 + 4: 6 hops of dp x 80 and 18 of pp x 24 leave a leaf.
    assert costs["join order"] == 2 * (6 * 80 + 18 * 24)
    by_text = filled([node.id for node in sorted(nodes, key=lambda node: node.address)][:28], (4, 7, 8))
    text_cost = explain(by_text, nodes, PAPER, LEAF, Costs(level_costs={"host": 0})).cost
    assert costs["address order, as text"] == text_cost
    assert all(baseline.faults == () for baseline in found.baselines)


def test_an_exchange_is_shared_out_evenly_and_address_orders_need_addresses() -> None:
    nodes = nodes_on([1, 2], devices=1)
    found = explain(filled(["h0", "h1", "h2"], (3,), devices=1), nodes, parse("ep=3"), LEAF, Costs())
    # Each of three sends 20 in all, 10 to each other.
    assert [level.leaving for level in found.levels] == [(40,), (60,)]
    assert found.cost == 2 * 40 + 60
    nodes = [Node(id=f"h{at}", slot_count=8) for at in range(2)]
    found = explain(filled(["h0", "h1"], (2, 8)), nodes, parse("dp=*,tp=8"), Limits(), Costs())
    assert [baseline.name for baseline in found.baselines] == ["join order", "path order"]


def test_an_order_that_breaks_a_rule_says_which_and_others_give_whole_runs() -> None:
    nodes = [Node(id=f"h{at}", slot_count=4, path=(f"s{at % 2}",), address=f"10.0.0.{at}", order=at) for at in range(4)]
    mesh = parse("dp=*,tp=8")
    limits = Limits(levels=("slice",), within={"tp": "slice"}, all_or_nothing=AllOrNothing(level="slice", hosts=2))
    one_slice = filled(["h0", "h2"], (1, 8), devices=4)
    faults = {
        one.name: tuple(map(spell, one.faults)) for one in explain(one_slice, nodes, mesh, limits, Costs()).baselines
    }
    assert faults["join order"] == ("leaves-domain axis=tp level=slice", "uses-part level=slice")
    assert faults["path order"] == ()
    nodes = [Node(id="a", slot_count=3, order=0), Node(id="b", slot_count=2, order=1), Node(id="c", slot_count=2)]
    plan = filled(["a", "b"], (2, 2), devices=2)
    found = explain(plan, nodes, parse("dp=*,tp=2"), Limits(), Costs())
    assert [baseline.cost for baseline in found.baselines] == [found.cost] * len(found.baselines)
    nodes = [Node(id=f"h{at}", slot_count=2, order=at) for at in range(3)]
    found = explain(filled(["h0", "h1", "h2"], (2, 3), devices=2), nodes, parse("pp=2,dp=3"), Limits(), Costs())
    # dp: 0-1-2 lie on h0, h0, h1 and 3-4-5 on h1, h2, h2, two hops leave in each ring; pp: all three leave.
    assert found.levels[0].leaving == (3 * 3, 4 * 10)


@settings(max_examples=20)
@given(
    st.sampled_from(["pp=4,dp=*,tp=4", "dp=*,ep=4", "pp=3,dp=*,cp=2,tp=2", "dp=*"]),
    st.sampled_from([2, 4]),
    st.sampled_from([{}, {"leaf": 0.5, "host": 3}, {"pod": 0}]),
    st.randoms(use_true_random=False),
)
def test_the_levels_add_up_to_the_exact_cost_of_any_layout(
    text: str, devices: int, level_costs: dict[str, float], chance: random.Random
) -> None:
    mesh, nodes, plan = random_case(text, devices, chance)
    costs = Costs(level_costs=level_costs)
    found = explain(plan, nodes, mesh, Limits(levels=("pod", "leaf")), costs)
    # The same by the unit that all nodes have room for, from the arrays the search works with.
    positions = {node.id: at for at, node in enumerate(nodes)}
    holder = np.empty(plan.world_size, dtype=np.int64)
    for name, ranks in plan.ranks.items():
        holder[list(ranks)] = positions[name]
    labels = []
    for depth in (1, 2):
        known = {path: number for number, path in enumerate(sorted({node.path[:depth] for node in nodes}))}
        labels.append(np.array([known[nodes[at].path[:depth]] for at in holder], dtype=np.int32))
    labels.append(holder.astype(np.int32))
    names = [axis.name for axis in mesh.axes]
    level_cost = resolve_level_costs(("pod", "leaf"), level_costs)
    talk = make_traffic(plan.shape, names, 1, communicators.make_default_traffic(mesh), level_cost)
    assert found.cost == Fraction(talk.compute_cost(labels), talk.scale)
    assert found == explain(plan, nodes[::-1], mesh, Limits(levels=("pod", "leaf")), costs)


def random_case(text: str, devices: int, chance: random.Random) -> tuple[object, list[Node], Plan]:
    mesh = parse(text)
    world = mesh.replica_size * chance.randint(1, 4) * devices // math.gcd(mesh.replica_size, devices)
    count = world // devices + chance.randint(0, 3)
    nodes = [
        Node(id=f"h{at}", slot_count=devices, path=(f"p{chance.randint(0, 1)}", f"l{chance.randint(0, 2)}"), order=at)
        for at in range(count)
    ]
    ids = [node.id for node in chance.sample(nodes, world // devices)]
    return mesh, nodes, filled(ids, mesh.resolve_shape(world), devices)  # type: ignore[return-value]


@pytest.mark.parametrize("weight", [0, 10**9])
def test_weights_of_nothing_and_of_very_much_stay_exact(weight: int) -> None:
    before, nodes = papers_case()
    costs = Costs(traffic=communicators.parse(f"dp={weight},pp=0.000001,tp=1", PAPER))
    found: Explanation = explain(before, nodes, PAPER, LEAF, costs)
    assert found.cost == 224 * weight + Fraction(168 * 3, 10**6)


@pytest.mark.parametrize(
    ("cluster", "text", "within"),
    [
        ("dgx:2x3x5x8", "pp=3,dp=*,tp=8", {}),
        ("nvl72:3", "dp=*,ep=8,tp=2", {"ep": "nvl"}),
        ("nvl72:2", "pp=2,dp=*,cp=2,tp=8", {}),
        ("dgx:3x4x4", "dp=*,ep=16", {}),
        ("dgx:3x8", "dp=*", {}),
    ],
)
def test_the_levels_add_up_to_what_the_planner_says_it_costs(cluster: str, text: str, within: dict[str, str]) -> None:
    made, mesh = generate(cluster), parse(text)
    limits = Limits(levels=made.levels, within=within)
    found = plan(made.nodes, mesh, limits, Costs(), None)
    explanation = explain(found, made.nodes, mesh, limits, Costs())
    assert float(explanation.cost) == found.cost
    for level, name in ((level, name) for level in explanation.levels for name in within.values()):
        assert level.name != name or level.spreads[[axis.name for axis in mesh.axes].index("ep")] == 1
