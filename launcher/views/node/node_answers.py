"""How this node answers a request: what is read at once in the loop, and the work that a thread does with it."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from launcher.views.node.journal import Journal
from launcher.views.node.local_state import LocalState
from launcher.views.node.log_pages import LogSource, read_page
from launcher.views.node.snapshot import SnapshotSource
from launcher.views.questions.messages import is_sendable
from launcher.views.questions.reporter import Kind
from launcher.views.requests import (
    PAGE_BYTES_MAX,
    EventPage,
    LogPage,
    NodeReply,
    NodeRequest,
    ReadEvents,
    ReadLogs,
    ReadState,
)


class NodeAnswers(Struct, eq=False):
    """Answers for this node."""

    open_journal: Callable[[], Journal]
    source: SnapshotSource
    state: LocalState
    find_log_dir: Callable[[], str]
    """Returns this node's, "" before its first round."""
    files: Mapping[int, Mapping[tuple[int, str], str]]

    def answer(self, request: NodeRequest, now: float) -> tuple[Kind, Callable[[], NodeReply]]:
        """Return the kind of thread (`reporter`), and what it is to do."""
        journal = self.open_journal()
        match request:
            case ReadState(of_run=of_run):
                return "state", partial(self.state.report, self.source.take(journal, now, of_run=of_run))
            case ReadEvents(after=after):
                return "state", partial(fit_event_page, journal.buffer.read(after))
            case ReadLogs():
                current = journal.timeline.current
                live_round = current.round if current is not None else 0
                return "logs", partial(read_log_page, self._list_sources(), request, live_round)

    def _list_sources(self) -> list[LogSource]:
        log_dir = self.find_log_dir()
        return [
            LogSource(name=os.path.relpath(path, log_dir), path=path, rank=rank, stream=stream, round=round)
            for round, paths in self.files.items()
            for (rank, stream), path in sorted(paths.items())
        ]


def fit_event_page(page: EventPage) -> EventPage:
    """Shorten a page of events to what a note can hold; the next one begins there."""
    while len(page.lines) > 1 and not is_sendable(page):
        lines = page.lines[: len(page.lines) // 2]
        page = replace(page, lines=lines, next_after=page.first + len(lines) - 1, is_last=False)
    return page


def read_log_page(sources: Sequence[LogSource], request: ReadLogs, live_round: int) -> LogPage:
    """Read the next page of output that a note can hold: characters that JSON escapes make it much longer."""
    for page_bytes in (PAGE_BYTES_MAX, PAGE_BYTES_MAX // 4, PAGE_BYTES_MAX // 16):
        page = read_page(sources, request, live_round, page_bytes)
        if is_sendable(page):
            return page
    while len(page.chunks) > 1 and not is_sendable(page):  # of hundreds of files, each has a share
        kept = random.sample(page.chunks, len(page.chunks) // 2)  # whichever: so each has its turn
        left = {chunk.file: chunk.offset for chunk in page.chunks if chunk not in kept}
        cursors = tuple(replace(one, offset=left.get(one.file, one.offset)) for one in page.cursors)
        page = replace(page, chunks=tuple(kept), cursors=cursors, is_last=False)
    return page
