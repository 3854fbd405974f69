"""Real processes for tests: a small agent to command, and a way to see who is left of its family.

Every process a test starts inherits a random token in its environment, so descendants are found in /proc wherever
they went: other sessions, other parents. Zombies count as dead.
"""

from __future__ import annotations

import json
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.support.waiting import wait_until

TOKEN_VARIABLE = "MESHRUN_TEST_TOKEN"
REPOSITORY = Path(__file__).parents[3]
REPORT_LIMIT_S = 30.0
# A process has no environment for a moment while it runs another program by an exec, so "" is read again so often.
EXEC_READS = 50


def is_alive(pid: int) -> bool:
    """Whether the process exists and is more than a zombie."""
    return state(pid) not in ("", "Z", "X")


def state(pid: int) -> str:
    """The letter of /proc/<pid>/stat: R, S, D, T, Z...; empty when there is no such process."""
    return _stat(pid)[0]


def freeze(pid: int) -> None:
    """SIGSTOP, and wait until every thread stands: on a busy machine one goes on for a moment."""
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: _states_of_threads(pid) <= {"T", "t", "Z"}, what=f"process {pid} to stand still")


def _states_of_threads(pid: int) -> set[str]:
    with suppress(FileNotFoundError):
        tasks = [task.name for task in Path(f"/proc/{pid}/task").iterdir()]
        states = {task: _read(pid, f"task/{task}/stat").rpartition(")")[2].split() for task in tasks}
        return {words[0] for words in states.values() if words}
    return set()


def parent(pid: int) -> int:
    """The parent's pid; -1 when there is no such process."""
    return int(_stat(pid)[1])


def program_name(pid: int) -> str:
    """The short name of what the process runs; empty when there is no such process."""
    return _read(pid, "comm").strip()


def namespace_pids(pid: int) -> list[int]:
    """The process's pid in every pid namespace it is in, from ours inwards; empty when there is no such process."""
    return [int(number) for number in _read(pid, "status").partition("NSpid:")[2].partition("\n")[0].split()]


def _stat(pid: int) -> list[str]:
    return _read(pid, "stat").rpartition(")")[2].split() or ["", "-1"]


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def children(pid: int) -> list[int]:
    """Children by parent pid, zombies included."""
    return [number for number in map(int, filter(str.isdigit, os.listdir("/proc"))) if parent(number) == pid]


def oldest_first(pids: Iterable[int]) -> list[int]:
    """In the order in which they were started. Of pids that says nothing: they start over."""
    return sorted(pids, key=lambda pid: (int((_stat(pid) + ["0"] * 20)[19]), pid))


def family(token: str) -> list[int]:
    """The living processes whose environment carries the token."""
    mark = f"{TOKEN_VARIABLE}={token}".encode()
    pids = map(int, filter(str.isdigit, os.listdir("/proc")))
    return [pid for pid in pids if mark in _environment(pid).split(b"\0") and is_alive(pid)]


def _environment(pid: int) -> bytes:
    """What the process was started with; empty for zombies, for threads of the kernel and where it may not be read."""
    for _ in range(EXEC_READS):
        try:
            if environment := Path(f"/proc/{pid}/environ").read_bytes():
                return environment
        except (OSError, ValueError):
            return b""
        if not is_alive(pid):
            return b""
    return b""


def kill_family(token: str) -> None:
    """Kill by pid whoever carries the token, until nobody does."""
    deadline = time.monotonic() + 20
    while left := family(token):
        assert time.monotonic() < deadline, f"cannot kill {left}"
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)


def descriptors(pid: int) -> list[str]:
    """What the process has open, as ls -l /proc/<pid>/fd shows it, in the order of the numbers."""
    folder = Path(f"/proc/{pid}/fd")
    found = []
    for number in sorted(os.listdir(folder), key=int):
        with suppress(FileNotFoundError):  # closed since
            found.append(os.readlink(folder / number))
    return found


