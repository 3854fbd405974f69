"""Real jobs for tests: the command as a user runs it, with workers that leave marks in its directory."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from tests.support.processes.tree import REPOSITORY, TOKEN_VARIABLE, children, family, is_alive, kill_family
from tests.support.waiting import wait_until

PRELUDE = """
import os, signal, subprocess, sys, time
RANK, ROUND = int(os.environ["RANK"]), int(os.environ["LAUNCHER_ROUND"])

def mark(what, text=""):
    path = f"{what}-{RANK}-{ROUND}"
    with open(path + ".part", "w") as file:
        file.write(text or str(os.getpid()))
    os.rename(path + ".part", path)

def wait_for(name):
    while not os.path.exists(name):
        time.sleep(0.01)
"""


class Ended(NamedTuple):
    exit_code: int
    stdout: str
    stderr: str


class Job:
    """One run of the command in `directory`; at its end every process of it is killed by pid."""

    def __init__(
        self,
        directory: Path,
        *options: str,
        script: str,
        arguments: tuple[str, ...] = (),
        prefix: tuple[str, ...] = (),
        env: dict[str, str] | None = None,
    ) -> None:
        self.directory = directory
        self._token = secrets.token_hex(8)
        (directory / "train.py").write_text(PRELUDE + script)
        paths = [str(REPOSITORY), os.environ.get("PYTHONPATH", "")]
        self._stdout, self._stderr = directory / "agent.stdout", directory / "agent.stderr"
        with self._stdout.open("wb") as stdout, self._stderr.open("wb") as stderr:
            self._process = subprocess.Popen(
                [*prefix, sys.executable, "-m", "launcher", *options, "train.py", *arguments],
                cwd=directory,
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(filter(None, paths)),
                    **(env or {}),
                    TOKEN_VARIABLE: self._token,
                },
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
            )

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        kill_family(self._token)
        self._process.wait()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def keeper_pid(self) -> int:
        """The agent's only child."""
        return children(self.pid)[0]

    @property
    def supervisor_pid(self) -> int:
        """The keeper's only child."""
        return children(self.keeper_pid)[0]

    @property
    def stderr(self) -> str:
        return self._stderr.read_text(errors="backslashreplace")

    def send(self, signum: int) -> None:
        self._process.send_signal(signum)

    def wait(self, limit_s: float = 60.0) -> Ended:
        """Wait for the command to end."""
        try:
            exit_code = self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {limit_s:g} s; it said:\n{self.stderr}") from None
        return Ended(exit_code, self._stdout.read_text(errors="backslashreplace"), self.stderr)

    def mark(self, what: str, rank: int, round: int, limit_s: float = 60.0) -> str:
        """Wait for a worker's mark and return what it wrote; by default its pid."""
        path = self.directory / f"{what}-{rank}-{round}"
        wait_until(lambda: path.exists() or not is_alive(self.pid), limit_s, f"mark {path.name}")
        assert path.exists(), f"the job ended before mark {path.name}:\n{self.stderr}"
        return path.read_text()

    def says(self, words: str, limit_s: float = 60.0) -> None:
        """Wait until these words are on the agent's stderr."""
        wait_until(lambda: words in self.stderr or not is_alive(self.pid), limit_s, f"{words!r} on stderr")
        assert words in self.stderr, f"the job ended without saying {words!r}:\n{self.stderr}"

    def has_mark(self, what: str, rank: int, round: int) -> bool:
        return (self.directory / f"{what}-{rank}-{round}").exists()

    def wait_until_nobody_is_left(self, limit_s: float = 20.0) -> None:
        wait_until(lambda: not family(self._token), limit_s, "the end of all processes of the job")

    def left(self) -> list[int]:
        return family(self._token)
