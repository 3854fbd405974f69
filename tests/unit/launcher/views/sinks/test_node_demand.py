"""When a run says that it wants more nodes, and how many it wants."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.model import mesh as meshes
from launcher.views.sinks import node_demand

ROUNDING_S = 1e-6  # of sums of times
ENOUGH = "wanted 4 nodes, present 4", "wanted 4 nodes, present 5"


def live(
    *steps: tuple[float, int], wanted: int = 4, until: float = 0.0, is_owed: bool = False
) -> list[tuple[float, str]]:
    """What is said, and when, if so many nodes are present from each of these times on."""
    history, said = node_demand.DemandHistory(is_owed=is_owed), []
    times = [at for at, _ in steps]
    now = times[0]
    while True:
        present = next(count for at, count in reversed(steps) if at <= now)
        decision = node_demand.decide_demand(history, wanted, present, now)
        history = decision.history
        if decision.reason:
            said.append((now, decision.reason))
        assert decision.next_at > now
        now = min([decision.next_at, *(at for at in times if at > now)])
        if now > until:
            return said


def test_figures_are_said_once_they_have_settled_and_nothing_where_none_are_due() -> None:
    said = live((0.0, 1), (3.0, 2), (6.0, 3), until=100.0)
    assert said == [(6.0 + node_demand.SETTLE_S, "wanted 4 nodes, present 3, for 16 s")]
    assert live((0.0, 4), until=1e6) == []
    assert live((0.0, 4), (50.0, 3), (58.0, 4), until=1e6) == []
    assert node_demand.decide_demand(node_demand.DemandHistory(), 2, 2, 5.0).next_at == math.inf


def test_other_figures_follow_a_pause_and_the_same_ones_longer_ones() -> None:
    said = live((0.0, 3), (12.0, 1), until=10_000.0)
    first = node_demand.SETTLE_S + node_demand.PAUSE_S
    repeats = [first + node_demand.REPEAT_FIRST_S * (2**count - 1) for count in range(1, 6)]
    assert [at for at, _ in said] == [node_demand.SETTLE_S, first, *repeats, repeats[-1] + node_demand.REPEAT_MAX_S]
    assert said[1][1].startswith("wanted 4 nodes, present 1, for 40 s")
    long = [at for at, _ in live((0.0, 3), until=100_000.0)]
    assert max(after - before for before, after in itertools.pairwise(long)) == node_demand.REPEAT_MAX_S


def test_what_was_asked_for_is_withdrawn_once_and_said_again_by_a_new_leader() -> None:
    said = live((0.0, 3), (600.0, 4), until=1e6)
    assert said[-1] == (610.0, "wanted 4 nodes, present 4")
    assert [reason for _, reason in said].count(said[-1][1]) == 1
    assert live((0.0, 5), until=1e6, is_owed=True) == [(node_demand.SETTLE_S, "wanted 4 nodes, present 5")]


@given(st.lists(st.tuples(st.floats(0.1, 500.0), st.integers(0, 5)), min_size=1, max_size=20), st.booleans())
def test_requests_keep_their_pause_and_the_last_one_is_true(gaps: list[tuple[float, int]], is_owed: bool) -> None:
    at, steps = 0.0, []
    for gap, count in gaps:
        steps.append((at, count))
        at += gap
    said = live(*steps, until=at + 2 * node_demand.REPEAT_MAX_S, is_owed=is_owed)
    assert all(
        after - before >= node_demand.SETTLE_S - ROUNDING_S for (before, _), (after, _) in itertools.pairwise(said)
    )
    requests = [when for when, reason in said if reason not in ENOUGH]
    assert all(after - before >= node_demand.PAUSE_S - ROUNDING_S for before, after in itertools.pairwise(requests))
    present = steps[-1][1]
    if present < 4:
        assert said[-1][1].startswith(f"wanted 4 nodes, present {present}, for ")
    elif said:
        assert said[-1][1] in ENOUGH


@pytest.mark.parametrize(
    ("nodes_min", "nodes_max", "target", "useful", "wanted"),
    [
        (2, 2, 0, None, 2),
        (1, 8, 0, None, 8),
        (1, 8, 0, 4, 4),
        (1, None, 0, 4, 4),
        (1, None, 6, None, 6),
        (3, None, 0, None, 3),
        (3, 8, 0, 1, 3),
    ],
)
def test_a_run_wants_what_it_may_have_and_its_mesh_can_use(
    nodes_min: int, nodes_max: int | None, target: int, useful: int | None, wanted: int
) -> None:
    assert node_demand.choose_wanted(nodes_min, nodes_max, target, useful) == wanted


@pytest.mark.parametrize(
    ("mesh", "elastic_max", "slots", "count"),
    [("dp=4,tp=8", None, 8, 4), ("dp=*,tp=8", 3, 8, 3), ("dp=*,tp=8", None, 8, None), ("dp=3,tp=2", None, 4, 2)],
)
def test_a_mesh_uses_as_many_nodes_as_fit(mesh: str, elastic_max: int | None, slots: int, count: int | None) -> None:
    assert node_demand.count_useful_nodes(meshes.parse(mesh), elastic_max, slots) == count
