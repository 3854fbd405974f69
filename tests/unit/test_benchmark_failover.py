"""What the benchmark of lost nodes makes of its marks and times."""

from __future__ import annotations

import pytest

from benchmarks.agents import NEVER, Mark, last_began_s
from benchmarks.failover import Case, summary, table
from benchmarks.pairs import OURS, THEIRS


def mark(rank: int, world_size: int, began_s: float) -> Mark:
    return Mark("n1", rank, world_size, 1, began_s)


def test_a_round_is_there_when_its_last_rank_has_begun() -> None:
    marks = [mark(0, 2, 11.0), mark(1, 2, 10.5)]
    assert last_began_s(marks, 10.0, 2) == 11.0
    assert last_began_s(marks[:1], 10.0, 2) == NEVER


def test_workers_of_the_round_before_and_of_other_worlds_do_not_count() -> None:
    marks = [mark(0, 2, 9.0), mark(1, 2, 9.1), mark(0, 3, 10.2), mark(0, 2, 10.4)]
    assert last_began_s(marks, 10.0, 2) == NEVER


@pytest.mark.parametrize(("event", "after"), [("crash", 4), ("kill", 3), ("partition", 3), ("leave", 3), ("join", 5)])
def test_the_size_of_the_next_round_follows_from_the_event(event: str, after: int) -> None:
    assert Case(event, 4, "").after == after


def test_what_never_came_has_no_ratio() -> None:
    line = summary(Case("kill", 4, ""), {OURS: [0.1, 0.3, 0.2], THEIRS: [NEVER]}, 30)
    assert "ratio" not in line
    assert "| kill | 4 | 0.20 s (0.10 to 0.30; 3) | not within 30 s |  | at most 2 s: reached |" in table([line], 30)


def test_the_ratio_is_taken_run_by_run() -> None:
    line = summary(Case("crash", 8, ""), {OURS: [1.0, 1.0, 4.0], THEIRS: [10.0, 5.0, 10.0]}, 30)
    assert line["ratio"] == {"median": 0.2, "min": 0.1, "max": 0.4}
    assert "at most 0.15 of torchrun: missed" in table([line], 30)


def test_a_torchrun_that_did_not_come_in_time_counts_as_if_it_had_at_the_limit() -> None:
    line = summary(Case("crash", 8, ""), {OURS: [1.0, 1.0, 1.0], THEIRS: [NEVER, 10.0, 10.0]}, 20)
    assert line["ratio"]["min"] == 0.05
    assert "more than 20" in table([line], 20)
