"""Two nodes of which one rank ends while the others go on: what both say."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.support.jobs.single_node import Command
from tests.support.network.namespaces import free_port
from tests.support.processes.tree import REPOSITORY

AGENT = "from launcher.agent import composition; composition.UNFINISHED_S = 2.0; from launcher.cli import run; run()"
WORKER = """
import os, time
while os.environ["RANK"] != "0" and not os.path.exists("../go"):
    time.sleep(0.01)
"""


def test_both_nodes_name_the_rank_that_has_ended_and_those_that_still_run(tmp_path: Path) -> None:
    endpoint = f"127.0.0.1:{free_port('127.0.0.1')}"
    options = ("--nnodes=2", "--nproc-per-node=2", "--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}")
    nodes = []
    for name in ("a", "b"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "train.py").write_text(WORKER)
        command = [sys.executable, "-c", AGENT, *options, f"--node-name={name}", "train.py"]
        nodes.append(Command(folder, command, {**os.environ, "PYTHONPATH": str(REPOSITORY)}))
    with nodes[0] as first, nodes[1] as second:
        for node in (first, second):
            node.says("ended at least ")
        (tmp_path / "go").touch()
        for node in (first, second):
            assert node.wait().exit_code == 0
            said = [line for line in node.stderr.splitlines() if "ended at least " in line]
            assert len(said) == 1
            assert "ranks 1-3 on a, b still run: `meshctl why` shows what they do" in said[0]
