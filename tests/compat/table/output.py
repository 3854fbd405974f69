"""Where the output of workers goes."""

from __future__ import annotations

import os
import re

from tests.compat.looks import console, holds, log, log_files, succeeds, yes
from tests.compat.runs import Case, Running, Seen, case, tools

# A line and its end in one write, or two workers tear each other's where nobody stands between.
_SAYS = tools("sys.stdout.write(f'out {RANK}\\n'); sys.stderr.write(f'err {RANK}\\n')\n")
_WRITERS, _LINES = 32, 1000
_WRITES = f"""
import os, sys
local_rank = os.environ["LOCAL_RANK"]
for number in range({_LINES}):
    sys.stdout.write(f"writer {{local_rank}} line {{number}} end\\n")
"""
_BYTES = """
import os
os.write(1, b"before \\xff\\xfe after\\n")
os.write(1, "gr\\u00fc\\u00df\\n".encode())
os.write(1, b"no line end")
"""
_LATE = tools("""
print("first", flush=True)
mark("said")
wait_for("go on")
print("last")
""")


def _of_workers(seen: Seen, stream: str) -> str:
    text = seen.out if stream == "out" else seen.err
    return "; ".join(sorted(line for line in text.splitlines() if re.search(r"\b(out|err) \d", line))) or "(nothing)"


def _out(seen: Seen) -> str:
    return _of_workers(seen, "out")


def _err(seen: Seen) -> str:
    return _of_workers(seen, "err")


def _all_lines(seen: Seen) -> bool:
    """Whether every writer's lines are in its file, whole and in order. On torchrun's console some come twice."""
    logs = seen.logs()
    for writer in range(_WRITERS):
        wanted = "".join(f"writer {writer} line {number} end\n" for number in range(_LINES))
        if logs[f"attempt_0/{writer}/stdout.log"] != wanted:
            return False
    return True


def _while_it_runs(running: Running) -> None:
    running.wait_for("said")
    running.wait_for("logs/*/attempt_0/0/stdout.log")
    running.mark("go on")


def _raw(seen: Seen) -> bytes:
    (run,) = (path for path in (seen.directory / "logs").iterdir() if not path.is_symlink())
    return (run / "attempt_0/0/stdout.log").read_bytes()


# A tail looks at a file ten times a second.
_HALVES = """
import sys, time
sys.stdout.write("one half, ")
time.sleep(2)
sys.stdout.write("the other\\n")
"""

