"""What a record of the checks on a GPU comes to, and which packages and which commit go with them."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.gpu import packages, runner, table

COMMIT = "a" * 40
MACHINE = {"gpus": ["Fast One, 80 GiB"], "driver": "580.1", "torch": "2.13.0", "cuda": "13.0", "jax": None}
HEAD = {"benchmark": "gpu", "machine": MACHINE, "commit": COMMIT, "is_dirty": False, "unix_time_s": 1795000000.0}
LINE = {"check": "kill", "what": "a|b", "result": "failed", "told": "two\nlines"}
END = {"end": True, "seconds": 9}


def text(*lines: dict[str, Any]) -> str:
    return "".join(f"{json.dumps(line)}\n" for line in lines)


def test_rows_are_of_the_newest_complete_run() -> None:
    old = {**HEAD, "machine": {**MACHINE, "driver": "1.0"}}
    rows = table.render_rows(text(old, LINE, END, HEAD, LINE, END, {**HEAD, "commit": "b" * 40}, LINE))
    first, _, _, _, row = rows.splitlines()
    assert first == "Seen on Fast One, 80 GiB; driver 580.1, CUDA 13.0, torch 2.13.0. Commit aaaaaaaa, 2026-11-18."
    assert row == "| a\\|b | failed | two lines |"


def test_without_a_complete_run_no_gpu_has_been_used() -> None:
    assert table.render_rows("") == table.render_rows(text(HEAD, LINE)) == table.NONE


@pytest.mark.parametrize(
    "lines",
    [
        ({**HEAD, "is_dirty": True}, END),
        ({**HEAD, "commit": None}, END),
        ({**HEAD, "machine": {**MACHINE, "gpus": ["pretended"]}}, END),
        (LINE, END),
    ],
    ids=["uncommitted", "no commit", "no GPU", "no head"],
)
def test_a_record_that_nobody_could_repeat_is_refused(lines: tuple[dict[str, Any], ...]) -> None:
    with pytest.raises(table.RecordError, match="line 1 of the record"):
        table.render_rows(text(*lines))


def test_a_record_that_was_cut_off_in_a_line_is_refused() -> None:
    with pytest.raises(table.RecordError, match="line 2 of the record is no JSON"):
        table.render_rows(text(HEAD) + '{"what')


@pytest.fixture
def bare_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Python that has none of the packages, and an empty folder for them."""
    monkeypatch.setattr(packages, "is_installed", lambda name: False)
    monkeypatch.setattr(packages, "FOLDER", tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    monkeypatch.setenv("PATH", "/usr/bin")
    return tmp_path


def test_packages_of_this_python_come_after_the_repository(bare_python: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "PYTHON", "3.12")
    mine, spy = bare_python / "msgspec-3.12", bare_python / "py-spy"
    for folder in (mine, bare_python / "msgspec-3.11", spy / "bin"):
        folder.mkdir(parents=True)
    assert packages.choose() == ["click", "nvidia-ml-py", "psutil"]
    assert sys.path[-2:] == [str(mine), str(spy)]
    assert os.environ["PYTHONPATH"] == f"{packages.ROOT}:{mine}:{spy}:/elsewhere"
    assert os.environ["PATH"] == f"{spy}/bin:/usr/bin"


def test_a_python_for_which_there_is_no_wheel_is_told(bare_python: Path) -> None:
    assert "msgspec" in packages.choose()


def test_an_older_package_than_meshrun_takes_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "version", lambda name: "0.19.1")
    assert not packages.is_installed("msgspec")
    monkeypatch.setattr(packages, "version", lambda name: "0.22.0")
    assert packages.is_installed("msgspec")


def test_a_copy_without_a_repository_knows_its_commit(bare_python: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "ask_git", lambda: (None, True))
    assert packages.find_commit() == (None, True)
    known = {"commit": COMMIT, "is_dirty": False, "digest": packages.make_digest()}
    (bare_python / packages.COMMIT_FILE).write_text(json.dumps(known))
    assert packages.find_commit() == (COMMIT, False)
    (bare_python / packages.COMMIT_FILE).write_text(json.dumps({**known, "digest": "of other files"}))
    assert packages.find_commit() == (COMMIT, True)


@pytest.mark.parametrize(
    ("before", "after", "result"),
    [
        ("1\n", "60\n", runner.SEEN),
        ("1\n", "4000\n", runner.FAILED),
        ("1\n5\n", "1\n900\n", runner.FAILED),
        ("", "", runner.NOT_POSSIBLE),
        ("1\n", "", runner.NOT_POSSIBLE),
    ],
)
def test_memory_that_is_left_in_use_is_a_failure(before: str, after: str, result: str) -> None:
    assert runner.compare_memory(before, after)["result"] == result
