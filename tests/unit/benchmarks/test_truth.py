"""The truth bench: its cases are what they say, bytes are counted hop by hop, and tables say what the samples say."""

from __future__ import annotations

import math
from typing import Any

import pytest

from benchmarks import judge, runs, truth_steps, truth_tables
from benchmarks.truth_cases import CASES, QUICK, RANDOM_ORDERS, Case, list_orders, make_case
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


def test_there_are_twenty_cases_that_differ_and_a_few_of_jax() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
    torch = [case for case in CASES if case.framework == "torch"]
    assert len(torch) == 20
    assert len(CASES) > len(torch)
    assert (
        len({(case.instance.mesh, tuple(case.rates.items()), tuple(sorted(case.hosts.values()))) for case in torch})
        == 20
    )
    assert set(QUICK) < {case.name for case in CASES}


@pytest.mark.parametrize("sizes", ["5+5+2", "4+4+4"])
def test_the_cases_where_j_chooses_slower_orders_are_among_them(sizes: str) -> None:
    (case,) = [case for case in CASES if case.name.endswith(f"even, {sizes}")]
    assert str(case.instance.mesh) == "pp=2,dp=6"
    assert [10 * one.weight / case.exchanges[1].weight for one in case.exchanges] == [3, 10]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_order_of_a_case_fills_its_mesh(case: Case) -> None:
    orders = list_orders(case)
    assert len(orders) == RANDOM_ORDERS + 5
    for layout in orders.values():
        assert len(layout) == math.prod(case.shape)
        devices = {node.id: node.slot_count for node in case.instance.nodes}
        assert all(layout.count(host) <= devices[host] for host in layout)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_planner_predicts_what_the_judge_counts(case: Case) -> None:
    rates = {link: rate * 1e6 for link, rate in case.rates.items()}
    for layout in list_orders(case, 2).values():
        assert case.predict(layout) == pytest.approx(judge.seconds(case.count_parts(layout), rates), rel=1e-6)


def test_addresses_are_dealt_in_the_order_in_which_hosts_are_made() -> None:
    case = CASES[0]
    addresses = {node.id: node.address for node in case.instance.nodes}
    assert [addresses[host] for host in case.hosts] == [f"10.77.0.{number}" for number in range(1, 13)]
    assert list(case.hosts) != sorted(case.hosts, key=lambda host: int(host[1:]))


def test_a_ring_enters_and_leaves_a_leaf_as_often() -> None:
    (part,) = lay(make_case("ring", (2, 2), "dp=4", "dp=1MB", "host=40,leaf=40"), "h0", "h2", "h1", "h3")
    assert part.out == part.into == {f"host:h{at}": 1e6 for at in range(4)} | {"leaf:l0": 2e6, "leaf:l1": 2e6}


def test_a_line_goes_forward_and_then_back() -> None:
    forward, back = lay(make_case("line", (2, 1), "pp=3", "pp=2MB", "host=40,leaf=40"), "h0", "h1", "h2")
    assert forward.out == back.into == {"host:h0": 1e6, "host:h1": 1e6, "leaf:l0": 1e6}
    assert forward.into == back.out == {"host:h1": 1e6, "host:h2": 1e6, "leaf:l1": 1e6}


def test_an_exchange_spreads_evenly_over_the_others() -> None:
    (part,) = lay(make_case("all", (2, 2), "ep=4", "ep=3MB", "host=40,leaf=40"), "h0", "h1", "h2", "h3")
    assert part.out == {f"host:h{at}": 3e6 for at in range(4)} | {"leaf:l0": 4e6, "leaf:l1": 4e6}


def test_what_stays_in_a_fast_domain_is_not_on_the_nic() -> None:
    case = make_case("nvl", ((2,), (1,)), "dp=3", "dp=1MB", "host=200,nvl/host=20,leaf=40", inner="nvl")
    (part,) = lay(case, "h0", "h1", "h2")
    assert part.out == {"host:h0": 1e6, "nvl/host:h1": 1e6, "leaf:l0": 1e6, "nvl/host:h2": 1e6, "leaf:l1": 1e6}
    assert judge.seconds([part], {"host": 200e6, "nvl/host": 20e6, "leaf": 40e6}) == pytest.approx(0.4)


def test_ranks_of_one_host_load_no_link() -> None:
    (part,) = lay(make_case("two", (2,), "dp=4", "dp=1MB", "host=40", devices=2), "h0", "h0", "h1", "h1")
    assert part.out == {"host:h0": 1e6, "host:h1": 1e6}


