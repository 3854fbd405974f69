"""Real jobs for tests: the command as a user runs it, with workers that leave marks in its directory."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.support.processes.tree import REPOSITORY, TOKEN_VARIABLE, children, family, is_alive, kill_family
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from typing import Self  # not in Python 3.10

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

def wait_for_signal(got, *signums):
    # Until a handler of one of these has noted it in `got`, or for a minute; then they are blocked.
    signal.pthread_sigmask(signal.SIG_BLOCK, signums)
    if not got and (found := signal.sigtimedwait(signums, 60)):
        got.append(signal.Signals(found.si_signo).name)
"""


class Ended(NamedTuple):
    exit_code: int
    stdout: str
    stderr: str


class Command:
    """A program in `directory`, what it prints in files there; at its end every descendant of it is killed by pid."""

    def __init__(self, directory: Path, command: Sequence[str], env: Mapping[str, str], stdin: str = "") -> None:
        self.directory = directory
        self._token = secrets.token_hex(8)
        self._stdout, self._stderr = directory / "agent.stdout", directory / "agent.stderr"
        given = directory / "agent.stdin" if stdin else Path(os.devnull)
        if stdin:
            given.write_text(stdin)
        with given.open() as file, self._stdout.open("wb") as stdout, self._stderr.open("wb") as stderr:
            environ = {**env, TOKEN_VARIABLE: self._token}
            self._process = subprocess.Popen(
                command, cwd=directory, env=environ, stdin=file, stdout=stdout, stderr=stderr
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        kill_family(self._token)
        self._process.wait()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    @property
    def stdout(self) -> str:
        return self._stdout.read_text(errors="backslashreplace")

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
        return Ended(exit_code, self.stdout, self.stderr)

    def says(self, words: str, limit_s: float = 60.0) -> None:
        """Wait until these words are on its stderr."""
        wait_until(lambda: words in self.stderr or not is_alive(self.pid), limit_s, f"{words!r} on stderr")
        assert words in self.stderr, f"the job ended without saying {words!r}:\n{self.stderr}"

    def left(self) -> list[int]:
        return family(self._token)

    def wait_until_nobody_is_left(self, limit_s: float = 20.0) -> None:
        wait_until(lambda: not self.left(), limit_s, "the end of all processes of the job")


class Job(Command):
    """One run of meshrun in `directory`, whose train.py is `script` after a prelude."""

    def __init__(
        self,
        directory: Path,
        *options: str,
        script: str = "",
        arguments: tuple[str, ...] = (),
        prefix: tuple[str, ...] = (),
        env: dict[str, str] | None = None,
    ) -> None:
        (directory / "train.py").write_text(PRELUDE + script)
        paths = [str(REPOSITORY), os.environ.get("PYTHONPATH", "")]
        variables = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **(env or {})}
        command = [*prefix, sys.executable, "-m", "launcher", *options, "train.py", *arguments]
        super().__init__(directory, command, variables)

    @property
    def keeper_pid(self) -> int:
        """The agent's only child."""
        return children(self.pid)[0]

    @property
    def supervisor_pid(self) -> int:
        """The keeper's only child."""
        return children(self.keeper_pid)[0]

    def mark(self, what: str, rank: int, round: int, limit_s: float = 60.0) -> str:
        """Wait for a worker's mark and return what it wrote; by default its pid."""
        path = self.directory / f"{what}-{rank}-{round}"
        wait_until(lambda: path.exists() or not is_alive(self.pid), limit_s, f"mark {path.name}")
        assert path.exists(), f"the job ended before mark {path.name}:\n{self.stderr}"
        return path.read_text()

    def marks(self, what: str, ranks: Sequence[int], round: int = 1, limit_s: float = 60.0) -> list[str]:
        return [self.mark(what, rank, round, limit_s) for rank in ranks]

    def has_mark(self, what: str, rank: int, round: int) -> bool:
        return (self.directory / f"{what}-{rank}-{round}").exists()


def words(text: str) -> list[str]:
    """Options as one writes them in a shell."""
    return text.split()


def run(directory: Path, *options: str, exit_code: int = 0, limit_s: float = 60.0, **given: Any) -> Job:
    """A job that has ended with this exit code; `given` is as for `Job`."""
    with Job(directory, *options, **given) as job:
        assert job.wait(limit_s).exit_code == exit_code, job.stderr
    return job
