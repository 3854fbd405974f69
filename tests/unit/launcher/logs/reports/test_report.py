"""The report as people and log parsers see it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Any

import pytest
from msgspec.structs import replace

from launcher.logs.reports.report import LINE_LIMIT, WIDTH, Finding, WorkerFailure, parse_failure, render
from launcher.supervisor.messages import find_signal_name
from launcher.views.sentences import format_failure
from rendezvous import codec

FRAMES = "".join(f'  File "/home/ada/train.py", line {n}, in step{n}\n    step{n + 1}()\n' for n in range(5))
TRACEBACK = f"Traceback (most recent call last):\n{FRAMES}ValueError: bad shape\nexpected 3\n"


FRAMES = ('"train.py", line 9, in <module>', '"/usr/lib/python3.11/argparse.py", line 2, in error')


def failure(rank: int = 0, exit_code: int = 1, **more: object) -> WorkerFailure:
    values = {"local_rank": rank % 8, "pid": 6400 + rank, "time": "2026-01-02T03:04:05", "host": "node-a", **more}
    return WorkerFailure(rank=rank, exit_code=exit_code, **values)  # type: ignore[arg-type]


def hint_of(text: str) -> str:
    return " ".join(text.partition("hint: ")[2].removesuffix("=" * WIDTH).split())


def cause(**more: object) -> WorkerFailure:
    return failure(5, message=TRACEBACK, exception="ValueError: bad shape", coordinates="pp=1,tp=1", **more)


def test_who_failed_how_and_where_are_said_in_a_few_lines() -> None:
    others = [failure(rank, exception=f"RuntimeError: [10.0.0.{rank}]:41{rank} is lost") for rank in (2, 0, 1)]
    others += [failure(7, -9, is_out_of_memory=True)]
    text = render(
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
Other failures:
  ranks 0-2: RuntimeError: [10.0.0.2]:412 is lost
  rank 7: SIGKILL, out of memory
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
        (failure(3, -6, sentence="no heartbeat for 30 s", exception="E: 1"),
         ["  showed no heartbeat for 30 s and was killed"]),
        (failure(3, exception="launcher says so", message="launcher says so"), ["  launcher says so"]),
        (failure(3, tail=("a\x1b[31mb\x07",)), ["  failed with exit code 1", "    ab\\x07"]),
    ],
)  # fmt: skip
def test_without_a_traceback_the_end_is_described(root: WorkerFailure, lines: list[str]) -> None:
    shown = render("train.py", [root], outcome="-").split("\n")
    assert shown[3 : shown.index(next(line for line in shown if "exitcode" in line))] == lines


UNCLEAR = "it is unclear which rank the others wait for: the ranks are at 2 lines"
HANG = (UNCLEAR, "rank 0 is in a (t.py:1), asleep", "b")


@pytest.mark.parametrize(
    ("more", "head"),
    [
        ({"hang": "unknown", "is_stand_in": True}, "Root Cause not known (hang): it is unclear which "),
        ({"hang": "likely"}, "Likely Cause (hang): it is unclear which "),
        ({"hang": "known", "is_stand_in": True}, "Root Cause (hang): it is unclear which "),
    ],
)
def test_of_a_hang_the_finding_is_the_head_and_who_was_ended_comes_after(more: dict[str, Any], head: str) -> None:
    root = failure(3, -6, sentence="no sign of progress", finding=HANG, **more)
    lines = render("train.py", [root, failure(1)], outcome="-").split("\n")
    end = lines.index("Ended so that all ranks restart: rank 3 on node-a")
    assert " ".join(lines[2:end]).startswith(head)
    assert lines[end - 2 : end] == ["  rank 0 is in a (t.py:1), asleep", "  b"]
    assert lines[end + 1].startswith("  exitcode  : -6")
    assert not [line for line in lines if "first observed" in line or "hint" in line]


@pytest.mark.parametrize(
    ("other", "line"),
    [
        (failure(1, exception="KeyError: 'a'"), "rank 1: KeyError: 'a'"),
        (failure(1, 3, exception="SystemExit: no data"), "rank 1: SystemExit: no data (exit code 3)"),
        (failure(1, -6, exception="RuntimeError: x"), "rank 1: RuntimeError: x (SIGABRT)"),
        (failure(1, 7), "rank 1: exit code 7"),
        (failure(1, -6, sentence="no heartbeat for 30 s", exception="E: 1"), "rank 1: no heartbeat for 30 s"),
        (failure(1, 76, claim="gave up", claim_reason="no data"), "rank 1: gave up: no data (exit code 76)"),
        (failure(1, exception="ValueError: a\x1b[2Jb\nc"), "rank 1: ValueError: ab\\nc"),
    ],
)
def test_another_failure_is_named_as_a_root_cause_would_be(other: WorkerFailure, line: str) -> None:
    shown = render("train.py", [cause(), other], outcome="-").split("\n")
    assert shown[shown.index("Other failures:") + 1 : -3] == [f"  {line}"]


def test_failures_that_differ_only_in_numbers_are_one_and_exit_codes_are_not() -> None:
    others = [failure(rank, exception=f"RuntimeError: pid {rank}, 0x7f{rank}b") for rank in range(3)]
    text = render("train.py", [cause(), *others, failure(3, 3), failure(4, 4)], outcome="-")
    assert "  ranks 0-2: RuntimeError: pid 0, 0x7f0b\n  rank 3: exit code 3\n  rank 4: exit code 4\n" in text


def test_what_all_ranks_did_before_a_possible_victim_failed_is_told() -> None:
    lines = render("train.py", [failure(3, finding=("rank 1 is in load (t.py:1), asleep",))], outcome="-").split("\n")
    assert lines[2] == "Root Cause (first observed failure): rank 3 on node-a"
    at = lines.index("Before it failed:")
    assert lines[at + 1] == "  rank 1 is in load (t.py:1), asleep"


FOUND = Finding(("rank 1 is in load (t.py:1), asleep",), "", (1,))


def test_of_a_rank_that_gave_up_waiting_the_one_that_it_waited_for_is_the_cause() -> None:
    root = FOUND.add_to(failure(3, exception="RuntimeError: timed out"), is_ended=False, has_waited=True)
    lines = render("train.py", [root, failure(0)], outcome="-").split("\n")
    assert lines[2:5] == [
        "Likely Cause (hang): rank 1 is in load (t.py:1), asleep",
        "Gave up waiting (first observed failure): rank 3 on node-a",
        "  RuntimeError: timed out",
    ]
    assert "Before it failed:" not in lines
    assert format_failure(root).startswith("rank 1 is in load (t.py:1), asleep; rank 3 on node-a failed")


@pytest.mark.parametrize(
    ("found", "rank", "has_waited"),
    [
        (FOUND, 1, True),
        (FOUND, 3, False),
        (replace(FOUND, culprits=()), 3, True),
        (replace(FOUND, cause="known"), 3, False),
    ],
)
def test_who_waited_for_no_rank_that_is_known_is_no_victim(found: Finding, rank: int, has_waited: bool) -> None:
    assert not found.add_to(failure(rank), is_ended=False, has_waited=has_waited).is_victim
    assert not found.add_to(failure(rank), is_ended=True, has_waited=has_waited and bool(found.cause)).is_victim


def test_frames_stacks_and_lines_of_stdout_are_below_the_end() -> None:
    root = failure(0, 3, frames=FRAMES, exception="SystemExit: 3", tail=("last",), has_stdout_tail=True)
    shown = render("train.py", [root], outcome="-").split("\n")
    assert shown[3:7] == [
        "  SystemExit: 3",
        '    File "train.py", line 9, in <module>',
        "  last lines of its stdout:",
        "    last",
    ]
    root = failure(0, 1, stacks_file="/tmp/crash.txt", host="node-a")
    text = render("train.py", [root], outcome="-", here="node-b")
    assert "  stacks    : node-a:/tmp/crash.txt (of a process that it forked, which crashed)\n" in text


def test_a_thousand_failures_are_a_few_lines_that_steer_no_terminal() -> None:
    roots = [cause(), *(failure(rank, rank % 9 - 3) for rank in range(1000))]
    text = render("train.py", roots, outcome="-")
    assert len(text.split("\n")) < 24
    assert "Other failures:\n  112 ranks: SIGQUIT\n  111 ranks: SIGINT\n" in text
    assert "\n  and 555 more\n" in text
    tail = ("\x1b[31mred\x1b[0m \x1b]0;title\x07 bell\x07 \x1b[2J\x9b1m", "z" * 10_000)
    report = render("tr\nain.py", [failure(tail=tail, host="a\x1b[1mb")], outcome="-")
    assert re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", report) is None
    assert "    red  bell\\x07 \\x9b1m\n" in report
    assert max(map(len, report.splitlines())) < LINE_LIMIT + 20
    assert " on ab\n" in report
    assert "tr\\nain.py FAILED" in report


def test_files_on_other_hosts_have_their_names_and_hints_say_where_to_look() -> None:
    def hint(root: WorkerFailure, here: str) -> str:
        return hint_of(render("train.py", [root], outcome="-", here=here))

    assert "look for its error message further up" in hint(failure(3), "node-a")
    assert "look for its error message in the output of node-a;" in hint(failure(3), "node-b")
    assert "error message in /logs/stderr.log on node-a" in hint(failure(3, log_file="/logs/stderr.log"), "node-b")
    assert hint(cause(), "node-b") == ""
    for root, line in (
        (cause(error_file="/e"), "error_file: "),
        (cause(error_file="/e", log_file="/l"), "log       : "),
    ):
        path = root.log_file or root.error_file
        assert f"  {line}{path}\n" in render("train.py", [root], outcome="-", here="node-a")
        assert f"  {line}node-a:{path}\n" in render("train.py", [root], outcome="-", here="node-b")


@pytest.mark.parametrize(
    ("root", "expected"),
    [
        (failure(0, -9), "outside the job"),
        (failure(0, -9, is_out_of_memory=True), "more memory"),
        (failure(0, -11), "native code"),
        (failure(0, -11, frames=FRAMES, stacks_file="/tmp/crash.txt"), ""),
        (failure(0, -11, stacks_file="/tmp/crash.txt"), "the one that crashed ran no Python code"),
        (failure(0, -6, stacks_file="/tmp/crash.txt"), "destroy_process_group()"),
        (failure(0, -11, has_own_handler=True), "check whether its own faulthandler has written stacks further up"),
        (failure(0, 3, is_abrupt=True), "look for os._exit()"),
        (failure(0, 3, exception="SystemExit: 3", frames=FRAMES), ""),
        (failure(0, 1, exception="ValueError: Port could not be cast to integer value as ':1:2'"), "in brackets"),
        (failure(0, -7), "/dev/shm"),
        (failure(0, 2), "worker's own exit code"),
        (failure(0, 2, message=TRACEBACK), "worker's own exit code"),
        (failure(0, 137), "read exit code 137 as SIGKILL"),
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
        assert "error message" in hint
    elif expected:
        assert expected in hint
    else:
        assert hint == ""


def test_an_unknown_order_is_said_and_own_sentences_keep_to_eighty_columns() -> None:
    report = render("train.py", [failure(0), failure(9)], outcome="-", is_order_known=False)
    heading = "\nRoot Cause (first reported; others failed at nearly the same time): rank 0 on\nnode-a\n"
    assert heading in report
    outcome = "restarts used 2 of 2, " * 20
    report = render("train.py", [failure(0, code) for code in (-9,)], outcome=outcome)
    assert max(map(len, report.splitlines())) <= WIDTH


@pytest.mark.parametrize(
    ("exit_code", "expected"),
    [
        (-9, "SIGKILL"),
        (-34, "SIGRTMIN"),
        (-36, "SIGRTMIN+2"),
        (-64, "SIGRTMAX"),
        (0, None),
        (1, None),
        (-33, "signal 33"),
    ],
)
def test_signals_have_names(exit_code: int, expected: str | None) -> None:
    assert find_signal_name(exit_code) == expected


def changed(**fields: object) -> str:
    return json.dumps({**json.loads(codec.encode(failure()).decode()), **fields})


def test_a_failure_survives_its_way_through_the_store() -> None:
    whole = failure(
        9, -9, error_file="/x", message=TRACEBACK, tail=("a", "b"), is_out_of_memory=True, sentence="it fell"
    )
    for sent, read in (
        (whole, whole),
        (failure(), failure()),
        (failure(error_file="/x\udcff"), failure(error_file="/x?")),  # a character that UTF-8 does not have
    ):
        assert parse_failure(codec.encode(sent).decode()) == read
    assert parse_failure(changed(colour="red")) == failure(), "a field of a later version does no harm"


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
