"""What stands between the command and its first worker, as counts that are the same on every machine.

It grows by itself: an import here, a helper there. Each limit lies a little above what is needed today. Raise it where
what is new has to be there before a worker starts; most has not, and is imported where it is used.
`test_start_cpu` measures the CPU time that it costs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
LIBRARIES = sysconfig.get_path("platlib")

OURS_MAX = 114  # modules
SUPERVISOR_MAX = 16  # of them, with those of the keeper, which forks it
SOURCE_MAX = 748_000  # their bytes
LIBRARY_MAX = 48  # modules of Python's library that a bare Python has not loaded
COMPILED_MAX = 67  # texts: a named tuple of functools', one of selectors', and the types of the first records decoded

# What would be felt; click is the one that tempts.
HEAVY = frozenset({
    "argparse", "asyncio", "click", "dataclasses", "datetime", "email", "fractions", "grpc", "http",
    "importlib.metadata", "inspect", "logging", "numpy", "pathlib", "queue", "random", "shutil", "ssl", "subprocess",
    "tempfile", "torch", "traceback", "typing", "urllib", "uuid",
})  # fmt: skip
# Ours for which a run of one machine has no use.
ELSEWHERE = (
    "launcher.agent.startup.startup", "launcher.config.help", "launcher.agent.cluster", "rendezvous.driver.worker_pool",
    "rendezvous.peers.connections", "rendezvous.stores.etcd.store", "rendezvous.stores.server.server",
)  # fmt: skip

# A bare Python becomes the agent, and notes what has happened when it orders its workers. What msgspec loads is not
# counted: docs/internals/decisions/0032-msgspec-for-values-and-records.md has its cost.
AGENT = """
import json, os, sys
counts = {"forks": 0, "compiled": 0}

def note(event, arguments):
    if event == "compile" and not str(arguments[1]).endswith(".py"):
        counts["compiled"] += 1
    elif event in ("os.fork", "os.posix_spawn", "subprocess.Popen"):
        counts["forks"] += 1

root, libraries, report = sys.argv[1:4]
sys.path += [root, libraries]
import msgspec
before = set(sys.modules)
sys.addaudithook(note)
from launcher import cli
from launcher.supervisor.handle import Supervisor
spawn = Supervisor.spawn

def noted(*arguments):
    new = sorted(set(sys.modules) - before)
    counts["ours"] = [name for name in new if name.partition(".")[0] in ("launcher", "rendezvous")]
    counts["library"] = [name for name in new if name not in counts["ours"]]
    counts["source"] = sum(os.path.getsize(sys.modules[name].__file__) for name in counts["ours"])
    with open(report, "w") as file:
        json.dump(counts, file)
    Supervisor.spawn = spawn
    spawn(*arguments)

Supervisor.spawn = noted
sys.exit(cli.main(sys.argv[4:]))
"""


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A job of two workers with the options that are usual on one machine."""
    place = tmp_path_factory.mktemp("start")
    (place / "train.py").touch()
    options = ["--standalone", "--nproc-per-node=2", "--mesh=dp=2", f"--log-dir={place / 'logs'}", "train.py", "--lr=1"]
    command = [sys.executable, "-I", "-S", "-c", AGENT, str(ROOT), LIBRARIES, str(place / "counts.json"), *options]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("LAUNCHER_", "PET_"))}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=place, env=environment)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads((place / "counts.json").read_text())
    return found


def test_the_way_to_a_worker_imports_nothing_heavy(start: dict[str, Any]) -> None:
    assert "launcher.agent.loop" in start["ours"]
    assert HEAVY.isdisjoint(start["library"])
    assert not [name for name in start["ours"] if name.startswith(ELSEWHERE)]


def test_the_way_to_a_worker_is_no_longer_than_it_was(start: dict[str, Any]) -> None:
    assert len(start["ours"]) <= OURS_MAX
    assert start["source"] <= SOURCE_MAX
    assert len(start["library"]) <= LIBRARY_MAX


def test_no_source_text_is_made_and_compiled_on_the_way_to_a_worker(start: dict[str, Any]) -> None:
    assert start["compiled"] <= COMPILED_MAX


def test_the_keeper_alone_is_forked_before_the_workers_are_ordered(start: dict[str, Any]) -> None:
    # It forks the supervisor, beside the agent, and with what both need already loaded.
    assert start["forks"] == 1


def test_the_supervisor_loads_no_more_than_it_needs_to_fork_workers() -> None:
    program = (
        "import sys; sys.path += sys.argv[1:]; import msgspec; before = set(sys.modules)\n"
        "import launcher.supervisor.loop\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    command = [sys.executable, "-I", "-S", "-c", program, str(ROOT), LIBRARIES]
    loaded = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.split()
    assert HEAVY.isdisjoint(loaded)
    assert len([name for name in loaded if name.startswith(("launcher", "rendezvous"))]) <= SUPERVISOR_MAX
