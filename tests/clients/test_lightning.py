"""Lightning Fabric, which takes its ranks from torchrun's variables."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clients.running import PROGRAMS, losses, said

pytest.importorskip("lightning")


def test_fabric_trains_by_the_ranks_of_the_launcher(tmp_path: Path) -> None:
    output = said(tmp_path, "--nproc-per-node=2", str(PROGRAMS / "fabric_ddp.py"))
    assert "TorchElasticEnvironment, workers 2, mesh dp\n" in output
    first, last = losses(output)
    assert last < first / 10
