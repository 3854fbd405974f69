"""What happens when workers fail: restarts, exit codes, the report, error files."""

from __future__ import annotations

import json
import os
import re
import signal

from tests.compat.looks import exit_code, holds, succeeds, variable, yes
from tests.compat.runs import TOOLS, Case, Running, See, Seen, case, tools

_WAITS = tools("""
def leave(number, frame):
    mark(f"told-{RANK}", signal.Signals(number).name)
    sys.exit(5)
if RANK == 0:
    signal.signal(signal.SIGTERM, leave)
    mark("ready")
    while True:
        time.sleep(0.01)
wait_for("ready")
""")
_RECORD = tools("""
from torch.distributed.elastic.multiprocessing.errors import record
@record
def main():
    if RANK == 1:
        raise ValueError("the loss is not a number")
    time.sleep(600)
main()
""")
_EXITS = tools("""
from torch.distributed.elastic.multiprocessing.errors import record
@record
def main():
    sys.exit(4)
main()
""")
# Both are there before either fails.
_BOTH = 'mark(f"there-{RANK}-{RESTART}")\nwait_for(f"there-{1 - RANK}-{RESTART}")\n'
_LABELS = ("time", "host", "rank", "exitcode", "error_file", "traceback")


def report(seen: Seen) -> dict[str, str]:
    """The root cause in the report: label -> text."""
    box = seen.err.rpartition("Root Cause")[2]
    return {label: text.strip() for label, text in re.findall(r"^ *(\w+) *: ?(.*)$", box, re.MULTILINE)}


def _label(name: str, pattern: str = "", shown: str = "") -> See:
    def see(seen: Seen) -> str:
        text = report(seen).get(name, "(no such label)")
        return re.sub(pattern, shown, text) if pattern else text

    return see


def _exitcode(seen: Seen) -> str:
    return re.sub(r"pid: \d+", "pid: PID", report(seen).get("exitcode", "(no such label)").partition(", local_rank")[0])


def _rank(seen: Seen) -> str:
    """The rank of the root cause: torchrun's has a label, ours is in the heading."""
    found = re.search(r"rank(?: +:)? (\d+)", seen.err.rpartition("Root Cause")[2])
    return found[1] if found else "(none)"


def _find_ending(seen: Seen) -> str:
    """How the root cause ended: under a label, or in a line of its own."""
    lines = [line.strip() for line in seen.err.rpartition("Root Cause")[2].splitlines()]
    return report(seen).get("traceback") or lines[1]


def _has_others(seen: Seen) -> bool:
    """Torchrun's report always has "Failures:", with a placeholder for none."""
    is_listed = re.search(r"^(Other failures|Failures):", seen.err, re.MULTILINE) is not None
    return is_listed and "<NO_OTHER_FAILURES>" not in seen.err


def _labels(seen: Seen) -> str:
    there = report(seen)
    return " ".join(label for label in _LABELS if label in there)


def _error(text: str) -> str:
    """What an error file holds."""
    try:
        content = json.loads(text)["message"]
    except ValueError:
        return "(no JSON)"
    extra = content["extraInfo"]
    return ", ".join(
        (
            content["message"],
            "a call stack" if "raise ValueError" in extra["py_callstack"] else "no call stack",
            "a time" if int(extra["timestamp"]) > 1_000_000_000 else "no time",
            *(["errorCode"] if "errorCode" in content else []),
        )
    )


def _attempts(seen: Seen) -> str:
    return " ".join(sorted({name.split("/")[0] for name in seen.logs()}))


def _lives(seen: Seen) -> str:
    """How often each rank was started, and with which restart counts."""
    lives: dict[int, list[str]] = {}
    for worker in seen.workers:
        environ = worker["environ"]
        lives.setdefault(int(environ["RANK"]), []).append(environ["TORCHELASTIC_RESTART_COUNT"])
    return "; ".join(f"rank {rank}: {' '.join(sorted(counts))}" for rank, counts in sorted(lives.items()))


def _kill(running: Running) -> None:
    running.wait_for("ready")
    os.kill(running.pids(2)[1], signal.SIGKILL)


