"""The agent's own lines as a person sees them: at a terminal, and in a file."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.jobs.single_node import Job
from tests.support.processes.terminal import Terminal
from tests.support.processes.tree import REPOSITORY
from tests.support.waiting import wait_until

STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z node3 ")
STUBBORN = """
import os, signal, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
open("up", "w").close()
time.sleep(600)
"""


def start(terminal: Terminal, directory: Path, *options: str, **variables: str) -> subprocess.Popen[bytes]:
    """Start meshrun in the foreground of a terminal."""
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY), "TERM": "xterm", **variables}
    for name in ("LAUNCHER_LOG_TIMES", *({"NO_COLOR", "FORCE_COLOR"} - variables.keys())):
        environ.pop(name, None)
    command = ["setsid", "--ctty", sys.executable, "-m", "launcher", "--node-name=node3", *options]
    return terminal.start(command, cwd=directory, env=environ)


def test_in_a_file_every_line_has_time_and_node_and_no_colour(tmp_path: Path) -> None:
    variables = {"LAUNCHER_LOG_TIMES": "auto", "LAUNCHER_NODE_NAME": "node3"}
    with Job(tmp_path, "--nproc-per-node=2", "--log-dir=logs", "-r3", script="sys.exit(3)", env=variables) as job:
        ended = job.wait()
    lines = ended.stderr.splitlines()
    assert ended.exit_code == 3
    assert any("FAILED" in line for line in lines), "the report too"
    assert [line for line in lines if not STAMP.match(line)] == []
    assert lines == sorted(lines, key=lambda line: line[:24]), "so that logs can be sorted into one"
    assert "\x1b" not in ended.stderr


@pytest.mark.parametrize("variables", [{}, {"NO_COLOR": "1"}], ids=["colour", "no colour"])
def test_a_terminal_has_colours_and_no_times(tmp_path: Path, variables: dict[str, str]) -> None:
    with Terminal() as terminal:
        meshrun = start(terminal, tmp_path, "missing.py", **variables)
        shown = terminal.rest()
        assert meshrun.returncode == 2
    assert ("\x1b[1;31mmeshrun: error:\x1b[0m" in shown) == (not variables)
    plain = re.sub(r"\x1b\[[\d;]*m", "", shown)
    assert "meshrun: error: script missing.py does not exist\nhint: check the current directory: it is" in plain
    assert not STAMP.search(plain)


def test_the_first_ctrl_c_says_what_a_second_one_does(tmp_path: Path) -> None:
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    with Terminal() as terminal:
        meshrun = start(terminal, tmp_path, "stubborn.py")
        wait_until((tmp_path / "up").exists)
        terminal.type("\x03")
        terminal.wait_for("SIGINT is passed to the workers, which have 30 s; press Ctrl-C again to kill them now")
        terminal.type("\x03")
        assert "the workers are killed" in terminal.rest()
        assert meshrun.returncode == 130
