"""Which process opens the socket of torch's flight recorder, and what nobody may notice of it. torch is a stand-in."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.ranks.spec_builder import _AS_MAIN, _HOOK
from launcher.worker import recorder

ROOT = Path(__file__).parents[2]
LIBRARY = """
import os, signal, sys, types
class _WorkerServer:
    def __init__(self, path):
        os.write(2, b"[W] [c10d] Server listening to UNIX x\\nanother line\\n")
        with open(path, "a") as file:
            file.write(f"opened, SIGTERM blocked: {signal.SIGTERM in signal.pthread_sigmask(0, ())}\\n")
    def __del__(self):
        os.write(2, b"destroyed\\n")
library = sys.modules["torch._C._distributed_c10d"] = types.ModuleType("torch._C._distributed_c10d")
library._WorkerServer = _WorkerServer
"""
OPENED = "opened, SIGTERM blocked: True\n"


def run(
    script: str, path: Path, *, library: str = LIBRARY, leads: bool = True, python_path: str = "", how: str = "-c"
) -> subprocess.CompletedProcess[str]:
    """Run a script as a worker; `torch.distributed` is this library."""
    package = path.parent / "packages" / "torch" / "distributed"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    (package / "__init__.py").write_text(f"{library}\nimport torch.distributed.distributed_c10d\n")
    (package / "distributed_c10d.py").touch()
    search = [python_path, str(package.parents[1]), str(ROOT), *filter(None, sys.path)]
    (path.parent / "script.py").write_text(script)
    words = ["-c", script] if how == "-c" else [_AS_MAIN, "script", str(path.parent / "script.py")]
    return subprocess.run(
        [sys.executable, *words],
        env={"PATH": "/bin", "PYTHONPATH": os.pathsep.join(filter(None, search)), recorder.VARIABLE: str(path)},
        start_new_session=leads,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


CALLS = (
    "heartbeat()", "stop_requested()", "checkpoint_saved()", "mesh()", "progress(1)",
    "phase('a', limit_s=1).__enter__()",
)  # fmt: skip


@pytest.mark.parametrize("call", CALLS)
def test_a_call_opens_the_socket_once_torch_is_there_and_only_once(call: str, tmp_path: Path) -> None:
    text = f"""
