"""Task files, read by SkyPilot itself: without a network, an account, or anything in the home directory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples" / "skypilot"
PAGE = Path(__file__).parents[2] / "docs" / "cluster" / "skypilot.md"
READ = """
import json, sys
import sky
task = sky.Task.from_yaml(sys.argv[1])
# Not Resources.accelerators, nor validate(), which ask for a list of all accelerators in the network.
print(json.dumps([task.name, task.num_nodes, str(task.resources), task.run]))
"""


def read(path: Path, home: Path) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "HOME": str(home), "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"}
    command = [sys.executable, "-c", READ, str(path)]
    return subprocess.run(command, cwd=home, env=environ, capture_output=True, text=True, timeout=120, check=False)


def read_well(path: Path, home: Path) -> tuple[str, int, str, str]:
    done = read(path, home)
    assert done.returncode == 0, done.stderr
    name, nodes, resources, run = json.loads(done.stdout.splitlines()[-1])
    return name, nodes, resources, run


def test_the_example_is_a_task_of_four_nodes(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    text = (EXAMPLES / "train.yaml").read_text()
    # A bucket of a name would be asked for in the network.
    lines = [line for line in text.splitlines() if not line.startswith(("file_mounts:", "  /checkpoints:"))]
    (tmp_path / "train.yaml").write_text("\n".join(lines))
    name, nodes, resources, run = read_well(tmp_path / "train.yaml", tmp_path)
    assert (name, nodes) == ("train", 4)
    assert "{'H100': 8}" in resources
    assert run.startswith("meshrun --nproc-per-node")


def test_the_page_s_tasks_are_tasks(tmp_path: Path) -> None:
    blocks = [part.partition("```")[0] for part in PAGE.read_text().split("```yaml\n")[1:]]
    assert blocks
    for block in blocks:
        (tmp_path / "task.yaml").write_text(block)
        assert "meshrun" in read_well(tmp_path / "task.yaml", tmp_path)[3]


@pytest.mark.parametrize("fault", ["num_node: 2", "num_nodes: two", "num_nodes: 0"])
def test_a_task_with_a_mistake_is_refused(tmp_path: Path, fault: str) -> None:
    """What is accepted above has been read."""
    (tmp_path / "task.yaml").write_text(f"{fault}\nrun: meshrun train.py\n")
    assert read(tmp_path / "task.yaml", tmp_path).returncode != 0
