"""Run the real commands and read what they print."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

LIMIT_S = 60.0


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


Call = Callable[..., Outcome]
"""What the fixture `call` is: `run` without a process."""


def is_ours(name: str) -> bool:
    """Whether a variable sets options of ours, or the width of what is printed; not that lines have no times here."""
    if name == "LAUNCHER_LOG_TIMES":
        return False
    return name.startswith(("LAUNCHER_", "PET_", "PYTHON", "TORCH")) or name in ("COLUMNS", "LINES")


def run(*words: str, cwd: Path | None = None, environ: Mapping[str, str] | None = None) -> Outcome:
    """Run a command of this Python's environment ("meshrun", "meshctl", "python") to its end.

    Variables that set our options are not inherited; `environ` is added to the rest.
    """
    inherited = {name: value for name, value in os.environ.items() if not is_ours(name)}
    program = sys.executable if words[0] == "python" else os.path.join(os.path.dirname(sys.executable), words[0])
    done = subprocess.run(
        [program, *words[1:]],
        cwd=cwd,
        env={**inherited, "LAUNCHER_LOG_TIMES": "off", **(environ or {})},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)
