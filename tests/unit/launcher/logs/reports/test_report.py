"""The report as people and log parsers see it."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from launcher.logs.reports.report import (
    LINE_LIMIT,
    OTHERS_LIMIT,
    WIDTH,
    WorkerFailure,
    find_signal_name,
    parse_failure,
    render,
)
from rendezvous import codec

TRACEBACK = """\
Traceback (most recent call last):
  File "/home/ada/train.py", line 12, in <module>
    main()
RuntimeError: boom
"""


def failure(rank: int = 0, exit_code: int = 1, **more: object) -> WorkerFailure:
    values: dict[str, object] = {
        "rank": rank,
        "local_rank": rank % 8,
        "pid": 6400 + rank,
        "exit_code": exit_code,
        "time": "2026-01-02T03:04:05",
        "host": "node-a",
        **more,
    }
    return WorkerFailure(**values)  # type: ignore[arg-type]


def hint_of(text: str) -> str:
    return " ".join(text.partition("hint: ")[2].removesuffix("=" * WIDTH).split())


def test_the_first_failure_comes_first_in_full_and_others_on_a_line_each() -> None:
    report = render(
        "train.py",
        [
            failure(9, message=TRACEBACK, error_file="/logs/night_1a2b/attempt_2/1/error.json"),
            failure(0, 3),
            failure(10, -11, host="node-b"),
            failure(11, -9, host="node-b", is_out_of_memory=True),
        ],
        outcome="restarts used 2 of 2",
    )
    assert report == (
        """\
================================================================================
train.py FAILED
--------------------------------------------------------------------------------
Root Cause (first observed failure):
[9]:
  time      : 2026-01-02_03:04:05
  host      : node-a
  rank      : 9 (local_rank: 1)
  exitcode  : 1 (pid: 6409)
  error_file: /logs/night_1a2b/attempt_2/1/error.json
  traceback : Traceback (most recent call last):
    File "/home/ada/train.py", line 12, in <module>
      main()
  RuntimeError: boom
--------------------------------------------------------------------------------
Other failures:
  rank      : 0 (local_rank: 0)  exitcode  : 3 (pid: 6400)  host: node-a
  rank      : 10 (local_rank: 2)  exitcode  : -11 (pid: 6410)  (SIGSEGV)  host: node-b
  rank      : 11 (local_rank: 3)  exitcode  : -9 (pid: 6411)  (SIGKILL) out of memory  host: node-b
--------------------------------------------------------------------------------
restarts used 2 of 2
================================================================================"""
    )


def test_without_a_traceback_the_last_lines_of_stderr_speak() -> None:
    report = render("train.py", [failure(3, tail=("loading", "ValueError: bad"))], outcome="restarts used 0 of 0")
    assert report == (
        """\
================================================================================
train.py FAILED
--------------------------------------------------------------------------------
Root Cause (first observed failure):
[3]:
  time      : 2026-01-02_03:04:05
  host      : node-a
  rank      : 3 (local_rank: 3)
  exitcode  : 1 (pid: 6403)
  error_file: <N/A>
  traceback : its last 2 lines on stderr:
    loading
    ValueError: bad
--------------------------------------------------------------------------------
Other failures: <NO_OTHER_FAILURES>
--------------------------------------------------------------------------------
restarts used 0 of 0
================================================================================"""
    )


def test_a_worker_killed_for_memory_is_said_to_be() -> None:
    report = render("train.py", [failure(3, -9, is_out_of_memory=True)], outcome="restarts used 2 of 2")
    assert report == (
        """\
================================================================================
train.py FAILED
--------------------------------------------------------------------------------
Root Cause (first observed failure):
[3]:
  time      : 2026-01-02_03:04:05
  host      : node-a
  rank      : 3 (local_rank: 3)
  exitcode  : -9 (pid: 6403)  (SIGKILL)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 6403: killed by the kernel: out of memory
