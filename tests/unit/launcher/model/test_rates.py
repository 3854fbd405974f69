"""The rates of links: how they are written, and which link of a tree has which."""

from __future__ import annotations

import pytest

from launcher.model.errors import UsageError
from launcher.model.node import Node
from launcher.model.rates import ALIKE, LinkName, format_rate, parse_rates, resolve_rates
from launcher.model.topology import build_tree

MBIT = 10**6


def nodes(*paths: str) -> list[Node]:
    return [Node(id=f"h{index}", slot_count=1, path=tuple(path.split("/"))) for index, path in enumerate(paths)]


def test_rates_are_read_with_units_and_written_with_at_most_three_digits() -> None:
    rates = parse_rates("leaf=400Gbit, leaf:p0/l3=100Gb/s,nvl/host=50GB,host=1.5Tbit,device=900 GB/s,pod=800Gbps")
    assert rates.links == {
        LinkName("leaf"): 400_000 * MBIT, LinkName("leaf", "p0/l3"): 100_000 * MBIT,
        LinkName("nvl", member="host"): 400_000 * MBIT, LinkName("host"): 1_500_000 * MBIT,
        LinkName("device"): 7_200_000 * MBIT, LinkName("pod"): 800_000 * MBIT,
    }  # fmt: skip
    assert parse_rates(str(rates)) == rates
    assert str(parse_rates("leaf:a:b=19871234bit")) == "leaf:a:b=19.871234Mbit"
    (link,) = parse_rates("leaf:a,,b=c=1Gbit").links
    assert link.domain == "a,b=c"
    assert [format_rate(rate) for rate in (999, 40 * MBIT, 19_871_234, 999_900 * MBIT)] == [
        "999bit", "40Mbit", "19.9Mbit", "1Tbit",
    ]  # fmt: skip
    for rate in (1, 1001, 10**6 + 1, 2**53 - 1, 123_456_789 * MBIT):
        assert parse_rates(f"host={format_rate(rate, exactly=True)}").links == {LinkName("host"): rate}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("leaf", "--rates: 'leaf' is not LEVEL=RATE"),
        ("leaf=400", "--rates: the rate of leaf is '400', not a rate with a unit"),
        ("leaf=-1Gbit", "--rates: the rate of leaf is '-1Gbit', not a rate with a unit"),
        ("leaf=0Gbit", "--rates: the rate of leaf must be greater than 0"),
        ("leaf:=1Gbit", "--rates: 'leaf:' names no domain"),
        ("leaf/rank=1Gbit", "--rates: 'leaf/rank' is not a link"),
        ("device:h1=1Gbit", "--rates: 'device:h1' names no domain"),
        ("host=1200TB", "--rates: the rate of host is '1200TB', more than any link carries"),
        ("host/host=1Gbit", "--rates: 'host/host' is not a link"),
        ("leaf=1Gbit,,host=1Gbit", "--rates: 'leaf=1Gbit,host' is not a link"),
        ("leaf=1Gbit,leaf=2Gbit", "--rates names leaf twice"),
    ],
)
def test_what_is_no_rate_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_rates(text)
    assert str(caught.value) == sentence


def test_a_domain_has_its_own_rate_or_that_of_its_level_or_of_the_slowest_there() -> None:
    tree = build_tree(nodes("p0/l0", "p0/l1", "p1/l2"), ("pod", "leaf"))
    found = resolve_rates(
        parse_rates("leaf=40Mbit,leaf:p0/l1=10Mbit,leaf:l2=20Mbit,host:h1=5Mbit,host=9Mbit"), tree, {}
    )
    pod, leaf, host = found.levels
    assert (pod.domains, leaf.domains, host.domains) == (
        (40 * MBIT, 40 * MBIT), (40 * MBIT, 10 * MBIT, 20 * MBIT), (9 * MBIT, 5 * MBIT, 9 * MBIT),
    )  # fmt: skip
    assert found.remarks == ("no rate is known for pod: 40Mbit is assumed of all its links",)
    assert [level.is_assumed for level in found.levels] == [True, False, False]
    tree = build_tree(nodes("l0", "l1", "l2"), ("leaf",))
    found = resolve_rates(parse_rates("leaf:l0=40Mbit,leaf:l2=20Mbit,host=1Gbit"), tree, {})
    assert found.levels[0].domains == (40 * MBIT, 20 * MBIT, 20 * MBIT)
    assert found.remarks == ("no rate is known for leaf l1: 20Mbit is assumed, the slowest of its level",)


