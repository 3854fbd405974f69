"""What the agent's parts know of this node at a moment, read in microseconds in the agent's own thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from launcher.hardware.linux.shared_page import SharedPage
from launcher.logs.pump import OutputPump
from launcher.model.node import Slot
from launcher.parts.host import PartHost
from launcher.placement.adapter.description import NodeAssignment
from launcher.views.node.journal import Journal
from launcher.views.node.local_state import NodeSnapshot, RankSigns, RunSnapshot
from launcher.views.run_view import NodeView
from launcher.views.stored_run import JobRecords
from rendezvous import __version__
from rendezvous.driver.driver import Driver


class SnapshotSource(Struct, kw_only=True, eq=False):
    """The parts of the agent from which a snapshot is made."""

    driver: Driver
    slots: Sequence[Slot]
    shared_page: SharedPage | None
    pump: OutputPump | None
    describe_rank: Callable[[NodeAssignment, int], str]
    """Takes an assignment and a rank, returns its coordinates."""
    parts: PartHost
    progress_at: Mapping[int, float] = {}
    """When a sign of progress was last noticed, by local rank, on the agent's clock."""
    locality: tuple[tuple[str, str], ...] = ()
    """Pairs of level and domain."""
    find_log_dir: Callable[[], str] = str
    """Returns "" if no files are kept, or none yet."""

    def take(self, journal: Journal, now: float, *, of_run: bool) -> NodeSnapshot:
        """Take a snapshot. `now`: on the agent's clock; `of_run`: with what the leader knows of the run."""
        header, timeline, assignment = journal.header, journal.timeline, journal.assignment
        machine = self.driver.machine
        current = timeline.current
        state = "leaving" if journal.is_leaving else "stopping" if journal.is_stopping else "running"
        if current is None and not journal.is_leaving:
            state = "spare" if machine.is_spare else "waiting"
        base = NodeView(
            name=header.node,
            member_id=machine.member_id,
            run_id=header.run_id,
            version=__version__,
            at=time.time(),
            started_at=header.started_at,
            agent_pid=header.pid,
            state=state,
            is_leader=machine.is_leader,
            why=timeline.waiting,
            round=current.round if current is not None else 0,
            last=replace(timeline.rounds[-1]) if timeline.rounds else None,
            group_rank=assignment.group_rank if assignment is not None else -1,
            mesh_shape=assignment.shape if assignment is not None else (),
            step=self.shared_page.read_step() if self.shared_page is not None and current is not None else -1,
            locality=self.locality,
            store_latency_s=self.driver.store_latency_s,
            log_dir=self.find_log_dir(),
            round_count=sum(timeline.end_counts.values()) + (current is not None),
            end_counts=dict(timeline.end_counts),
            failure_counts=dict(timeline.failure_counts),
            checkpoint_count=timeline.checkpoint_count,
            hang_count=timeline.hang_count,
            slot_count=header.worker_count,
            off=tuple(self.parts.off),
        )
        places = {rank: self.describe_rank(assignment, rank) for rank in assignment.ranks} if assignment else {}
        devices = {
            index: tuple(f"{one.kind}{one.index}" for one in slot.devices) for index, slot in enumerate(self.slots)
        }
        workers = tuple(replace(timeline.workers[index]) for index in sorted(timeline.workers))
        snapshot = NodeSnapshot(
            base=base, workers=workers, signs=self._read_signs(now), places=places, devices=devices, now=now
        )
        if not of_run or (found := machine.read_records()) is None:
            return snapshot
        run = RunSnapshot(
            records=JobRecords(header.run_id, *found, read_at=base.at, member_names=machine.list_members()),
            rounds=tuple(replace(one) for one in timeline.rounds),
            before=replace(timeline.before, lost_s=dict(timeline.before.lost_s)),
            max_restarts=header.max_restarts,
        )
        return replace(snapshot, run=run)

    def _read_signs(self, now: float) -> Mapping[int, RankSigns]:
        outputs = self.pump.list_output_times() if self.pump is not None else {}
        seen_at = dict(self.progress_at)
        for index, at in outputs.items():
            seen_at[index] = max(seen_at.get(index, 0.0), now - (time.monotonic() - at))
        if self.shared_page is None:
            return {index: RankSigns(seen_at=at) for index, at in seen_at.items()}
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