def test_one_slow_uplink_decides_how_long_a_part_takes() -> None:
    part = judge.Part("dp", {"leaf:l0": 1e6, "leaf:l1": 1e6}, {"leaf:l0": 1e6, "host:h0": 1e9})
    assert judge.seconds([part, part], {"leaf": 40e6, "leaf:l1": 20e6}) == pytest.approx(0.8)


def test_a_rank_sends_its_weight() -> None:
    assert truth_steps.count_floats(Exchange("dp", "ring", 6e6), 4) * 4 * 2 * 3 / 4 == 6e6
    assert truth_steps.count_floats(Exchange("pp", "line", 6e6), 4) * 4 * 2 == 6e6
    assert truth_steps.count_floats(Exchange("ep", "all", 6e6), 4) * 4 * 3 / 4 == 6e6


def test_a_step_ends_with_the_gradients_of_replicas() -> None:
    given = [Exchange("pp", "line", 1), Exchange("dp", "ring", 1), Exchange("ep", "all", 1), Exchange("tp", "ring", 1)]
    assert [one.axis for one in truth_steps.sort_by_schedule(given)] == ["ep", "tp", "pp", "dp"]


def test_the_correlation_is_of_ranks_and_ties_share_theirs() -> None:
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
        make_line("a", ["by J"], 0.6, [0.6, 0.61, 0.62], idle=0.4),
        make_line("a", ["join"], 1.0, [1.1, 1.2, 1.3]),
        make_line("a", ["address", "random 2"], 1.0, [1.02]),
        make_line("a", ["random 1"], 2.0, [2.0], carried=None),
        make_line("a", ["random 3"], 0.1, [], idle=None),
    )
    (case,) = truth_tables.find_cases(history)
    assert case.speed_up("join") == pytest.approx(1.2 / 0.51)
    assert case.lead_of_fastest == 0
    assert [order.measured_s for order in case.random] == [1.02, 2.0]
    aims = truth_tables.aims(history)
    assert "| 1 of 1 | all | yes |" in aims
    assert "| 9 of 9 | at least 99% | yes |" in aims
    assert "| 2.35 (2.35 to 2.35) | at least 2 | yes |" in aims
    assert "At least 40% of the CPU time" in aims
    row = truth_tables.cases(history).splitlines()[2]
    assert row.startswith(
        "| a | dp=4 | 0.51 (0.50) | 0.61 (0.60) | 1.20 (1.00) | 1.02 (1.00) | 0.51 (0.50) | 1.02 (1.00) |"
    )


def test_an_order_that_beats_the_plan_is_counted() -> None:
    history = read(make_line("a", ["plan"], 0.5, [0.5]), make_line("a", ["random 1"], 0.6, [0.4]))
    (case,) = truth_tables.find_cases(history)
    assert case.lead_of_fastest == pytest.approx(0.25)
    assert "| 0 of 1 | all | **no** |" in truth_tables.aims(history)


def test_a_case_that_is_measured_again_replaces_that_case() -> None:
    before = [make_line("a", ["plan"], 0.5, [0.5], case=case) for case in ("a", "b")]
    again = [HEAD, make_line("a", ["plan"], 0.5, [0.7], case="a")]
    history = read(*before, *again)
    assert [(case.name, case.orders[0].measured_s) for case in truth_tables.find_cases(history)] == [
        ("a", 0.7),
        ("b", 0.5),
    ]


def test_without_records_the_tables_say_that_nothing_was_measured() -> None:
    assert truth_tables.aims(runs.History([])) == truth_tables.cases(runs.History([])) == "Not measured yet."


def test_the_picture_says_by_how_much_times_differ() -> None:
    pictures = pytest.importorskip("benchmarks.pictures", reason="pictures are drawn by matplotlib")
    found = pictures.placement_truth(
        read(
            make_line("a", ["plan"], 0.5, [0.6]),
            make_line("a", ["by J"], 1.0, [1.1]),
            make_line("a", ["join"], 2.0, []),
        )
    )
    assert "each of 2 orders" in found.alt
    assert "1.10 to 1.20 times predicted" in found.alt
    assert pictures.placement_truth(runs.History([])) is None


def test_parts_that_wait_for_different_links_overlap_a_little() -> None:
    one, other = (judge.Part(name, {f"leaf:{name}": 2e6}, {}) for name in ("dp", "tp"))
    assert judge.seconds([one, other], {"leaf": 40e6}) == pytest.approx(0.8 - 0.4 / 5)
    # Forward and backward of one line do not.
    assert judge.seconds([one, other._replace(communicator="dp")], {"leaf": 40e6}) == pytest.approx(0.8)
