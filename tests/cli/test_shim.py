"""The lines of the guide that make `torchrun` start meshrun, and what a program finds that calls it by its name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.cli.running import LIMIT_S
from tests.support.documents.pages import ROOT, blocks

GUIDE = ROOT / "docs" / "cluster" / "torchrun-programs.md"
CALL = "exec torchrun --standalone --nproc_per_node=2 --tee=3 train.py"  # as a program does that knows only its name


def test_a_program_that_calls_torchrun_starts_meshrun(tmp_path: Path) -> None:
    directory, other = tmp_path / "a b", tmp_path / "other"
    (directory / "launcher").mkdir(parents=True)
    (directory / "launcher" / "__init__.py").write_text("import sys; sys.exit('imported from beside the script')\n")
    (directory / "train.py").write_text("import os; print('rank', os.environ['RANK'], os.environ['MESH_AXES'])\n")
    other.mkdir()
    (other / "torchrun").write_text("#!/bin/sh\necho the real one\n")
    (other / "torchrun").chmod(0o755)
    (lines,) = (block.text for block in blocks(GUIDE) if "ln -s" in block.text)
    environ = {**os.environ, "PATH": f"{other}:{Path(sys.executable).parent}:/usr/bin:/bin"}
    done = subprocess.run(
        ["/bin/sh", "-ec", f"{lines}{CALL}"], cwd=directory, env=environ, capture_output=True, text=True,
        timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[default0]:rank 0 dp", "[default1]:rank 1 dp"]


def test_nothing_registers_entry_points_that_switch_off_those_of_torchx() -> None:
    """A package with one of them takes all built-in schedulers or components from TorchX: pytorch/torchx issue 1009."""
    text = (ROOT / "pyproject.toml").read_text()
    groups = [line for line in text.splitlines() if line.startswith("[project.entry-points.")]
    assert groups
    assert not [group for group in groups if "torchx" in group]