import os, signal, sys
os.environ["RANK"] = "0"; os.environ["WORLD_SIZE"] = "1"
from launcher.worker import *
{call}
assert "torch" not in sys.modules and {recorder.VARIABLE!r} in os.environ
import torch.distributed
for _ in range(3): {call}
assert {recorder.VARIABLE!r} not in os.environ
assert not signal.pthread_sigmask(0, ())
"""
    done = run(text, tmp_path / "socket")
    assert (done.returncode, done.stderr) == (0, "another line\n")
    assert (tmp_path / "socket").read_text() == OPENED


CHILDREN = {
    "fork": "pid = os.fork()\nif pid == 0: heartbeat()\nelse: os.waitpid(pid, 0)",
    "another Python": "import subprocess; subprocess.run([sys.executable, '-c', 'import torch.distributed\\n"
    "from launcher.worker import heartbeat; heartbeat()'], check=True)",
}


@pytest.mark.parametrize("child", CHILDREN.values(), ids=CHILDREN)
def test_a_child_of_the_worker_does_not_open_it(child: str, tmp_path: Path) -> None:
    text = f"import os, sys, torch.distributed\nfrom launcher.worker import heartbeat\n{child}"
    done = run(text, tmp_path / "socket")
    assert (done.returncode, done.stderr, (tmp_path / "socket").exists()) == (0, "", False)


@pytest.mark.parametrize(
    "library",
    [
        LIBRARY.replace("library._WorkerServer = _WorkerServer", ""),
        LIBRARY.replace("def __init__(self, path)", "def __init__(self)"),
        LIBRARY.replace('os.write(2, b"[W]', 'raise RuntimeError; os.write(2, b"[W]'),
    ],
    ids=["without", "other arguments", "raises"],
)
def test_a_torch_that_cannot_is_no_matter(library: str, tmp_path: Path) -> None:
    text = "import torch.distributed\nfrom launcher.worker import heartbeat; heartbeat()"
    done = run(text, tmp_path / "socket", library=library.replace('os.write(2, b"destroyed\\n")', "pass"))
    assert (done.returncode, done.stderr, (tmp_path / "socket").exists()) == (0, "", False)


def test_where_stderr_is_closed_the_socket_opens_all_the_same(tmp_path: Path) -> None:
    library = LIBRARY.replace('os.write(2, b"[W]', 'b"" and os.write(2, b"[W]')
    text = "import os, torch.distributed; os.close(2)\nfrom launcher.worker import heartbeat; heartbeat()"
    assert run(text, tmp_path / "socket", library=library).returncode == 0
    assert (tmp_path / "socket").read_text() == OPENED


@pytest.mark.parametrize(("limit", "has_room"), [("max", True), ("1000000", True), ("110", False)])
def test_without_room_for_its_threads_it_is_not_opened(
    limit: str, has_room: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "_CGROUPS", str(tmp_path))
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, name = line.split(":", 2)
        folder = Path(f"{tmp_path}/{controllers}{name}")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "pids.max").write_text(f"{limit}\n")
        (folder / "pids.current").write_text("100\n")
    assert recorder._has_room() is has_room


@pytest.mark.parametrize(("left", "has_room"), [(None, True), (1_000_000, True), (60, True), (50, False)])
def test_without_room_among_the_users_processes_it_is_not_opened(
    left: int | None, has_room: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "_CGROUPS", str(tmp_path))
    monkeypatch.setattr(recorder, "_count_own_threads", lambda: 100)
    monkeypatch.setattr(recorder, "_count_all_threads", lambda: 300)  # with those of other users
    monkeypatch.setattr(os, "cpu_count", lambda: 10)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")  # 30 threads, and as much for what the script starts
    limit = resource.RLIM_INFINITY if left is None else 100 + left
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (limit, limit))
    assert recorder._has_room() is has_room


def test_the_users_threads_are_counted() -> None:
    assert recorder._count_all_threads() >= recorder._count_own_threads() >= len(os.listdir("/proc/self/task"))


def test_a_worker_opens_it_with_the_import_and_no_call(tmp_path: Path) -> None:
    text = f"""
import os, sys
before = [one for one in sys.meta_path if getattr(one, "__name__", "") == "torch"]
import json.tool
assert before and {recorder.VARIABLE!r} in os.environ
class Next:
    seen = []
    def find_spec(self, name, *_):
        self.seen.append(name)
sys.meta_path.insert(sys.meta_path.index(before[0]) + 1, Next())
import torch.distributed
assert {recorder.VARIABLE!r} not in os.environ
assert "torch.distributed.distributed_c10d" in Next.seen, "the finder that comes next is asked, too"
"""
    done = run(text, tmp_path / "socket", how="as_main")
    assert (done.returncode, done.stderr) == (0, "another line\n")
    assert (tmp_path / "socket").read_text() == OPENED


def test_the_hook_opens_it_with_the_import_and_leaves_no_trace(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "sitecustomize.py").write_text("import sys; sys.users = True")
    text = f"""
import os, sys
assert sys.users and not any({_HOOK!r} in entry for entry in [*sys.path, os.environ["PYTHONPATH"]])
assert not os.path.exists(os.environ["LAUNCHER_RECORDER_SOCKET"])
import torch.distributed
assert {recorder.VARIABLE!r} not in os.environ
"""
    done = run(text, tmp_path / "socket", python_path=os.pathsep.join((_HOOK, str(other))))
    assert (done.returncode, done.stderr) == (0, "another line\n")
    assert (tmp_path / "socket").read_text() == OPENED


def test_under_the_hook_an_error_of_the_users_own_is_told(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "sitecustomize.py").write_text("import not_there")
    done = run("print('runs')", tmp_path / "socket", python_path=os.pathsep.join((_HOOK, str(other))))
    assert done.stdout == "runs\n"
    assert "No module named 'not_there'" in done.stderr


def test_under_the_hook_a_child_of_the_worker_is_as_without(tmp_path: Path) -> None:
    done = run("import torch.distributed", tmp_path / "socket", leads=False, python_path=_HOOK)
    assert (done.returncode, done.stderr, (tmp_path / "socket").exists()) == (0, "", False)
