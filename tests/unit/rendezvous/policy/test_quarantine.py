"""Who sits out: what counts, for how long, and that a leader that takes over finds the same."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from rendezvous.policy import budget
from rendezvous.policy.budget import RestartBudget
from rendezvous.policy.quarantine import STRIKES_MAX, Quarantine, Strike, drop_old_strikes, find_quarantines
from rendezvous.reasons import Reason
from rendezvous.records import Seal
from rendezvous.settings import Settings

LIMITS = Settings(
    flap_limit=3, quarantine_failures=2, quarantine_window_s=100.0, quarantine_first_s=10.0, quarantine_max_s=35.0
)
SEAL = Seal(round=4, plan_token="t", world_size=8, coordinator="a:1", reason=Reason.of("enough"))


def lost(*at: float, node: str = "n") -> list[Strike]:
    return [Strike(node, time) for time in at]


def failed(*at: float, node: str = "n", rank: int = 0) -> list[Strike]:
    return [Strike(node, time, rank) for time in at]


def ends(losses: list[Strike], failures: list[Strike]) -> dict[str, float]:
    return {node: bench.until for node, bench in find_quarantines(losses, failures, LIMITS).items()}


CASES = {
    "few losses bench nobody": (lost(1, 2), [], {}),
    "enough of them do": (lost(1, 2, 3), [], {"n": 13.0}),
    "each further one doubles the time": (lost(1, 2, 3, 20), [], {"n": 40.0}),
    "up to a limit": (lost(1, 2, 3, 20, 50), [], {"n": 85.0}),
    "and no further": (lost(1, 2, 3, 20, 50, 90), [], {"n": 125.0}),
    "what lies too far back does not count": (lost(1, 2, 103), [], {}),
    "each node has its own": (lost(1, 2) + lost(3, node="m"), [], {}),
    "one first failure benches nobody": ([], failed(5), {}),
    "several do": ([], failed(5, 6), {"n": 16.0}),
    "whichever ranks they were of": ([], failed(5, rank=1) + failed(6, rank=2), {"n": 16.0}),
    "a rank that fails on two nodes benches nobody": ([], failed(5, 6) + failed(7, node="m"), {}),
    "of an unknown rank that cannot be said": ([], failed(5, 6, rank=-1) + failed(7, node="m", rank=-1), {"n": 16.0}),
    "other ranks of the node still count": ([], failed(5, 6) + failed(6, 7, rank=3) + failed(8, node="m"), {"n": 17.0}),
    "the longer bench counts": (lost(1, 2, 3), failed(1, 8), {"n": 18.0}),
    "whichever it is": (lost(1, 2, 9), failed(1, 2), {"n": 19.0}),
}


@pytest.mark.parametrize(("losses", "failures", "expected"), CASES.values(), ids=CASES)
def test_quarantines_follow_strikes(losses: list[Strike], failures: list[Strike], expected: dict[str, float]) -> None:
    assert ends(losses, failures) == expected


def test_a_blamed_node_is_quarantined_with_the_reason_for_as_long_as_its_strikes_last() -> None:
    found = [find_quarantines([], failed(1), LIMITS, blamed=failed(*at))["n"] for at in ((5.0,), (5.0, 20.0))]
    assert [quarantine.until for quarantine in found] == [15.0, 40.0]
    assert str(found[0].reason) == "quarantined cause=blame times=1 window_s=100 duration_s=10"
    before = RestartBudget(first_failures=tuple(failed(5)))
    charged = before.charge(3, failed_at=9.0, now=10.0)
    after = replace(charged, first_failures=(*charged.first_failures, *failed(9.0)))
    assert after.refund() == before
    limits = Settings(flap_limit=0, quarantine_failures=0)
    assert not find_quarantines(lost(1, 2, 3, 4), failed(1, 2, 3, 4), limits)
    expected = Quarantine(13.0, Reason.of("quarantined", cause="losses", times=3, window_s=100.0, duration_s=10.0))
    assert find_quarantines(lost(1, 2, 3), [], LIMITS)["n"] == expected
    assert drop_old_strikes(lost(0, 100, 136), 236.0, LIMITS) == tuple(lost(136))
    many = lost(*range(STRIKES_MAX + 5))
    assert drop_old_strikes(many, 100.0, LIMITS) == tuple(many[5:])


@settings(max_examples=60)
@given(
    losses=st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 300)), max_size=12),
    failures=st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 300), st.integers(-1, 3)), max_size=12),
    offset_s=st.floats(-1e6, 1e6),
)
def test_another_leader_finds_the_same_quarantines(
    losses: list[tuple[str, float]], failures: list[tuple[str, float, int]], offset_s: float
) -> None:
    ledger = RestartBudget(
        losses=tuple(Strike(*mark) for mark in losses), first_failures=tuple(Strike(*mark) for mark in failures)
    )
    carried = budget.restore_budget(budget.add_to_seal(SEAL, ledger, 300.0), seen_at=300.0 + offset_s)
    assert [mark.node for mark in carried.losses] == [node for node, _ in losses]
    assert [mark.rank for mark in carried.first_failures] == [rank for _, _, rank in failures]
    there = [(mark.node, mark.at - offset_s) for mark in (*carried.losses, *carried.first_failures)]
    here = [(node, at) for node, at, *_ in (*losses, *failures)]
    assert [node for node, _ in there] == [node for node, _ in here]
    assert [at for _, at in there] == pytest.approx([at for _, at in here], abs=0.01)