def test_ambiguous_rates_are_remarked_and_of_two_the_lower_counts() -> None:
    tree = build_tree(nodes("p0/l0", "p1/l0"), ("pod", "leaf"))
    absent = ",".join(f"leaf:l{number}=1Mbit" for number in range(5, 10))
    found = resolve_rates(parse_rates(f"rack=1Gbit,leaf:l0=1Mbit,{absent},pod=1Gbit,leaf=1Gbit,host=1Gbit"), tree, {})
    assert found.levels[1].domains == (1000 * MBIT, 1000 * MBIT)
    assert found.remarks == (
        "rates of rack are not used: no node has a rack",
        "rate of leaf:l0: 2 domains have this name; use a path such as leaf:p0/l0",
        "rates of leaf l5, l6, l7 and 2 more are not used: no such leaf",
    )
    tree = build_tree(nodes("p0/l0", "p0/l1"), ("pod", "leaf"))
    for text in ("leaf:l0=10Gbit,leaf:p0/l0=90Gbit", "leaf:p0/l0=10Gbit,leaf:l0=90Gbit"):
        found = resolve_rates(parse_rates(f"{text},leaf=1Tbit,host=1Tbit"), tree, {})
        assert found.levels[1].domains == (10_000 * MBIT, 10**6 * MBIT)
        assert found.remarks == ("leaf p0/l0 has two rates: the lower counts",)
    unknown = Node(id="h9", slot_count=1, path=(None, "l0"))
    tree = build_tree([*nodes("p0/l0"), unknown], ("pod", "leaf"))
    assert tree.names[1] == ("p0/l0", "l0")
    found = resolve_rates(parse_rates("leaf:l0=1Gbit,leaf:p0/l0=2Gbit,pod=1Gbit,host=1Gbit"), tree, {})
    assert (found.levels[1].domains, found.remarks) == ((2000 * MBIT, 1000 * MBIT), ())


@pytest.mark.parametrize(
    ("told", "level_costs", "pod", "leaf", "host"),
    [
        ("", {}, 1000, 1000, 1000),
        ("host=8Mbit", {}, 8, 8, 8),
        ("leaf:l0=8Mbit,host=2Mbit", {}, 8, 8, 2),
        ("pod=8Mbit,host=2Mbit", {}, 8, 2, 2),  # of two levels as near, the inner one
        ("device=8Mbit", {}, 1000, 1000, 1000),  # a link of another fabric tells nothing
        ("leaf:l9=8Mbit", {}, 1000, 1000, 1000),  # there is no such leaf
        ("host=8Mbit", {"leaf": 4, "pod": 2}, 16, 4, 8),  # twice and half of what they cost by default
        ("host=8Mbit", {"leaf": 0}, 8, None, 8),
    ],
)
def test_links_of_which_nothing_is_told_are_like_those_of_the_nearest_level(
    told: str, level_costs: dict[str, int], pod: int, leaf: int | None, host: int
) -> None:
    tree = build_tree(nodes("p0/l0", "p0/l1", "p1/l2"), ("pod", "leaf"))
    found = resolve_rates(parse_rates(told) if told else None, tree, level_costs)
    assert [level.domains[0] // MBIT if level.domains else None for level in found.levels] == [pod, leaf, host]
    assert not any("1Gbit is assumed" in remark for remark in found.remarks)
    assert found.are_told == (told not in ("", "leaf:l9=8Mbit"))


def test_what_leaves_an_nvlink_domain_leaves_it_by_each_hosts_link_and_hosts_inside_are_never_full() -> None:
    tree = build_tree(nodes("l0/n0", "l0/n1", "l1/n2"), ("leaf", "nvl"))
    leaf, nvl, host = resolve_rates(parse_rates("leaf=8Mbit"), tree, {}).levels
    assert (leaf.domains, leaf.is_assumed) == ((8 * MBIT, 8 * MBIT), False)
    assert (nvl.domains, nvl.per_host, nvl.is_assumed) == (None, 8 * MBIT, True)
    assert (host.domains, host.per_host, host.is_assumed) == (None, None, False)
    leaf, nvl, _ = resolve_rates(parse_rates("host=28800Gbit,device=450GB"), tree, {}).levels
    assert (leaf.domains, nvl.per_host) == ((ALIKE, ALIKE), ALIKE), "what hosts have inside the domain tells nothing"