CASES: tuple[Case, ...] = (
    case(
        "a worker that exits with 3",
        "--nproc-per-node 2 --log-dir logs",
        ("a worker exits with 3: exit code", exit_code(), "1"),
        ("a worker fails: what its siblings get", lambda seen: seen.file("told-0"), "SIGTERM"),
        ("--max-restarts is 0 by default: TORCHELASTIC_MAX_RESTARTS", variable("TORCHELASTIC_MAX_RESTARTS"), "0"),
        ("--max-restarts is 0 by default: starts of each rank", _lives, "rank 0: 0; rank 1: 0"),
        (
            "the report: title",
            lambda seen: next(iter(re.findall(r"^(\S+ FAILED)$", seen.err, re.MULTILINE)), "(none)"),
            "train.py FAILED",
        ),
        ("the report: labels of the root cause", _labels, " ".join(_LABELS)),
        (
            "the report: Root Cause",
            lambda seen: next(iter(re.findall(r"Root Cause \(.*?\):", seen.err)), "(none)"),
            "Root Cause (first observed failure):",
        ),
        ("the report: rank", _rank, "1"),
        ("the report: exitcode", _exitcode, "3 (pid: PID)"),
        holds("the report: where it is printed", lambda seen: "FAILED" not in seen.out),
        holds(
            "the report lists a stopped worker that exits with 5 as a failure",
            _has_others,
        ),
        script=_WAITS + "sys.exit(3)\n",
    ),
    case(
        "a worker that is killed",
        "--nproc-per-node 2",
        ("a worker is killed by SIGKILL: exit code", exit_code(), "1"),
        ("the report: exitcode of a signal", _exitcode, "-9 (pid: PID)  (SIGKILL)"),
        (
            "the report: the text for a signal",
            lambda seen: re.sub(r"PID \d+", "PID PID", _find_ending(seen)),
            "Signal 9 (SIGKILL) received by PID PID",
        ),
        script=_WAITS + "time.sleep(600)\n",
        act=_kill,
    ),
    case(
        "an exception under record",
        "--nproc-per-node 2 --log-dir logs",
        (
            "record: what the worker's error file holds",
            lambda seen: _error(seen.logs()["attempt_0/1/error.json"]),
            "ValueError: the loss is not a number, a call stack, a time",
        ),
        (
            "record: what the copy for the launcher's own TORCHELASTIC_ERROR_FILE holds",
            lambda seen: _error(seen.file("copy.json")),
            "ValueError: the loss is not a number, a call stack, a time, errorCode",
        ),
        holds(
            "record: the report has the traceback",
            lambda seen: "ValueError: the loss is not a number" in seen.err.rpartition("Root Cause")[2],
        ),
        ("the report: error_file", _label("error_file", r".*/(?=attempt)", ""), "attempt_0/1/error.json"),
        script=_RECORD,
        environ={"TORCHELASTIC_ERROR_FILE": "copy.json"},
    ),
    case(
        "SystemExit under record",
        "--log-dir logs",
        (
            "SystemExit under record: error files",
            lambda seen: " ".join(name for name in seen.logs() if "error" in name) or "(none)",
            "(none)",
        ),
        ("SystemExit under record: exitcode in the report", _exitcode, "4 (pid: PID)"),
        holds("the report: there are no other failures", lambda seen: not _has_others(seen)),
        script=_EXITS,
    ),
    case(
        "an error file that nobody can read",
        "--nproc-per-node 2 --log-dir logs",
        holds("an error file that is cut short: the job ends", lambda seen: seen.codes[0] != 0),
        (
            "a truncated error file: a report is printed",
            yes(lambda seen: _rank(seen) == "1"),
            "no",
        ),
        script=tools("""
if RANK == 1:
    with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
        file.write('{"message": ')
    sys.exit(3)
time.sleep(600)
"""),
    ),
    case(
        "two failures at nearly the same time",
        "--nproc-per-node 3 --monitor-interval 3",
        ("the root cause is the earliest failure", _rank, "2"),
        script=tools("""
def fail(seconds, code):
    message = {"message": f"number {code}", "extraInfo": {"timestamp": str(int(time.time()) + seconds)}}
    with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
        json.dump({"message": message}, file)
    os._exit(code)
signal.signal(signal.SIGTERM, lambda number, frame: None)
if RANK == 2:
    mark("first")
    fail(0, 12)
wait_for("first")
time.sleep(0.2)
fail(5, 10 + RANK)
"""),
    ),
    case(
        "timers of torch",
        "",
        (
            "TORCHELASTIC_ENABLE_FILE_TIMER=1: workers get TORCHELASTIC_TIMER_FILE",
            yes(lambda seen: "TORCHELASTIC_TIMER_FILE" in seen.worker()["environ"]),
            "yes",
        ),
        environ={"TORCHELASTIC_ENABLE_FILE_TIMER": "1"},
        script=TOOLS,
    ),
    case(
        "restarts",
        "--nproc-per-node 2 --max-restarts 2 --log-dir logs --redirects 1",
        ("restarts that lead to success", succeeds, "runs"),
        ("a group restarts as one: starts of each rank", _lives, "rank 0: 0 1 2; rank 1: 0 1 2"),
        ("restarts: directories of the log files", _attempts, "attempt_0 attempt_1 attempt_2"),
        ("TORCHELASTIC_RESTART_COUNT of the last start", variable("TORCHELASTIC_RESTART_COUNT", 1), "2"),
        (
            "MASTER_PORT after a restart",
            lambda seen: (
                "the same" if len({worker["environ"]["MASTER_PORT"] for worker in seen.workers}) == 1 else "another"
            ),
            "the same",
        ),
        script=TOOLS
        + _BOTH
        + "print('try', RESTART)\nif RESTART == 2: sys.exit(0)\nif RANK == 1: sys.exit(3)\ntime.sleep(600)",
    ),
    case(
        "restarts that are used up",
        "--nproc-per-node 2 --max-restarts 1",
        ("both workers fail, --max-restarts 1: starts of each rank", _lives, "rank 0: 0 1; rank 1: 0 1"),
        holds("both workers fail: exit code", lambda seen: seen.codes[0] != 0),
        script=TOOLS + _BOTH + "sys.exit(RANK + 4)\n",
    ),
    case(
        "an import that fails every time",
        "--max-restarts 3",
        ("a module is missing, --max-restarts 3: restart count at each start", _lives, "rank 0: 0 1 2 3"),
        script=TOOLS + "import absent_module\n",
    ),
    case(
        "a failure after a success",
        "--nproc-per-node 2",
        ("one worker succeeds and one fails: exit code", exit_code(), "1"),
        script=tools("if RANK == 0:\n    mark('done')\n    sys.exit(0)\nwait_for('done')\nsys.exit(1)\n"),
    ),
    case(
        "run-path and exit 3",
        "--run-path",
        ("--run-path: sys.exit(3): exitcode in the report", _exitcode, "3 (pid: PID)"),
        script=tools("sys.exit(3)\n"),
    ),
)
