"""The truth bench: its cases are what they say, bytes are counted hop by hop, and tables say what the samples say."""

from __future__ import annotations

import math
from typing import Any

import pytest

from benchmarks import judge, runs, truth_steps, truth_tables
from benchmarks.truth_cases import CASES, RANDOM_ORDERS, Case, list_orders, make_case
from benchmarks.truth_steps import Exchange
from benchmarks.truth_tables import Order, Pairs

HEAD = {"benchmark": "truth", "machine": {"cores": 2}, "arguments": []}


def make_line(
    name: str, names: list[str], predicted_s: float, seconds: list[float], case: str = "a", **more: Any
) -> dict[str, Any]:
    return {
        "order": case, "mesh": "dp=4", "names": names, "predicted_s": predicted_s, "seconds": seconds,
        "idle": 0.7, "carried": 1.02,
    } | more  # fmt: skip


def read(*lines: dict[str, Any]) -> runs.History:
    return runs.History(runs.read_lines(enumerate((HEAD, *lines), 1), "truth.jsonl"))


def lay(case: Case, *hosts: str) -> list[judge.Part]:
    return case.count_parts(hosts)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_order_of_a_case_fills_its_mesh_and_by_the_model_none_is_much_faster_than_the_plan(case: Case) -> None:
    orders = list_orders(case)
    is_annealed = case.fast_level is None and case.instance.nodes[0].slot_count == 1
    assert len(orders) == RANDOM_ORDERS + 5 + is_annealed
    assert {truth_tables.TOLD, truth_tables.BLIND} - orders.keys() == {
        truth_tables.TOLD if case.is_told else truth_tables.BLIND
    }
    for layout in orders.values():
        assert len(layout) == math.prod(case.shape)
        devices = {node.id: node.slot_count for node in case.instance.nodes}
        assert all(layout.count(host) <= devices[host] for host in layout)
    predicted = {name: case.predict(layout) for name, layout in orders.items()}
    assert predicted[truth_tables.PLAN] <= 1.1 * min(predicted.values())
    rates = {link: rate * 1e6 for link, rate in case.rates.items()}
    for name, layout in orders.items():
        assert predicted[name] == pytest.approx(judge.seconds(case.count_parts(layout), rates), rel=1e-6)


def test_in_eight_cases_a_slow_uplink_is_told_and_in_all_others_no_rate() -> None:
    slow = [case for case in CASES if case.is_told]
    assert (len(slow), len(CASES)) == (8, 30)
    assert len({case.name for case in CASES}) == len(CASES)
    for case in slow:
        assert case.rates["leaf:l1"] * 2 == case.rates["leaf"]
        assert "l1" in {node.path[-1] for node in case.instance.nodes}


def test_what_a_part_puts_on_links_overlaps_a_little_where_parts_wait_for_different_ones() -> None:
    rates = "host=40,leaf=40"
    hosts = {f"host:h{at}": 1e6 for at in range(4)}
    (ring,) = lay(make_case("ring", (2, 2), "dp=4", "dp=1MB", rates), "h0", "h2", "h1", "h3")
    assert ring.out == ring.into == hosts | {"leaf:l0": 2e6, "leaf:l1": 2e6}, "as often in as out"
    forward, back = lay(make_case("line", (2, 1), "pp=3", "pp=2MB", rates), "h0", "h1", "h2")
    assert forward.out == back.into == {"host:h0": 1e6, "host:h1": 1e6, "leaf:l0": 1e6}
    assert forward.into == back.out == {"host:h1": 1e6, "host:h2": 1e6, "leaf:l1": 1e6}
    (spread,) = lay(make_case("all", (2, 2), "ep=4", "ep=3MB", rates), "h0", "h1", "h2", "h3")
    assert spread.out == dict.fromkeys(hosts, 3000000.0) | {"leaf:l0": 4e6, "leaf:l1": 4e6}
    (shared,) = lay(make_case("two", (2,), "dp=4", "dp=1MB", "host=40", devices=2), "h0", "h0", "h1", "h1")
    assert shared.out == {"host:h0": 1e6, "host:h1": 1e6}
    one, other = (judge.Part(name, {f"leaf:{name}": 2e6}, {}) for name in ("dp", "tp"))
    assert judge.seconds([one, other], {"leaf": 40e6}) == pytest.approx(0.8 - 0.4 / 5)
    # Forward and backward of one line do not.
    assert judge.seconds([one, other._replace(communicator="dp")], {"leaf": 40e6}) == pytest.approx(0.8)


