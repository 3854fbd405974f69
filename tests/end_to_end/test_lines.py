"""The agent's own lines as a person sees them: at a terminal, and in a file."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.jobs.single_node import Job
from tests.support.processes.tree import REPOSITORY
from tests.support.waiting import wait_until

STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z node3 ")
STUBBORN = """
import os, signal, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
open("up", "w").close()
time.sleep(600)
"""


class Terminal:
    """meshrun in the foreground of a terminal of its own; `shown` is what has appeared there. Used in a `with`."""

    def __init__(self, directory: Path, *options: str, **variables: str) -> None:
        self._leader, follower = pty.openpty()
        environ = {**os.environ, "PYTHONPATH": str(REPOSITORY), "TERM": "xterm", **variables}
        for name in ("LAUNCHER_LOG_TIMES", *({"NO_COLOR", "FORCE_COLOR"} - variables.keys())):
            environ.pop(name, None)
        start = (
            "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
        )
        command = [sys.executable, "-c", start, sys.executable, "-m", "launcher", "--node-name=node3", *options]
        self._process = subprocess.Popen(
            command,
            cwd=directory,
            env=environ,
            stdin=follower,
            stdout=follower,
            stderr=follower,
            start_new_session=True,
        )
        os.close(follower)
        os.set_blocking(self._leader, False)
        self.shown = ""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._leader)

    def shows(self, words: str) -> bool:
        """Whether these words have appeared."""
        with suppress(BlockingIOError, OSError):  # the latter: nobody has the terminal any more
            while data := os.read(self._leader, 4096):
                self.shown += data.decode().replace("\r\n", "\n")
        return words in self.shown

    def type(self, keys: bytes) -> None:
        os.write(self._leader, keys)

    def wait(self) -> int:
        """The exit code, when the command has ended."""
        code = self._process.wait(60)
        self.shows("")
        return code


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
    with Terminal(tmp_path, "missing.py", **variables) as terminal:
        assert terminal.wait() == 2
        shown = terminal.shown
    assert ("\x1b[1;31mmeshrun: error:\x1b[0m" in shown) == (not variables)
    plain = re.sub(r"\x1b\[[\d;]*m", "", shown)
    assert "meshrun: error: script missing.py does not exist\nhint: check the current directory: it is" in plain
    assert not STAMP.search(plain)


def test_the_first_ctrl_c_says_what_a_second_one_does(tmp_path: Path) -> None:
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    with Terminal(tmp_path, "stubborn.py") as terminal:
        wait_until((tmp_path / "up").exists)
        terminal.type(b"\x03")
        announced = "SIGINT is passed to the workers, which have 30 s; press Ctrl-C again to kill them now"
        wait_until(lambda: terminal.shows(announced), what=f"{announced!r} in the terminal")
        terminal.type(b"\x03")
        assert terminal.wait() == 130
    assert "the workers are killed" in terminal.shown
