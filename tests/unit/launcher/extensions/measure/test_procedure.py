"""Whole measurements on a model of queues: trees and rates, flat networks, and what hosts and links may do amiss."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

import pytest

from launcher.extensions.measure.grouping import Groups, order_groups
from launcher.extensions.measure.procedure import OTHERS_ENDED, RoundReport, TreeFinding, find_tree, set_pace
from launcher.extensions.measure.schedule import LoadRound, list_asked, make_inside_round
from tests.support.network.measuring import leaves, spines
from tests.support.network.queues import EVERYBODY, QueueTree

MBIT = 10**6
RUNS = 6
LINKS = {"host": 40 * MBIT, "leaf": 40 * MBIT}
DOUBLE = {"host": 40 * MBIT, "leaf": 80 * MBIT, "spine": 80 * MBIT}
BOTH = ("spine", "leaf")


def list_levels(paths: Sequence[tuple[str, ...]]) -> tuple[Groups, ...]:
    found = []
    for depth in range(1, len(paths[0]) + 1):
        names = dict.fromkeys(path[:depth] for path in paths)
        found.append(order_groups([i for i, path in enumerate(paths) if path[:depth] == name] for name in names))
    return tuple(found)


@pytest.mark.parametrize(
    ("tree", "least"),
    [
        (QueueTree(leaves(4, 4), ("leaf",), LINKS), 6),
        (QueueTree(leaves(4, 4), ("leaf",), DOUBLE), 6),
        (QueueTree(leaves(5, 5, 2), ("leaf",), LINKS), 6),
        (QueueTree(leaves(4, 4, 4), ("leaf",), LINKS | {"l1": 20 * MBIT}), 6),
        (QueueTree(spines((4, 4), (4, 4)), BOTH, DOUBLE), 6),
        (QueueTree(spines((4, 4), (4, 4)), BOTH, DOUBLE | {"spine": 40 * MBIT}), 5),
    ],
    ids=["4+4", "4+4 2:1", "5+5+2", "one slow uplink", "2x2x4", "2x2x4 narrow spines"],
)
def test_a_tree_is_found_with_its_rates(tree: QueueTree, least: int) -> None:
    right = 0
    for seed in range(RUNS):
        finding, seconds, _ = tree.measure(find_tree(len(tree.paths), seed), seed)
        assert seconds < 11
        if finding.levels != list_levels(tree.paths):
            continue
        right += 1
        for depth, (domains, rates) in enumerate(zip(finding.levels, finding.rates_bps, strict=True)):
            for members, rate in zip(domains, rates, strict=True):
                assert rate == pytest.approx(tree.rate((tree.paths[members[0]][depth], True)), rel=0.2)
        assert finding.host_rates_bps == pytest.approx([40 * MBIT] * len(tree.paths), rel=0.1)
    assert right >= least


@pytest.mark.parametrize("count", [3, 16])
def test_a_flat_network_is_never_split(count: int) -> None:
    tree = QueueTree(leaves(count), ("leaf",), LINKS)
    verdicts = Counter(tree.measure(find_tree(count, seed), seed)[0].kind for seed in range(RUNS))
    assert verdicts == {"flat": RUNS}


def test_a_host_that_dies_is_left_out_and_one_with_a_slow_link_stays_in_its_group() -> None:
    tree = QueueTree(leaves(4, 4), ("leaf",), LINKS)
    for step in range(4):
        finding, _, _ = tree.measure(find_tree(8, 1), 1, dead={5: step})
        assert finding.levels == (((0, 1, 2, 3), (4, 6, 7)),)
        assert finding.left_out == ((5, "it has not answered in time"),)
    tree = QueueTree(leaves(4, 4, 4), ("leaf",), LINKS | {"host:6": 10 * MBIT})
    found = Counter(
        tree.measure(find_tree(12, seed), seed)[0].levels == list_levels(tree.paths) for seed in range(RUNS)
    )
    assert found[True] >= RUNS - 1


@pytest.mark.parametrize("sizes", [(4, 4), (5, 5, 2)])
def test_a_pair_with_a_much_faster_way_spoils_no_pace(sizes: tuple[int, ...]) -> None:
    right = 0
    for seed in range(20):
        count = sum(sizes)
        pair = (0, make_inside_round(count, [range(count)], seed, 0).targets[0])  # a flow of the first loaded round
        tree = QueueTree(leaves(*sizes), ("leaf",), LINKS | {"host:pair": 400 * MBIT}, pair=pair)
        right += tree.measure(find_tree(count, seed), seed)[0].levels == list_levels(tree.paths)
    assert right >= 17


def test_two_nodes_and_lost_packets_still_have_a_rate_and_no_pace_means_no_limit() -> None:
    assert set_pace(LoadRound(targets=(1, 0)), [0.4, 0.0]).paces_bps == (1, 1)
    tree = QueueTree(leaves(4, 4), ("leaf",), LINKS, loss=0.33, lossy_host=2)
    for seed in range(RUNS):
        assert tree.measure(find_tree(8, seed), seed)[0].levels == (((0, 1, 2, 3), (4, 5, 6, 7)),)
    tree = QueueTree(leaves(1, 1), ("leaf",), LINKS | {"leaf": 10 * MBIT})
    finding, _, steps = tree.measure(find_tree(2, 0), 0)
    assert (finding.kind, steps) == ("flat", 1)
    assert finding.host_rates_bps == pytest.approx([10 * MBIT] * 2, rel=0.1)


def test_without_echoes_or_load_of_our_own_the_tree_cannot_be_told() -> None:
    tree = QueueTree(leaves(2, 2), ("leaf",), LINKS, loss=1.0, lossy_host=EVERYBODY)
    finding, _, _ = tree.measure(find_tree(4, 0), 0)
    assert finding.kind == "unknown"
    assert "UDP does not pass" in finding.reason
    tree = QueueTree(leaves(4, 4), ("leaf",), LINKS, are_hosts_slow=True, idle_s=0.02)
    finding, _, _ = tree.measure(find_tree(8, 0), 0)
    assert finding.kind == "unknown"
    assert finding.reason.endswith("before any load, so others use the network")
    tree = QueueTree(leaves(4, 4), ("leaf",), LINKS, are_hosts_slow=True)
    finding, _, _ = tree.measure(find_tree(8, 0), 0)
    assert finding.kind == "unknown"
    assert "filled no link" in finding.reason
    assert finding.flow_bps == pytest.approx(5 * MBIT, rel=0.1)


@pytest.mark.parametrize("dead", [{1: 1, 2: 1, 3: 1}, {1: 0, 2: 0}, {1: 0, 2: 0, 3: 0}])
def test_where_all_but_two_end_nothing_is_called_flat(dead: dict[int, int]) -> None:
    tree = QueueTree(leaves(4), ("leaf",), LINKS)
    finding, _, _ = tree.measure(find_tree(4, 1), 1, dead=dead)
    assert (finding.kind, finding.reason) == ("unknown", "the other nodes have ended, or answered too late")


@pytest.mark.parametrize("ended", [{1, 2, 3}, {0, 1, 2, 3}])
def test_others_may_end_in_the_second_round_of_a_few_fast_flows(ended: set[int]) -> None:
    steps = find_tree(4, 0)
    rounds = next(steps)
    trips = tuple((RoundReport((100, 100)), RoundReport((900, 900), rate)) for rate in (MBIT, MBIT, 9 * MBIT, MBIT))
    assert rounds[1].targets
    (extra,) = steps.send(dict(enumerate(trips)))
    with pytest.raises(StopIteration) as end:
        steps.send({one: (RoundReport((900, 900), MBIT),) for one in set(range(4)) - ended})
    assert (extra.window_s, end.value.value.reason) == (rounds[1].window_s, OTHERS_ENDED)


def test_groups_that_contradict_themselves_are_no_flat_network() -> None:
    """Full links slow the flows, and who waits for whom has no order: as where each packet takes another path."""

    def see(one: int, round: LoadRound, step: int) -> RoundReport:
        waits = [
            round.targets and ((one < 4) != (other < 4)) != ((one + other) % 3 == 0) for other in list_asked(one, 8)
        ]
        trips = tuple(50_000 if wait else 100 for wait in waits)
        return RoundReport(round_trips_us=trips, received_bps=(10 if step else 40) * MBIT)

    steps, rounds = find_tree(8, 0), tuple[LoadRound, ...]()
    try:
        for step in itertools.count():
            reports = {one: tuple(see(one, round, step - 1) for round in rounds) for one in range(8)}
            rounds = steps.send(reports) if step else next(steps)
    except StopIteration as end:
        finding: TreeFinding = end.value
    assert (finding.kind, finding.reason[3:]) == ("unknown", " of the measured pairs do not match the groups found")