def test_a_rank_sends_its_weight_over_links_of_which_one_slow_decides() -> None:
    case = make_case("nvl", ((2,), (1,)), "dp=3", "dp=1MB", "host=200,nvl/host=20,leaf=40", inner="nvl")
    (part,) = lay(case, "h0", "h1", "h2")
    assert part.out == {"host:h0": 1e6, "nvl/host:h1": 1e6, "leaf:l0": 1e6, "nvl/host:h2": 1e6, "leaf:l1": 1e6}
    assert judge.seconds([part], {"host": 200e6, "nvl/host": 20e6, "leaf": 40e6}) == pytest.approx(0.4)
    part = judge.Part("dp", {"leaf:l0": 1e6, "leaf:l1": 1e6}, {"leaf:l0": 1e6, "host:h0": 1e9})
    assert judge.seconds([part, part], {"leaf": 40e6, "leaf:l1": 20e6}) == pytest.approx(0.8)
    assert truth_steps.count_floats(Exchange("dp", "ring", 6e6), 4) * 4 * 2 * 3 / 4 == 6e6
    assert truth_steps.count_floats(Exchange("pp", "line", 6e6), 4) * 4 * 2 == 6e6
    assert truth_steps.count_floats(Exchange("ep", "all", 6e6), 4) * 4 * 3 / 4 == 6e6
    assert truth_tables.correlate([(1, 10), (2, 100), (3, 1000)]) == pytest.approx(1)
    assert truth_tables.correlate([(1, 3), (2, 2), (3, 1)]) == pytest.approx(-1)
    assert truth_tables.correlate([(1, 1), (1, 2), (2, 3), (3, 4)]) == pytest.approx(3 / math.sqrt(10))
    assert math.isnan(truth_tables.correlate([(1, 1), (1, 2)]))
    assert math.isnan(truth_tables.correlate([]))


def make_order(predicted_s: float, measured_s: float, spread_s: float = 0.0) -> Order:
    return Order(("x",), predicted_s, measured_s, spread_s)


@pytest.mark.parametrize(
    ("one", "other", "found"),
    [
        (make_order(1, 1), make_order(2, 2), Pairs(1, 1)),
        (make_order(2, 1), make_order(1, 2), Pairs(1, 0)),
        (make_order(1, 1), make_order(1, 2), Pairs(1, 0)),
        (make_order(1, 1), make_order(2, 1.04), Pairs(0, 0)),
        (make_order(1, 1, 0.6), make_order(2, 1.5, 0.1), Pairs(0, 0)),
        (make_order(1, 1, 0.1), make_order(2, 1.5, 0.6), Pairs(0, 0)),
    ],
)
def test_pairs_count_that_differ_by_more_than_their_spreads(one: Order, other: Order, found: Pairs) -> None:
    assert truth_tables.count_pairs([one, other]) == truth_tables.count_pairs([other, one]) == found


def test_the_tables_say_what_the_samples_say() -> None:
    history = read(
        make_line("a", ["plan", "path"], 0.5, [0.5, 0.52, 0.51]),
        make_line("a", ["plan, rates told"], 0.6, [0.6, 0.61, 0.62], idle=0.4),
        make_line("a", ["join"], 1.0, [1.1, 1.2, 1.3]),
        make_line("a", ["address", "random 2"], 1.0, [1.02]),
        make_line("a", ["random 1"], 2.0, [2.0], carried=None),
        make_line("a", ["random 3"], 0.1, [], idle=None),
    )
    (case,) = truth_tables.find_cases(history)
    assert case.speed_up("join") == pytest.approx(1.2 / 0.51)
    assert case.lead_of_fastest == 0
    assert [order.measured_s for order in case.random] == [1.02, 2.0]
    lead = truth_tables.leads(history).splitlines()[2]
    assert lead.startswith("| a | 0.510 | 0.610 | plan, rates told | 0.83 | 0.84 | yes |")
    aims = truth_tables.aims(history)
    assert "| 1 of 1 | all | yes |" in aims
    assert "| 9 of 9 | at least 99% | yes |" in aims
    assert "| 2.35 (2.35 to 2.35) | at least 2 | yes |" in aims
    assert "At least 40% of the CPU time" in aims
    row = truth_tables.cases(history).splitlines()[2]
    assert row.startswith(
        "| a | dp=4 | 0.51 (0.50) | 0.61 (0.60) | 1.20 (1.00) | 1.02 (1.00) | 0.51 (0.50) | 1.02 (1.00) |"
    )


def test_a_case_that_is_measured_again_replaces_that_case() -> None:
    before = [make_line("a", ["plan"], 0.5, [0.5], case=case) for case in ("a", "b")]
    again = [HEAD, make_line("a", ["plan"], 0.5, [0.7], case="a")]
    history = read(*before, *again)
    assert [(case.name, case.orders[0].measured_s) for case in truth_tables.find_cases(history)] == [
        ("a", 0.7),
        ("b", 0.5),
    ]
