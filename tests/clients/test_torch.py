"""torch's own ways of parallel training, on gloo: DistributedDataParallel, FSDP2, a DeviceMesh."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.clients.running import PROGRAMS, losses, said
from tests.support.jobs.examples import EXAMPLES, accuracy

pytest.importorskip("torch")


def test_ddp_learns_the_same_with_three_workers(tmp_path: Path) -> None:
    output = said(tmp_path, "--nproc-per-node=3", str(EXAMPLES / "ddp_digits.py"))
    assert accuracy(output) >= 0.95


def test_fsdp2_cuts_the_parameters_and_learns(tmp_path: Path) -> None:
    output = said(tmp_path, "--nproc-per-node=4", str(PROGRAMS / "fsdp2.py"))
    first, last = losses(output)
    assert last < first / 10
    found = re.search(r"^rank 0 holds ([0-9]+) of ([0-9]+)$", output, re.MULTILINE)
    assert found
    assert int(found[1]) < 0.3 * int(found[2])


def test_a_device_mesh_of_the_declared_shape_has_the_launchers_coordinates(tmp_path: Path) -> None:
    output = said(tmp_path, "--nproc-per-node=4", "--mesh=dp=*,tp=2", str(PROGRAMS / "device_mesh_tp.py"))
    found = re.search(r"^rank 0 holds 32 of 64 rows, distance ([0-9.e+-]+)$", output, re.MULTILINE)
    assert found
    assert float(found[1]) < 1e-5
