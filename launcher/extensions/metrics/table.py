"""The metrics of a node: each with its name, what it means, its labels, and how it is read from the node's report.

Names end in their unit, and in `_total` if they only grow. Every metric has the labels `run` and `node`; only what is
different for each rank has `rank`. A set of states or causes is complete from the start, so that an increase from
nothing is seen. What a report does not know is left out, rather than 0.

An agent knows its own node. What concerns the run as a whole is told by the leader alone, also where it is a spare.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Literal, NamedTuple, get_args

from launcher.logs.reports.failure_class import FailureClass
from launcher.views.goodput import START
from launcher.views.run_view import RUNNING, Goodput, NodeView, RunView
from rendezvous.records import Cause

Labels = tuple[str, ...]
Samples = Iterator[tuple[Labels, float]]
"""The values of a metric's labels, and the sample, of each."""
UNKNOWN = "unknown"
NODE_STATES = ("waiting", "running", "succeeded", "failed", "stopping", "leaving", "spare")
LIVE_STATES = ("running", "stopped", "blocked")
RANK_STATES = (*LIVE_STATES, "succeeded", "failed", "terminated")
CAUSES = (*(cause for cause in get_args(Cause) if cause), UNKNOWN)
LOSSES = (START, *(cause for cause in CAUSES if cause != "end"))


class Metric(NamedTuple):
    """A row of the table."""

    name: str
    """Without the prefix meshrun_ and the suffix _total."""
    kind: Literal["gauge", "counter"]
    labels: Labels
    """In addition to run and node."""
    help: str
    source: str | Callable[[NodeView], Samples]
    """A field of the report, or of each rank; or what reads it."""

    @property
    def full_name(self) -> str:
        return f"meshrun_{self.name}" + ("_total" if self.kind == "counter" else "")

    def read(self, report: NodeView) -> Samples:
        if not isinstance(self.source, str):
            return self.source(report)
        return _read_ranks(self.source, report) if self.labels else _read_value(self.source, report)


def _read_value(field: str, report: NodeView) -> Samples:
    """Read a field; below 0 it is unknown."""
    value = float(getattr(report, field))
    if value >= 0:
        yield (), value


def _read_ranks(field: str, report: NodeView) -> Samples:
    """Read a field of every worker that runs; below 0 it is unknown."""
    for rank in report.ranks:
        value = float(getattr(rank, field))
        if value >= 0 and rank.state in LIVE_STATES:
            yield (str(rank.rank),), value


def _read_build(report: NodeView) -> Samples:
    yield (report.version,), 1.0


def _read_counts(names: Iterable[str], count: Callable[[NodeView], Mapping[str, float]], report: NodeView) -> Samples:
    """Read a figure for each of these names, 0 for one that `count` does not have."""
    counts = count(report)
    for name in names:
        yield (name,), float(counts.get(name, 0))


def _count_ranks(report: NodeView) -> Mapping[str, float]:
    return Counter(rank.state for rank in report.ranks if report.round)


def _read_of_round(field: str, report: NodeView) -> Samples:
    if report.round and report.last is not None:
        yield (), float(getattr(report.last, field))


def _read_run(read: Callable[[RunView], float], report: NodeView) -> Samples:
    if report.run is not None:
        yield (), float(read(report.run))


def _read_goodput(read: Callable[[Goodput], Iterable[tuple[Labels, float]]], report: NodeView) -> Samples:
    if report.run is not None and report.run.goodput is not None and report.run.rounds:
        yield from read(report.run.goodput)


