"""The examples, as a user runs them: unmodified under torchrun and under meshrun."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.jobs.single_node import Command
from tests.support.processes.tree import REPOSITORY
from tests.support.waiting import wait_until

EXAMPLES = REPOSITORY / "examples"
LIMIT_S = 180.0

LAUNCHERS = {"meshrun": "launcher", "torchrun": "torch.distributed.run"}


class Run(Command):
    """An example under a launcher, as a user starts it."""

    def __init__(self, launcher: str, directory: Path, *words: str) -> None:
        command = [sys.executable, "-m", LAUNCHERS[launcher], "--standalone", *words]
        super().__init__(directory, command, {**os.environ, "PYTHONPATH": str(REPOSITORY)})

    @property
    def output(self) -> str:
        return self.stdout + self.stderr

    def worker(self, rank: int) -> int:
        """The pid of the worker with this rank."""
        for pid in self.left():
            with suppress(OSError):
                if f"RANK={rank}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    return pid
        raise AssertionError(f"no worker has rank {rank}:\n{self.output}")

    def require(self, exit_code: int = 0) -> str:
        """What it has printed, once it has ended with this exit code."""
        assert self.wait(LIMIT_S).exit_code == exit_code, self.output
        return self.output


def finish(launcher: str, directory: Path, *words: str) -> str:
    with Run(launcher, directory, *words) as run:
        return run.require()


def finish_after_kill(directory: Path, checkpoint: str, rank: int, *words: str) -> str:
    """What an example prints that loses the worker of this rank once it has saved, and goes on from there."""
    options = ("--nproc-per-node=2", "--max-restarts=1", *words, "--checkpoint", "saved")
    with Run("meshrun", directory, *options) as run:
        wait_until((directory / "saved" / checkpoint).exists, LIMIT_S, "the first checkpoint")
        os.kill(run.worker(rank), signal.SIGKILL)
        output = run.require()
    assert output.count("resumed after epoch") == 1
    assert accuracy(output) >= 0.95
    return output


def accuracy(output: str) -> float:
    found = re.search(r"^test accuracy ([0-9.]+), [0-9]+ samples/s$", output, re.MULTILINE)
    assert found, output
    return float(found.group(1))


def test_what_was_learned_under_torchrun_is_resumed_under_meshrun(tmp_path: Path) -> None:
    """From the beginning under meshrun: the next test. Resumed under torchrun: nothing of ours."""
    pytest.importorskip("torch")
    words = ("--nproc-per-node", "2", str(EXAMPLES / "ddp_digits.py"), "--checkpoint", "saved", "--epochs")
    first = finish("torchrun", tmp_path, *words, "3")
    assert "epoch 3 of 3" in first
    assert "resumed" not in first
    second = finish("meshrun", tmp_path, *words, "10")
    assert "resumed after epoch 3 from saved/digits.pt" in second
    assert "epoch 3 of 10" not in second
    assert accuracy(second) >= 0.95
    assert os.listdir(tmp_path / "saved") == ["digits.pt"]


# Not under torchrun 2.13: its next round meets the last one's addresses in the shared store, and gloo gives up.
def test_a_killed_worker_costs_an_epoch_at_most(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    output = finish_after_kill(tmp_path, "digits.pt", 1, str(EXAMPLES / "ddp_digits.py"), "--epochs", "40")
    trained = [int(number) for number in re.findall(r"^epoch ([0-9]+) of 40", output, re.MULTILINE)]
    assert sorted(set(trained)) == list(range(1, 41))
    assert len(trained) <= 41  # the epoch that was lost is trained again


def test_the_tour_shows_every_rank_in_one_block(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    output = finish("meshrun", tmp_path, "--nproc-per-node=4", "--mesh=dp=*,tp=2", str(EXAMPLES / "mesh_tour.py"))
    assert (
        "mesh dp=2 tp=2, round 1\n"
        "rank 0: dp=0 tp=0   groups: dp [0, 2]  tp [0, 1]\n"
        "rank 1: dp=0 tp=1   groups: dp [1, 3]  tp [0, 1]\n"
        "rank 2: dp=1 tp=0   groups: dp [0, 2]  tp [2, 3]\n"
        "rank 3: dp=1 tp=1   groups: dp [1, 3]  tp [2, 3]\n"
    ) in output


def test_the_tour_needs_no_torch(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('not on this machine')")
    mesh = {"MESH_AXES": "pp,dp,tp", "MESH_SHAPE": "2,2,2", "MESH_COORDS": "1,0,1"}
    environ = {**os.environ, **mesh, "RANK": "5", "WORLD_SIZE": "8", "LAUNCHER_ROUND": "1", "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, EXAMPLES / "mesh_tour.py"]
    shown = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    assert shown.stdout == "rank 5: pp=1 dp=0 tp=1   groups: pp [1, 5]  dp [5, 7]  tp [4, 5]\n"


def test_the_tour_without_a_mesh_says_how_to_start_it() -> None:
    bare = {name: value for name, value in os.environ.items() if not name.startswith("MESH_")}
    shown = subprocess.run(
        [sys.executable, EXAMPLES / "mesh_tour.py"], env=bare, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert shown.returncode == 1
    assert shown.stderr == "there is no mesh in the environment: start this with meshrun\n"
