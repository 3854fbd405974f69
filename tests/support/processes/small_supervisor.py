"""A supervisor reduced to what a fork server sees of it: reads [verb, ...] lines on stdin, answers each with a JSON
line.

`python -m tests.support.processes.small_supervisor`, as a process of its own, since it adopts all orphans.
The class at the end is what tests use.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from launcher.hardware.linux import kernel
from launcher.supervisor.fork_server import fork_server
from launcher.supervisor.fork_server.json_channel import JsonChannel
from launcher.supervisor.messages import WorkerSpec, encode_spec
from tests.support.processes.tree import REPOSITORY, TOKEN_VARIABLE, kill_family

LIMIT_S = 60.0
BEGINNINGS = {"script": [], "module": ["-m"], "code": ["-c"]}


class _Supervisor:
    """The verbs."""

    def __init__(self) -> None:
        kernel.become_subreaper()
        self._wires: list[JsonChannel] = []
        self._heard: dict[int, list[Any]] = {}

    def _new_wire(self) -> tuple[int, socket.socket]:
        ours, theirs = socket.socketpair()
        self._wires.append(JsonChannel(ours))
        return len(self._wires) - 1, theirs

    def _execute(self, argv: list[str], env: dict[str, str | None], **options: Any) -> int:
        environment = {**os.environ, **env}
        process = subprocess.Popen(
            argv,
            env={name: value for name, value in environment.items() if value is not None},
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            **options,
        )
        process.returncode = 0  # wait() is ours
        return process.pid

    def cold(self, argv: list[str], env: dict[str, str | None], cwd: str, stdout: str, stderr: str) -> int:
        with open(stdout, "ab") as out, open(stderr, "ab") as err:
            return self._execute(argv, env, cwd=cwd, stdout=out, stderr=err)

    def start(
        self, argv: list[str], modules: list[str], env: dict[str, str | None], cwd: str, stdout: str, stderr: str
    ) -> int:
        number, theirs = self._new_wire()
        variable = {fork_server.SOCKET_VARIABLE: str(theirs.fileno())}
        with open(stdout, "ab") as out, open(stderr, "ab") as err:
            fds = [theirs.fileno()]
            pid = self._execute(argv, {**env, **variable}, cwd=cwd, stdout=out, stderr=err, pass_fds=fds)
        theirs.close()
        self._wires[number].send(["preload", modules, os.getpid(), []])
        return pid

    def order(self, count: int) -> list[int]:
        numbers = []
        for _ in range(count):
            number, theirs = self._new_wire()
            assert self._wires[0].send(["fork"], (theirs.fileno(),))
            theirs.close()
            numbers.append(number)
        return numbers

    def hear(self, number: int) -> list[Any] | None:
        """The next message; None at the end."""
        wire = self._wires[number]
        inbox = self._heard.setdefault(number, [])
        while not inbox and not wire.has_ended:
            signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
            wire._socket.setblocking(True)
            wire._socket.recv(1, socket.MSG_PEEK)
            wire._socket.setblocking(False)
            signal.setitimer(signal.ITIMER_REAL, 0)
            inbox += [message for message, _ in wire.receive()]
        return inbox.pop(0) if inbox else None

    def release(self, number: int, streams: list[str | None], fields: dict[str, Any]) -> None:
        opened = [None if path is None else os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND) for path in streams]
        fields["env"] = {**os.environ, **fields["env"]}
        for name in fields["unset"]:
            fields["env"].pop(name, None)
        spec = WorkerSpec(argv=(), stdout=opened[0], stderr=opened[1], **fields)
        given = tuple(descriptor for descriptor in opened if descriptor is not None)
        assert self._wires[number].send(encode_spec(spec), given)
        for descriptor in given:
            os.close(descriptor)

    def close(self, number: int) -> None:
        self._wires[number].close()

    def wait(self, pid: int) -> int:
        signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
        status = os.waitpid(pid, 0)[1]
        signal.setitimer(signal.ITIMER_REAL, 0)
        return os.waitstatus_to_exitcode(status)


class SmallSupervisor:
    """One of these in a process of its own; what it starts runs in `folder`. A context manager, which leaves nobody."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # The workers' Python may be another than the agent's, and so may that of these tests.
        self.python = os.environ.get("MESHRUN_TEST_WORKERS_PYTHON") or sys.executable
        self.pid = 0
        self._token = secrets.token_hex(8)
        self._count = 0

    def __enter__(self) -> SmallSupervisor:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            cwd=REPOSITORY,
            env={**os.environ, TOKEN_VARIABLE: self._token},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid
        return self

    def __exit__(self, *_: object) -> None:
        kill_family(self._token)
        self._process.communicate()

    def ask(self, verb: str, *words: Any) -> Any:
        """Have it do something; what it answers."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([verb, *words]) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline() or '"the supervisor has ended"')

    # --- what tests do with it ---

    def start(
        self, modules: list[str], how: str, *words: str, flags: list[str] | None = None, **env: str | None
    ) -> Any:
        """Start the fork server; its first message. Output goes to the files `server.out` and `server.err`."""
        argv = [self.python, *(flags or []), "-u", fork_server.__file__, how, *words]
        self._how = how, *words
        self.server_pid = self.ask("start", argv, modules, env, str(self.folder), *self._streams("server"))
        return self.ask("hear", 0)

    def born(self, count: int = 1) -> list[tuple[int, int]]:
        """Order workers; of each the number of its socket and its pid."""
        numbers = self.ask("order", count)
        return [(number, self.ask("hear", number)[1]) for number in numbers]

    def release(self, number: int, *more: str, words: tuple[str, ...] = (), unset: list[str] | None = None, **env: str):  # type: ignore[no-untyped-def]
        """Let a worker go, with other words behind the script if there are some; the message if that failed."""
        warm = words or (*self._how[:2], *more) if more else words or self._how
        fields = {"local_rank": 0, "env": env, "unset": unset or [], "fork_argv": warm}
        self.ask("release", number, self._streams(f"warm{number}"), fields)
        return self.ask("hear", number)

    def run(self, *more: str, **env: str) -> tuple[int, str, str]:
        """A worker from birth to end: exit code, stdout, stderr."""
        ((number, pid),) = self.born()
        assert self.release(number, *more, **env) is None
        return self._ended(pid, f"warm{number}")

    def run_cold(
        self, how: str, *words: str, flags: list[str] | None = None, **env: str | None
    ) -> tuple[int, str, str]:
        """The same by exec."""
        self._count += 1
        argv = [self.python, *(flags or []), "-u", *BEGINNINGS[how], *words]
        pid = self.ask("cold", argv, env, str(self.folder), *self._streams(f"cold{self._count}"))
        return self._ended(pid, f"cold{self._count}")

    def output(self, name: str) -> tuple[str, str]:
        """What somebody has written: "server", or a worker by its socket's number: "warm1"."""
        stdout, stderr = (Path(path).read_text() for path in self._streams(name))
        return stdout, stderr

    def _ended(self, pid: int, name: str) -> tuple[int, str, str]:
        return (self.ask("wait", pid), *self.output(name))

    def _streams(self, name: str) -> tuple[str, str]:
        return str(self.folder / f"{name}.out"), str(self.folder / f"{name}.err")


if __name__ == "__main__":
    supervisor = _Supervisor()
    for line in sys.stdin:
        verb, *words = json.loads(line)
        print(json.dumps(getattr(supervisor, verb)(*words)), flush=True)
