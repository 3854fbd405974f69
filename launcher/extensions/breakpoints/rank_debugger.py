"""What `breakpoint()` does where several workers share a terminal: one prompt at a time, and each names its rank.

A worker's first breakpoint loads this file by path, in the workers' Python. A worker holds the terminal, by a lock on
it, while its prompt waits for a command, and gives it up while its script runs on: a step over a
collective, which waits for the other ranks, leads to their prompts. The kernel frees the lock of a worker that dies.
"""

from __future__ import annotations

import fcntl
import os
import pdb
from contextlib import suppress
from types import FrameType
from typing import Any

_STDIN = 0


class RankDebugger(pdb.Pdb):
    """pdb with the worker's rank in its prompt, which begins with the header, if any."""

    _depth = 0  # of prompts of this process: `debug` at one may lead to another

    def __init__(self, header: str | None) -> None:
        super().__init__()
        self.prompt = f"(Pdb rank {os.environ.get('RANK', '?')}) "
        self._header = header

    def interaction(self, *arguments: Any, **keywords: Any) -> None:
        # A lock of the process: flock's belongs to the descriptor, which all workers and their children have inherited,
        # and a terminal may not be opened again after `su`. A terminal that has no locks is shared as without them.
        with suppress(OSError):
            fcntl.lockf(_STDIN, fcntl.LOCK_EX)
        RankDebugger._depth += 1
        try:
            if self._header is not None:
                self.message(self._header)
                self._header = None
            super().interaction(*arguments, **keywords)
        finally:
            RankDebugger._depth -= 1
            if not RankDebugger._depth:
                with suppress(OSError):
                    fcntl.lockf(_STDIN, fcntl.LOCK_UN)


def stop_at(frame: FrameType, header: str | None, more: dict[str, Any]) -> None:
    """Debug from this frame on, as pdb.set_trace does. `more`: what it takes besides in this version of Python."""
    RankDebugger(header).set_trace(frame, **more)
