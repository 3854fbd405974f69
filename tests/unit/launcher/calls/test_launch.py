"""`launcher.launch` without processes: options as keywords, how a run's end is written and read, and what an import
costs."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import launcher
from launcher import cli
from launcher.agent import command
from launcher.calls.failure import WorkerFailed, add_hint
from launcher.calls.launch import OptionValue, format_arguments, list_suppressed_variables
from launcher.calls.payload import FunctionCall, format_error, format_name
from launcher.config.scrub import END_FILE
from launcher.logs.reports import outcome
from launcher.logs.reports.failures import Failures
from launcher.logs.reports.report import WorkerFailure
from launcher.model.errors import LauncherError, TemporaryError, UsageError
from launcher.placement.adapter.description import NodeAssignment
from rendezvous import codec
from rendezvous.events import Exit
from rendezvous.records import Verdict
from tests.support.documents.pages import ROOT
from tests.support.reasons import because

CAUSE = WorkerFailure(
    rank=3, local_rank=1, pid=77, exit_code=7, time="2026-01-01T10:00:00", host="h2", message="the cause"
)
VERDICT = Verdict(
    kind="failure", exit_code=7, round=4, reason=because("a worker failed"), failure=codec.encode(CAUSE).decode()
)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_restarts": 2, "role": "a b"}, ["--max-restarts=2", "--role=a b"]),
        ({"standalone": True, "virtual_local_rank": False, "log_dir": None}, ["--standalone"]),
        ({"shutdown_timeout": 0.5}, ["--shutdown-timeout=0.5"]),
        ({"mesh": {"dp": "*", "tp": 2}}, ["--mesh=dp=*,tp=2"]),
        ({"tee": {0: 3, 1: 2}}, ["--tee=0:3,1:2"]),
        ({"rdzv_conf": {"join_timeout": 60, "is_host": 1}}, ["--rdzv-conf=join_timeout=60,is_host=1"]),
        ({"nnodes": (1, 4), "port_range": [7000, 7100]}, ["--nnodes=1:4", "--port-range=7000:7100"]),
        ({"signals_to_handle": ["SIGTERM", "SIGINT"]}, ["--signals-to-handle=SIGTERM,SIGINT"]),
        ({"local_ranks_filter": [0, 1]}, ["--local-ranks-filter=0,1"]),
        ({"level_costs": {"leaf": 2, "host": 1}}, ["--level-costs=leaf=2,host=1"]),
    ],
)
def test_an_option_is_written_as_on_a_command_line(options: dict[str, OptionValue], words: list[str]) -> None:
    assert format_arguments(options) == words
    assert command.parse([*words, "--no-python", "true"], {}).workers.script == "true"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"max_restart": 2}, "launch has no option max_restart"),
        ({"max-restarts": 2}, "launch has no option max-restarts"),
        ({"help": True}, "launch has no option help"),
        ({"module": True}, "module applies to scripts only"),
        ({"standalone": "yes"}, "standalone='yes' is neither True nor False"),
        ({"role": ["a"]}, "role takes one value, not a list"),
        ({"role": {"a": 1}}, "role takes one value, not a dict"),
        ({"nnodes": object()}, "nnodes takes strings and numbers, not a object"),
        # The command's own sentences.
        ({"nproc": 0}, "--nproc-per-node 0: at least 1 worker is needed"),
        ({"nproc": 2, "mesh": {"dp": 3}}, "mesh dp=3 needs 3 workers, not 2"),
        ({"max_restarts": "often"}, "--max-restarts often must be an integer >= 0"),
        ({"nproc": 1, "nproc_per_node": 1}, "nproc and nproc_per_node are the same option"),
        ({"env": {"A": 1}}, "env has 'A': 1, but names and values must be strings"),
        ({"env": {"A": "\0"}}, "env has 'A': '\\x00', but names and values must be strings without NUL"),
    ],
)
def test_what_is_no_option_is_refused(options: dict[str, OptionValue], sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        launcher.launch(print, **options)  # type: ignore[arg-type]
    assert str(caught.value).startswith(sentence)
    assert "max_restart" not in options or caught.value.hint == "did you mean max_restarts?"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((3,), "not a int"),
        (("echo", None), "arguments of a program must be strings: None is a NoneType"),
        (("echo", "a\0b"), "arguments of a program cannot contain NUL"),
    ],
)
def test_what_is_neither_function_nor_program_is_refused(words: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        launcher.launch(*words)


def test_variables_of_a_false_flag_are_suppressed_and_a_hint_is_shown_once() -> None:
    silenced = list_suppressed_variables({"standalone": False, "virtual_local_rank": True})
    assert {"LAUNCHER_STANDALONE", "PET_STANDALONE", "PET_MODULE", "PET_RUN_PATH"} <= silenced
    assert "PET_VIRTUAL_LOCAL_RANK" not in silenced
    import traceback

    shown = "".join(traceback.format_exception(add_hint(add_hint(UsageError("wrong", "do right")))))
    assert shown.count("hint: do right") == 1


def test_functions_and_exceptions_are_called_what_people_call_them() -> None:
    import functools

    assert format_name(format_name) == "format_name"
    assert format_name(functools.partial(format_name, 1)) == "format_name"
    assert format_name("".split) == "str.split"
    assert format_name(functools.lru_cache(lambda: 1)).endswith("call_them.<locals>.<lambda>")
    assert format_error(LeavesWhenPickled()) == "LeavesWhenPickled: <exception str() failed>"


def test_the_end_of_a_run_is_left_for_who_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    end = Exit(7, because(""), VERDICT)
    path = tmp_path / "end.json"
    monkeypatch.setenv(END_FILE, str(path))
    Failures("h1", None).report_end(end, "train.py", None)
    found = outcome.read(str(path))
    assert found == outcome.RunOutcome(
        exit_code=7, reason="a worker failed", round=4, failures=(CAUSE,), has_verdict=True
    )


@pytest.mark.parametrize(("last", "ranks"), [(4, (2, 3)), (3, ())])
def test_only_last_ranks_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: int, ranks: tuple[int, ...]
) -> None:
    share = NodeAssignment(
        **dict.fromkeys(("world_size", "group_world_size", "role_world_size", "master_port"), 4),
        ranks=(2, 3), shape=(4,), group_rank=1, role_ranks=(2, 3), master_addr="h1",
    )  # fmt: skip
    monkeypatch.setenv(END_FILE, str(tmp_path / "end.json"))
    failures = Failures("h1", None)
    failures.begin(last, share, lambda local_rank: "")
    failures.report_end(
        Exit(0, because(""), Verdict(kind="success", exit_code=0, round=4, reason=because("done"))), "train.py", None
    )
    found = outcome.read(str(tmp_path / "end.json"))
    assert found == outcome.RunOutcome(exit_code=0, reason="done", round=4, ranks=ranks, has_verdict=True)


def test_an_error_is_left_with_its_hint_and_an_end_that_cannot_be_left_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(END_FILE, str(tmp_path / "end.json"))
    assert cli.report(TemporaryError("no store", "start one"), "meshrun") == 75
    assert outcome.read(str(tmp_path / "end.json")) == outcome.RunOutcome(
        exit_code=75, reason="no store", hint="start one"
    )
    assert not capfd.readouterr().err
    monkeypatch.setenv(END_FILE, "/proc/no/such/place")
    Failures("h1", None).report_end(Exit(7, because(""), VERDICT), "train.py", None)
    assert "train.py FAILED" in capfd.readouterr().err


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 2}', '{"version": 1, "failures": [{}]}', "[" * 100_000])
def test_an_end_that_cannot_be_read_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "end.json").write_text(text)
    assert outcome.read(str(tmp_path / "end.json")) is None
    assert outcome.read(str(tmp_path / "missing")) is None


@pytest.mark.parametrize(
    ("exception", "said"),
    [("ValueError: two", "failed with exit code 7: ValueError: two"), ("", "failed with exit code 7")],
)
def test_the_first_line_of_a_failure_names_the_exception(exception: str, said: str) -> None:
    from msgspec.structs import replace

    error = WorkerFailed("train", (replace(CAUSE, exception=exception),), "no restarts")
    assert str(error).splitlines()[0] == f"train: rank 3 on h2 {said}"


class LeavesWhenPickled(Exception):
    """And has nothing to say."""

    def __reduce__(self) -> tuple[object, ...]:
        sys.exit(7)

    def __str__(self) -> str:
        raise KeyError("no text")


class LeavesWhenLoaded(Exception):
    def __reduce__(self) -> tuple[object, ...]:
        return sys.exit, (7,)


@pytest.mark.parametrize("error", [LeavesWhenPickled(), LeavesWhenLoaded()])
def test_an_exception_that_would_leave_in_its_pickle_ends_nobody(tmp_path: Path, error: Exception) -> None:
    call = FunctionCall(str(tmp_path))
    call.write_exception(1, 0, error)
    assert call.read_exception(1, 0) is None


def test_a_result_that_would_leave_in_its_pickle_is_told(tmp_path: Path) -> None:
    call = FunctionCall(str(tmp_path))
    with pytest.raises(LauncherError, match=r"cannot be pickled: SystemExit: 7$"):
        call.write_result(1, 0, [b"much", LeavesWhenPickled()])
    assert not list(tmp_path.iterdir())  # on a full disk, how it ended wants the space
    call.write_result(1, 0, LeavesWhenLoaded())
    with pytest.raises(LauncherError, match=r"the result of rank 0 cannot be loaded: SystemExit: 7$"):
        call.read_result(1, 0)


def test_importing_the_package_loads_nothing_and_launch_loads_on_access() -> None:
    script = (
        f"import sys; sys.path += {[str(ROOT), sysconfig.get_path('platlib')]!r}"
        + """
before = set(sys.modules)
import launcher
print(*sorted(set(sys.modules) - before))
from launcher import launch
assert launcher.launch is launch and "launch" in dir(launcher)
assert launcher.WorkerFailed.__name__ == "WorkerFailed"
try:
    launcher.lunch
except AttributeError as error:
    print(error)
"""
    )
    command = [sys.executable, "-I", "-S", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == ["launcher", "module 'launcher' has no attribute 'lunch'"], done.stderr
