"""What this node says of itself: from what the agent knows at a moment, and what the kernel says of its workers.

The agent hands over what it knows, in microseconds; the rest takes milliseconds, more with many workers, and is done in
another thread (`reporter`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from launcher.views.goodput import TimeSpent, compute_goodput
from launcher.views.node.process_use import ProcessUse, measure_process, measure_use
from launcher.views.run_view import NodeView, RankView, RoundView, RunView, merge_rounds
from launcher.views.stored_run import JobRecords, build_run
from rendezvous.reasons import Reason


class RankSigns(Struct, frozen=True, kw_only=True):
    """What shows that a worker makes progress. Times are on the agent's clock."""

    counts: tuple[int, ...] = ()
    """Numbers that grow."""
    seen_at: float = 0.0
    """When it last wrote output, or was last seen to make progress; 0 for never."""
    phase: str = ""


class LocalState(Struct, eq=False):
    """Makes reports, and remembers what it needs for rates and ages between two of them."""

    read_devices: Callable[[Collection[str]], tuple[int, int]] | None = None
    """Returns (bytes in use, bytes in all) of the devices with these names; (-1, -1) if nobody can say."""

    _cpu: dict[int, tuple[float, float]] = field(default_factory=dict)  # by pid: CPU seconds, and when
    _spent: dict[tuple[int, float], tuple[float, ...]] = field(default_factory=dict)  # by pid and start of a worker
    _signs: dict[tuple[int, int], tuple[tuple[int, ...], float]] = field(default_factory=dict)
    """By round and local rank: the counts, and since when they are so."""

    def report(
        self, base: NodeView, workers: Sequence[RankView], signs: Mapping[int, RankSigns], now: float
    ) -> NodeView:
        """Make the view of the node: `base` is what the agent knows of it.

        `signs`: by local rank; `now`: on the agent's clock.
        """
        pids = {worker.pid for worker in workers if worker.state == "running" and worker.pid}
        use = measure_use(pids)
        ranks = tuple(
            self._report_rank(base, worker, signs.get(worker.local_rank, RankSigns()), use, now) for worker in workers
        )
        self._cpu = {pid: (use[pid].cpu_s, now) for pid in pids if pid in use}
        known = {(worker.pid, worker.started_at) for worker in workers}
        self._spent = {key: value for key, value in self._spent.items() if key in known}
        live = {(base.round, worker.local_rank) for worker in workers}
        self._signs = {key: value for key, value in self._signs.items() if key in live}
        own = measure_process(base.agent_pid)
        failed = next((rank for rank in ranks if rank.state == "failed"), None)
        if base.state == "running" and failed is not None:
            why = Reason.of("views/failed", rank=failed.rank, exit_code=failed.exit_code or 0)
            base = replace(base, state="failed", why=why)
        elif base.state == "running" and ranks and all(rank.state == "succeeded" for rank in ranks):
            base = replace(base, state="succeeded")
        return replace(
            base,
            ranks=ranks,
            agent_rss_bytes=own.rss_bytes if own is not None else 0,
            agent_cpu_s=own.cpu_s if own is not None else 0.0,
        )

    def _report_rank(
        self, base: NodeView, worker: RankView, signs: RankSigns, use: Mapping[int, ProcessUse], now: float
    ) -> RankView:
        own = use.get(worker.pid) if worker.state == "running" else None
        spent = self._note_spent(worker, own)
        names = [name for name in worker.device.split(",") if name]
        is_seen = own is not None and names
        used, total = self.read_devices(names) if is_seen and self.read_devices is not None else (-1, -1)
        is_running = worker.state == "running"
        return replace(
            worker,
            state=(own.state or worker.state) if own is not None else worker.state,
            cores=self._compute_cores(worker, own, base.at, now),
            cpu_s=spent[0],
            rss_bytes=own.rss_bytes if own is not None else 0,
            read_bytes=int(spent[1]),
            written_bytes=int(spent[2]),
            progress_age_s=self._compute_age((base.round, worker.local_rank), signs, own, now) if is_running else -1.0,
            step=signs.counts[-1] - 1 if signs.counts else -1,
            phase=signs.phase,
            device_memory_bytes=used,
            device_memory_total_bytes=total,
        )

    def _note_spent(self, worker: RankView, use: ProcessUse | None) -> tuple[float, ...]:
        """Return CPU seconds, and bytes read and written, never less than before: readers take a fall for a restart.

        They would fall where a reading fails, or a process leaves the worker's tree.
        """
        key = (worker.pid, worker.started_at)
        now = (use.cpu_s, use.read_bytes, use.written_bytes) if use is not None else (0.0, 0, 0)
        self._spent[key] = tuple(map(max, now, self._spent.get(key, now)))
        return self._spent[key]

    def _compute_cores(self, worker: RankView, use: ProcessUse | None, wall: float, now: float) -> float:
        """Return the CPUs used since the last report; since the worker's start in the first one, -1 if unknown."""
        before, at = self._cpu.get(worker.pid, (0.0, now - (wall - worker.started_at)))
        if use is None or now <= at:
            return -1.0
        return round(max(0.0, use.cpu_s - before) / (now - at), 2)

    def _compute_age(self, key: tuple[int, int], signs: RankSigns, use: ProcessUse | None, now: float) -> float:
        """Return the time since the last sign of progress; -1 as long as none was seen."""
        counts = (*signs.counts, use.output_bytes if use is not None else 0)
        before, since = self._signs.get(key, (counts, 0.0))
        if before != counts:
            since = now
        self._signs[key] = (counts, since)
        last = max(since, signs.seen_at)
        return round(max(0.0, now - last), 1) if last else -1.0


def view_run(
    records: JobRecords, own: Sequence[RoundView], before: TimeSpent, max_restarts: int, now: float
) -> RunView:
    """Return the run as its leader knows it: by the records, and by what this node has seen itself.

    `before`: how the time before its own rounds was spent. The records of a job of one machine lack `max_restarts`.
    """
    run = build_run(records)
    rounds = merge_rounds(run.rounds, own)
    if rounds and 0 < rounds[0].began_at < before.until:  # others led before this agent began
        before = TimeSpent(until=rounds[0].began_at)
    return replace(run, rounds=rounds, max_restarts=max_restarts, goodput=compute_goodput(rounds, before, now))
