"""The page of performance is what its records say, and a report loses nothing when a benchmark fails or is ended.

The benchmarks of these tests are a line of Python each: no timing is taken here.
"""

from __future__ import annotations

import datetime
import json
import os
import signal
import subprocess
import sys
import threading
from importlib.metadata import version
from pathlib import Path

import pytest

from benchmarks import pairs, report, runs, tables
from benchmarks.report import Outcome, Step, Stopped
from tests.support.documents.pages import ROOT, pages

pytest.importorskip("matplotlib", reason="the pictures are drawn by matplotlib: pip install '.[report]'")
from benchmarks import page

COMMIT = {"commit": "a" * 40, "is_dirty": False, "unix_time_s": 0}
HEAD = {"benchmark": "startup", "arguments": [], "machine": {"cores": 2}, **COMMIT}
RECORD = f"import json, sys, time; out = open(sys.argv[1], 'a'); head = {HEAD!r}\n"
WRITE = "print(json.dumps({line}), file=out, flush=True)\n"
MEASURE = WRITE.format(line="head") + WRITE.format(line="{'sample': 'meshrun', 'pair': 1, 'counts': True, 'new': 2.0}")
OLD = f'{json.dumps(HEAD)}\n{{"sample": "meshrun", "pair": 1, "counts": true, "old": 1.0, "new": 1.0}}\n'
STEP = Step("startup", fixed_s=0, pair_s=1, least=1, wanted=1)


def pinned() -> str:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return next(line.partition("==")[2] for line in lines if line.startswith("matplotlib=="))


@pytest.fixture(scope="module")
def made() -> tuple[str, dict[str, str]]:
    return page.make(page.read(), runs.load(page.RECORDS))


def test_the_page_is_what_its_records_say(made: tuple[str, dict[str, str]]) -> None:
    assert page.read() == made[0], "make bench WHAT=report REPORT=--from-records writes it anew"


def test_the_first_screen_of_readme_has_five_figures_of_the_records() -> None:
    text = page.README.read_text()
    history = runs.load(page.RECORDS)
    assert text == page.make_readme(text, history), "make bench WHAT=report REPORT=--from-records writes it anew"
    assert text.index("<!-- made: figures -->") < text.index("\n## ")
    rows = [line[2:-2].split(" | ") for line in tables.first(history).splitlines() if line.startswith("| ")][2:]
    assert "one machine with 2 cores" in text
    assert len(rows) == len(tables.FIRST) == 5
    assert all(len(row) == 4 and all(row[:3]) for row in rows)
    with pytest.raises(page.PageError, match="`<!-- made: figures -->`"):
        page.make_readme("# meshrun\n", history)


def test_the_pictures_are_what_the_records_say(made: tuple[str, dict[str, str]]) -> None:
    there = {path.name for path in page.IMAGES.glob("p*.svg")} - {"packages.svg", "placement.svg"}
    assert there == made[1].keys(), "make bench WHAT=report REPORT=--from-records draws them"
    if version("matplotlib") != pinned():
        pytest.skip(f"another matplotlib than {pinned()} may draw them otherwise")
    for name, svg in made[1].items():
        assert (page.IMAGES / name).read_text() == svg, f"{name}: make bench WHAT=report REPORT=--from-records"


def test_every_picture_is_told_in_words_and_names_its_axes(made: tuple[str, dict[str, str]]) -> None:
    for name, svg in made[1].items():
        (alt,) = [line for line in made[0].splitlines() if line.endswith((f"](images/{name})", f"](../images/{name})"))]
        assert len(alt) > 60
        assert "<title>" in svg
        assert "<dc:date>" not in svg


# Where a newcomer looks first. The guides have settings in nearly every line.
FIRST_PAGES = (
    "README.md",
    "docs/index.md",
    "docs/start/one-machine.md",
    "docs/start/several-nodes.md",
    "docs/performance.md",
)


@pytest.mark.parametrize("name", FIRST_PAGES)
def test_what_people_wrote_has_no_figures_that_a_new_run_would_change(name: str) -> None:
    assert page.find_figures((ROOT / name).read_text()) == []


# A decision has a date of its own, and says what was measured when it was taken.
OTHER_PAGES = [each for each in pages() if each.parent.name != "decisions" and each not in (page.PAGE, page.DETAILS)]


