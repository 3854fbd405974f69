"""What the benchmarks make of their samples: no figure in the documentation is better than this arithmetic."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from benchmarks.pairs import NEVER, OURS, THEIRS, Figure, alternate, arguments, recording, summary, table
from benchmarks.runs import read


def test_the_ratio_is_taken_within_each_pair() -> None:
    samples = {OURS: {"wait": [1.0, 9.0, 2.0]}, THEIRS: {"wait": [10.0, 10.0, 10.0]}}
    line = summary(Figure("wait", "s", goal=0.25), samples)
    assert (line["ratio"], line["ratio_min"], line["ratio_max"], line["pairs"]) == (0.2, 0.1, 0.9, 3)
    assert line["reached"]


def test_what_torchrun_did_not_do_in_time_counts_as_if_done_at_the_limit() -> None:
    lines: list[dict[str, Any]] = []
    found = {OURS: 1.0, THEIRS: NEVER}
    samples = alternate(
        lambda side: {"wait": found[side], "limit_s": 20.0}, sides=[OURS, THEIRS], pairs=1, record=lines.append
    )
    assert [line["wait"] for line in lines] == [1.0, None, 1.0, None]
    line = summary(Figure("wait", "s"), samples)
    assert (line[OURS], line[THEIRS], line["ratio"]) == (1.0, None, 0.05)
    assert "| not in time |" in table([line])


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


@pytest.mark.parametrize(
    ("words", "pairs", "is_quick"),
    [
        ("", 10, False),
        ("--quick", 4, True),
        ("--pairs 7", 7, False),
        ("--quick --pairs 7", 7, True),
        ("--pairs 10 --quick", 10, True),
    ],
)
def test_a_number_of_pairs_counts_for_more_than_quick(words: str, pairs: int, is_quick: bool) -> None:
    options = arguments("What it is.", pairs=10, quick=4).parse_args(words.split())
    assert (options.pairs, options.quick) == (pairs, is_quick)


def test_an_aim_of_the_page_is_the_goal_of_a_figure_without_one() -> None:
    name = "exec to first line, 8 workers"
    line = summary(Figure(name, "s"), {OURS: {name: [1.0]}, THEIRS: {name: [20.0]}})
    assert (line["goal"], line["reached"]) == (0.1, True)


def test_a_record_can_be_read_and_says_whether_it_came_to_its_end(tmp_path: Path) -> None:
    file = tmp_path / "record.jsonl"
    options = arguments("What it is.", pairs=1).parse_args(["--json", str(file)])
    with recording(options) as record:
        record({"sample": OURS, "pair": 1, "counts": True, "wait": 1.0})
    with suppress(KeyboardInterrupt), recording(options) as record:  # behind the first
        record({"sample": OURS, "pair": 1, "counts": True, "wait": 2.0})
        raise KeyboardInterrupt
    first, second = read(file.read_text(), file.name)
    assert first.seconds is not None
    assert second.seconds is None
    assert second.samples == {OURS: {"wait": {1: 2.0}}}
    assert {"machine", "commit", "unix_time_s", "arguments"} <= json.loads(file.read_text().splitlines()[0]).keys()
