"""The board: a page of memory in which this node's agent and its workers read what the other has written.

The agent has one thing to tell its workers while they run: that they are asked to stop, and may save first. A signal
says so too, but JAX swallows SIGTERM, a library may have taken it, and a worker that has no handler is dead before it
could ask. A worker has two things to tell its agent: that it is alive, and that it asks for itself whether to stop.
All of that is numbers that only grow, so nobody waits for anybody: to look costs a worker no system call and the
agent one, and nobody is woken by a training step.

The page is a file without a name that is made before the warden's fork, so that workers inherit it; the kernel frees
it with the last process. Its lines are of 64 bytes, of which the first is the agent's: the last round that was asked
to stop, and after how many milliseconds of silence a worker is taken as failed (0: never). Each of the others is one
worker's, by its place on the node: how often it has beaten, and the round in which it has asked whether to stop.
Numbers are of 8 bytes, in this machine's order. `launcher.worker.talking` is the workers' end.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

VARIABLE = "LAUNCHER_BOARD"
"""Descriptor, device, inode, and the worker's line: a worker that finds another file there leaves it alone."""
LINE = 64
NUMBER = 8
STOPPED_ROUND = 0
TIMEOUT_MS = NUMBER
BEATS = 0
ASKED_ROUND = NUMBER
_NUMBER = 111
_NAME = "meshrun-board"


class Board:
    """The agent's end."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._count = 0
        found = os.fstat(descriptor)
        self._where = f"{descriptor}:{found.st_dev}:{found.st_ino}"

    def begin(self, worker_count: int, timeout_s: float | None) -> None:
        """A round is about to start on this node, and no worker of an earlier one is left. Raises OSError."""
        self._count = worker_count
        if LINE * (1 + worker_count) > os.fstat(self.descriptor).st_size:
            os.ftruncate(self.descriptor, LINE * (1 + worker_count))
        os.pwrite(self.descriptor, bytes(LINE * worker_count), LINE)
        self._write(TIMEOUT_MS, round((timeout_s or 0) * 1000))

    def environment(self, index: int) -> dict[str, str]:
        """What the worker at this place on the node needs to find its line."""
        return {VARIABLE: f"{self._where}:{1 + index}"}

    def stop(self, round: int) -> None:
        """The workers of this round, and of any before, are asked to stop."""
        self._write(STOPPED_ROUND, round)

    def beats(self) -> list[int]:
        """How often each worker has beaten."""
        return self._column(BEATS)

    def askers(self, round: int) -> frozenset[int]:
        """The workers that have asked in this round whether to stop."""
        return frozenset(index for index, asked in enumerate(self._column(ASKED_ROUND)) if asked == round)

    def _write(self, offset: int, number: int) -> None:
        os.pwrite(self.descriptor, number.to_bytes(NUMBER, sys.byteorder), offset)

    def _column(self, offset: int) -> list[int]:
        lines = os.pread(self.descriptor, LINE * self._count, LINE)
        starts = range(offset, LINE * self._count, LINE)
        return [int.from_bytes(lines[start : start + NUMBER], sys.byteorder) for start in starts]


def make() -> Board | None:
    """A board for the processes that are forked from here on; None where the kernel gives none."""
    try:
        return Board(_moved_away(_file_without_name()))
    except OSError:
        return None


def _file_without_name() -> int:
    """Raises OSError."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(_NAME)
    # A Python that was built for C libraries before glibc 2.27, as uv's and conda's are; the library here may be newer.
    from launcher.warden import kernel

    return kernel.memory_file(_NAME)


def _moved_away(descriptor: int) -> int:
    """The same file under a number that no shell script between agent and worker uses for a redirection."""
    if os.path.exists(f"/proc/self/fd/{_NUMBER}"):
        return descriptor
    try:
        os.dup2(descriptor, _NUMBER, inheritable=False)
    except OSError:  # so few files may be open
        return descriptor
    os.close(descriptor)
    return _NUMBER


def kept(board: Board | None) -> Sequence[int]:
    """What the warden is to keep open."""
    return () if board is None else (board.descriptor,)
