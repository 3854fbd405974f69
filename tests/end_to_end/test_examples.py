"""The examples, as a user runs them beside meshrun; under it some run on the pages (test_docs.py)."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from tests.support.documents.pages import ROOT, blocks
from tests.support.jobs.examples import EXAMPLES, LIMIT_S, Run, accuracy, finish
from tests.support.modules import needs
from tests.support.waiting import wait_until


@needs("torch")
def test_what_torchrun_has_begun_to_train_goes_on_under_meshrun(tmp_path: Path) -> None:
    """Unmodified, and under torchrun with nothing of ours to import."""
    words = (str(EXAMPLES / "ddp_digits.py"), "--checkpoint", "saved")
    output = finish("torchrun", tmp_path, "--nproc-per-node=1", *words, "--epochs=1")
    assert "epoch 1 of 1" in output
    assert "test accuracy " in output
    assert os.listdir(tmp_path / "saved") == ["digits.pt"]
    warm = "--preload=torch,torch._dynamo,sklearn.datasets"  # one import for two workers
    output = finish("meshrun", tmp_path, warm, "--nproc-per-node=2", *words, "--epochs=2")
    assert "resumed after epoch 1 from saved/digits.pt" in output
    assert accuracy(output) > 0.8


@needs("torch")
def test_shards_that_two_workers_saved_are_loaded_after_a_kill_and_by_one_worker(tmp_path: Path) -> None:
    words = (str(EXAMPLES / "fsdp_digits.py"), "--checkpoint", "saved")
    with Run("meshrun", tmp_path, "--nproc-per-node=2", "--max-restarts=1", *words, "--epochs=12") as run:
        wait_until(lambda: list(tmp_path.glob("saved/*[0-9]")), LIMIT_S, "the first checkpoint")
        os.kill(run.worker(1), signal.SIGKILL)
        output = run.require()
    assert re.search(r"^resumed after epoch [0-9]+ with 2 workers$", output, re.MULTILINE), output
    assert os.listdir(tmp_path / "saved") == ["12"]
    output = finish("meshrun", tmp_path, "--nproc-per-node=1", *words, "--epochs=13")
    assert "resumed after epoch 12 with 1 worker\n" in output
    assert accuracy(output) > 0.9


def test_the_page_shows_the_functions_of_the_example() -> None:
    (shown,) = (block for block in blocks(ROOT / "docs/start/resumable.md") if "dcp.save" in block.text)
    example = (EXAMPLES / "fsdp_digits.py").read_text()
    imports, *functions = shown.text.split("\n\n\n")
    assert not [part for part in (*imports.splitlines(), *functions) if part not in example]


def tour(**environ: str) -> subprocess.CompletedProcess[str]:
    """The tour by itself, with these variables of a mesh."""
    bare = {name: value for name, value in os.environ.items() if not name.startswith("MESH_")}
    command = [sys.executable, EXAMPLES / "mesh_tour.py"]
    return subprocess.run(command, env={**bare, **environ}, capture_output=True, text=True, timeout=LIMIT_S)


def test_the_tour_needs_no_torch(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('not on this machine')")
    mesh = {"MESH_AXES": "pp,dp,tp", "MESH_SHAPE": "2,2,2", "MESH_COORDS": "1,0,1"}
    shown = tour(**mesh, RANK="5", WORLD_SIZE="8", LAUNCHER_ROUND="1", PYTHONPATH=str(tmp_path))
    assert shown.stdout == "rank 5: pp=1 dp=0 tp=1   groups: pp [1, 5]  dp [5, 7]  tp [4, 5]\n", shown.stderr


def test_the_tour_without_a_mesh_says_how_to_start_it() -> None:
    shown = tour()
    assert shown.returncode == 1
    assert shown.stderr == "there is no mesh in the environment: start this with meshrun\n"
