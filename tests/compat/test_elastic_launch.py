"""`launcher.launch` beside torch's own `elastic_launch`: the same function, called in the same way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes.tree import REPOSITORY

pytest.importorskip("torch")

LIMIT_S = 180.0

BOTH = """
import os, sys, json
import launcher

def work(word):
    if word == "fail":
        raise ValueError(f"no such word, {os.environ['LOCAL_RANK']}")
    return f"{word} of {os.environ['RANK']} of {os.environ['WORLD_SIZE']} in {os.environ['ROLE_NAME']}"

def theirs(word, nproc):
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=nproc, run_id="run", role="trainer", max_restarts=0,
        rdzv_backend="c10d", rdzv_endpoint="localhost:0",
    )
    try:
        return sorted(elastic_launch(config, work)(word).items())
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        return [rank, failure.local_rank, failure.exitcode, failure.message["message"], failure.error_file != ""]

def ours(word, nproc):
    try:
        return sorted(launcher.launch(work, word, nproc=nproc, rdzv_id="run", role="trainer").items())
    except launcher.WorkerFailed as error:
        said = error.traceback.splitlines()[-1]
        return [error.rank, error.local_rank, error.exit_code, said, bool(error.traceback)]

if __name__ == "__main__":
    print(json.dumps([[launch(*args) for args in (("a word", 2), ("fail", 1))] for launch in (theirs, ours)]))
"""


def test_launch_gives_what_elastic_launch_gives(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(BOTH)
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stderr
    theirs, ours = json.loads(done.stdout.splitlines()[-1])
    assert theirs[0] == [[rank, f"a word of {rank} of 2 in trainer"] for rank in range(2)]
    assert theirs[1] == [0, 0, 1, "ValueError: no such word, 0", True]
    assert ours == theirs
