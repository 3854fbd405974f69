"""The shared page: memory through which this node's agent and its workers read each other's state.

The agent tells its workers that a stop is requested, save first: JAX swallows SIGTERM, a library may have taken it, and
a worker without a handler dies before it could poll. A worker tells its agent three things: a heartbeat, that it polls
for a stop itself, and the phase it is in; any of them, that a checkpoint is saved. No side waits for the other: polling
costs a worker no system call and the agent one, and a training step wakes no process.

The page is a file without a name that is created before the supervisor's fork, so that workers inherit it; the kernel
frees it with the last process. It has lines of 64 bytes, the first of which is the agent's, each other one worker's, by
local rank:

    agent     last round requested to stop | TIMEOUT_MS | whether heartbeats are read | STOP_UNTIL_MS | SAVE_COUNT
    worker    heartbeats | round in which it has polled for a stop | phases entered and left | PHASE_LIMIT_MS | name
              | CLAIM, what it claims about its own failure | REACHED_STEP, the highest training step, from 1

TIMEOUT_MS: without a heartbeat, after which a worker counts as failed (0: never). STOP_UNTIL_MS: on CLOCK_BOOTTIME,
until when workers that were asked to stop have to have saved; written before the round. PHASE_LIMIT_MS: 0 outside a
phase. SAVE_COUNT: of checkpoints in this round, from 1 and by all workers; 0: the agent does not read it. Two workers
that report at the same time may count as one. A number has 8 bytes, in this machine's byte order, and only grows,
except for limits; the name has 16, of UTF-8. A look at a worker that enters a phase may find the limit of one and the
name of another: the name is only reported. Far behind the lines is a text for each line: why workers are asked to stop,
and the reason of each worker's claim; behind those is what `figures` has. Last, behind all figures, are the last words
of each worker: how its script has ended, and Python's stacks of a crash (launcher/ranks/main_start.py). What is not
used is left unwritten.

`launcher.worker.client` and `launcher.worker.phases` are the workers' side.
"""

from __future__ import annotations

import math
import os
import sys
from contextlib import suppress

VARIABLE = "LAUNCHER_BOARD"
"""Descriptor, device, inode, and the worker's line: a worker does not touch another file under that descriptor."""
LINE_SIZE = 64
NUMBER_SIZE = 8
NUMBERS_PER_LINE = LINE_SIZE // NUMBER_SIZE
# Which number of the agent's line it is,
STOPPED_ROUND, TIMEOUT_MS, READS_HEARTBEATS, STOP_UNTIL_MS, SAVE_COUNT = range(5)
# and of a worker's.
HEARTBEAT_COUNT, POLLED_ROUND, PHASE_COUNT, PHASE_LIMIT_MS, PHASE_NAME, _, CLAIM, REACHED_STEP = range(NUMBERS_PER_LINE)
PHASE_NAME_SIZE = 16
NO_LIMIT = 2**64 - 1
"""In the place of the milliseconds of a phase: it may take any time."""
CLAIM_GIVES_UP = 1
CLAIM_BLAMES_NODE = 2
STEPS_MAX = 1 << 52
"""A larger number was not written by `progress`, and no record could hold it."""
REASON_SIZE = 512
_UNTIL_MAX_S = 1e12  # a time that never comes
_REASONS_START = 1 << 20  # beyond the lines of any number of workers that a machine has
_LAST_WORDS_START = 8192 << 20  # beyond the figures of 30,000 workers; what is not written takes no memory
_LAST_WORDS_SIZE = 1 << 20
_LAST_WORDS_MAX = 256 << 10
_DESCRIPTOR = 111
_NAME = "meshrun-board"


