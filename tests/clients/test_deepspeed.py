"""DeepSpeed's ZeRO on CPUs, over gloo."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clients.running import PROGRAMS, losses, said

pytest.importorskip("deepspeed")

BUILD_LIMIT_S = 900.0  # 76 s of CPU time


@pytest.fixture(scope="module")
def extensions() -> Path:
    """Where the compiled parts lie: in the environment, so that they are compiled once for it."""
    if not shutil.which("c++"):
        pytest.skip("DeepSpeed compiles its CPU operators, and there is no C++ compiler here")
    path = Path(sys.prefix) / "torch_extensions"
    if not list(path.glob("*/*.so")):
        shutil.rmtree(path, ignore_errors=True)  # the lock of one that was stopped
        words = {"TORCH_EXTENSIONS_DIR": str(path), "PATH": f"{sys.prefix}/bin:{os.environ['PATH']}"}
        command = [sys.executable, PROGRAMS / "deepspeed_build.py"]
        subprocess.run(command, env={**os.environ, **words}, check=True, timeout=BUILD_LIMIT_S)
    return path


@pytest.mark.parametrize("stage", [1, 3])
def test_zero_learns(stage: int, extensions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(extensions))
    monkeypatch.setenv("PATH", f"{sys.prefix}/bin:{os.environ['PATH']}")  # ninja
    first, last = losses(said(tmp_path, "--nproc-per-node=2", str(PROGRAMS / "deepspeed_zero.py"), str(stage)))
    assert last < first / 10
