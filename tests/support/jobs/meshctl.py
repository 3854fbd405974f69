"""`meshctl` as a user of this machine runs it, beside jobs of tests."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

from tests.support.processes.tree import REPOSITORY

LIMIT_S = 60.0


def start(*words: object, **pipes: Any) -> subprocess.Popen[str]:
    """Start `meshctl WORDS`; what it writes is read by this process unless `pipes` say otherwise."""
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY), "HOME": "/nonexistent"}
    command = [sys.executable, "-m", "launcher.meshctl.main", *map(str, words)]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **pipes}
    return subprocess.Popen(command, env=environ, text=True, **streams)


def ask(*words: object, exit_code: int = 0) -> str:
    """What `meshctl WORDS` prints: on stderr if it fails, as it shall where there is an exit code."""
    with start(*words) as process:
        out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == exit_code, out + err
    return str(out if exit_code == 0 else err)