# fmt: off
METRICS: tuple[Metric, ...] = (
    # The agent.
    Metric("build_info", "gauge", ("version",), "Version of meshrun, as a label; the value is always 1.", _read_build),
    Metric("agent_start_time_seconds", "gauge", (), "Start time of the agent, in seconds since 1970.", "started_at"),
    Metric("agent_cpu_seconds", "counter", (), "CPU time used by the agent's own process.", "agent_cpu_s"),
    Metric("agent_resident_memory_bytes", "gauge", (), "Resident memory of the agent's own process.",
           "agent_rss_bytes"),
    Metric("store_latency_seconds", "gauge", (),
           "Duration of the last request to the store; absent if the store is inside the agent.", "store_latency_s"),
    Metric("leader", "gauge", (), "1 for the leader of the run, 0 for any other agent.", "is_leader"),

    # The run.
    Metric("nodes", "gauge", (), "Nodes of the run, including spares; only from the leader.",
           partial(_read_run, lambda run: run.member_count)),
    Metric("spare_nodes", "gauge", (), "Nodes without ranks in the last round; only from the leader.",
           partial(_read_run, lambda run: len(run.nodes))),
    Metric("run_round", "gauge", (),
           "Number of the round that is running on any node, 0 if none is; only from the leader.",
           partial(_read_run, lambda run: run.round if run.phase == RUNNING else 0)),
    Metric("round", "gauge", (), "Number of the round that is running on this node, 0 if none is.", "round"),
    Metric("round_ranks", "gauge", (), "Ranks on all nodes in the round that is running on this node.",
           partial(_read_of_round, "world_size")),
    Metric("round_nodes", "gauge", (), "Nodes in the round that is running on this node.",
           partial(_read_of_round, "node_count")),
    Metric("rounds", "counter", (), "Rounds that have started on this node.", "round_count"),
    Metric("rounds_ended", "counter", ("cause",), "Rounds that have ended on this node, by cause.",
           partial(_read_counts, CAUSES, lambda report: report.end_counts)),
    Metric("failures", "counter", ("class",), "Worker failures on this node that ended a round, by class.",
           partial(_read_counts, get_args(FailureClass), lambda report: report.failure_counts)),
    Metric("restarts_charged", "gauge", (),
           "Restarts that count against --max-restarts; only from the leader.",
           partial(_read_run, lambda run: run.restart_count)),
    Metric("restarts_allowed", "gauge", (), "The value of --max-restarts; only from the leader.",
           partial(_read_run, lambda run: run.max_restarts)),
    Metric("hangs", "counter", (), "Hangs of the run that were reported to this node.", "hang_count"),
    Metric("checkpoints", "counter", (), "Checkpoints reported by the workers on this node.", "checkpoint_count"),
    Metric("step", "gauge", (), "Highest training step reported by the workers on this node.", "step"),
    Metric("goodput_ratio", "gauge", (),
           "Share of the time since the run's start that was spent on training, 0 to 1; only from the leader.",
           partial(_read_goodput, lambda goodput: [((), goodput.ratio)])),
    Metric("trained_seconds", "gauge", (),
           "Time spent on training since the run's start, excluding lost work; only from the leader.",
           partial(_read_goodput, lambda goodput: [((), goodput.trained_s)])),
    Metric("lost_seconds", "gauge", ("cause",),
           "Time since the run's start that was not spent on training, by cause; only from the leader.",
           partial(_read_goodput, lambda goodput: [((cause,), goodput.lost_s.get(cause, 0.0)) for cause in LOSSES])),

    # The node.
    Metric("node_state", "gauge", ("state",), "1 for the current state of this node, 0 for all other states.",
           partial(_read_counts, NODE_STATES, lambda report: {report.state: 1.0})),
    Metric("ranks", "gauge", ("state",), "Workers on this node in its current round, by state.",
           partial(_read_counts, RANK_STATES, _count_ranks)),

    # Its workers, each with what it has started.
    Metric("worker_start_time_seconds", "gauge", ("rank",), "Start time of the worker, in seconds since 1970.",
           "started_at"),
    Metric("worker_progress_age_seconds", "gauge", ("rank",), "Time since the worker's last sign of progress.",
           "progress_age_s"),
    Metric("worker_step", "gauge", ("rank",), "Training step reported by the worker.", "step"),
    Metric("worker_cpu_seconds", "counter", ("rank",), "CPU time used by the worker.", "cpu_s"),
    Metric("worker_resident_memory_bytes", "gauge", ("rank",),
           "Resident memory of the worker's processes; a shared page counts once for each process.", "rss_bytes"),
    Metric("worker_read_bytes", "counter", ("rank",), "Bytes read from storage by the worker.", "read_bytes"),
    Metric("worker_written_bytes", "counter", ("rank",), "Bytes written to storage by the worker.", "written_bytes"),
    Metric("worker_device_memory_used_bytes", "gauge", ("rank",),
           "Memory in use on the worker's devices, by any process; only with NVML.", "device_memory_bytes"),
    Metric("worker_device_memory_bytes", "gauge", ("rank",), "Memory of the worker's devices; only with NVML.",
           "device_memory_total_bytes"),
)
# fmt: on
