"""What a record of the checks on a GPU comes to, and which packages and which commit go with them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.gpu import runner, table

COMMIT = "a" * 40
MACHINE = {"gpus": ["Fast One, 80 GiB"], "driver": "580.1", "torch": "2.13.0", "cuda": "13.0", "jax": None}
HEAD = {"benchmark": "gpu", "machine": MACHINE, "commit": COMMIT, "is_dirty": False, "unix_time_s": 1795000000.0}
LINE = {"check": "kill", "what": "a|b", "result": "failed", "told": "two\nlines"}
END = {"end": True, "seconds": 9}


def text(*lines: dict[str, Any]) -> str:
    return "".join(f"{json.dumps(line)}\n" for line in lines)


def test_rows_are_of_the_newest_complete_run_and_there_are_none_without() -> None:
    old = {**HEAD, "machine": {**MACHINE, "driver": "1.0"}}
    rows = table.render_rows(text(old, LINE, END, HEAD, LINE, END, {**HEAD, "commit": "b" * 40}, LINE))
    first, _, _, _, row = rows.splitlines()
    assert first == "Seen on Fast One, 80 GiB; driver 580.1, CUDA 13.0, torch 2.13.0. Commit aaaaaaaa, 2026-11-18."
    assert row == "| a\\|b | failed | two lines |"
    assert table.render_rows("") == table.render_rows(text(HEAD, LINE)) == table.NONE
    with pytest.raises(table.RecordError, match="line 2 of the record is no JSON"):
        table.render_rows(text(HEAD) + '{"what')


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