--------------------------------------------------------------------------------
Other failures: <NO_OTHER_FAILURES>
--------------------------------------------------------------------------------
restarts used 2 of 2
hint: give the job more memory, or use smaller batches or fewer data loading
processes
================================================================================"""
    )


# What collectors search for in torchrun's report: each with its exact spelling and spaces.
@pytest.mark.parametrize(
    "pattern",
    [
        r"^train\.py FAILED$",
        r"^Root Cause \(first observed failure\):$",
        r"^\[9\]:$",
        r"^  time      : (\d{4}-\d\d-\d\d_\d\d:\d\d:\d\d)$",
        r"^  host      : node-a$",
        r"^  rank      : 9 \(local_rank: 1\)$",
        r"^  exitcode  : -11 \(pid: 6409\)  \(SIGSEGV\)$",
        r"^  error_file: <N/A>$",
        r"^  traceback : Signal 11 \(SIGSEGV\) received by PID 6409$",
        r"rank      : 0 \(local_rank: 0\)",
        r"exitcode  : 3 \(pid: 6400\)",
    ],
)
def test_torchruns_labels_are_kept(pattern: str) -> None:
    report = render("train.py", [failure(9, -11), failure(0, 3)], outcome="restarts used 0 of 0")
    assert re.search(pattern, report, re.MULTILINE)


@pytest.mark.parametrize(
    ("root", "expected"),
    [
        (failure(0, -9), "outside the job"),
        (failure(0, -9, is_out_of_memory=True), "more memory"),
        (failure(0, -11), "native code"),
        (failure(0, -6), "native code"),
        (failure(0, -7), "/dev/shm"),
        (failure(0, 2), "worker's own exit code"),
        (failure(0, 2, message=TRACEBACK), "worker's own exit code"),
        (failure(0, 137), "how a shell in between reports SIGKILL"),
        (failure(0, 1), "--tee 2"),
        (failure(0, 1, message=TRACEBACK), ""),
        (failure(0, 1, tail=("bad",)), ""),
        (failure(0, 1, tail=("ValueError: coordinator_address should be defined.",)), "--framework jax"),
        (failure(0, -15), ""),
        (failure(0, 127, sentence="cannot run ./train: No such file or directory"), ""),
        (failure(0, 255), "--tee 2"),
    ],
)
def test_the_hint_fits_the_first_failure(root: WorkerFailure, expected: str) -> None:
    hint = hint_of(render("train.py", [root], outcome="restarts used 0 of 0"))
    if root.exit_code == -15:
        assert "traceback" in hint
    elif expected:
        assert expected in hint
    else:
        assert hint == ""


def test_a_program_that_could_not_be_started_is_shown_by_our_own_sentence() -> None:
    root = failure(0, 127, sentence="cannot run ./train: No such file or directory")
    assert "  traceback : cannot run ./train: No such file or directory\n" in render("train", [root], outcome="-")


def test_the_report_says_if_it_does_not_know_which_host_failed_first() -> None:
    report = render("train.py", [failure(0), failure(9)], outcome="-", is_order_known=False)
    assert "\nRoot Cause (first reported; others failed at nearly the same time):\n" in report


def test_a_thousand_failures_still_fit_a_screen() -> None:
    report = render("train.py", [failure(rank) for rank in range(1000)], outcome="restarts used 0 of 0")
    assert f"\nand {999 - OTHERS_LIMIT} more\n" in report
    assert len(report.splitlines()) < 40


def test_the_middle_of_an_endless_traceback_is_left_out() -> None:
    message = "\n".join(f"frame {number}" for number in range(1000))
    report = render("train.py", [failure(message=message)], outcome="-")
    assert "... 920 lines left out ..." in report
    assert "frame 0\n" in report
    assert "frame 999\n" in report
    assert "frame 500\n" not in report


def test_output_of_a_worker_neither_moves_the_cursor_nor_fills_the_screen() -> None:
    tail = ("\x1b[31mred\x1b[0m \x1b]0;title\x07 bell\x07 \x1b[2J\x9b1m", "z" * 10_000)
    report = render("tr\nain.py", [failure(tail=tail, host="a\x1b[1mb")], outcome="-")
    assert re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", report) is None
    assert "    red  bell\\x07 \\x9b1m\n" in report
    assert max(map(len, report.splitlines())) < LINE_LIMIT + 20
    assert "host      : ab\n" in report
    assert "tr\\nain.py FAILED" in report


def test_own_sentences_keep_to_eighty_columns() -> None:
    outcome = "restarts used 2 of 2, " * 20
    report = render("train.py", [failure(0, code) for code in (-9,)], outcome=outcome)
    assert max(map(len, report.splitlines())) <= WIDTH


def test_a_report_of_no_failure_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="at least one failure"):
        render("train.py", [], outcome="-")


@pytest.mark.parametrize(
    ("exit_code", "expected"),
    [(-9, "SIGKILL"), (-34, "SIGRTMIN"), (-36, "SIGRTMIN+2"), (-64, "SIGRTMAX"), (0, None), (1, None), (-33, None)],
)
def test_signals_have_names(exit_code: int, expected: str | None) -> None:
    assert find_signal_name(exit_code) == expected


def test_a_failure_survives_its_way_through_the_store() -> None:
    whole = failure(
        9, -9, error_file="/x", message=TRACEBACK, tail=("a", "b"), is_out_of_memory=True, sentence="it fell"
    )
    assert [parse_failure(codec.encode(original).decode()) for original in (whole, failure())] == [whole, failure()]


def test_a_character_that_utf8_does_not_have_costs_no_failure_its_report() -> None:
    assert parse_failure(codec.encode(failure(error_file="/x\udcff")).decode()) == failure(error_file="/x?")


def changed(**fields: object) -> str:
    return json.dumps({**json.loads(codec.encode(failure()).decode()), **fields})


def test_a_field_of_a_later_version_does_no_harm() -> None:
    assert parse_failure(changed(colour="red")) == failure()


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{}", "{", "\udcff"),
        *(changed(rank="1"), changed(rank=None), changed(pid=True), changed(exit_code=1.5)),
        *(changed(host=7), changed(message=7), changed(tail="ab")),
    ],
)
def test_what_no_agent_wrote_is_no_failure(text: str) -> None:
    assert parse_failure(text) is None


def test_a_failure_is_noted_and_judged_without_a_dear_import() -> None:
    """It stands in the way of the restart: what it needs beyond what an agent has loaded is ours, and small."""
    program = """
import sys
import launcher.agent.build
before = set(sys.modules)
import launcher.logs.error_file, launcher.logs.reports.report, rendezvous.stores.listeners
print(*sorted(set(sys.modules) - before - {"struct", "_struct"}))
"""
    found = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.split()
    ours = ["launcher.logs.error_file", "launcher.logs.reports.report"]
    assert found == [*ours, "rendezvous.stores.addresses", "rendezvous.stores.listeners"]
