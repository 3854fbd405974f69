"""The plan in words: numbers a person reads, lists that stay short, and the table of all ranks."""

from __future__ import annotations

import json
from fractions import Fraction

import pytest

from launcher.meshctl.plan import render
from launcher.meshctl.plan.changes import Move
from launcher.meshctl.plan.explanation import explain
from launcher.model.mesh import parse
from launcher.model.node import Node
from launcher.model.rates import parse_rates
from launcher.model.topology import build_tree
from launcher.model.traffic import parse as parse_traffic
from launcher.placement.explain import compute_step_time
from launcher.placement.limits import Costs, Limits, Plan
from launcher.placement.planner import plan as make_plan
from rendezvous.reasons import Reason

NODES = [Node(id=f"h{at}", slot_count=4, path=("l0" if at < 2 else None,)) for at in (10, 9, 1, 0)]
PLAN = Plan(
    shape=(2, 6), ranks={"h0": (0, 1, 6, 7), "h1": (2, 3, 4, 5), "h9": (8,)}, spares=("h10",), moved=0, reasons=()
)


def test_the_table_lists_nodes_along_the_tree_in_columns_of_one_width() -> None:
    assert render.format_table(render.list_node_rows(PLAN, NODES, ["leaf"])) == (
        "  node  leaf  ranks\n"
        "  h0    l0    0-1, 6-7\n"
        "  h1    l0    2-5\n"
        "  h9    ?     8\n"
        "  h10   ?     spare\n"
    )  # fmt: skip
    nodes = [Node(id=f"h{at}", slot_count=4, path=("l0",)) for at in range(5)]
    plan = Plan(shape=(4,), ranks={"h0": (0, 1, 2, 3)}, spares=(), moved=0, reasons=())
    rows = render.list_node_rows(plan, nodes, ["leaf"], {"h0": "from 12 nodes", "h4": "lost"})
    assert render.format_table(rows, in_columns=True) == (
        "  node  leaf  ranks                node  leaf  ranks\n"
        "  h0    l0    0-3 from 12 nodes    h3    l0    spare\n"
        "  h1    l0    spare                h4    l0    lost\n"
        "  h2    l0    spare\n"
    )  # fmt: skip
    rows = render.list_node_rows(plan, nodes, ["leaf"], {"h0": "x" * 80})
    assert render.format_table(rows, in_columns=True).count("node") == 1


def test_spares_and_reasons_are_told_and_none_is_wider_than_a_terminal() -> None:
    text = render.format_world(PLAN, NODES, parse("pp=2,dp=*"), ["leaf"])
    assert text == (
        "world    pp=2, dp=6: 9 ranks on 3 nodes\n"
        "spares   h10; every leaf in use keeps 1 to 2 active\n"
    )  # fmt: skip
    plan = Plan(shape=(1,), ranks={"h0": (0,)}, spares=(), moved=0, reasons=WHY)
    lines = render.format_world(plan, NODES[3:], parse("dp=*"), ()).splitlines()
    assert lines[1].startswith("why      one one")
    assert lines[2].startswith("           one")
    assert lines[3:] == ["         no node is present", "spares   none"]
    assert max(map(len, lines)) <= 80


WHY = (Reason.of("placement/remark", text="one " * 30), Reason.of("placement/no-node"))


