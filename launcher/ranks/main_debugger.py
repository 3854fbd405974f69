"""What `breakpoint()` does where several workers share a terminal: one prompt at a time, and each names its rank.

`as_main` loads this file at a worker's first breakpoint, by path, in the workers' Python. A worker holds the terminal,
by a lock on it, while its prompt waits for a command, and gives it up while its script runs on: a step over a
collective, which waits for the other ranks, leads to their prompts. The kernel frees the lock of a worker that dies.
"""

from __future__ import annotations

import fcntl
import os
import pdb
from types import FrameType
from typing import Any

_TERMINAL = "/dev/stdin"


class RankDebugger(pdb.Pdb):
    """pdb with the worker's rank in its prompt."""

    def __init__(self) -> None:
        super().__init__()
        self.prompt = f"(Pdb rank {os.environ.get('RANK', '?')}) "
        # Not descriptor 0 itself, whose lock all workers share that have inherited it.
        self._terminal = os.open(_TERMINAL, os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC)

    def interaction(self, *arguments: Any, **keywords: Any) -> None:
        fcntl.flock(self._terminal, fcntl.LOCK_EX)
        try:
            super().interaction(*arguments, **keywords)
        finally:
            fcntl.flock(self._terminal, fcntl.LOCK_UN)


_debugger: RankDebugger | None = None


def stop_at(frame: FrameType, header: str | None) -> None:
    """Debug from this frame on, as pdb.set_trace does. Raises OSError if the terminal is gone."""
    global _debugger
    if _debugger is None:
        _debugger = RankDebugger()
    if header is not None:
        _debugger.message(header)
    _debugger.set_trace(frame)
