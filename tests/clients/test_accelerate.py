"""Hugging Face accelerate: the scripts by which it tests itself, as they lie in its package, and our example.

Its documentation starts them with `accelerate launch`; here it is meshrun alone. ACCELERATE_USE_CPU is what
`accelerate launch --cpu` sets.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.clients.running import said
from tests.support.jobs.examples import EXAMPLES, finish_after_kill

pytest.importorskip("accelerate")

# The script, with how many workers, and the last thing that it says of itself. `test_script` is for two: with three its
# own tensors differ in shape, under torchrun as well.
SCRIPTS = [
    ("test_script", 2, "**Test reinstantiated state**"),
    ("test_ops", 2, "testing sending tensors across devices"),
    ("test_ops", 4, "testing sending tensors across devices"),
    ("test_sync", 2, "**Test `accumulate` gradient accumulation with optimizer and scheduler, "),
    ("test_sync", 3, "**Test `accumulate` gradient accumulation with optimizer and scheduler, "),
]
# These fail, or do not end, with processes on CPUs, under torchrun as well.
UNFIT = {
    "test_distributed_data_loop": "waits for ever: it joins uneven inputs on GPUs only",
    "test_ddp_comm_hook": "gives DistributedDataParallel the number of a GPU",
    "test_merge_weights": "ends with a KeyError within torch's first FSDP",
    "test_notebook": "starts processes of its own, on GPUs",
}


@pytest.mark.parametrize(("script", "workers", "words"), SCRIPTS, ids=[f"{name}-{count}" for name, count, _ in SCRIPTS])
def test_its_own_script_passes(
    script: str, workers: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    output = said(tmp_path, f"--nproc-per-node={workers}", "-m", f"accelerate.test_utils.scripts.{script}")
    assert words in output


@pytest.mark.parametrize("script", UNFIT)
def test_a_script_that_does_not_run_on_cpus_is_named(script: str) -> None:
    pytest.skip(f"{script} {UNFIT[script]}")


def test_the_example_goes_on_where_a_killed_worker_left_it(tmp_path: Path) -> None:
    finish_after_kill(tmp_path, "epoch-1", 1, str(EXAMPLES / "accelerate_digits.py"), "--epochs", "20")
    assert os.listdir(tmp_path / "saved") == ["epoch-20"]
