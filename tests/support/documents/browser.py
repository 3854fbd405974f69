"""A real browser for tests: Debian's chromium without a window, in a directory of its own, with a time limit.

It opens files only. All its processes carry a token and are killed by pid at the end, however that comes.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.processes.tree import TOKEN_VARIABLE, kill_family

PROGRAM = shutil.which("chromium")
LIMIT_S = 90.0

needs_browser = pytest.mark.skipif(PROGRAM is None, reason="needs chromium: tests/support/install_packages.sh browser")


def dom(page: Path, folder: Path) -> str:
    """The document after its scripts have run, as text."""
    return _run(folder, "--dump-dom", page.as_uri())


def screenshot(page: Path, folder: Path, width: int, height: int) -> bytes:
    """A PNG of the page."""
    target = folder / "screenshot.png"
    _run(folder, f"--screenshot={target}", f"--window-size={width},{height}", "--hide-scrollbars", page.as_uri())
    return target.read_bytes()


def _run(folder: Path, *arguments: str) -> str:
    assert PROGRAM is not None
    token = secrets.token_hex(8)
    profile = folder / f"profile-{token}"
    command = [
        PROGRAM,
        "--headless",
        "--no-sandbox",  # which root and many containers cannot have; the pages are our own
        "--disable-gpu",
        "--disable-quic",
        "--disable-dev-shm-usage",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--no-first-run",
        f"--user-data-dir={profile}",
        *arguments,
    ]
    try:
        done = subprocess.run(
            command,
            env={**os.environ, TOKEN_VARIABLE: token},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            start_new_session=True,
            check=False,
        )
    finally:
        kill_family(token)
        shutil.rmtree(profile, ignore_errors=True)
    assert done.returncode == 0, done.stderr
    return done.stdout
