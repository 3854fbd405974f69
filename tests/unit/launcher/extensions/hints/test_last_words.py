"""What workers leave at their end: Python's stacks of a crash, an exception or `sys.exit`, or neither."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from launcher.extensions.hints.last_words import LastWords, keep_stacks, parse
from launcher.hardware.linux.shared_page import find_last_words_offset
from launcher.logs.reports.failure_class import find_configuration_error
from launcher.ranks import main_start

DUMP = """Fatal Python error: Segmentation fault

Thread 0x00007f0000000001 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 327 in wait

Current thread 0x00007f0000000002 (most recent call first):
  File "/lib/ctypes/__init__.py", line 519 in string_at
  File "/home/ada/train.py", line 12 in step
  File "/opt/launcher/ranks/main_start.py", line 141 in <module>

Extension modules: numpy.core, torch._C (total: 2)
"""
FRAMES = ('"/home/ada/train.py", line 12, in step', '"/lib/ctypes/__init__.py", line 519, in string_at')
ENDED = """
Traceback (most recent call last):
  File "/home/ada/train.py", line 30, in <module>
  File "/home/ada/train.py", line 7, in load
SystemExit: no data
in /x
"""


def test_frames_of_the_thread_that_crashed_come_first_and_the_innermost_last() -> None:
    found = parse("\n" + DUMP, -11)
    assert (found.frames, found.stacks.strip(), found.exception) == (FRAMES, DUMP.strip(), "")


def test_of_two_crashes_the_last_is_the_worker_s_own() -> None:
    child = DUMP.replace("line 12 in step", "line 99 in load_batch")
    assert parse("\n" + child + DUMP, -11).frames == FRAMES


@pytest.mark.parametrize(
    ("name", "exit_code", "is_own"),
    [
        ("Segmentation fault", -11, True),
        ("Segmentation fault", -9, False),
        ("Segmentation fault", -15, False),
        ("Segmentation fault", -6, False),
        ("Bus error", -7, True),
        ("Floating point exception", -8, True),
        ("Illegal instruction", -4, True),
        ("Aborted", -6, True),
        ("deallocating None: bad state", -6, True),
        ("Aborted", -9, False),
        ("Aborted", -11, False),
    ],
)
def test_a_crash_is_the_worker_s_own_if_it_is_the_signal_that_has_ended_it(
    name: str, exit_code: int, is_own: bool
) -> None:
    found = parse("\n" + DUMP.replace("Segmentation fault", name), exit_code)
    assert found.frames == (FRAMES if is_own else ())
    assert bool(found.stacks) is is_own


def test_only_the_innermost_frames_and_so_much_of_each_and_of_the_exception_are_kept() -> None:
    lines = [f'  File "/{"a" * 999}.py", line {number} in work\n' for number in range(50)]
    head = "Fatal Python error: Segmentation fault\n\nCurrent thread 0x1 (most recent call first):\n"
    crash = parse(head + "".join(lines), -11)
    frames = "".join(line.replace(" in ", ", in ") for line in lines)
    ended = parse(f"\nTraceback (most recent call last):\n{frames}ValueError: {'x' * 100_000}", 1)
    for found, last in ((crash, 0), (ended, 49)):
        assert (len(found.frames), max(map(len, found.frames))) == (20, 200)
        assert found.frames[-1].endswith(f'.py", line {last}, in work')
    assert len(ended.exception) == 4_000


def test_what_the_user_has_asked_for_is_read_from_stderr_and_kept_only_there() -> None:
    assert parse("\n", -11, DUMP) == LastWords(FRAMES, has_begun=True)


@pytest.mark.parametrize("text", ["", "\n", "no such thing", DUMP.partition("Current")[0], "\0\n\x1b[31m"])
def test_a_crash_without_python_frames_has_none(text: str) -> None:
    assert parse(text, -11).frames == ()


def test_an_exit_says_where_and_with_which_text() -> None:
    found = parse(ENDED, 1)
    assert found.exception == "SystemExit: no data\nin /x"
    assert found.frames[-1] == '"/home/ada/train.py", line 7, in load'
    assert not found.is_abrupt


@pytest.mark.parametrize("separator", ["\u2028", "\x85", "\x0c"])
def test_what_separates_lines_elsewhere_is_part_of_the_text(separator: str) -> None:
    assert parse(ENDED.replace("no data", f"no{separator}data"), 1).exception == f"SystemExit: no{separator}data\nin /x"


@pytest.mark.parametrize("runner", ["<frozen runpy>", "/lib/python3.10/runpy.py", "/x/launcher/ranks/main_forms.py"])
def test_what_runs_a_module_is_no_place_in_the_script(runner: str) -> None:
    text = ENDED.replace("call last):\n", f'call last):\n  File "{runner}", line 194, in _run_module_as_main\n')
    assert parse(text, 1) == parse(ENDED, 1)


@pytest.mark.parametrize(
    ("text", "exit_code", "is_abrupt"),
    [("\n", 3, True), ("", 3, False), ("\n", 120, False), ("\n", -9, False), (ENDED, 3, False), ("\n", 0, False)],
)
def test_an_end_without_an_exception_is_told_apart_where_that_is_known(
    text: str, exit_code: int, is_abrupt: bool
) -> None:
    assert parse(text, exit_code).is_abrupt == is_abrupt


def test_a_process_that_the_worker_has_forked_leaves_its_stacks() -> None:
    found = parse("\n" + DUMP + ENDED, 1)
    assert (found.stacks.startswith("Fatal"), found.exception[:10]) == (True, "SystemExit")


@pytest.mark.parametrize(("error_file", "name"), [("error_1_0.json", "crash_1_0.txt"), ("error.json", "crash.txt")])
def test_stacks_are_kept_beside_the_error_file(tmp_path: Path, error_file: str, name: str) -> None:
    assert keep_stacks(DUMP, str(tmp_path / error_file)) == str(tmp_path / name)
    assert (tmp_path / name).read_text() == DUMP
    assert keep_stacks("", str(tmp_path / error_file)) == keep_stacks(DUMP, "") == ""
    assert keep_stacks(DUMP, str(tmp_path / "absent" / error_file)) == ""


def test_stacks_do_not_wait_for_a_reader_in_the_place_of_their_file(tmp_path: Path) -> None:
    pipe = tmp_path / "crash.txt"
    os.mkfifo(pipe)
    assert keep_stacks(DUMP, str(tmp_path / "error.json")) == ""
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert keep_stacks(DUMP, str(tmp_path / "error.json")) == ""
        assert os.read(reader, 1) == b""
    finally:
        os.close(reader)


def test_workers_write_where_the_agent_reads() -> None:
    """`main_start` imports nothing of this project, so it has the numbers itself."""
    assert "(8192 + line) << 20" in Path(main_start.__file__).read_text()
    assert [find_last_words_offset(line) for line in (0, 3)] == [8192 << 20, 8195 << 20]


ARGPARSE = ('"train.py", line 3, in <module>', '"/usr/lib/python3.11/argparse.py", line 2617, in exit')


@pytest.mark.parametrize(
    ("failure_class", "exception", "frames", "expected"),
    [
        ("configuration", "ModuleNotFoundError: No module named 'x'", (), "ModuleNotFoundError: No module named 'x'"),
        ("configuration", "", ARGPARSE, "argparse's exit with code 2"),
        ("configuration", "", ARGPARSE[:1], ""),
        ("configuration", "", (), ""),
        ("user code", "KeyError: 'x'", (), ""),
    ],
)
def test_an_error_that_every_restart_repeats_has_words(
    failure_class: str, exception: str, frames: tuple[str, ...], expected: str
) -> None:
    assert find_configuration_error(failure_class, exception, frames) == expected
