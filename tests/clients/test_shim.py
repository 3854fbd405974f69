"""Libraries started by a program that calls `torchrun` by name, with the link of the guide on PATH."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.running import PROGRAMS
from tests.support.jobs.examples import EXAMPLES, LIMIT_S, accuracy
from tests.support.jobs.single_node import Command

WHO = str(PROGRAMS / "who_started.py")


@pytest.fixture(autouse=True)
def search_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shim first, then the environment's own programs, torch's torchrun among them."""
    shims = tmp_path / "shims"
    shims.mkdir()
    path = f"{shims}:{sys.prefix}/bin:{os.environ['PATH']}"
    monkeypatch.setenv("PATH", path)
    (shims / "torchrun").symlink_to(Path(sys.prefix) / "bin" / "meshrun")


def call(directory: Path, *words: str) -> str:
    """All that a program printed that was found by its name, and ended with 0."""
    with Command(directory, words, os.environ) as run:
        ended = run.wait(LIMIT_S)
        assert ended.exit_code == 0, ended.stdout + ended.stderr
        return ended.stdout + ended.stderr


def started(output: str) -> Iterator[str]:
    return (line for line in sorted(output.splitlines()) if line.startswith("rank "))


def test_accelerate_trains_under_it(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    ours = "--mesh=dp=2"  # which torch's own torchrun refuses
    output = call(
        tmp_path, "torchrun", "--standalone", "--nproc_per_node=2", ours, str(EXAMPLES / "accelerate_digits.py")
    )
    assert accuracy(output) >= 0.95


@pytest.mark.parametrize(
    ("package", "words"),
    [
        ("torch", ("python", "-m", "torch.distributed.run", "--nproc_per_node=2")),
        ("accelerate", ("accelerate", "launch", "--multi_gpu", "--num_processes=2", "--num_machines=1")),
        ("lightning", ("fabric", "run", "--accelerator=cpu", "--devices=2")),
    ],
    ids=["torch.distributed.run", "accelerate launch", "fabric run"],
)  # fmt: skip
def test_a_launcher_that_imports_torchs_own_does_not_see_it(
    package: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    """What the guide says: these are replaced by meshrun, not by the shim."""
    pytest.importorskip(package)
    assert list(started(call(tmp_path, *words, WHO))) == ["rank 0 of 2 by torch", "rank 1 of 2 by torch"]
