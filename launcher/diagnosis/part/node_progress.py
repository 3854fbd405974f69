"""What an agent looks at to see that its workers make progress: cheap, a few reads per worker, eight times per limit.

| sign | where it is read |
|---|---|
| heartbeat, phase | the shared page |
| output | bytes that the pump has moved, or, of a worker that writes to the agent's own streams, its /proc/PID/io |

The kernel counts in /proc/PID/io what a process has written by write() and its like: output and files, and sockets and
pipes that are written so. So a program that writes by itself for ever hides its hang from this sign. torch (gloo) and
JAX do not: at rest, and inside a collective that waits, two workers of each wrote nothing (torch 2.13, JAX 0.11).

A worker may be a wrapper, such as a shell script, whose only child does the work. The children of a process with one
thread and one child count as the worker.

What follows from the signs is decided in `launcher.diagnosis.progress`. The flight recorder is not asked here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct, field

from launcher.diagnosis import progress
from launcher.diagnosis.evidence import STACK_DESCRIPTOR, STACK_FILES
from launcher.diagnosis.progress import ProgressNews, ProgressSigns, ProgressWatch, RankPhase
from launcher.hardware.linux.kernel import list_children
from launcher.hardware.linux.shared_page import SharedPage
from launcher.model.console import log

if TYPE_CHECKING:
    from launcher.logs.pump import OutputPump

LOOK_S = 10.0
"""Between two looks at most, some 50 microseconds a worker: so old may a sign of progress be when it is noticed."""
WRAPPERS_MAX = 8
"""Processes looked at for one worker: it, and what it wraps."""


class NodeProgress(Struct, eq=False):
    """The workers of this node in one round."""

    watch: ProgressWatch
    shared_page: SharedPage
    pump: OutputPump | None
    ranks: Sequence[int]
    """By local rank."""
    unpumped: frozenset[int]
    """Local ranks whose output does not all go through the pump, which counts from the start of the round."""
    progress_at: dict[int, float]
    """When each worker has last shown a sign, by local rank; filled here."""
    look_at: float
    """When to look next, at first the time of the start."""

    _outputs: dict[int, _Output] = field(default_factory=dict)  # by local rank; of one that has ended the last value
    _counts: dict[int, tuple[int, ...]] = field(default_factory=dict)  # by local rank, as of the last look

    @property
    def wake_at(self) -> float:
        """When to call `check`."""
        return min(self.watch.wake_at, self.look_at)

    def check(self, pids: Mapping[int, int], now: float) -> ProgressNews | None:
        """Look at the workers that live, local rank -> pid, if it is time.

        Returns that they are silent, once, or active again. That a worker stays stopped is logged.
        """
        if now < self.wake_at:
            return None
        found, self.look_at = self._observe(pids), now + LOOK_S
        self._note_each(pids, now)
        if now < self.watch.wake_at:
            return None
        news = self.watch.check(now, found)
        if news is not None and news.kind == "halted":
            log(news.sentence)
            return None
        return news

    def _note_each(self, pids: Mapping[int, int], now: float) -> None:
        """Note which workers show a sign that they did not at the last look, for those who ask how old it is."""
        page = self.shared_page
        columns = zip(page.read_heartbeats(), page.read_phases(), page.read_steps(), strict=True)
        rows = [(beats, phase_count, step) for beats, (phase_count, _, _), step in columns]
        for local_rank in pids:
            output = self._outputs.get(local_rank, _Output())
            counts = (output.size, *(rows[local_rank] if local_rank < len(rows) else ()))
            if counts != self._counts.get(local_rank):
                self._counts[local_rank], self.progress_at[local_rank] = counts, now

    def _observe(self, pids: Mapping[int, int]) -> ProgressSigns:
        seen = self.shared_page.read_phases()
        signs = {
            progress.HEARTBEAT: sum(self.shared_page.read_heartbeats()) + 1 + self.shared_page.read_step(),
            progress.PHASE: sum(count for count, _, _ in seen),
        }
        phases = [
            RankPhase(rank=self.ranks[index], name=name, limit_s=limit_s)
            for index, (_, limit_s, name) in enumerate(seen)
            if limit_s and index in pids
        ]
        is_paused, halted = False, []
        for local_rank, pid in pids.items():
            reads_output = local_rank in self.unpumped
            looks = list(_look_at(pid, reads_output=reads_output))
            is_paused |= any(look.is_halted or look.is_hidden for look in looks)
            if any(look.is_halted for look in looks):
                halted.append(self.ranks[local_rank])
            if looks and reads_output:
                output = self._outputs.setdefault(local_rank, _Output())
                output.note(sum(look.written for look in looks), sum(look.stack_size for look in looks))
        moved_size = self.pump.moved_size if self.pump is not None else 0
        signs[progress.OUTPUT] = sum(output.size for output in self._outputs.values()) + moved_size
        return ProgressSigns(signs=signs, phases=tuple(phases), is_paused=is_paused, halted=tuple(halted))


START_MARK_SIZE = 1  # byte


class _Output(Struct):
    """What a worker has written, in bytes, less what it has written for its agent."""

    size: int = 0
    _written: int = 0
    _stack_size: int = 0
    _own_size: int = START_MARK_SIZE  # to the shared page before the script, by launcher/ranks/main_start.py

    def note(self, written: int, stack_size: int) -> None:
        """Note what a look found; where it has written its stack meanwhile, all that it has written counts as that."""
        if stack_size != self._stack_size:
            self._own_size += written - self._written
        self._written, self._stack_size = written, stack_size
        self.size = max(0, written - self._own_size)


class _ProcessLook(Struct):
    """What a look at one worker found."""

    is_halted: bool
    """Stopped or traced."""
    is_hidden: bool
    """Its output cannot be seen."""
    written: int
    """Bytes of output, and of stacks."""
    stack_size: int = 0
    """Bytes of the stacks that it has written because an agent asked for them."""


def _look_at(pid: int, *, reads_output: bool) -> Iterator[_ProcessLook]:
    """Look at a worker's process and at what it wraps; at nothing if it has just ended."""
    for _ in range(WRAPPERS_MAX):
        status = _read_fields(pid, "status")
        if status is None:
            yield _ProcessLook(False, True, 0)
        if not status:
            return
        written = (_read_fields(pid, "io") or {}).get("wchar") if reads_output else "0"
        is_halted = status["State"][:1] in ("T", "t") or status.get("TracerPid", "0") != "0"
        # A process whose output cannot be seen, such as another user's, cannot be called silent.
        stack_size = _read_stack_size(pid) if reads_output else 0  # after `written`: it may be writing one
        yield _ProcessLook(is_halted, written is None, int(written or 0), stack_size)
        children = list_children(pid) if status.get("Threads") == "1" else []
        if len(children) != 1:
            return
        pid = children[0]


def _read_stack_size(pid: int) -> int:
    path = f"/proc/{pid}/fd/{STACK_DESCRIPTOR}"
    try:
        return os.stat(path).st_size if os.readlink(path).startswith(STACK_FILES) else 0
    except OSError:  # it has none, or is hidden
        return 0


def _read_fields(pid: int, name: str) -> dict[str, str] | None:
    """Read a file of /proc with a field per line; empty if the process has ended, None if it cannot be read."""
    try:
        with open(f"/proc/{pid}/{name}", errors="replace") as file:
            return {key: text.strip() for key, _, text in (line.partition(":") for line in file)}
    except (FileNotFoundError, ProcessLookupError):
        return {}
    except OSError:  # hidden, or no descriptor is left
        return None
