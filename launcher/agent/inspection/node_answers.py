"""How this node answers a request: what is read at once in the loop, and the work that a thread does with it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial

from launcher.agent.inspection.local_state import LocalState
from launcher.agent.inspection.log_pages import LogSource, read_page
from launcher.agent.inspection.observer import History
from launcher.agent.inspection.snapshot import SnapshotSource
from launcher.agent.membership import read_clock
from launcher.observe.node_report import NodeReply, NodeRequest, ReadEvents, ReadLogs, ReadState


class NodeAnswers:
    """`log_dir`: the job's log directory. `files`: of the last rounds, by round: (rank, stream) -> path."""

    def __init__(
        self,
        history: History,
        source: SnapshotSource,
        state: LocalState,
        log_dir: str,
        files: Mapping[int, Mapping[tuple[int, str], str]],
    ) -> None:
        self._history = history
        self._source = source
        self._state = state
        self._log_dir = log_dir
        self._files = files

    def answer(self, request: NodeRequest) -> tuple[str, Callable[[], NodeReply]]:
        """Return the kind of thread (`reporter`), and what it is to do."""
        journal = self._history.open()
        match request:
            case ReadState(has_rounds=has_rounds):
                snapshot = self._source.take(journal, read_clock())
                return "state", partial(self._state.report, snapshot, has_rounds=has_rounds)
            case ReadEvents(after=after):
                return "state", partial(journal.buffer.read, after)
            case ReadLogs():
                current = journal.timeline.current
                live_round = current.round if current is not None else 0
                return "logs", partial(read_page, self._list_sources(), request, live_round)

    def _list_sources(self) -> list[LogSource]:
        return [
            LogSource(name=os.path.relpath(path, self._log_dir), path=path, rank=rank, stream=stream, round=round)
            for round, paths in self._files.items()
            for (rank, stream), path in sorted(paths.items())
        ]