@pytest.mark.parametrize("is_absolute", [True, False])
def test_the_time_is_told_part_by_part_beside_that_of_other_orders(is_absolute: bool) -> None:
    mesh, limits = parse("pp=2,dp=3"), Limits(levels=("leaf",))
    nodes = [Node(id=f"h{at}", slot_count=1, path=(f"l{at % 3}",), order=at) for at in range(6)]
    traffic = parse_traffic("dp=1MB,pp=600kB" if is_absolute else "dp=10,pp=6", mesh)
    costs = Costs(traffic=traffic, rates=parse_rates("host=40Mbit,leaf:l0=20Mbit"))
    plan = Plan(shape=(2, 3), ranks={f"h{at}": (at,) for at in range(6)}, spares=(), moved=0, reasons=())
    step_time = compute_step_time(plan.ranks, plan.shape, build_tree(nodes, limits.levels), mesh, costs)
    assert step_time is not None
    text = render.format_time(step_time, explain(plan, nodes, mesh, limits, costs))
    if is_absolute:
        assert text == (
            "time     0.896 s for a step's communication, without computation; its parts\n"
            "         overlap by 24 ms\n"
            "         dp            0.8 s  leaf l0's uplink: 2 MB at 20Mbit\n"
            "         pp           0.12 s  host h0's uplink: 0.6 MB at 40Mbit\n"
            "         join order  0.896 s  1.00 times as long\n"
            "         path order   1.23 s  1.38 times as long\n"
        )
    else:
        assert text.splitlines()[:3] == [
            "time     shares of a step's communication",
            "         dp          87.0 %  leaf l0's uplink at 20Mbit",
            "         pp          13.0 %  host h0's uplink at 40Mbit",
        ]


def test_a_time_by_assumed_rates_says_so_and_names_no_rate() -> None:
    mesh, limits = parse("pp=2,dp=3"), Limits(levels=("leaf",))
    nodes = [Node(id=f"h{at}", slot_count=1, path=(f"l{at % 3}",), order=at) for at in range(6)]
    plan = make_plan(nodes, mesh, limits, Costs(traffic=parse_traffic("dp=1MB,pp=600kB", mesh)), None)
    assert plan.step_time is not None
    explanation = explain(plan, nodes, mesh, limits, Costs())
    text = render.format_time(plan.step_time, explanation)
    assert text.startswith("time     shares of a step's communication, assuming links of a level are alike\n")
    assert "bit" not in text
    time = json.loads(render.format_json(plan))["time"]
    assert time["assumed"] == ["leaf", "host"]
    assert "seconds" not in time
    assert {part["bits_per_s"] for part in time["parts"]} == {0}


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (1008, "1,008"), (2.5, "2.5"), (Fraction(2, 3), "0.6667"), (Fraction(4194304, 3), "1,398,101.3")],
)
def test_numbers_are_exact_where_they_are_whole_and_short_where_not(value: Fraction | float, text: str) -> None:
    assert render.format_amount(value) == text


def test_costs_add_up_and_long_lists_stay_short() -> None:
    mesh, nodes = parse("pp=2,dp=4"), [Node(id=f"h{at}", slot_count=4, path=(f"l{at}",)) for at in range(2)]
    plan = Plan(shape=(2, 4), ranks={"h0": (0, 1, 2, 3), "h1": (4, 5, 6, 7)}, spares=(), moved=0, reasons=())
    rows = render.format_cost(plan, explain(plan, nodes, mesh, Limits(levels=("leaf",)), Costs())).splitlines()
    assert "traffic that leaves a  leaf  host   J" in rows
    assert "  pp line, weight 3      12    12  36" in rows
    assert "  dp ring, weight 10      0     0   0" in rows
    assert "share of J               24    12  36" in rows
    assert render.format_percent(Fraction(43, 1000)) == "4.3 %"
    assert render.format_percent(Fraction(1, 10**6)) == "less than 0.1 %"
    assert render.format_list(["a", "b"]) == "a, b"
    assert render.format_list([str(at) for at in range(1010)], 2) == "0, 1 and 1,008 more"
    moves = [Move(f"h{at}", "h9", 1) for at in range(6)]
    text = render.format_moves(
        Plan(shape=(6,), ranks={"h9": (0, 1, 2, 3, 4, 5)}, spares=(), moved=6, reasons=()), moves
    )
    assert text.startswith("moved    6 of 6 ranks: 1 from h0 to h9, 1 from h1 to h9, ")
    assert text.endswith(" and 2 more\n")
