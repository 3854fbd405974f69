"""The budget: what is charged, what is given back, and that a seal carries it to another clock."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from rendezvous.policy import budget
from rendezvous.policy.budget import RestartBudget
from rendezvous.policy.quarantine import Strike
from rendezvous.reasons import Reason
from rendezvous.records import Seal
from rendezvous.settings import Settings

SEAL = Seal(round=4, plan_token="t", world_size=8, coordinator="a:1", reason=Reason.of("enough"))
CHARGED = RestartBudget(restart_count=1, charged_at=(10.0,)).charge(3, failed_at=99.0, now=100.0)


def test_a_charge_counts_once_and_a_refund_takes_back_the_provisional_one_alone() -> None:
    assert (
        RestartBudget(
            restart_count=2, charged_at=(10.0, 100.0), provisional_round=3, provisional_since=99.0, short_rounds=0
        )
        == CHARGED
    )
    assert CHARGED.refund() == RestartBudget(restart_count=1, charged_at=(10.0,))


@pytest.mark.parametrize(("before", "after"), [(0, 0), (2, 1)], ids=["it made progress", "it made none"])
def test_a_round_that_a_loss_explains_is_none_without_progress(before: int, after: int) -> None:
    assert replace(CHARGED, best_step=7, stuck_rounds=before).refund().stuck_rounds == after


@pytest.mark.parametrize(("now", "is_provisional"), [(99.5, True), (101.0, True), (101.1, False)])
def test_a_charge_is_final_once_the_time_to_settle_is_over(now: float, is_provisional: bool) -> None:
    settled = CHARGED.settle(now, settle_s=2.0)
    assert bool(settled.provisional_round) is is_provisional
    assert (settled.restart_count, settled.charged_at) == (2, (10.0, 100.0))


@pytest.mark.parametrize(
    ("now", "window_s", "spent"), [(100.0, math.inf, 2), (100.0, 90.0, 2), (100.1, 90.0, 1), (500.0, 60.0, 0)]
)
def test_only_charges_within_the_window_count(now: float, window_s: float, spent: int) -> None:
    assert CHARGED.count_spent(now, window_s) == spent


def test_short_rounds_count_as_they_follow_each_other_and_of_a_seal_the_budget_alone_changes() -> None:
    limits = Settings(min_round_time_s=5.0)
    ledger = RestartBudget()
    counts = []
    for duration_s in (1.0, 4.9, 5.0, 0.0):
        ledger = ledger.add_round(duration_s, limits)
        counts.append(ledger.short_rounds)
    assert counts == [1, 2, 0, 1]
    written = budget.add_to_seal(SEAL, CHARGED, 110.0)
    assert (written.round, written.plan_token, written.world_size, written.coordinator) == (4, "t", 8, "a:1")
    assert (written.charge_ages_s, written.provisional_age_s) == ((100.0, 10.0), 11.0)


@settings(max_examples=60)
@given(
    charged_at=st.lists(st.floats(0, 1e6), max_size=4).map(lambda times: tuple(sorted(times))),
    provisional_since=st.none() | st.floats(0, 1e6),
    short_rounds=st.integers(0, 100),
    blamed_at=st.lists(st.floats(0, 1e6), max_size=2),
    passed_s=st.floats(0, 1e6),
    clock_offset_s=st.floats(-1e6, 1e6),
)
def test_a_seal_carries_the_ledger_to_another_clock(
    charged_at: tuple[float, ...],
    provisional_since: float | None,
    short_rounds: int,
    blamed_at: list[float],
    passed_s: float,
    clock_offset_s: float,
) -> None:
    ledger = RestartBudget(
        restart_count=len(charged_at), charged_at=charged_at, short_rounds=short_rounds,
        provisional_round=0 if provisional_since is None else 3,
        provisional_since=-math.inf if provisional_since is None else provisional_since,
        blamed=tuple(Strike("n boot", at) for at in blamed_at), best_step=short_rounds - 1, stuck_rounds=short_rounds,
        same_failure=Reason.of("key-error"), same_rank=5, same_failures=short_rounds,
    )  # fmt: skip
    sealed_at = 1e6 + passed_s
    carried = budget.restore_budget(budget.add_to_seal(SEAL, ledger, sealed_at), seen_at=sealed_at + clock_offset_s)
    assert (carried.restart_count, carried.short_rounds) == (ledger.restart_count, ledger.short_rounds)
    assert carried.provisional_round == ledger.provisional_round
    for name in ("best_step", "stuck_rounds", "same_failure", "same_rank", "same_failures"):
        assert getattr(carried, name) == getattr(ledger, name)
    assert [strike.at for strike in carried.blamed] == pytest.approx(
        [at + clock_offset_s for at in blamed_at], abs=0.01
    )
    assert carried.charged_at == pytest.approx([at + clock_offset_s for at in charged_at], abs=0.01)
    assert carried.provisional_since == pytest.approx(ledger.provisional_since + clock_offset_s, abs=0.01)