def is_refused(port: int, host: str = "127.0.0.1") -> bool:
    """Whether the kernel says that nobody listens there."""
    try:
        socket.create_connection((host, port), 0.2).close()
    except ConnectionRefusedError:
        return True
    except (ConnectionResetError, TimeoutError):  # it is being closed, or has too many of these waiting
        pass
    return False


class Agent:
    """A small agent in a process of its own (tests/support/processes/supervisor_agent.py), driven line by line.

    A context manager: at its end every process that carries the token is killed by pid.
    """

    def __init__(self, *prefix: str, env: dict[str, str] | None = None, setup: str = "", settles: bool = True) -> None:
        self.token = secrets.token_hex(8)
        self.inbox: list[list[Any]] = []
        self.heard: list[list[Any]] = []
        self._buffer = b""
        self._process = subprocess.Popen(
            [
                *prefix,
                *(sys.executable, "-m", "tests.support.processes.supervisor_agent"),
                f"{setup}\nSETTLES = {settles}",
            ],
            cwd=REPOSITORY,
            env={**os.environ, **(env or {}), TOKEN_VARIABLE: self.token},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        # As numbered in the agent's own pid namespace.
        _, self.pid, self.keeper_pid, self.supervisor_pid = self.wait_for("Ready")
        if settles:
            self.sweep(0)  # now the supervisor has settled
            self.heard.clear()

    def __enter__(self) -> Agent:
        return self

    def __exit__(self, *_: object) -> None:
        kill_family(self.token)
        self._process.communicate()

    def do(self, verb: str, *words: object) -> None:
        """Have the agent call a method of its handle, or another verb of supervisor_agent.py."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([verb, *words]).encode() + b"\n")
        self._process.stdin.flush()

    def ask(self, verb: str, *words: object) -> Any:
        """The same, and wait for what it returns."""
        self.do(verb, *words)
        return self.wait_for("Returned", verb)[2]

    def spawn(self, round: int, *programs: list[str], **options: Any) -> None:
        """Start one worker per argv, local ranks 0, 1, ...; options go to each spec; streams are paths of files."""
        specs = [{"local_rank": index, "argv": argv, **options} for index, argv in enumerate(programs)]
        self.do("spawn", round, specs)

    def start(self, round: int, *programs: list[str], **options: Any) -> list[int]:
        """Spawn and wait until all run; their pids by local rank."""
        self.spawn(round, *programs, **options)
        return [self.wait_for("Spawned", round, index)[3] for index in range(len(programs))]

    def wait_for(self, *beginning: object) -> list[Any]:
        """The first report not taken yet that begins so; what else arrives is kept for later calls."""
        deadline = time.monotonic() + REPORT_LIMIT_S
        while True:
            for report in self.inbox:
                if report[: len(beginning)] == list(beginning):
                    self.inbox.remove(report)
                    return report
            left_s = deadline - time.monotonic()
            assert left_s > 0, f"waited {REPORT_LIMIT_S:g} s for {beginning}, heard {self.heard}"
            self._read(left_s)

    def _read(self, limit_s: float) -> None:
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], limit_s)[0]:
            return
        data = os.read(self._process.stdout.fileno(), 1 << 16)
        assert data, f"the agent ended; heard {self.heard}"
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            self.inbox.append(json.loads(line))
            self.heard.append(self.inbox[-1])

    def wait_until_nobody_is_left(self, *but: int) -> None:
        """But whoever is named."""
        wait_until(lambda: set(family(self.token)) <= set(but), what=f"the end of all but {but}")

    def sweep(self, round: int) -> None:
        """Have a round swept, and wait for that; orders given before have been obeyed then, too."""
        self.do("sweep", round)
        self.wait_for("RoundSwept", round)

    def wait_for_exit(self) -> int:
        """The agent's own exit code."""
        return self._process.wait(REPORT_LIMIT_S)
