"""Where a newcomer stands by its echoes to nodes of known domains, and where it has no place because they are unclear.

Domains l0 and l1, of four nodes each, below uplinks of 40 Mbit/s; every test says what the echoes took.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence

import pytest

from launcher.locality.measure.placing import KnownNode, Placement, PlaceReports, choose_asked, decide, make_round
from launcher.locality.measure.schedule import NOBODY
from tests.support.network.measuring import leaves, spines
from tests.support.network.queues import QueueTree

MBIT = 10**6
RATES = (("leaf", 40 * MBIT), ("host", 40 * MBIT))
LINKS = {"host": 40 * MBIT, "leaf": 40 * MBIT}
DOUBLE = {"host": 40 * MBIT, "leaf": 80 * MBIT, "spine": 80 * MBIT}
IDLE_S, FAR_S = 0.0001, 0.015
RUNS = 20


def know(*sizes: int, rates: tuple[tuple[str, int], ...] = RATES) -> list[KnownNode]:
    return [KnownNode(path=(("leaf", name),), rates=rates) for (name,) in leaves(*sizes)]


def place(
    nodes: Sequence[KnownNode],
    loaded_s: Mapping[int, float],
    idle_s: Mapping[int, float] | None = None,
    received_bps: int = 10 * MBIT,
) -> Placement:
    everyone = range(len(nodes))
    idle = dict.fromkeys(everyone, IDLE_S) if idle_s is None else idle_s
    reports = PlaceReports(
        asked=everyone, idle_s=idle, loaded_s=loaded_s, received_bps=dict.fromkeys(everyone, received_bps)
    )
    return decide(nodes, make_round(nodes, 1), reports, own_domain="n8")


def answer(*times_s: float) -> dict[int, float]:
    return {number: time_s for number, time_s in enumerate(times_s) if time_s}


FOUR_NEAR = (0.0002, 0.0001, 0.0003, 0.0002)
FOUR_FAR = (0.012, 0.02, 0.015, 0.017)


def test_a_newcomer_stands_with_those_who_answer_clearly_faster() -> None:
    found = place(know(4, 4), answer(*FOUR_FAR, *FOUR_NEAR))
    assert found.path == (("leaf", "l1"),)
    assert found.rates == (("leaf", 40 * MBIT),)  # of its own link nothing is known
    assert found.reason == "is near the nodes of leaf=l1, 0.1 to 20 ms"


def test_one_slow_member_of_four_does_not_mislead() -> None:
    assert place(know(4, 4), answer(0.0002, FAR_S, 0.0003, 0.0002, *FOUR_FAR)).path == (("leaf", "l0"),)


def test_a_newcomer_that_is_far_from_everyone_has_a_domain_of_its_own() -> None:
    found = place(know(4, 4), answer(*FOUR_FAR, *FOUR_FAR))
    assert (found.path, found.rates) == ((("leaf", "n8"),), ())


@pytest.mark.parametrize(
    ("echoes", "reason"),
    [
        (answer(*FOUR_NEAR, *FOUR_NEAR), "reaches all nodes alike, in 0.1 to 0.3 ms, so no link on the way was full"),
        (answer(*FOUR_FAR, 0, 0, 0, 0) | {}, "is far from every node that answered, 12 to 20 ms"),
        ({2: 0.0002, 5: FAR_S}, "got UDP echoes from 2 of 8 nodes, which is too few"),
        ({}, "got UDP echoes from 0 of 8 nodes, which is too few"),
        (
            answer(0.0002, 0.0002, FAR_S, FAR_S, *FOUR_FAR),
            "is near the nodes of leaf=l0, whose link was not full for certain",
        ),
        (answer(*(0.003,) * 4, *(0.03,) * 4), "reaches the nodes of no domain in an idle network's time"),
    ],
    ids=["no full link", "half answered", "few echoes", "no echo", "contradicting", "two queues"],
)
def test_the_reason_is_said(echoes: Mapping[int, float], reason: str) -> None:
    assert place(know(4, 4), echoes).reason.startswith(reason)


def test_fast_answers_over_a_link_that_was_not_full_give_no_place() -> None:
    echoes = answer(*FOUR_NEAR, *FOUR_FAR)
    assert place(know(4, 4), echoes).path
    for unclear in (
        place(know(4, 4), echoes, received_bps=5 * MBIT),  # half of what the link carries: others were the limit
        place(know(4, 4), echoes, received_bps=34 * MBIT),  # all that was sent
        place(know(4, 4, rates=RATES[1:]), echoes),  # what the link carries is not known
    ):
        assert unclear.path == ()
        assert unclear.reason == "is near the nodes of leaf=l0, whose link was not full for certain"


def test_no_place_is_made_of_idle_echoes_that_were_not_answered() -> None:
    assert place(know(4, 4), answer(*FOUR_FAR, *FOUR_NEAR), idle_s={0: IDLE_S}).path == ()


def test_the_newcomer_sends_nothing_and_the_others_to_other_domains() -> None:
    nodes = know(3, 5, 2, rates=(leaf := ("leaf", 60 * MBIT), ("host", 40 * MBIT)))  # three fill a link
    nodes[1] = KnownNode(path=nodes[1].path, rates=(leaf, ("host", 10 * MBIT)))
    nodes[2] = KnownNode(path=nodes[2].path)  # a newcomer before: its rate is taken to be the usual one
    round = make_round(nodes, 1)
    assert round.targets[8:] == (NOBODY,) * 3
    sent = {one: to for one, to in enumerate(round.targets) if to != NOBODY}
    assert Counter(nodes[one].path[0][1] for one in sent) == {"l0": 3, "l1": 3}
    assert all(nodes[one].path != nodes[to].path for one, to in sent.items())
    assert {round.paces_bps[one] for one, to in sent.items() if 1 in (one, to)} == {8_500_000}
    assert {round.paces_bps[one] for one, to in sent.items() if 1 not in (one, to)} == {34 * MBIT}


def test_of_many_nodes_some_of_each_domain_are_asked() -> None:
    nodes = know(200, 10, 300)
    asked = choose_asked(nodes, 1)
    assert len(asked) == len(set(asked)) == 128
    assert Counter(nodes[one].path[0][1] for one in asked) == {"l0": 59, "l1": 10, "l2": 59}


def play(tree: QueueTree, seed: int, rates: Mapping[str, int]) -> Placement:
    """What the last host of a tree finds, with all others as nodes of known places."""
    nodes = []
    for path in tree.paths[:-1]:
        known = tuple(zip(tree.levels, path, strict=True))
        uplinks = [(level, tree.rate((domain, True))) for level, domain in known]
        nodes.append(KnownNode(path=known, rates=(*uplinks, ("host", rates["host"]))))
    round = make_round(nodes, seed)
    rng, own, offsets = random.Random(seed), len(nodes), range(1, len(nodes) + 1)
    idle, loaded = (tree.play(one, rng, asks_all=True) for one in (type(round)(), round))
    times = []
    for seen in (idle[own], loaded[own]):
        answers = zip(offsets, seen.round_trips_us, strict=True)
        times.append({(own + offset) % (own + 1): micros / 1e6 for offset, micros in answers if micros})
    asked = choose_asked(nodes, seed)
    received = {number: loaded[number].received_bps for number in range(own)}
    reports = PlaceReports(
        asked=asked,
        idle_s={one: value for one, value in times[0].items() if one in asked},
        loaded_s={one: value for one, value in times[1].items() if one in asked},
        received_bps=received,
    )
    return decide(nodes, round, reports, own_domain="own")


@pytest.mark.parametrize(
    ("known", "newcomer", "rates", "least"),
    [
        (leaves(4, 4), ("l0",), LINKS, 20),
        (leaves(4, 4), ("own",), LINKS, 20),
        (leaves(4, 4, 4, 4), ("l2",), LINKS, 20),
        (leaves(4, 4, 4, 4), ("own",), LINKS, 20),
        (leaves(3, 4), ("l0",), LINKS, 20),
        (leaves(8, 2), ("l1",), LINKS, 20),
        (leaves(8, 8, 2), ("l2",), LINKS, 20),
        (leaves(8, 8, 2), ("own",), LINKS, 20),
        (leaves(8, 8, 2), ("l2",), DOUBLE, 0),  # two do not fill its link
        (leaves(8, 8, 2), ("own",), DOUBLE, 0),
        (leaves(4, 1), ("l1",), LINKS, 0),
        (leaves(4, 1), ("own",), LINKS, 0),
        (leaves(4, 4), ("l1",), LINKS | {"host:8": 5 * MBIT}, 20),
        (leaves(4, 4, 4), ("own",), LINKS | {"l0": 10 * MBIT}, 0),
        (leaves(4, 4, 4), ("l1",), LINKS | {"l0": 10 * MBIT}, 20),
        (spines((4, 4), (4, 4)), ("s1", "l2"), DOUBLE, 20),
        (spines((4, 4), (4, 4)), ("s1", "own"), DOUBLE, 20),
    ],
    ids=str,
)
def test_a_newcomer_is_never_placed_wrongly(
    known: list[tuple[str, ...]], newcomer: tuple[str, ...], rates: Mapping[str, int], least: int
) -> None:
    levels = ("spine", "leaf")[-len(newcomer) :]
    tree = QueueTree([*known, newcomer], levels, rates)
    found = Counter(tuple(domain for _, domain in play(tree, seed, rates).path) for seed in range(RUNS))
    right = newcomer[-1:] if "own" in newcomer else newcomer  # of a new leaf it is not known where it is
    assert set(found) <= {right, ()}
    assert found[right] >= least
