"""One command line under one launcher, and all that can be seen of it afterwards.

A case of the table is run twice: by torchrun and by meshrun, in a directory and an environment that know nothing of
who it is. What is looked at is a short text made from a `Seen`, so that two launchers can be compared by it and a
person can read it on the page of differences.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.support.network.namespaces import free_port
from tests.support.processes.tree import TOKEN_VARIABLE, family, kill_family
from tests.support.waiting import wait_until

LAUNCHERS = ("torchrun", "meshrun")
MODULES = {"torchrun": "torch.distributed.run", "meshrun": "launcher"}
LIMIT_S = 150.0

# What a worker writes down of itself. It imports next to nothing: most of what a run costs is then the launcher's.
DUMP = """\
import json, os, sys
def dump(**more):
    environ = os.environ
    name = "worker-{RANK}-{TORCHELASTIC_RESTART_COUNT}-".format_map(environ) + str(os.getpid())
    seen = dict(argv=sys.argv, name=__name__, path=sys.path[0], cwd=os.getcwd(), environ=dict(environ),
                pid=os.getpid(), session=os.getsid(0), unbuffered=sys.stdout.write_through, **more)
    with open(name + ".part", "w") as file:
        json.dump(seen, file)
    os.rename(file.name, file.name[:-len(".part")])
dump()
"""
# The same, and what most scripts for several rounds or nodes need.
TOOLS = (
    DUMP
    + """\
import signal, time
RANK, RESTART = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
def mark(what, text=""):
    with open(what + ".part", "w") as file:
        file.write(str(text))
    os.rename(what + ".part", what)
def wait_for(name):
    while not os.path.exists(name):
        time.sleep(0.01)
"""
)


def tools(code: str) -> str:
    """A script that has these tools."""
    return TOOLS + code


@dataclass(frozen=True, kw_only=True)
class Case:
    """A command line, and what torchrun does with it.

    `options` and `target` are words with blanks between them; there and in `environ` {port} is a free port, {agent}
    the agent's number. `agents`: further options of each agent that is started, one agent by default. `script`
    becomes train.py, `files` lie beside it. `is_bare`: the environment is `environ` alone. `modules`: what is run for
    a launcher that is not its usual command. `act` is done while the agents run. `looks`: a sentence that names a
    behaviour -> how it is seen, and what torchrun shows. Where meshrun shows something else, the sentence is in the
    list of differences.
    """

    name: str
    looks: Mapping[str, tuple[Callable[[Seen], str], str]]
    options: str | tuple[str, ...] = ""
    target: str | tuple[str, ...] = "train.py"
    script: str = DUMP
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)
    is_bare: bool = False
    agents: tuple[str, ...] = ("",)
    stdin: bytes = b""
    act: Callable[[Running], None] | None = None
    modules: Mapping[str, str] = field(default_factory=dict)


See = Callable[["Seen"], str]
Look = tuple[str, See, str]


def case(name: str, options: str | tuple[str, ...], *looks: Look, **more: Any) -> Case:
    """A row of the table. A look: a sentence that names a behaviour, how it is seen, and what torchrun shows."""
    return Case(name=name, options=options, looks={sentence: (see, shown) for sentence, see, shown in looks}, **more)


class Running:
    """The agents of one case under one launcher; at the end every process of it is killed by pid."""

    def __init__(self, case: Case, launcher: str, directory: Path) -> None:
        self.case, self.launcher, self.directory = case, launcher, directory
        self.port = free_port("127.0.0.1")
        self.agents: list[subprocess.Popen[bytes]] = []
        self._token = secrets.token_hex(8)
        (directory / "train.py").write_text(case.script)
        for name, content in case.files.items():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).write_bytes(content if isinstance(content, bytes) else content.encode())
            if content[:2] == "#!":
                (directory / name).chmod(0o755)
        (directory / "tmp").mkdir()
        (directory / "stdin").write_bytes(case.stdin)

    def __enter__(self) -> Running:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        kill_family(self._token)
        for agent in self.agents:
            agent.wait()

    def start(self, more: str = "") -> None:
        """Start one more agent, with options of its own behind those of the case."""
        case, number = self.case, len(self.agents)
        module = case.modules.get(self.launcher, MODULES[self.launcher])
        words = [*_words(case.options), *_words(more), *_words(case.target)]
        words = [self._filled(word) for word in words]
        with (
            (self.directory / f"stdout-{number}").open("wb") as stdout,
            (self.directory / f"stderr-{number}").open("wb") as stderr,
            (self.directory / "stdin").open("rb") as stdin,
        ):
            self.agents.append(
                subprocess.Popen(
                    [sys.executable, "-m", module, *words],
                    cwd=self.directory,
                    env=self.environ(),
                    stdin=stdin,
                    stdout=stdout,
                    stderr=stderr,
                )
            )

    def environ(self) -> dict[str, str]:
        """What the agents have in their environment; nothing of the test's own but the mark of its processes."""
        usual = {"PATH": os.environ["PATH"], "HOME": str(self.directory), "TMPDIR": str(self.directory / "tmp")}
        if "PYTHONPATH" in os.environ:
            usual["PYTHONPATH"] = os.environ["PYTHONPATH"]
        usual |= {"LAUNCHER_LOG_TIMES": "off"}
        given = {name: self._filled(value) for name, value in self.case.environ.items()}
        return {**({} if self.case.is_bare else usual), **given, TOKEN_VARIABLE: self._token}

    def _filled(self, text: str) -> str:
        return text.replace("{port}", str(self.port)).replace("{agent}", str(len(self.agents)))

    def has(self, pattern: str) -> bool:
        return any(self.directory.glob(pattern))

    @property
    def is_over(self) -> bool:
        return all(agent.poll() is not None for agent in self.agents)

    def wait_for(self, pattern: str, count: int = 1) -> list[Path]:
        """Wait until so many files of this pattern are there."""

        def are_there() -> list[Path]:
            found = sorted(path for path in self.directory.glob(pattern) if path.suffix != ".part")
            if len(found) >= count:
                return found
            assert not self.is_over, f"ended before {pattern}:\n{self.said()}"
            return []

        return wait_until(are_there, LIMIT_S, pattern)

    def pids(self, count: int) -> list[int]:
        """The workers' process ids, when so many have dumped, in the order of their ranks."""
        dumps = [json.loads(path.read_text()) for path in self.wait_for("worker-*", count)]
        return [dump["pid"] for dump in sorted(dumps, key=lambda dump: int(dump["environ"]["RANK"]))]

    def signal(self, agent: int, number: int) -> None:
        self.agents[agent].send_signal(number)

    def mark(self, name: str) -> None:
        """Make a file that workers wait for."""
        (self.directory / name).touch()

    def end(self, agent: int = 0) -> int:
        """Wait for an agent's end; its exit code."""
        try:
            return self.agents[agent].wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {LIMIT_S:g} s:\n{self.said()}") from None

    def said(self) -> str:
        texts = sorted(self.directory.glob("std*-*"))
        return "".join(f"--- {path.name}\n{path.read_text(errors='backslashreplace')}" for path in texts)

    def seen(self) -> Seen:
        """Wait for the end of all agents, and look."""
        codes = tuple(self.end(agent) for agent in range(len(self.agents)))
        return Seen(self, codes, self.left())

    def left(self) -> list[int]:
        """Who of the family outlives the agents: those that are still there after a few seconds."""
        with suppress(AssertionError):
            wait_until(lambda: not family(self._token), 5.0)
        return family(self._token)