@pytest.mark.parametrize("file", OTHER_PAGES, ids=[str(each.relative_to(ROOT)) for each in OTHER_PAGES])
def test_figures_that_are_measured_by_hand_name_commit_and_day(file: Path) -> None:
    assert page.find_undated(file.read_text()) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("# A\n\n## B\n\n7.1 (6.7 to 7.5)\n", ["## B"]),
        ("# A\n\nThe exponent is 0.99 ± 0.12.\n", ["# A"]),
        ("# A\n\n7.1 (6.7 to 7.5). Measured at commit `63741f19` on 2026-11-23.\n\n## B\n\nmedians\n", ["## B"]),
        ("# A\n\nThe figures of this page were measured at commit `63741f19` on 2026-11-23.\n\n## B\n\nmedians\n", []),
        ("# A\n\n```text\n7.1 (6.7 to 7.5)\n```\n", []),
    ],
)
def test_a_figure_without_a_commit_is_noticed(text: str, found: list[str]) -> None:
    assert page.find_undated(text) == found


def test_a_commit_that_a_page_names_exists_and_is_not_of_a_later_day() -> None:
    try:
        if pairs.git("rev-parse", "--is-shallow-repository") == "true":
            pytest.skip("a shallow clone does not have the commits that were measured")
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no git repository here")
    named = {found for file in pages() for found in page.DATED.findall(file.read_text())}
    named |= {(run.source.commit, run.source.day) for run in runs.load(page.RECORDS).used()}
    assert named
    for commit, day in sorted(named):
        committed_s = float(pairs.git("show", "--no-patch", "--format=%ct", commit))
        committed = f"{datetime.datetime.fromtimestamp(committed_s, datetime.timezone.utc):%Y-%m-%d}"
        assert committed <= day, f"{commit} is of {committed}, and was measured on {day}"
        pairs.git("merge-base", "--is-ancestor", commit, "HEAD")


@pytest.mark.parametrize(
    "sentence", ["It takes 0.35 s.", "about 17 MiB", "a ratio of 0.066", "3 times as many", "some 40 %", "1,230 ms"]
)
def test_a_figure_that_somebody_writes_is_noticed(sentence: str) -> None:
    assert page.find_figures(f"# Performance\n\n{sentence}\n")


@pytest.mark.parametrize(
    "sentence", ["a lease of 5 s", "8 workers, `--pairs 2.5`", "torchrun 2.13", "N = 1,024 agents"]
)
def test_settings_and_sizes_are_no_figures(sentence: str) -> None:
    assert not page.find_figures(sentence)


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("<!-- made: aims -->", "<!-- made: games -->", "needs one part between `<!-- made: aims -->`"),
        ("<!-- end: aims -->", "", "needs one part between `<!-- made: aims -->`"),
        ("# Performance", "<!-- end: aims -->", "the mark of the part 'aims' has no other"),
        ("# Performance", "<!-- made: x -->\n<!-- end: x -->", "nobody makes a part 'x'"),
    ],
)
def test_a_mark_that_is_amiss_is_one_sentence(before: str, after: str, words: str) -> None:
    text = page.read().replace(before, after, 1)
    with pytest.raises(page.PageError) as refused:
        page.make(text, runs.History([]))
    assert words in str(refused.value)


def test_a_page_without_any_record_says_that_nothing_was_measured() -> None:
    text, files = page.make(page.read(), runs.History([]))
    assert "not measured" in text
    assert not files


