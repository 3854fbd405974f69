"""Records of benchmarks: whose sample counts, what pairs come to, and what a broken file is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import figures, tables
from benchmarks.figures import Aim
from benchmarks.runs import OURS, THEIRS, WATCHES_MIN, History, RecordError, load, read
from benchmarks.tables import verdict

HEAD = {"benchmark": "startup", "arguments": [], "machine": {"cores": 2}, "unix_time_s": 0}
PUBLISHED = HEAD | {"commit": "a" * 40, "is_dirty": False}
FIGURE = "exec to first line, 8 workers"


def sample(side: str, pair: int, value: float | None, name: str = FIGURE, **more: Any) -> dict[str, Any]:
    return {"sample": side, "pair": pair, "counts": pair > 0, name: value, **more}


def history(*lines: dict[str, Any], head: dict[str, Any] = HEAD) -> History:
    return History(read("".join(f"{json.dumps(line)}\n" for line in (head, *lines)), "startup.jsonl"))


def test_pairs_have_a_ratio_and_a_record_cut_off_within_a_line_is_good_up_to_it() -> None:
    pairs = [sample(THEIRS, 2, 20.0), sample(OURS, 1, 1.0), sample(OURS, 2, 10.0), sample(THEIRS, 1, 4.0)]
    found = history(sample(OURS, 0, 9.0), *pairs, sample(OURS, 3, 1.0)).series[FIGURE]
    assert found.ratios() == [0.25, 0.5]
    assert found.values(OURS) == {1: 1.0, 2: 10.0, 3: 1.0}
    text = f"{json.dumps(HEAD)}\n{json.dumps(sample(OURS, 1, 1.0))}\n" + '{"sample": "mesh'
    (run,) = read(text, "startup.jsonl")
    assert run.figures() == [FIGURE]
    assert run.seconds is None


def test_the_newest_pair_with_a_figure_counts_and_hides_no_other_figure() -> None:
    found = history(
        sample(OURS, 1, 1.0, other=5.0), sample(OURS, 2, 3.0), HEAD | {"unix_time_s": 1}, sample(OURS, 1, 7.0)
    )
    assert found.series[FIGURE].values(OURS) == {1: 7.0}
    assert found.series["other"].values(OURS) == {1: 5.0}
    assert [run.head["unix_time_s"] for run in found.used()] == [0, 1]
    pair = (sample(OURS, 1, 1.0), sample(THEIRS, 1, 4.0))
    found = history(*pair, HEAD, sample(OURS, 1, 7.0)).series[FIGURE]
    assert found.ratios() == [0.25]
    assert history(sample(OURS, 1, 7.0), HEAD, *pair).series[FIGURE].ratios() == [0.25]


def watched(*watches_s: float, name: str = FIGURE, ours_limit_s: float = 25.0) -> History:
    """A figure that meshrun reaches within a second, and torchrun in none of these watches."""
    ours = (sample(OURS, pair, 1.0, name, limit_s=ours_limit_s) for pair in range(1, len(watches_s) + 1))
    theirs = (sample(THEIRS, pair, None, name, limit_s=limit_s) for pair, limit_s in enumerate(watches_s, 1))
    return history(*theirs, *ours)  # meshrun's limit is the last in the file


def test_each_sample_keeps_the_limit_of_its_own_watch_and_not_within_names_the_shortest() -> None:
    found = watched(12.0, 20.0, 15.0).series[FIGURE]
    assert {pair: one.limit_s for pair, one in found.samples(THEIRS).items()} == {1: 12.0, 2: 20.0, 3: 15.0}
    assert {one.limit_s for one in found.samples(OURS).values()} == {25.0}
    assert found.ratios() == pytest.approx([1 / 12, 1 / 20, 1 / 15])
    found = watched(15.0, 12.0, 20.0)
    assert tables.cell(found.series[FIGURE], THEIRS, "s") == "not within 12 s, 3 runs"
    bound = found.series[FIGURE].bound()
    assert bound is not None
    assert (bound.median, bound.samples) == (pytest.approx(1 / 12), 3)
    assert "| not within 12\N{NO-BREAK SPACE}s, 3 runs | less than 0.084 |" in tables.first(found)


def test_growth_is_told_of_three_large_sizes_and_a_figure_of_a_watch_repeated_often_enough() -> None:
    series = watched(*[12.0] * (WATCHES_MIN - 1)).series[FIGURE]
    assert tables.cell(series, THEIRS, "s") == "not measured"
    assert series.bound() is None
    assert tables.describe_ratio(series) == ""
    assert "not measured" in tables.first(watched(12.0))
    late = history(*(sample(OURS, 1, None, limit_s=9.0),)).series[FIGURE]
    assert tables.cell(late, OURS, "s") == "not within 9 s, 1 run", "what meshrun does not reach is never hidden"

    def grown(*points: tuple[int, float | None]) -> float | None:
        names = {count: figures.AGENTS_REQUESTS.format(n=count) for count, _ in points}
        named = [sample(OURS, 1, value, names[count], limit_s=9) for count, value in points]
        return history(*named).growth(figures.AGENTS_REQUESTS)

    assert grown((8, 1.0), (64, 384.0), (256, 1536.0), (1024, 6144.0)) == pytest.approx(1.0)
    assert grown((8, 64.0), (16, 256.0), (64, 384.0), (256, 1536.0)) is None
    assert grown((64, 384.0), (256, None), (1024, 6144.0)) is None


def test_a_bound_holds_when_some_runs_came_and_an_aim_is_reached_missed_or_was_not_measured() -> None:
    ours = [sample(OURS, pair, 1.0) for pair in range(1, 6)]
    times = ((1, None), (2, 5.0), (3, None), (4, None), (5, 16.0))
    found = history(*ours, *(sample(THEIRS, pair, value, limit_s=20 - pair) for pair, value in times)).series[FIGURE]
    bound = found.bound()
    assert bound is not None
    assert (bound.least, bound.median, bound.most) == pytest.approx((1 / 16, 1 / 16, 1 / 5))
    assert tables.cell(found, THEIRS, "s") == "not within 16 s, 3 of 5 runs"
    both_late = history(*(sample(side, pair, None, limit_s=9) for side in (OURS, THEIRS) for pair in (1, 2, 3)))
    assert both_late.series[FIGURE].bound() is None
    both = history(sample(OURS, 1, 1.0), sample(THEIRS, 1, 4.0)).series[FIGURE]
    assert verdict(Aim("", FIGURE, ratio=0.25), both) is True
    assert verdict(Aim("", FIGURE, ratio=0.2), both) is False
    assert verdict(Aim("", FIGURE, ratio=0.2, least=True), both) is True
    assert verdict(Aim("", FIGURE, value=1.0), both) is True
    assert verdict(Aim("", FIGURE, value=1.0), None) is None
    vain = watched(20.0, 20.0, 20.0).series[FIGURE]
    assert verdict(Aim("", FIGURE, ratio=0.1), vain) is True, "it would be less, had it been waited for longer"
    assert verdict(Aim("", FIGURE, ratio=0.01), vain) is None
    twice = history(sample(OURS, 1, -1.0), sample(OURS, 2, -1.0), sample(OURS, 3, 0.1)).series[FIGURE]
    assert verdict(Aim("", FIGURE, value=0.0), twice) is True
    assert verdict(Aim("", FIGURE, value=0.0, every=True), twice) is False
    late = history(sample(OURS, 1, None, limit_s=20)).series[FIGURE]
    assert verdict(Aim("", FIGURE, value=1.0), late) is False
    assert verdict(Aim("", FIGURE, ratio=1.0), late) is None


HEADS = {
    "whole": {},
    "without a commit": {"commit": None},
    "with a short commit": {"commit": "63741f1"},
    "without a day": {"unix_time_s": None},
    "with an impossible day": {"unix_time_s": 1e30},
    "with changes": {"is_dirty": True},
    "that does not say whether there were changes": {"is_dirty": None},
}


@pytest.mark.parametrize("case", HEADS)
def test_only_a_record_of_one_commit_and_day_is_published(tmp_path: Path, case: str) -> None:
    file = tmp_path / "startup.jsonl"
    lines = (PUBLISHED, sample(OURS, 1, 1.0), PUBLISHED | HEADS[case], sample(OURS, 1, 2.0))
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    if case == "whole":
        assert load(tmp_path).series[FIGURE].values(OURS) == {1: 2.0}
        return
    with pytest.raises(RecordError, match=r"^startup\.jsonl, line 3: [^\n]+$"):
        load(tmp_path)


def test_a_table_names_its_commit_and_the_rows_of_another() -> None:
    other = PUBLISHED | {"commit": "b" * 40, "unix_time_s": 90_000}
    two = figures.workers(figures.FIRST_LINE, 2), figures.workers(figures.FIRST_LINE, 1)
    lines = [sample(OURS, 1, 1.0, name) for name in (FIGURE, *two)]
    one = history(*lines, head=PUBLISHED)
    assert tables.one_node(one).endswith("\n\nMeasured at commit `aaaaaaaa` on 1970-01-01.")
    assert "(commit" not in tables.one_node(one)
    mixed = tables.one_node(history(*lines, other, sample(OURS, 1, 2.0, two[0]), head=PUBLISHED))
    assert mixed.endswith("\n\nMeasured at commit `aaaaaaaa` on 1970-01-01.")
    assert [line.partition(" | ")[0] for line in mixed.splitlines() if "(commit" in line] == [
        "| the same, 2 workers (commit `bbbbbbbb`, 1970-01-02)"
    ]


def test_a_timeout_of_torchrun_bounds_the_ratio_of_a_first_round_alone() -> None:
    never = history(sample(OURS, 1, 1.0), sample(THEIRS, 1, None, limit_s=20))
    assert never.series[FIGURE].ratio() is None
    times = (sample(THEIRS, pair, value, limit_s=20) for pair, value in ((1, 10.0), (2, 10.0), (3, None)))
    once = history(*(sample(OURS, pair, 1.0) for pair in (1, 2, 3)), *times).series[FIGURE].ratio()
    assert once is not None
    assert (once.median, once.least) == (0.1, 0.05)
    name = figures.FIRST_ROUND.format(n=256)
    cells = "| 1.00\N{NO-BREAK SPACE}s | not within 40\N{NO-BREAK SPACE}s, 3 runs | less than 0.025 (3) |"
    assert f"| 256 {cells}" in tables.rounds(watched(40.0, 40.0, 40.0, name=name))
    name = figures.FIRST_ROUND.format(n=128)
    assert "| not known |" in tables.aims(watched(40.0, name=name))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{\n", "startup.jsonl, line 1: no JSON: '{'"),
        ("[1]\n", "startup.jsonl, line 1: not an object: '[1]'"),
        ('{"sample": "meshrun"}\n', "line 1: no head of a record stands before it"),
        ('{"machine": {}}\n', "line 1: a head of a record that names no benchmark"),
        (json.dumps(HEAD) + '\n{"sample": "mpirun", "pair": 1}\n', "line 2: a sample of 'mpirun', neither meshrun nor"),
        (json.dumps(HEAD) + '\n{"sample": "meshrun", "x": 1}\n', "line 2: a sample without the number of its pair"),
        (json.dumps(HEAD) + '\n{"sample": "meshrun", "pair": 1, "x": null}\n', "line 2: 'x' was late, and no limit_s"),
    ],
)
def test_what_is_no_record_is_refused_with_its_line(text: str, words: str) -> None:
    with pytest.raises(RecordError, match="line") as refused:
        read(text, "startup.jsonl")
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)
