"""Runs a user's command of the shell that is told something: its stdin, its time, and what went wrong.

It writes to the agent's stderr. The program `timeout` ends one that takes longer, with its process group, also when
this agent is gone. What a command leaves in the background when it ends itself is its author's. It has the agent's
environment, without the job's secrets.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Mapping

from launcher.config.scrub import drop_secrets
from launcher.model.errors import UsageError


def require_timeout_program(label: str) -> None:
    """Raise UsageError if no command can be run. `label`: the option and its value."""
    if shutil.which("timeout") is None:
        raise UsageError(f"{label}: the program timeout is not on PATH", "install coreutils or busybox")


def run_command(command: str, line: bytes, limit_s: float, variables: Mapping[str, str]) -> str:
    """Run the command with a line on its stdin; return what went wrong, "" for nothing. Raises OSError.

    `variables`: added to its environment. The agent reaps its children, so the exit code comes as text.
    """
    script = f'timeout -k 1 {limit_s:g} sh -c "$1" >&2; echo $?'
    began_at = time.monotonic()
    words = ["sh", "-c", script, "sh", command]
    # In a session of its own: Ctrl-C is for the agent, and the event of the stop must still be told.
    done = subprocess.run(
        words,
        input=line + b"\n",
        stdout=subprocess.PIPE,
        start_new_session=True,
        env={**drop_secrets(os.environ), **variables},
    )
    code = done.stdout.strip().decode(errors="replace")
    if code in ("124", "137") and time.monotonic() - began_at >= limit_s:
        return f"it did not end within {limit_s:g} s"
    return "" if code == "0" else f"exit code {code or 'unknown'}"
