"""The short report, as someone on call reads it."""

from __future__ import annotations

import pytest

from launcher.logs.reports.report import WorkerFailure, render
from launcher.logs.reports.short_report import render as render_short
from tests.unit.launcher.logs.reports.test_report import failure, hint_of

FRAMES = "".join(f'  File "/home/ada/train.py", line {n}, in step{n}\n    step{n + 1}()\n' for n in range(5))
TRACEBACK = f"Traceback (most recent call last):\n{FRAMES}ValueError: bad shape\nexpected 3\n"


def cause(**more: object) -> WorkerFailure:
    return failure(5, message=TRACEBACK, exception="ValueError: bad shape", coordinates="pp=1,tp=1", **more)


def test_who_failed_how_and_where_are_said_in_a_few_lines() -> None:
    others = [failure(rank) for rank in (2, 0, 1)]
    others += [failure(7, -9, is_out_of_memory=True)]
    text = render_short(
        "train.py", [cause(log_file="/logs/1/stderr.log", role="trainer"), *others], outcome="2 of 2 restarts used",
    )  # fmt: skip
    assert text == (
        """\
================================================================================
train.py FAILED
Root Cause (first observed failure): rank 5 (pp=1,tp=1) on node-a
  ValueError: bad shape
  expected 3
    File "/home/ada/train.py", line 2, in step2
      step3()
    File "/home/ada/train.py", line 3, in step3
      step4()
    File "/home/ada/train.py", line 4, in step4
      step5()
  exitcode  : 1 (pid: 6405), local_rank: 5, role: trainer, 2026-01-02 03:04:05
  log       : /logs/1/stderr.log
Other failures: ranks 0-2 (exit code 1); rank 7 (SIGKILL, out of memory)
--------------------------------------------------------------------------------
2 of 2 restarts used
================================================================================"""
    )


@pytest.mark.parametrize(
    ("root", "lines"),
    [
        (failure(3, 7), ["  failed with exit code 7"]),
        (failure(3, -11), ["  was killed by SIGSEGV"]),
        (failure(3, -9, is_out_of_memory=True), ["  was killed by SIGKILL (out of memory)"]),
        (failure(3, 7, tail=("loading", "no data")), ["  failed with exit code 7", "    loading", "    no data"]),
        (failure(3, pid=0, sentence="no such file"), ["  could not be started: no such file"]),
        (
            failure(3, -6, sentence="no heartbeat for 30 s", exception="E: 1"),
            ["  gave no heartbeat for 30 s and was killed"],
        ),
        (failure(3, exception="launcher says so", message="launcher says so"), ["  launcher says so"]),
        (failure(3, tail=("a\x1b[31mb\x07",)), ["  failed with exit code 1", "    ab\\x07"]),
    ],
)  # fmt: skip
def test_without_a_traceback_the_end_is_described(root: WorkerFailure, lines: list[str]) -> None:
    shown = render_short("train.py", [root], outcome="-").split("\n")
    assert shown[3 : shown.index(next(line for line in shown if "exitcode" in line))] == lines


def test_a_thousand_failures_are_a_few_lines() -> None:
    roots = [cause(), *(failure(rank, rank % 9 - 3) for rank in range(1000))]
    text = render_short("train.py", roots, outcome="-")
    assert len(text.split("\n")) < 24
    assert "Other failures: 112 ranks (SIGQUIT); 111 ranks (SIGINT)" in text
    assert "; and " in text


@pytest.mark.parametrize("draw", [render, render_short])
def test_where_the_output_is_depends_on_who_reads(draw: object) -> None:
    def hint(root: WorkerFailure, here: str) -> str:
        return hint_of(draw("train.py", [root], outcome="-", here=here))  # type: ignore[operator]

    assert "if it printed one, is further up" in hint(failure(3), "node-a")
    assert "if it printed one, is in the output of node-a;" in hint(failure(3), "node-b")
    assert "is in /logs/stderr.log on node-a" in hint(failure(3, log_file="/logs/stderr.log"), "node-b")
    assert hint(cause(), "node-b") == ""


def test_a_file_on_another_host_has_its_name() -> None:
    for root, line in (
        (cause(error_file="/e"), "error_file: "),
        (cause(error_file="/e", log_file="/l"), "log       : "),
    ):
        path = root.log_file or root.error_file
        assert f"  {line}{path}\n" in render_short("train.py", [root], outcome="-", here="node-a")
        assert f"  {line}node-a:{path}\n" in render_short("train.py", [root], outcome="-", here="node-b")