class SharedPage:
    """The agent's side."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._worker_count = 0
        found = os.fstat(descriptor)
        self._location = f"{descriptor}:{found.st_dev}:{found.st_ino}"

    def begin(
        self, worker_count: int, timeout_s: float | None, *, reads_heartbeats: bool = False, reads_saves: bool = False
    ) -> None:
        """Clear the page for a round of `worker_count` workers, when none of an earlier one is left. Raises OSError.

        `timeout_s`: without a heartbeat. `reads_heartbeats`: whether they are read even without such a time-out.
        `reads_saves`: whether saved checkpoints are.
        """
        self._worker_count = worker_count
        size = os.fstat(self.descriptor).st_size
        if size > _LAST_WORDS_START:  # those of the round before
            os.ftruncate(self.descriptor, _LAST_WORDS_START)
        if LINE_SIZE * (1 + worker_count) > size:
            os.ftruncate(self.descriptor, LINE_SIZE * (1 + worker_count))
        os.pwrite(self.descriptor, bytes(LINE_SIZE * worker_count), LINE_SIZE)
        self._write(TIMEOUT_MS, round((timeout_s or 0) * 1000))
        self._write(READS_HEARTBEATS, bool(timeout_s) or reads_heartbeats)
        self._write(SAVE_COUNT, reads_saves)

    def list_variables(self, index: int) -> dict[str, str]:
        """Return the environment with which the worker of this local rank finds its line."""
        return {VARIABLE: f"{self._location}:{1 + index}"}

    def request_stop(self, round_number: int, until: float = 0.0, reason: str = "") -> None:
        """Ask the workers of this round, and of any before, to stop, and say `until` when and why."""
        self._write(STOP_UNTIL_MS, max(0, round(min(until, _UNTIL_MAX_S) * 1000)))
        with suppress(OSError):  # a full disk costs the text: the numbers have had their room since `begin`
            os.pwrite(self.descriptor, encode_reason(reason), find_reason_offset(0))
        self._write(STOPPED_ROUND, round_number)

    def read_save_count(self) -> int:
        """Return how many checkpoints the round's workers have reported as saved."""
        return int.from_bytes(os.pread(self.descriptor, NUMBER_SIZE, SAVE_COUNT * NUMBER_SIZE), sys.byteorder) - 1

    def read_heartbeats(self) -> list[int]:
        """Return each worker's number of heartbeats."""
        return self._read_column(HEARTBEAT_COUNT)

    def list_stop_pollers(self, round_number: int) -> frozenset[int]:
        """Return the local ranks of the workers that have polled for a stop in this round."""
        return frozenset(index for index, last in enumerate(self._read_column(POLLED_ROUND)) if last == round_number)

    def read_phases(self) -> list[tuple[int, float, str]]:
        """Return of each worker how often it entered or left a phase, its phase's limit in seconds, and the name.

        The limit is 0 outside a phase, and infinite for a phase without.
        """
        counts, limits = self._read_column(PHASE_COUNT), self._read_column(PHASE_LIMIT_MS)
        size = LINE_SIZE * self._worker_count
        lines = os.pread(self.descriptor, size, LINE_SIZE)
        names = [lines[at : at + PHASE_NAME_SIZE] for at in range(PHASE_NAME * NUMBER_SIZE, size, LINE_SIZE)]
        return [
            (count, math.inf if limit_ms == NO_LIMIT else limit_ms / 1000, name.rstrip(b"\0").decode(errors="ignore"))
            for count, limit_ms, name in zip(counts, limits, names, strict=True)
        ]

    def read_step(self) -> int:
        """Return the highest training step that a worker has reported; -1 for none."""
        return max(self.read_steps(), default=-1)

    def read_steps(self) -> list[int]:
        """Return the training step that each worker has reported last; -1 for none, or for what cannot be one."""
        return [step - 1 if step <= STEPS_MAX else -1 for step in self._read_column(REACHED_STEP)]

    # docs/internals/decisions/0047-claims-of-workers-in-the-shared-page.md
    def list_claims(self) -> dict[int, tuple[int, str]]:
        """Return what workers claim about their failures, by local rank: a kind and a reason."""
        kinds = enumerate(self._read_column(CLAIM))
        return {index: (kind, read_reason(self.descriptor, 1 + index)) for index, kind in kinds if kind}

    def read_last_words(self, index: int) -> str:
        """Return what the worker of this local rank has left at its end; "" if it has not begun, or nobody can say."""
        text = os.pread(self.descriptor, _LAST_WORDS_MAX, find_last_words_offset(1 + index))
        return text.rstrip(b"\0").decode(errors="replace")

    def _write(self, index: int, number: int) -> None:
        os.pwrite(self.descriptor, number.to_bytes(NUMBER_SIZE, sys.byteorder), index * NUMBER_SIZE)

    def _read_column(self, index: int) -> list[int]:
        size = LINE_SIZE * self._worker_count
        lines = os.pread(self.descriptor, size, LINE_SIZE).ljust(size, b"\0")  # a worker may have cut the file
        return memoryview(lines).cast("Q")[index::NUMBERS_PER_LINE].tolist()


def find_reason_offset(line: int) -> int:
    """Return where the text of this line is: the agent's is 0."""
    return _REASONS_START + line * REASON_SIZE


def find_last_words_offset(line: int) -> int:
    """Return where this line's last words are."""
    return _LAST_WORDS_START + line * _LAST_WORDS_SIZE


def encode_reason(reason: str) -> bytes:
    """Return a reason as it is written: cut, or filled up with zeros."""
    return reason.encode(errors="replace")[:REASON_SIZE].ljust(REASON_SIZE, b"\0")


def read_reason(descriptor: int, line: int) -> str:
    """Return the text of a line; empty if there is none. Raises OSError."""
    return os.pread(descriptor, REASON_SIZE, find_reason_offset(line)).rstrip(b"\0").decode(errors="ignore")


def find_line(location: str) -> tuple[int, int]:
    """Return the descriptor and the line that a worker's variable names.

    Raises OSError or ValueError if the page is not there, or another file is by now.
    """
    descriptor, device, inode, line = map(int, location.split(":"))
    found = os.fstat(descriptor)
    if (found.st_dev, found.st_ino) != (device, inode):
        raise ValueError(f"{descriptor} is not the page")
    return descriptor, line


# docs/internals/decisions/0023-shared-page-for-stop-and-heartbeat.md
def make() -> SharedPage:
    """Create a page for the processes that are forked from here on. Raises TemporaryError."""
    from launcher.hardware.linux import kernel  # workers, which read this module, too, make none
    from launcher.model.errors import make_shortage_error

    try:
        return SharedPage(_move_descriptor(kernel.make_memory_file(_NAME)))
    except OSError as error:
        raise make_shortage_error("cannot create the file that agent and workers share", error) from None


def _move_descriptor(descriptor: int) -> int:
    """Return the same file under a number that no shell script between agent and worker uses for a redirection."""
    if os.path.exists(f"/proc/self/fd/{_DESCRIPTOR}"):
        return descriptor
    try:
        os.dup2(descriptor, _DESCRIPTOR, inheritable=False)
    except OSError:  # the limit of open files is lower
        return descriptor
    os.close(descriptor)
    return _DESCRIPTOR
