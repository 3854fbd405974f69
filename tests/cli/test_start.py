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

OURS_MAX = 115  # modules, with those of keeper and supervisor, which are forked from this process
SUPERVISOR_MAX = 17  # of them
SOURCE_MAX = 770_146  # their bytes
LIBRARY_MAX = 40  # modules of Python's library and of msgspec that a bare Python has not loaded
COMPILED_MAX = 4  # texts: a named tuple of functools'

# What would be felt; click is the one that tempts.
HEAVY = frozenset({
    "argparse", "asyncio", "click", "dataclasses", "datetime", "email", "fractions", "grpc", "http",
    "importlib.metadata", "inspect", "json", "logging", "msgspec._json_schema", "msgspec.inspect", "numpy", "pathlib",
    "platform", "queue", "random", "shutil", "socket", "ssl", "subprocess", "tempfile", "threading", "torch",
    "traceback", "typing_extensions", "urllib",
})  # fmt: skip
# Ours for which a run of one machine has no use.
ELSEWHERE = (
    "launcher.diagnosis.part", "launcher.agent.startup.startup", "launcher.config.help", "launcher.agent.cluster",
    "launcher.extensions.",
    "launcher.views.questions.local_socket", "launcher.placement.capacity", "launcher.placement.planner",
    "rendezvous.driver.worker_pool",
    "rendezvous.peers.connections", "rendezvous.stores.etcd.store", "rendezvous.stores.server.server",
)  # fmt: skip

# A bare Python becomes the agent, and notes what has happened when it orders its workers.
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


def list_loaded(statements: str) -> set[str]:
    """Return what a bare Python has loaded after these import statements, and not before."""
    program = f"import sys; sys.path += sys.argv[1:]; before = set(sys.modules); {statements}"
    command = [sys.executable, "-I", "-S", "-c", f"{program}; print(*set(sys.modules) - before)", str(ROOT), LIBRARIES]
    return set(subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.split())


def test_the_watch_over_workers_that_run_imports_nothing_heavy() -> None:
    loaded = list_loaded(
        "from launcher.model.lean_import import import_msgspec; import_msgspec(); "
        "import launcher.agent.build, launcher.diagnosis.part.node_progress, launcher.hardware.cloud_firmware"
    )
    assert "launcher.diagnosis.part.node_progress" in loaded
    assert HEAVY.isdisjoint(loaded)


def test_keeper_and_supervisor_have_no_more_than_they_need_to_fork_workers() -> None:
    """They are forked once this is imported; each page of it that one of the three changes exists once more."""
    loaded = list_loaded("import launcher.supervisor.keeper")
    assert HEAVY.isdisjoint(loaded)
    assert {"enum", "msgspec", "re", "signal", "typing"}.isdisjoint(loaded)
    assert len([name for name in loaded if name.startswith(("launcher", "rendezvous"))]) <= SUPERVISOR_MAX


def test_msgspec_is_whole_though_little_of_it_is_loaded_at_first() -> None:
    program = """
import sys; sys.path += sys.argv[1:]
from launcher.model.lean_import import import_msgspec
import_msgspec()
import datetime, decimal, platform, typing_extensions, uuid, msgspec
values = [datetime.date(2026, 1, 5), decimal.Decimal("1.5"), uuid.UUID(int=7)]
assert msgspec.json.decode(msgspec.json.encode(values)) == ["2026-01-05", "1.5", str(values[2])]
assert msgspec.convert("2026-01-05", datetime.date) == values[0]
assert msgspec.json.schema(list[int]) == {"type": "array", "items": {"type": "integer"}}
assert msgspec.inspect.type_info(int) == msgspec.inspect.IntType()
assert msgspec.msgpack.decode(msgspec.msgpack.encode({"a": 1})) == {"a": 1}
assert msgspec.toml.decode(b"a = 1") == {"a": 1} if sys.version_info >= (3, 11) else True
assert platform.python_version() and typing_extensions.TypedDict and msgspec.yaml.encode
"""
    command = [sys.executable, "-I", "-S", "-c", program, str(ROOT), LIBRARIES]
    assert subprocess.run(command, timeout=60).returncode == 0
