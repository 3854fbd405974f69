"""What the benchmarks make of their samples: no figure in the documentation is better than this arithmetic."""

from __future__ import annotations

from typing import Any

from benchmarks.pairs import OURS, THEIRS, Figure, alternate, summary, table


def test_the_ratio_is_taken_within_each_pair() -> None:
    samples = {OURS: {"wait": [1.0, 9.0, 2.0]}, THEIRS: {"wait": [10.0, 10.0, 10.0]}}
    line = summary(Figure("wait", "s", goal=0.25), samples)
    assert (line["ratio"], line["ratio_min"], line["ratio_max"], line["pairs"]) == (0.2, 0.1, 0.9, 3)
    assert line["reached"]


def test_a_goal_for_a_rate_is_a_least_ratio() -> None:
    samples = {OURS: {"rate": [40.0]}, THEIRS: {"rate": [10.0]}}
    assert summary(Figure("rate", "lines/s", goal=3, more_is_better=True), samples)["reached"]
    assert not summary(Figure("rate", "lines/s", goal=5, more_is_better=True), samples)["reached"]


def test_the_sides_take_turns_and_the_first_pair_does_not_count() -> None:
    calls: list[str] = []
    lines: list[dict[str, Any]] = []

    def sample(side: str) -> dict[str, float]:
        calls.append(side)
        return {"number": float(len(calls))}

    samples = alternate(sample, sides=[OURS, THEIRS], pairs=2, record=lines.append)
    assert calls == [OURS, THEIRS] * 3
    assert samples == {OURS: {"number": [3.0, 5.0]}, THEIRS: {"number": [4.0, 6.0]}}
    assert [line["counts"] for line in lines] == [False, False, True, True, True, True]


def test_one_side_alone_has_a_median_and_no_ratio() -> None:
    line = summary(Figure("wait", "s", goal=0.5), {THEIRS: {"wait": [1.0, 2.0, 4.0]}})
    assert line == {"figure": "wait", "unit": "s", THEIRS: 2.0}
    assert "2 s" in table([line])
