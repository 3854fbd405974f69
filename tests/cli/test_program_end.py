"""What `meshrun` still does before it leaves without Python's own end, and its exit code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.running import run

# Each shell command starts the program with some of its standard streams closed, as daemons and cron jobs do.
ALL = "<&- >&- 2>&-"


@pytest.mark.parametrize(
    ("words", "closed", "exit_code"),
    [
        ("train.py", "<&-", 0), ("train.py", ">&-", 0), ("train.py", "2>&-", 0), ("train.py", ALL, 0),
        ("--nonsense", "2>&-", 2), ("--nonsense", ALL, 2), ("--version", ">&-", 0), ("--version", ALL, 0),
    ],
)  # fmt: skip
def test_a_closed_stream_changes_no_exit_code(words: str, closed: str, exit_code: int, tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    program = Path(sys.executable).parent / "meshrun"
    command = ["bash", "-c", f"{program} {words} {closed}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == exit_code, done.stderr
    assert "Traceback" not in done.stderr


AT_EXIT = """
import atexit, sys
atexit.register(print, "exit handler")  # as that of an event handler of torch's, whose last events wait for it
print("buffered")
from launcher import cli
cli.run()
"""


def test_exit_handlers_are_run_and_what_was_printed_comes_out() -> None:
    done = run("python", "-c", AT_EXIT, "--version", environ={"PYTHONPATH": os.getcwd()})
    assert done.code == 0, done.err
    assert {"buffered", "exit handler"} <= {*done.out.splitlines()}
