"""The metrics of a node: each with its name, what it means, its labels, and how it is read from the node's report.

Names end in their unit, and in `_total` if they only grow. Every metric has the labels `run` and `node`; only what is
different for each rank has `rank`. A set of states or causes is complete from the start, so that an increase from
nothing is seen. What a report does not know is left out, rather than 0.

An agent knows its own node. How many nodes and spares a run has is known by the leader alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Literal, NamedTuple, get_args

from launcher.logs.reports.failure_class import FailureClass
from launcher.views.goodput import START, Goodput
from launcher.views.node_report import NodeReport
from rendezvous.records import Cause

Labels = tuple[str, ...]
UNKNOWN = "unknown"
NODE_STATES = ("waiting", "running", "stopping", "leaving", "spare")
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
    read: Callable[[NodeReport], Iterator[tuple[Labels, float]]]
    """Yields the values of those labels, and the sample, of each."""

    @property
    def full_name(self) -> str:
        return f"meshrun_{self.name}" + ("_total" if self.kind == "counter" else "")


def _read_value(field: str) -> Callable[[NodeReport], Iterator[tuple[Labels, float]]]:
    """Return what reads a field; below 0 it is unknown."""

    def read(report: NodeReport) -> Iterator[tuple[Labels, float]]:
        value = float(getattr(report, field))
        if value >= 0:
            yield (), value

    return read


def _read_ranks(field: str) -> Callable[[NodeReport], Iterator[tuple[Labels, float]]]:
    """Return what reads a field of every worker that runs; below 0 it is unknown."""

    def read(report: NodeReport) -> Iterator[tuple[Labels, float]]:
        for rank in report.ranks:
            value = float(getattr(rank, field))
            if value >= 0 and rank.state in LIVE_STATES:
                yield (str(rank.rank),), value

    return read


def _read_build(report: NodeReport) -> Iterator[tuple[Labels, float]]:
    yield (report.version,), 1.0


def _read_counts(
    names: Iterable[str], count: Callable[[NodeReport], Mapping[str, float]]
) -> Callable[[NodeReport], Iterator[tuple[Labels, float]]]:
    """Return what reads a figure for each of these names, 0 for one that `count` does not have."""

    def read(report: NodeReport) -> Iterator[tuple[Labels, float]]:
        counts = count(report)
        for name in names:
            yield (name,), float(counts.get(name, 0))

    return read


def _count_ranks(report: NodeReport) -> Mapping[str, float]:
    return Counter(rank.state for rank in report.ranks if report.round)


def _read_round_count(report: NodeReport) -> Iterator[tuple[Labels, float]]:
    yield (), float(sum(report.end_counts.values()) + bool(report.round))


def _read_of_round(field: str) -> Callable[[NodeReport], Iterator[tuple[Labels, float]]]:
    def read(report: NodeReport) -> Iterator[tuple[Labels, float]]:
        if report.round:
            yield (), float(getattr(report, field))

    return read


def _read_goodput(
    read: Callable[[Goodput], Iterable[tuple[Labels, float]]],
) -> Callable[[NodeReport], Iterator[tuple[Labels, float]]]:
    """Return what reads figures of the goodput; a spare has lost nothing."""

    def read_report(report: NodeReport) -> Iterator[tuple[Labels, float]]:
        if report.goodput is not None and report.rounds:
            yield from read(report.goodput)

    return read_report


# fmt: off
METRICS: tuple[Metric, ...] = (
    # The agent.
    Metric("build_info", "gauge", ("version",), "The version of meshrun, always 1.", _read_build),
    Metric("agent_start_time_seconds", "gauge", (), "When the agent started, in seconds since 1970.",
           _read_value("started_at")),
    Metric("agent_cpu_seconds", "counter", (), "CPU time that the agent's own process has used.",
           _read_value("agent_cpu_s")),
    Metric("agent_resident_memory_bytes", "gauge", (), "Memory in use by the agent's own process.",
           _read_value("agent_rss_bytes")),
    Metric("store_latency_seconds", "gauge", (),
           "Duration of the last request to the store; absent where the store is inside the agent.",
           _read_value("store_latency_s")),
    Metric("leader", "gauge", (), "1 for the leader of the run, 0 for any other agent.", _read_value("is_leader")),

    # The run.
    Metric("nodes", "gauge", (), "Nodes of the run, including spares; only from the leader.",
           _read_value("member_count")),
    Metric("spare_nodes", "gauge", (), "Nodes without ranks in the last round; only from the leader.",
           _read_value("spare_count")),
    Metric("round", "gauge", (), "Number of the round that runs on this node, 0 for none.", _read_value("round")),
    Metric("round_ranks", "gauge", (), "Ranks of the round that runs on this node, on all nodes.",
           _read_of_round("world_size")),
    Metric("round_nodes", "gauge", (), "Nodes of the round that runs on this node.", _read_of_round("node_count")),
    Metric("rounds", "counter", (), "Rounds that have started on this node.", _read_round_count),
    Metric("rounds_ended", "counter", ("cause",), "Rounds that have ended on this node, by what ended them.",
           _read_counts(CAUSES, lambda report: report.end_counts)),
    Metric("failures", "counter", ("class",), "Failures of workers of this node that ended a round, by class.",
           _read_counts(get_args(FailureClass), lambda report: report.failure_counts)),
    Metric("restarts_charged", "gauge", (), "Restarts of the run that count against --max-restarts.",
           _read_value("restart_count")),
    Metric("restarts_allowed", "gauge", (), "The limit of charged restarts, --max-restarts.",
           _read_value("max_restarts")),
    Metric("hangs", "counter", (), "Hangs of the run that were reported to this node.",
           _read_value("hang_count")),
    Metric("checkpoints", "counter", (), "Checkpoints that the workers of this node have reported.",
           _read_value("checkpoint_count")),
    Metric("step", "gauge", (), "The highest training step that workers of this node have reported.",
           _read_value("step")),
    Metric("goodput_ratio", "gauge", (), "Part of the time since the agent's start that was training, 0 to 1.",
           _read_goodput(lambda goodput: [((), goodput.ratio)])),
    Metric("trained_seconds", "gauge", (), "Time of training since the agent's start, without work that was undone.",
           _read_goodput(lambda goodput: [((), goodput.trained_s)])),
    Metric("lost_seconds", "gauge", ("cause",), "Time since the agent's start that was not training, by cause.",
           _read_goodput(lambda goodput: [((cause,), goodput.lost_s.get(cause, 0.0)) for cause in LOSSES])),

    # The node.
    Metric("node_state", "gauge", ("state",), "1 for the state that this node is in, 0 for any other.",
           _read_counts(NODE_STATES, lambda report: {report.state: 1.0})),
    Metric("ranks", "gauge", ("state",), "Workers of this node's round, by state.",
           _read_counts(RANK_STATES, _count_ranks)),

    # Its workers, each with what it has started.
    Metric("worker_start_time_seconds", "gauge", ("rank",), "When the worker started, in seconds since 1970.",
           _read_ranks("started_at")),
    Metric("worker_progress_age_seconds", "gauge", ("rank",), "Time since the worker's last sign of progress.",
           _read_ranks("progress_age_s")),
    Metric("worker_step", "gauge", ("rank",), "The training step that the worker has reported.", _read_ranks("step")),
    Metric("worker_cpu_seconds", "counter", ("rank",), "CPU time that the worker has used.", _read_ranks("cpu_s")),
    Metric("worker_resident_memory_bytes", "gauge", ("rank",),
           "Memory in use by the worker; pages that its processes share are counted in each.",
           _read_ranks("rss_bytes")),
    Metric("worker_read_bytes", "counter", ("rank",), "Bytes that the worker has read from storage.",
           _read_ranks("read_bytes")),
    Metric("worker_written_bytes", "counter", ("rank",), "Bytes that the worker has written to storage.",
           _read_ranks("written_bytes")),
    Metric("worker_device_memory_used_bytes", "gauge", ("rank",),
           "Memory in use on the worker's devices, by any process; where NVML is.", _read_ranks("device_memory_bytes")),
    Metric("worker_device_memory_bytes", "gauge", ("rank",), "Memory of the worker's devices; where NVML is.",
           _read_ranks("device_memory_total_bytes")),
)
# fmt: on
