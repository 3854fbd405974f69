"""The Trainer of Hugging Face transformers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.clients.running import PROGRAMS, said

pytest.importorskip("transformers")
pytest.importorskip("accelerate")


def test_the_trainer_trains_one_model_with_two_workers(tmp_path: Path) -> None:
    output = said(tmp_path, "--nproc-per-node=2", str(PROGRAMS / "trainer.py"), str(tmp_path / "model"))
    found = re.findall(r"^workers 2, loss ([0-9.]+)$", output, re.MULTILINE)
    assert len(found) == 1
    assert float(found[0]) < 1.0
