"""The board: a page of memory in which this node's agent and its workers read what the other has written.

The agent has one thing to tell its workers while they run: that they are asked to stop, and may save first. A signal
says so too, but JAX swallows SIGTERM, a library may have taken it, and a worker that has no handler is dead before it
could ask. A worker has two things to tell its agent: that it is alive, and that it asks for itself whether to stop.
All of that is numbers that only grow, so nobody waits for anybody: to look costs a worker no system call and the
agent one, and nobody is woken by a training step.

The page is a file without a name that is made before the supervisor's fork, so that workers inherit it; the kernel
frees it with the last process. Its lines are of 64 bytes, of which the first is the agent's: the last round that was
asked to stop, and after how many milliseconds of silence a worker is taken as failed (0: never). Each of the others is
one worker's, by its place on the node: how often it has beaten, and the round in which it has asked whether to stop.
Numbers are of 8 bytes, in this machine's order. `launcher.worker.talking` is the workers' end.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

VARIABLE = "LAUNCHER_BOARD"
"""Descriptor, device, inode, and the worker's line: a worker that finds another file there leaves it alone."""
LINE_SIZE = 64
NUMBER_SIZE = 8
STOPPED_ROUND = 0
TIMEOUT_MS = NUMBER_SIZE
HEARTBEAT_COUNT = 0
POLLED_ROUND = NUMBER_SIZE
_DESCRIPTOR = 111
_NAME = "meshrun-board"


class SharedPage:
    """The agent's end."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._worker_count = 0
        found = os.fstat(descriptor)
        self._location = f"{descriptor}:{found.st_dev}:{found.st_ino}"

    def begin(self, worker_count: int, timeout_s: float | None) -> None:
        """A round is about to start on this node, and no worker of an earlier one is left. Raises OSError."""
        self._worker_count = worker_count
        if LINE_SIZE * (1 + worker_count) > os.fstat(self.descriptor).st_size:
            os.ftruncate(self.descriptor, LINE_SIZE * (1 + worker_count))
        os.pwrite(self.descriptor, bytes(LINE_SIZE * worker_count), LINE_SIZE)
        self._write(TIMEOUT_MS, round((timeout_s or 0) * 1000))

    def list_variables(self, index: int) -> dict[str, str]:
        """What the worker at this place on the node needs to find its line."""
        return {VARIABLE: f"{self._location}:{1 + index}"}

    def request_stop(self, round: int) -> None:
        """The workers of this round, and of any before, are asked to stop."""
        self._write(STOPPED_ROUND, round)

    def read_heartbeats(self) -> list[int]:
        """How often each worker has beaten."""
        return self._read_column(HEARTBEAT_COUNT)

    def list_stop_pollers(self, round: int) -> frozenset[int]:
        """The workers that have asked in this round whether to stop."""
        return frozenset(index for index, asked in enumerate(self._read_column(POLLED_ROUND)) if asked == round)

    def _write(self, offset: int, number: int) -> None:
        os.pwrite(self.descriptor, number.to_bytes(NUMBER_SIZE, sys.byteorder), offset)

    def _read_column(self, offset: int) -> list[int]:
        lines = os.pread(self.descriptor, LINE_SIZE * self._worker_count, LINE_SIZE)
        starts = range(offset, LINE_SIZE * self._worker_count, LINE_SIZE)
        return [int.from_bytes(lines[start : start + NUMBER_SIZE], sys.byteorder) for start in starts]


# docs/internals/decisions/0023-shared-page-for-stop-and-heartbeat.md
def make() -> SharedPage | None:
    """A board for the processes that are forked from here on; None where the kernel gives none."""
    try:
        return SharedPage(_move_descriptor(_make_memory_file()))
    except OSError:
        return None


def _make_memory_file() -> int:
    """Raises OSError."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(_NAME)
    # A Python that was built for C libraries before glibc 2.27, as uv's and conda's are; the library here may be newer.
    from launcher.hardware.linux import kernel

    return kernel.make_memory_file(_NAME)


def _move_descriptor(descriptor: int) -> int:
    """The same file under a number that no shell script between agent and worker uses for a redirection."""
    if os.path.exists(f"/proc/self/fd/{_DESCRIPTOR}"):
        return descriptor
    try:
        os.dup2(descriptor, _DESCRIPTOR, inheritable=False)
    except OSError:  # so few files may be open
        return descriptor
    os.close(descriptor)
    return _DESCRIPTOR


def list_inherited_fds(shared_page: SharedPage | None) -> Sequence[int]:
    """What the supervisor is to keep open."""
    return () if shared_page is None else (shared_page.descriptor,)
