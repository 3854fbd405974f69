"""The checks of `make gpu` on a device that is a directory: each one runs, ends, is recorded, and leaves nobody."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.gpu import table
from tests.support.gpu.__main__ import CHECKS, LIMIT_S, run
from tests.support.gpu.runner import CLEANING_S, FAILED, NOT_POSSIBLE, SEEN, Check, run_all, run_check
from tests.support.modules import needs
from tests.support.processes.tree import REPOSITORY, is_alive

SAMPLES = "tests.support.gpu.samples"
# The others, less the one whose job the tests of hangs have, with a kernel in the place of a sleep.
TRIED = [check.name for check in CHECKS if check.name != "why"]


@needs("torch")
@needs("jax")
def test_the_checks_run_without_a_device(tmp_path: Path) -> None:
    """As `make gpu` runs them. `why` is the longest; `--pretend --only why` tries it."""
    command = [sys.executable, "-m", "tests.support.gpu", "--pretend", "--only", ",".join(TRIED)]
    environ = {**os.environ, "OUT": str(tmp_path)}
    done = subprocess.run(command, cwd=REPOSITORY, env=environ, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr + (tmp_path / "gpu.log").read_text()
    head, *lines, end = [json.loads(line) for line in (tmp_path / "gpu.jsonl").read_text().splitlines()]
    assert head.keys() >= {"benchmark", "arguments", "machine", "commit", "is_dirty", "unix_time_s"}
    assert head["machine"].keys() >= {"gpus", "driver", "torch", "cuda", "nccl", "jax", "python", "kernel", "cores"}
    assert end["end"] is True
    assert (tmp_path / "gpu.txt").read_text() == table.render_text(lines) + "\n"
    assert {line["check"] for line in lines} == {*TRIED}
    assert {line["what"]: line["result"] for line in lines if line["result"] != SEEN} == {
        "meshctl doctor": NOT_POSSIBLE,
        "meshrun_worker_device_memory_used_bytes": NOT_POSSIBLE,
    }


def test_all_checks_together_have_six_minutes() -> None:
    assert LIMIT_S + 2 * CLEANING_S <= 360
    assert all(check.limit_s <= LIMIT_S / 2 for check in CHECKS)


def test_a_check_that_hangs_loses_neither_its_notes_nor_its_children(tmp_path: Path) -> None:
    first, second = run_check(Check("hangs", 5, f"{SAMPLES}:hang"), 5, tmp_path / "log", None)
    assert (first["what"], first["result"]) == ("before", SEEN)
    assert (second["result"], second["told"]) == (FAILED, "not done within 5 s")
    assert not is_alive(first["figures"]["pid"])


def test_a_check_that_crashes_says_how(tmp_path: Path) -> None:
    first, second = run_check(Check("crashes", 60, f"{SAMPLES}:crash"), 60, tmp_path / "log", None)
    assert first["result"] == SEEN
    assert second["told"] == "ended with 1: ZeroDivisionError: a check that is broken"


def test_a_check_that_fails_in_one_thing_goes_on_with_the_next(tmp_path: Path) -> None:
    found = run_check(Check("fails", 60, f"{SAMPLES}:fail"), 60, tmp_path / "log", None)
    assert [(line["what"], line["result"]) for line in found] == [
        ("first", FAILED),
        ("second", NOT_POSSIBLE),
        ("third", FAILED),
    ]
    assert found[1]["told"] == "no such thing"


def test_a_check_that_says_nothing_has_failed(tmp_path: Path) -> None:
    (found,) = run_check(Check("silent", 60, f"{SAMPLES}:say_nothing"), 60, tmp_path / "log", None)
    assert (found["result"], found["told"]) == (FAILED, "noted nothing")


def test_what_this_machine_lacks_is_no_failure(tmp_path: Path) -> None:
    checks = [Check("lacks", 60, f"{SAMPLES}:lack"), Check("needs", 60, f"{SAMPLES}:fail", ("no_such_module",))]
    assert run(checks, tmp_path, 120, tmp_path, []) == 0
    assert "this machine's Python has no no_such_module" in (tmp_path / "gpu.txt").read_text()


def test_the_exit_code_tells_of_a_failure(tmp_path: Path) -> None:
    assert run([Check("fails", 60, f"{SAMPLES}:fail")], tmp_path, 120, tmp_path, []) == 1


def test_checks_for_which_no_time_is_left_are_named(tmp_path: Path) -> None:
    lines: list[dict[str, Any]] = []
    run_all([Check("late", 60, f"{SAMPLES}:fail")], lines.append, tmp_path / "log", 0, None)
    assert lines == [
        {"check": "late", "what": "late", "result": NOT_POSSIBLE, "told": "the time for all checks was over"}
    ]
