"""Strangers at the port of a served store, each a process of its own (and of another user, begun by root)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tests.support.processes.tree import REPOSITORY


@contextmanager
def strangers(modes: Sequence[str], port: int, seconds: float) -> Iterator[None]:
    """Let one attack in each of these ways for so long; waits for their end. Each has said something."""
    command = [sys.executable, "-m", "tests.support.stores.hostile_client"]
    processes = [
        subprocess.Popen(
            [*command, mode, "127.0.0.1", str(port), str(seconds)], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True
        )
        for mode in modes
    ]
    try:
        yield
        for mode, process in zip(modes, processes, strict=True):
            said = process.communicate(timeout=seconds + 60)[0].split()
            assert said[:1] == [mode], f"{mode} ended with {process.returncode}"
            assert int(said[1]) > 0
    finally:
        for process in processes:
            process.kill()
            process.communicate()
