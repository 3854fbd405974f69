"""Where a run's time went."""

from __future__ import annotations

import pytest

from launcher.views.goodput import TimeSpent, compute_goodput
from launcher.views.run_view import RoundView
from rendezvous.records import Cause


def make_round(began_at: float, ended_at: float = 0.0, cause: Cause = "", saved_at: float = 0.0) -> RoundView:
    return RoundView(
        round=1, began_at=began_at, ended_at=ended_at, cause=cause, saved_at=saved_at,
        world_size=2, node_count=1, ranks=(0, 1), restart_count=0, waited_s=0.0,
    )  # fmt: skip


def test_time_is_lost_to_the_start_to_what_ended_a_round_and_to_waiting() -> None:
    found = compute_goodput([make_round(110.0)], TimeSpent(until=100.0), 200.0)
    assert (found.total_s, found.trained_s, found.lost_s) == (100.0, 90.0, {"start": 10.0})
    assert found.ratio == pytest.approx(0.9)
    found = compute_goodput([make_round(100.0, 150.0, "loss"), make_round(170.0)], TimeSpent(until=100.0), 200.0)
    assert (found.trained_s, found.lost_s) == (80.0, {"loss": 20.0})
    assert compute_goodput([make_round(100.0, 150.0, "loss")], TimeSpent(until=100.0), 200.0).lost_s == {"loss": 50.0}
    assert compute_goodput([make_round(100.0, 150.0, "end")], TimeSpent(until=100.0), 200.0).lost_s == {}
    assert compute_goodput([], TimeSpent(until=100.0), 100.0).ratio == 0.0
    assert compute_goodput([], TimeSpent(until=100.0), 130.0).lost_s == {"start": 30.0}


def test_work_after_the_last_checkpoint_is_undone_by_a_failure_and_not_by_growth() -> None:
    found = compute_goodput(
        [make_round(100.0, 150.0, "failure", saved_at=140.0), make_round(155.0)], TimeSpent(until=100.0), 200.0
    )
    assert (found.trained_s, found.lost_s) == (85.0, {"failure": 15.0})
    found = compute_goodput(
        [make_round(100.0, 150.0, "growth", saved_at=140.0), make_round(155.0)], TimeSpent(until=100.0), 200.0
    )
    assert (found.trained_s, found.lost_s) == (95.0, {"growth": 5.0})
    rounds = [make_round(100.0, 150.0, "failure", saved_at=140.0), make_round(150.0, 180.0, "loss"), make_round(180.0)]
    found = compute_goodput(rounds, TimeSpent(until=100.0), 200.0)
    assert (found.trained_s, found.lost_s) == (60.0, {"failure": 10.0, "loss": 30.0})
    before = TimeSpent(until=100.0)
    before.add(rounds[0], 0.0)
    assert compute_goodput(rounds[1:], before, 200.0) == found


def test_what_became_of_time_stays_counted_though_a_clock_is_set_back() -> None:
    rounds = [make_round(100.0, 150.0, "loss"), make_round(170.0, 180.0, "failure", saved_at=175.0), make_round(190.0)]
    whole = compute_goodput(rounds, TimeSpent(until=90.0), 200.0)
    for dropped in range(len(rounds)):
        before = TimeSpent(until=90.0)
        for one in rounds[:dropped]:
            before.add(one, 0.0)
        assert compute_goodput(rounds[dropped:], before, 200.0) == whole
    assert whole.lost_s == {"start": 10.0, "loss": 20.0, "failure": 15.0}
    rounds = [make_round(100.0, 40.0, "failure", saved_at=30.0), make_round(50.0, 60.0, "loss"), make_round(70.0)]
    found = compute_goodput(rounds, TimeSpent(until=90.0), 65.0)
    assert found.trained_s >= 0
    assert all(seconds > 0 for seconds in found.lost_s.values())
    assert found.ratio <= 1


@pytest.mark.parametrize("saved_at", [90.0, 160.0])
def test_a_report_with_a_time_outside_of_its_round_counts_no_time_twice(saved_at: float) -> None:
    found = compute_goodput([make_round(100.0, 150.0, "failure", saved_at=saved_at)], TimeSpent(until=100.0), 150.0)
    assert found.total_s == 50.0
