"""The examples, unmodified under torchrun and under meshrun, as a user starts them."""

from __future__ import annotations

import os
import re
import signal
import sys
from contextlib import suppress
from pathlib import Path

from tests.support.jobs.single_node import Command
from tests.support.processes.tree import REPOSITORY
from tests.support.waiting import wait_until

EXAMPLES = REPOSITORY / "examples"
LIMIT_S = 180.0
LAUNCHERS = {"meshrun": "launcher", "torchrun": "torch.distributed.run"}


class Run(Command):
    """An example under a launcher."""

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
    """What an example has printed once it has ended well."""
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
    found = re.search(r"^test accuracy ([0-9.]+)(?:, [0-9]+ samples/s)?$", output, re.MULTILINE)
    assert found, output
    return float(found.group(1))
