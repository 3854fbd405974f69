"""How samples are taken and recorded: no figure in the documentation is better than this."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from benchmarks import pairs, runs
from benchmarks.pairs import NEVER, OURS, SIDES, THEIRS, Bench, benchmark
from benchmarks.runs import Sample

AUTHOR = ["-c", "user.name=test", "-c", "user.email=test@localhost"]
FIGURE = "exec to first line, 8 workers"


def make_bench(lines: list[dict[str, Any]], count: int) -> Bench:
    return Bench(count, SIDES, False, lines.append, lines, [])


@benchmark(pairs=10, quick=4)
@click.option("--fail")
def command(bench: Bench, fail: str | None) -> None:
    """Records how it was asked, and one pair."""
    bench.record({"asked": [bench.pairs, bench.is_quick, *bench.sides]})
    for side, value in zip(SIDES, (1.0, 20.0), strict=True):
        bench.note(side, 1, {FIGURE: value})
    if fail == "at once":
        raise KeyboardInterrupt
    if fail:
        bench.failures.append(fail)


def test_sides_take_turns_and_what_did_not_come_in_time_is_null() -> None:
    calls: list[str] = []
    lines: list[dict[str, Any]] = []

    def sample(side: str) -> dict[str, float]:
        calls.append(side)
        return {"number": float(len(calls))}

    make_bench(lines, 2).alternate(sample)
    assert calls == [OURS, THEIRS] * 3
    assert [(line["counts"], line["number"]) for line in lines] == list(
        zip([False, False, True, True, True, True], range(1, 7), strict=True)
    )
    lines: list[dict[str, Any]] = []
    late = {"wait": NEVER, "limit_s": 9.0}
    make_bench(lines, 1).alternate(lambda side: {"wait": 1.0} if side == OURS else late, warm_ups=0)
    assert [(line["wait"], line.get("limit_s")) for line in lines] == [(1.0, None), (None, 9.0)]
    with pytest.raises(AssertionError):
        make_bench(lines, 1).note(THEIRS, 1, {"wait": NEVER})


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        ("", [10, False, *SIDES]),
        ("--quick", [4, True, *SIDES]),
        ("--quick --pairs 7", [7, True, *SIDES]),
        ("--pairs 10 --quick", [10, True, *SIDES]),
        ("--only torchrun --pairs 1", [1, False, THEIRS]),
    ],
)
def test_a_number_of_pairs_counts_for_more_than_quick(tmp_path: Path, words: str, asked: list[object]) -> None:
    file = tmp_path / "record.jsonl"
    assert CliRunner().invoke(command, [*words.split(), "--json", str(file)]).exit_code == 0
    assert [json.loads(line)["asked"] for line in file.read_text().splitlines() if "asked" in line] == [asked]


def test_a_record_can_be_read_and_says_whether_it_came_to_its_end(tmp_path: Path) -> None:
    file = tmp_path / "record.jsonl"
    for words, code in (([], 0), (["--fail", "no etcd"], 1), (["--fail", "at once"], 1)):
        assert CliRunner().invoke(command, [*words, "--json", str(file)]).exit_code == code
    whole, failed, cut = runs.read(file.read_text(), file.name)
    assert whole.seconds is not None
    assert failed.seconds is not None
    assert cut.seconds is None
    assert cut.samples == {OURS: {FIGURE: {1: Sample(1.0)}}, THEIRS: {FIGURE: {1: Sample(20.0)}}}
    assert {"machine", "commit", "is_dirty", "unix_time_s", "arguments", "benchmark"} <= whole.head.keys()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one commit of the code that is measured."""
    monkeypatch.setattr(pairs, "ROOT", tmp_path)
    for name in ("launcher/cli.py", "benchmarks/records/startup.jsonl", "docs/performance.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    for words in (["init"], ["add", "."], [*AUTHOR, "commit", "--message", "One"]):
        pairs.git(*words)
    return tmp_path


@pytest.mark.parametrize(
    ("file", "is_dirty"),
    [
        ("launcher/cli.py", True),
        ("launcher/new.py", True),
        ("benchmarks/startup.py", True),
        ("benchmarks/records/startup.jsonl", False),
        ("docs/performance.md", False),
    ],
)
def test_a_record_says_whether_its_commit_is_what_was_measured(repository: Path, file: str, is_dirty: bool) -> None:
    commit, before = pairs.find_commit()
    assert commit is not None
    assert runs.COMMIT.fullmatch(commit)
    assert not before
    (repository / file).write_text("changed")
    assert pairs.find_commit() == (commit, is_dirty)


def test_commits_that_change_what_is_launched_make_a_record_old(repository: Path) -> None:
    commit, _ = pairs.find_commit()
    assert commit is not None
    for file in ("launcher/cli.py", "docs/performance.md"):
        (repository / file).write_text("changed")
        pairs.git(*AUTHOR, "commit", "--all", "--message", "Another")
    assert pairs.count_commits_since(commit) == 1
    assert pairs.count_commits_since("0" * 40) is None