def test_a_broken_record_is_one_sentence_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "startup.jsonl").write_text("Segmentation fault\n")
    monkeypatch.setattr(page, "RECORDS", tmp_path)
    monkeypatch.setattr(page, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(page, "DETAILS", tmp_path / "page.md")
    (tmp_path / "page.md").write_text("as it was")
    with pytest.raises(SystemExit, match="2"):
        report.main(["--from-records"])
    assert capfd.readouterr().err == "startup.jsonl, line 1: no JSON: 'Segmentation fault'\n"
    assert (tmp_path / "page.md").read_text() == "as it was"


@pytest.mark.parametrize(
    ("found", "sentence"),
    [(("a" * 40, True), "the code has uncommitted changes"), ((None, True), "this is not a git repository")],
)
def test_nothing_is_measured_for_the_page_that_is_of_no_commit(
    found: tuple[str | None, bool],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(pairs, "find_commit", lambda: found)
    monkeypatch.setattr(page, "RECORDS", tmp_path)
    with pytest.raises(SystemExit, match="2"):
        report.main(["--only", "startup"])
    assert capfd.readouterr().err.startswith(f"{sentence}\nhint: commit the code")
    assert not [*tmp_path.iterdir()]


def test_a_report_names_the_records_that_are_older_than_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    ages = {"a" * 40: 0, "b" * 40: 1, "c" * 40: 12, "d" * 40: None}
    monkeypatch.setattr(pairs, "count_commits_since", ages.__getitem__)
    heads = ({**HEAD, "benchmark": f"of {commit[0]}", "commit": commit} for commit in ages)
    lines = ((head, {"sample": "meshrun", "pair": 1, head["benchmark"]: 1.0}) for head in heads)
    text = "".join(f"{json.dumps(line)}\n" for pair in lines for line in pair)
    assert report.describe_age(runs.History(runs.read(text, "startup.jsonl"))) == [
        "of b: measured at bbbbbbbb; 1 commit has changed launcher or rendezvous since",
        "of c: measured at cccccccc; 12 commits have changed launcher or rendezvous since",
        "of d: commit dddddddd is not in this repository; measure again",
    ]


def measured(script: str, folder: Path, monkeypatch: pytest.MonkeyPatch, budget_s: float = 60) -> Outcome:
    """What comes of one step whose benchmark is this script; `folder` has the records afterwards."""
    monkeypatch.setattr(report, "LOGS", folder / "logs")
    monkeypatch.setattr(report, "command", lambda step, pairs, record: [sys.executable, "-c", script, str(record)])
    (folder / "startup.jsonl").write_text(OLD)
    ((_, outcome),) = report.measure([STEP], budget_s, folder)
    return outcome


def figures(folder: Path) -> dict[str, float]:
    found = runs.load(folder)
    return {name: series.values("meshrun")[1] for name, series in found.series.items()}


def test_a_benchmark_that_succeeds_replaces_the_earlier_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert measured(RECORD + MEASURE, tmp_path, monkeypatch).is_done
    assert figures(tmp_path) == {"new": 2.0}
    (run,) = runs.load(tmp_path).runs
    assert run.head["report"]["budget_s"] == 60


def test_a_benchmark_that_fails_is_told_and_only_replaces_what_it_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    outcome = measured(RECORD + MEASURE + "sys.exit('no etcd here')", tmp_path, monkeypatch)
    assert outcome == Outcome(False, "exit code 1: no etcd here")
    assert figures(tmp_path) == {"old": 1.0, "new": 2.0}
    assert "exit code 1: no etcd here; what it measured until then counts" in capfd.readouterr().err


INVALID = "startup.jsonl, line 1: "


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (RECORD + WRITE.format(line="head") + "sys.exit(3)", "exit code 3"),
        (RECORD + "print('rubbish', file=out)", f"{INVALID}no JSON: 'rubbish'"),
        (
            RECORD.replace("'is_dirty': False", "'is_dirty': True") + MEASURE,
            f"{INVALID}this run measured uncommitted changes and cannot be published",
        ),
    ],
    ids=["fails before it measures", "writes invalid records", "is of changed code"],
)
def test_a_benchmark_that_leaves_no_record_keeps_the_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, why: str
) -> None:
    outcome = measured(script, tmp_path, monkeypatch)
    assert not outcome.is_done
    assert why in outcome.why
    assert (tmp_path / "startup.jsonl").read_text() == OLD


def test_a_benchmark_that_hangs_is_stopped_when_its_time_is_over(tmp_path: Path) -> None:
    outcome = report.run([sys.executable, "-c", "import time; time.sleep(600)"], 0.0, tmp_path / "log")
    assert outcome == Outcome(False, "still at it after 0:00, stopped")


def test_a_benchmark_that_is_stopped_cleans_up(tmp_path: Path) -> None:
    script = "import time\ntry: print('begun', flush=True), time.sleep(600)\nexcept KeyboardInterrupt: print('clean')"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        report.end(process)
        assert process.stdout.read() == "clean\n"


def test_a_step_for_which_no_time_is_left_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert not measured(RECORD, tmp_path, monkeypatch, budget_s=report.PAGE_S).is_done
    assert "left out: 0:00 are left, and it needs 0:01" in capfd.readouterr().err


def test_an_interrupt_ends_the_benchmark_and_keeps_what_it_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = tmp_path / "begun"
    os.mkfifo(begun)

    def interrupt() -> None:
        begun.read_text()  # until the benchmark has closed its end
        os.kill(os.getpid(), signal.SIGINT)

    hang = f"open({str(begun)!r}, 'w').close()\ntime.sleep(600)\n"
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=interrupt, daemon=True).start()
    try:
        with pytest.raises(Stopped):
            measured(RECORD + MEASURE + hang, tmp_path, monkeypatch)
    finally:
        signal.signal(signal.SIGINT, before)
    assert figures(tmp_path) == {"old": 1.0, "new": 2.0}


def test_a_benchmark_that_nobody_has_is_refused_with_those_there_are(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        report.main(["--only", "startup,speed"])
    assert "no benchmark is called 'speed': startup, " in capfd.readouterr().err


def test_every_step_is_a_benchmark_and_all_fit_into_twenty_minutes() -> None:
    assert not [step.name for step in report.STEPS if not (ROOT / f"benchmarks/{step.name}.py").exists()]
    assert sum(step.seconds(step.least) for step in report.STEPS) + report.PAGE_S < 20 * 60
