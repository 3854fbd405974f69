"""The rates of links: how they are written, and which link of a tree has which."""

from __future__ import annotations

import pytest

from launcher.model.errors import UsageError
from launcher.model.node import Node
from launcher.model.rates import LinkName, Rates, format_rate, parse_rates, require_known_levels, resolve_rates
from launcher.model.topology import build_tree

MBIT = 10**6


def nodes(*paths: str) -> list[Node]:
    return [Node(id=f"h{index}", slot_count=1, path=tuple(path.split("/"))) for index, path in enumerate(paths)]


def test_rates_are_read_with_units_and_written_the_same_way() -> None:
    rates = parse_rates("leaf=400Gbit, leaf:p0/l3=100Gb/s,nvl/host=50GB,host=1.5Tbit,device=900 GB/s,pod=800Gbps")
    assert rates.links == {
        LinkName("leaf"): 400_000 * MBIT, LinkName("leaf", "p0/l3"): 100_000 * MBIT,
        LinkName("nvl", member="host"): 400_000 * MBIT, LinkName("host"): 1_500_000 * MBIT,
        LinkName("device"): 7_200_000 * MBIT, LinkName("pod"): 800_000 * MBIT,
    }  # fmt: skip
    assert parse_rates(str(rates)) == rates
    assert str(parse_rates("leaf:a:b=19871234bit")) == "leaf:a:b=19.871234Mbit"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("leaf", "rates 'leaf': 'leaf' is not LEVEL=RATE"),
        ("leaf=", "rates 'leaf=': 'leaf=' is not LEVEL=RATE"),
        ("leaf=400", "rates 'leaf=400': the rate of leaf is '400', not a rate with a unit"),
        ("leaf=-1Gbit", "rates 'leaf=-1Gbit': the rate of leaf is '-1Gbit', not a rate with a unit"),
        ("leaf=0Gbit", "rates 'leaf=0Gbit': the rate of leaf must be greater than 0"),
        ("leaf:=1Gbit", "rates 'leaf:=1Gbit': 'leaf:' names no domain"),
        ("leaf/rank=1Gbit", "rates 'leaf/rank=1Gbit': 'leaf/rank' names no link"),
        ("host/host=1Gbit", "rates 'host/host=1Gbit': 'host/host' names no link"),
        ("leaf=1Gbit,leaf=2Gbit", "rates 'leaf=1Gbit,leaf=2Gbit' names leaf twice"),
    ],
)
def test_what_is_no_rate_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_rates(text)
    assert str(caught.value) == sentence


def test_an_unknown_level_is_refused_with_a_question() -> None:
    with pytest.raises(UsageError) as caught:
        require_known_levels(parse_rates("leef=1Gbit"), ("pod", "leaf"), "rates")
    assert (str(caught.value), caught.value.hint) == (
        "rates: no level 'leef' is known", "did you mean leaf? known here: pod, leaf, host, device",
    )  # fmt: skip


def test_a_domain_has_its_own_rate_or_that_of_its_level() -> None:
    tree = build_tree(nodes("p0/l0", "p0/l1", "p1/l2"), ("pod", "leaf"))
    found = resolve_rates(parse_rates("leaf=40Mbit,leaf:p0/l1=10Mbit,leaf:l2=20Mbit,host:h1=5Mbit,host=9Mbit"), tree)
    pod, leaf, host = found.levels
    assert (pod.domains, leaf.domains, host.domains) == (
        None, (40 * MBIT, 10 * MBIT, 20 * MBIT), (9 * MBIT, 5 * MBIT, 9 * MBIT),
    )  # fmt: skip
    assert found.remarks == ("no rate is known for pod: its links are taken to be never full",)


def test_a_missing_rate_of_one_domain_is_the_slowest_of_its_level() -> None:
    tree = build_tree(nodes("l0", "l1", "l2"), ("leaf",))
    found = resolve_rates(parse_rates("leaf:l0=40Mbit,leaf:l2=20Mbit,host=1Gbit"), tree)
    assert found.levels[0].domains == (40 * MBIT, 20 * MBIT, 20 * MBIT)
    assert found.remarks == ("no rate is known for leaf l1: 20Mbit is assumed, the slowest of its level",)


def test_rates_of_what_does_not_exist_or_is_ambiguous_are_remarked() -> None:
    tree = build_tree(nodes("p0/l0", "p1/l0"), ("pod", "leaf"))
    found = resolve_rates(parse_rates("rack=1Gbit,leaf:l0=1Mbit,leaf:l9=1Mbit,pod=1Gbit,leaf=1Gbit,host=1Gbit"), tree)
    assert found.levels[1].domains == (1000 * MBIT, 1000 * MBIT)
    assert found.remarks == (
        "rate of rack: no node has a rack",
        "rate of leaf:l0: 2 domains have this name, write one like leaf:p0/l0",
        "rate of leaf:l9: there is no such leaf",
    )


def test_rates_are_formatted_with_at_most_three_digits() -> None:
    assert [format_rate(rate) for rate in (999, 40 * MBIT, 19_871_234, 1_600_000 * MBIT)] == [
        "999bit", "40Mbit", "19.9Mbit", "1.6Tbit",
    ]  # fmt: skip
    assert not Rates()
