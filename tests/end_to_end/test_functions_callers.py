"""`launcher.launch` from where people call it: scripts, modules, prompts; and callers that are stopped or killed."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.jobs.single_node import Command
from tests.support.processes.tree import REPOSITORY
from tests.support.waiting import wait_until

LIMIT_S = 60.0

SCRIPT = """
import os, sys
import launcher

class Point:
    def __init__(self, x):
        self.x = x

    def moved(self, by):
        return Point(self.x + by * int(os.environ["RANK"]))

if __name__ == "__main__":
    points = launcher.launch(Point(1).moved, 2, nproc=2)
    print([type(points[rank]) is Point and points[rank].x for rank in sorted(points)])
    print(launcher.launch(eval, "__import__('sys').argv[1:]"))
"""
IDLE = """
import os, sys, time
from pathlib import Path
import launcher

def idle(directory):
    (Path(directory) / f"{os.environ['RANK']}.part").rename(Path(directory) / os.environ["RANK"])
    time.sleep(1000)

if __name__ == "__main__":
    for rank in "01":
        (Path(sys.argv[1]) / f"{rank}.part").touch()
    launcher.launch(idle, sys.argv[1], nproc=2)
"""
TYPED = """
import launcher
class Point:
    def __init__(self, x):
        self.x = x

factor = 5
def make(x):
    import os
    return Point(x + factor * int(os.environ["RANK"]))

points = launcher.launch(make, 1, nproc=2)
print("points", [type(points[rank]) is Point and points[rank].x for rank in sorted(points)])
"""


class Caller(Command):
    """A Python in `directory` that launches something."""

    def __init__(self, directory: Path, *words: str, stdin: str = "", path: str = "") -> None:
        self.temporary = directory / "temporary"
        self.temporary.mkdir(exist_ok=True)
        paths = os.pathsep.join(filter(None, [path, str(REPOSITORY), os.environ.get("PYTHONPATH", "")]))
        # A shell has what it starts in the background ignore Ctrl-C, these tests too.
        command = ["env", "--default-signal=INT", sys.executable, *words]
        super().__init__(directory, command, {**os.environ, "PYTHONPATH": paths, "TMPDIR": str(self.temporary)}, stdin)

    def ended(self) -> tuple[int, str, str]:
        """Exit code, stdout and stderr, when it has ended and nothing is left."""
        ended = self.wait(LIMIT_S)
        self.wait_until_nobody_is_left(LIMIT_S)
        wait_until(lambda: not list(self.temporary.iterdir()), LIMIT_S, "the end of the call's directory")
        return ended


@pytest.fixture
def without_cloudpickle(tmp_path: Path) -> Iterator[str]:
    """A directory for the path that makes cloudpickle look as if it were not installed."""
    directory = tmp_path / "without"
    directory.mkdir()
    (directory / "cloudpickle.py").write_text("raise ImportError('not installed')\n")
    return str(directory)


@pytest.mark.parametrize("words", [("script.py",), ("-m", "script")])
def test_functions_and_classes_of_a_script_are_found_by_its_workers(
    tmp_path: Path, words: tuple[str, ...], without_cloudpickle: str
) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    with Caller(tmp_path, *words, "--rate", "0.1", path=without_cloudpickle) as caller:
        code, stdout, stderr = caller.ended()
    assert code == 0, stderr
    assert stdout.splitlines() == ["[1, 3]", "{0: ['--rate', '0.1']}"]


def test_what_was_typed_at_a_prompt_travels_by_value(tmp_path: Path) -> None:
    pytest.importorskip("cloudpickle")
    with Caller(tmp_path, "-i", "-q", stdin=TYPED) as caller:
        _, stdout, stderr = caller.ended()
    assert "points [1, 6]" in stdout, stderr


def test_without_cloudpickle_a_prompt_is_told_what_is_missing(tmp_path: Path, without_cloudpickle: str) -> None:
    with Caller(tmp_path, "-i", "-q", stdin=TYPED, path=without_cloudpickle) as caller:
        _, _, stderr = caller.ended()
    assert "UsageError: the call of make cannot be sent" in stderr
    assert "hint: run pip install cloudpickle" in stderr
    assert "meshrun: 2 workers" not in stderr


@pytest.mark.parametrize(("signum", "exit_code"), [(signal.SIGINT, -signal.SIGINT), (signal.SIGTERM, 143)])
def test_a_caller_that_is_told_to_stop_stops_all_workers_first(
    tmp_path: Path, signum: signal.Signals, exit_code: int
) -> None:
    (tmp_path / "script.py").write_text(IDLE)
    with Caller(tmp_path, "script.py", str(tmp_path)) as caller:
        wait_until(lambda: all((tmp_path / rank).exists() for rank in "01"), LIMIT_S, "two workers")
        caller.send(signum)
        code, _, stderr = caller.ended()
    assert code == exit_code
    assert f"{signum.name} is passed to the workers, which have 30 s" in stderr
    assert stderr.rstrip().endswith("KeyboardInterrupt") == (signum == signal.SIGINT)


def test_a_killed_caller_leaves_no_worker_and_no_directory(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(IDLE)
    with Caller(tmp_path, "script.py", str(tmp_path)) as caller:
        wait_until(lambda: all((tmp_path / rank).exists() for rank in "01"), LIMIT_S, "two workers")
        caller.send(signal.SIGKILL)
        assert caller.ended()[0] == -signal.SIGKILL