class Seen:
    """What is left of a run when its agents have ended."""

    def __init__(self, running: Running, codes: tuple[int, ...], left: list[int]) -> None:
        self.launcher, self.directory, self.codes, self.port = running.launcher, running.directory, codes, running.port
        self.said = running.said()
        self.left = left
        self.stdout = self._read("stdout-*")
        self.stderr = self._read("stderr-*")
        dumps = [json.loads(path.read_text()) for path in sorted(self.directory.glob("worker-*"), key=_age)]
        self.workers: list[dict[str, Any]] = sorted(dumps, key=lambda dump: int(dump["environ"]["RANK"]))

    def _read(self, pattern: str) -> bytes:
        return b"".join(path.read_bytes() for path in sorted(self.directory.glob(pattern)))

    @property
    def out(self) -> str:
        return self.stdout.decode(errors="backslashreplace")

    @property
    def err(self) -> str:
        return self.stderr.decode(errors="backslashreplace")

    def worker(self, rank: int = 0) -> dict[str, Any]:
        """What this rank wrote down, the last time if it was started again."""
        for dump in reversed(self.workers):
            if int(dump["environ"]["RANK"]) == rank:
                return dump
        raise AssertionError(f"rank {rank} wrote nothing down:\n{self.said}")

    def environ(self, name: str, rank: int = 0) -> str:
        return str(self.worker(rank)["environ"].get(name, "(not set)"))

    def file(self, name: str) -> str:
        path = self.directory / name
        return path.read_text(errors="backslashreplace") if path.exists() else "(no such file)"

    def logs(self) -> dict[str, str]:
        """The workers' files below the directory of the run, which is the only one in logs: path -> content."""
        runs = [path for path in (self.directory / "logs").iterdir() if not path.is_symlink()]  # meshrun's `latest-run`
        assert len(runs) == 1, f"{runs}\n{self.said}"
        found = [path for path in sorted(runs[0].glob("attempt_*/**/*")) if path.is_file()]
        return {str(path.relative_to(runs[0])): path.read_text(errors="backslashreplace") for path in found}


def run(case: Case, launcher: str, directory: Path) -> Seen:
    """Run a case to its end."""
    with Running(case, launcher, directory) as running:
        for more in case.agents:
            running.start(more)
        if case.act is not None:
            case.act(running)
        return running.seen()


def _words(text: str | tuple[str, ...]) -> list[str]:
    return text.split() if isinstance(text, str) else list(text)


def _age(path: Path) -> int:
    return path.stat().st_mtime_ns