CASES: tuple[Case, ...] = (
    case(
        "no redirection",
        "--nproc-per-node 2 --log-dir logs",
        ("without options: stdout", _out, "out 0; out 1"),
        ("without options: stderr", _err, "err 0; err 1"),
        ("without options: log files", log_files, "(none)"),
        script=_SAYS,
    ),
    case(
        "redirects",
        "--nproc-per-node 3 --log-dir logs --redirects 0:3,1:1,2:0",
        ("--redirects 0:3,1:1,2:0: stdout", _out, "out 2"),
        ("--redirects 0:3,1:1,2:0: stderr", _err, "err 1; err 2"),
        (
            "--redirects 0:3,1:1,2:0: log files",
            log_files,
            "attempt_0/0/stderr.log attempt_0/0/stdout.log attempt_0/1/stdout.log",
        ),
        script=_SAYS,
    ),
    case(
        "tee",
        "--nproc-per-node 3 --log-dir logs --tee 3 --local-ranks-filter 0,2 --role trainer",
        ("--tee 3 with --local-ranks-filter 0,2: stdout", _out, "[trainer0]:out 0; [trainer2]:out 2"),
        ("--tee 3 with --local-ranks-filter 0,2: stderr", _err, "[trainer0]:err 0; [trainer2]:err 2"),
        ("--tee 3 with --local-ranks-filter 0,2: the file of local rank 1", log("attempt_0/1/stdout.log"), "out 1"),
        script=_SAYS,
    ),
    case(
        "a filter alone",
        "--nproc-per-node 2 --local-ranks-filter 1",
        ("--local-ranks-filter 1: stdout", _out, "out 1"),
        ("--local-ranks-filter 1: stderr", _err, "err 1"),
        script=_SAYS,
    ),
    case(
        "a tee of one stream",
        "--nproc-per-node 2 --log-dir logs --tee 1 --redirects 2",
        (
            "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE",
            _out,
            "<default 0/0 $ ${other}> out 0; <default 1/1 $ ${other}> out 1",
        ),
        ("--tee 1 with --redirects 2: stderr", _err, "(nothing)"),
        environ={"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "<${role_name} ${rank}/${local_rank} $$ ${other}> "},
        script=_SAYS,
    ),
    case(
        "duplicate filters",
        "--nproc-per-node 2 --log-dir logs --tee 3",
        ("--duplicate-stdout-filters in a variable", log("attempt_0/filtered_stdout.log"), "[default1]:out 1"),
        ("--duplicate-stderr-filters in a variable", log("attempt_0/filtered_stderr.log"), "[default0]:err 0"),
        target="train.py",
        environ={"PET_DUPLICATE_STDOUT_FILTERS": "out 1,x,,y", "PET_DUPLICATE_STDERR_FILTERS": "err 0"},
        script=_SAYS,
    ),
    case(
        "duplicate filters with commas",
        (
            "--nproc-per-node",
            "2",
            "--log-dir",
            "logs",
            "--tee",
            "3",
            "--duplicate-stdout-filters",
            "x,,y,out 1",
            "--duplicate-stderr-filters",
            "err 0",
        ),
        (
            "--duplicate-stdout-filters with two commas for one",
            lambda seen: "; ".join(sorted(seen.logs()["attempt_0/filtered_stdout.log"].splitlines())),
            "[default0]:x,y 0; [default1]:out 1; [default1]:x,y 1",
        ),
        ("--duplicate-stderr-filters: filtered_stderr.log", log("attempt_0/filtered_stderr.log"), "[default0]:err 0"),
        script=_SAYS + "print('x,y', RANK); print('x', RANK)\n",
    ),
    case(
        "duplicate filters without a tee",
        ("--log-dir", "logs", "--redirects", "3", "--duplicate-stdout-filters", "out 0"),
        (
            "--duplicate-stdout-filters without --tee: filtered_stdout.log is written",
            yes(lambda seen: seen.logs().get("attempt_0/filtered_stdout.log")),
            "no",
        ),
        script=_SAYS,
    ),
    case(
        "log files that are not wanted",
        ("--log-dir", os.devnull, "--tee", "3"),
        ("--log-dir /dev/null: it runs", succeeds, "runs"),
        (
            "--log-dir /dev/null: TORCHELASTIC_ERROR_FILE",
            lambda seen: seen.environ("TORCHELASTIC_ERROR_FILE") or "(empty)",
            "(empty)",
        ),
        script=_SAYS,
    ),
    case(
        "a directory for logs that is a file",
        "--log-dir train.py",
        ("--log-dir that is a file", lambda seen: "a worker ran" if seen.workers else "refused", "refused"),
    ),
    case(
        "thirty-two writers",
        f"--nproc-per-node {_WRITERS} --log-dir logs --tee 1",
        holds("32 writers of 1,000 lines: all of them in the files", _all_lines),
        script=_WRITES,
    ),
    case(
        "a line in two halves",
        "--log-dir logs --tee 1",
        (
            "--tee: a line that is written in two halves",
            console("half|other"),
            "[default0]:one half, [default0]:the other",
        ),
        script=_HALVES,
    ),
    case(
        "output that is not UTF-8",
        "--log-dir logs --tee 1",
        holds(
            "output that is not UTF-8: the file has it as it was",
            lambda seen: _raw(seen) == b"before \xff\xfe after\ngr\xc3\xbc\xc3\x9f\nno line end",
        ),
        (
            "output that is not UTF-8, on the console",
            lambda seen: "unchanged" if b"before \xff\xfe after" in seen.stdout else "changed",
            "changed",
        ),
        holds("output without a line end: it reaches the console", lambda seen: "[default0]:no line end" in seen.out),
        script=_BYTES,
    ),
    case(
        "a file that is followed",
        "--log-dir logs --tee 3",
        ("a log file is there while the worker runs", console("first|last"), "[default0]:first; [default0]:last"),
        script=_LATE,
        act=_while_it_runs,
    ),
)
