"""Looks at the workers of this node, in a process of its own (launcher/diagnosis/examiner.py).

So nothing of it can delay the agent's loop or cost the agent its life. The supervisor forks the process, since workers
allow it and what it starts to read them; the end of a round sweeps it away with the rest. The agent holds the other end
of its output, and takes what has arrived when that is closed or the limit is over.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from launcher.diagnosis.request import ExamineReport, ExamineRequest, Levels
from launcher.parts.host import Watcher
from launcher.supervisor.handle import Supervisor
from launcher.supervisor.messages import WorkerSpec
from rendezvous import codec

MARGIN_S = 1.0  # beyond the examiner's own limit: its start, and what a busy machine needs
_OUTPUT_MAX = 4 << 20
_MODULE = "launcher.diagnosis.examiner"
Finish = Callable[[ExamineReport], object]


class _Running(Struct, eq=False):
    levels: Levels
    until: float
    finishes: list[Finish]
    output: bytearray


class LocalExaminer(Struct, eq=False):
    """Starts examiners, one for each kind of look, and hands over what they report."""

    supervisor: Supervisor
    watcher: Watcher
    """Shows that an examiner has ended."""

    _running: dict[int, _Running] = field(default_factory=dict)  # by descriptor

    @property
    def wake_at(self) -> float:
        return min((one.until for one in self._running.values()), default=math.inf)

    def begin(self, finish: Finish, request: ExamineRequest, find_folder: Callable[[], str], now: float) -> None:
        """Look at these workers; `finish` gets the report. A look that is under way serves it, too.

        `find_folder` is called for a new look: it returns the incident folder, "" for none.
        """
        for one in self._running.values():
            if one.levels == request.levels:
                one.finishes.append(finish)
                return
        argv = (_MODULE, codec.encode(replace(request, folder=find_folder())).decode())
        try:
            read_end, write_end = os.pipe2(os.O_CLOEXEC)
        except OSError as error:
            finish(_make_empty_report(str(error.strerror)))
            return
        os.set_blocking(read_end, False)
        self._running[read_end] = _Running(request.levels, now + request.limit_s + MARGIN_S, [finish], bytearray())
        self.watcher.register(read_end)
        spec = WorkerSpec(local_rank=0, argv=argv, env={}, unset=(), stdout=write_end, stderr=None)
        self.supervisor.examine(spec)

    def advance(self, now: float) -> None:
        """Hand over the reports of those that have ended, or whose limit is over."""
        for descriptor, one in list(self._running.items()):
            if self._read(descriptor, one.output) or now >= one.until:
                self.watcher.unregister(descriptor)
                os.close(descriptor)
                del self._running[descriptor]
                report = _parse(one.output)
                for finish in one.finishes:
                    finish(report)

    def close(self) -> None:
        for descriptor in self._running:
            self.watcher.unregister(descriptor)
            os.close(descriptor)
        self._running.clear()

    @staticmethod
    def _read(descriptor: int, output: bytearray) -> bool:
        """Read what has arrived; whether it has ended."""
        while len(output) <= _OUTPUT_MAX:
            try:
                data = os.read(descriptor, 1 << 16)
            except BlockingIOError:
                return False
            if not data:
                return True
            output += data
        return True


def _parse(output: Collection[int]) -> ExamineReport:
    """Return the report, the last line; if there is none, what the examiner said instead."""
    lines = bytes(output).strip().splitlines()
    try:
        return codec.find_decoder(ExamineReport).decode(lines[-1] if lines else b"")
    except (msgspec.MsgspecError, RecursionError):
        last = lines[-1].decode(errors="replace")[:200] if lines else "it was killed or has not answered in time"
        return _make_empty_report(last)


def _make_empty_report(reason: str) -> ExamineReport:
    return ExamineReport(ranks=(), remarks=(f"the workers could not be examined: {reason}",))
