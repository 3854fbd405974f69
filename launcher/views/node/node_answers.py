"""How this node answers a request: what is read at once in the loop, in microseconds, and the work that a thread does
with it.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from launcher.hardware.linux.shared_page import SharedPage
from launcher.logs.pump import OutputPump
from launcher.model.node import Slot
from launcher.parts.host import PartHost
from launcher.parts.part import RunningRound
from launcher.placement.adapter.description import NodeAssignment
from launcher.views.node.journal import Journal
from launcher.views.node.local_state import LocalState, RankSigns, view_run
from launcher.views.node.log_pages import LogSource, read_page
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
from launcher.views.run_view import NodeView, RankView
from launcher.views.stored_run import JobRecords
from rendezvous.driver.driver import Driver


class NodeAnswers(Struct, kw_only=True, eq=False):
    """Answers for this node, with what it needs of the agent."""

    open_journal: Callable[[], Journal]
    driver: Driver
    slots: Sequence[Slot]
    shared_page: SharedPage
    pump: OutputPump | None
    describe_rank: Callable[[NodeAssignment, int], str]
    """Takes an assignment and a rank, returns its coordinates."""
    parts: PartHost
    running: RunningRound
    locality: tuple[tuple[str, str], ...]
    """Pairs of level and domain."""
    find_log_dir: Callable[[], str]
    """Returns "" if no files are kept, or none yet."""
    state: LocalState

    def answer(self, request: NodeRequest, now: float) -> tuple[Kind, Callable[[], NodeReply]]:
        """Return the kind of thread (`reporter`), and what it is to do."""
        journal = self.open_journal()
        match request:
            case ReadState(of_run=of_run):
                return "state", self._take_snapshot(journal, now, of_run=of_run)
            case ReadEvents(after=after):
                return "state", partial(fit_event_page, journal.buffer.read(after))
            case ReadLogs():
                current = journal.timeline.current
                live_round = current.round if current is not None else 0
                return "logs", partial(read_log_page, self._list_sources(), request, live_round)

    def _list_sources(self) -> list[LogSource]:
        log_dir, running = self.find_log_dir(), self.running
        found = [
            LogSource(name=os.path.relpath(path, log_dir), path=path, rank=rank, stream=stream, round=round)
            for round, paths in running.files.items()
            for (rank, stream), path in sorted(paths.items())
        ]
        rings = self.pump.list_rings() if self.pump is not None else {}
        if running.share is not None and running.number in running.files:  # those of an earlier round are no more
            ranks = dict(enumerate(running.share.ranks))
            found += [
                LogSource(
                    name=f"{running.number}/{local_rank}/{stream}",
                    rank=ranks[local_rank],
                    stream=stream,
                    round=running.number,
                    ring=ring,
                )
                for (local_rank, stream), ring in sorted(rings.items())
                if local_rank in ranks
            ]
        return found

    def _take_snapshot(self, journal: Journal, now: float, *, of_run: bool) -> Callable[[], NodeView]:
        """Return what makes the report of this moment. `now`: on the agent's clock; `of_run`: as in ReadState."""
        started, timeline, assignment = journal.started, journal.timeline, journal.assignment
        machine = self.driver.machine
        current = timeline.current
        state = "leaving" if journal.is_leaving else "stopping" if journal.is_stopping else "running"
        if current is None and not journal.is_leaving:
            state = "spare" if machine.is_spare else "waiting"
        base = NodeView(
            name=started.node,
            member_id=machine.member_id,
            run_id=started.run_id,
            version=started.version,
            at=time.time(),
            started_at=started.at,
            agent_pid=started.pid,
            state=state,
            is_leader=machine.is_leader,
            why=timeline.waiting,
            round=current.round if current is not None else 0,
            last=replace(timeline.rounds[-1]) if timeline.rounds else None,
            group_rank=assignment.group_rank if assignment is not None else -1,
            mesh_shape=assignment.shape if assignment is not None else (),
            step=self.shared_page.read_step() if current is not None else -1,
            locality=self.locality,
            store_latency_s=self.driver.store_latency_s,
            log_dir=self.find_log_dir(),
            round_count=sum(timeline.end_counts.values()) + (current is not None),
            end_counts=dict(timeline.end_counts),
            failure_counts=dict(timeline.failure_counts),
            checkpoint_count=timeline.checkpoint_count,
            hang_count=timeline.hang_count,
            slot_count=started.worker_count,
            off=tuple(self.parts.off),
        )
        workers = tuple(self._copy_worker(timeline.workers[index], assignment) for index in sorted(timeline.workers))
        report = partial(self.state.report, base, workers, self._read_signs(now), now)
        if of_run and (found := machine.read_records()) is not None:
            records = JobRecords(started.run_id, *found, read_at=base.at, member_names=machine.list_members())
            rounds = tuple(replace(one) for one in timeline.rounds)
            before = replace(timeline.before, lost_s=dict(timeline.before.lost_s))
            make_run = partial(view_run, records, rounds, before, journal.max_restarts, base.at)
            return lambda: replace(report(), run=make_run())
        return report

    def _copy_worker(self, worker: RankView, assignment: NodeAssignment | None) -> RankView:
        is_here = assignment is not None and worker.rank in assignment.ranks
        place = self.describe_rank(assignment, worker.rank) if assignment is not None and is_here else ""
        slots = self.slots[worker.local_rank : worker.local_rank + 1]
        devices = ",".join(f"{one.kind}{one.index}" for slot in slots for one in slot.devices)
        return replace(worker, place=place, device=devices)

    def _read_signs(self, now: float) -> Mapping[int, RankSigns]:
        outputs = self.pump.list_output_times() if self.pump is not None else {}
        seen_at = dict(self.running.progress_at)
        for index, at in outputs.items():
            seen_at[index] = max(seen_at.get(index, 0.0), now - (time.monotonic() - at))
        page = self.shared_page
        columns = zip(page.read_heartbeats(), page.read_phases(), page.read_steps(), strict=True)
        return {
            index: RankSigns(
                counts=(beats, phase_count, step + 1),
                seen_at=seen_at.get(index, 0.0),
                phase=name if limit_s else "",
            )
            for index, (beats, (phase_count, limit_s, name), step) in enumerate(columns)
        }


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
