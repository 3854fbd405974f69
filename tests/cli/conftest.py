"""What tests of the commands share: a directory to run in, an endpoint where nobody listens, and commands without a
process of their own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from launcher import cli
from launcher.extensions.ray import main as ray
from launcher.meshctl import main as meshctl
from tests.cli.running import Call, Outcome, is_ours
from tests.support.network.namespaces import free_port


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("print('it runs')\n")
    return tmp_path


@pytest.fixture
def nobody() -> str:
    return f"127.0.0.1:{free_port('127.0.0.1')}"


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """`run` in the process of the tests, for commands that start nothing: the same words, outcome and environment."""
    programs = {"meshrun": cli.main, "meshctl": meshctl.main, "meshrun-ray": ray.main}
    monkeypatch.setattr(cli, "protect_imports", lambda: None)

    def called(program: str, *words: str, cwd: Path | None = None, environ: Mapping[str, str] | None = None) -> Outcome:
        with pytest.MonkeyPatch.context() as patch:
            for name in filter(is_ours, list(os.environ)):
                patch.delenv(name)
            for name, value in (environ or {}).items():
                patch.setenv(name, value)
            if cwd is not None:
                patch.chdir(cwd)
            code = programs[program](words)
        return Outcome(code, *capfd.readouterr())

    return called
