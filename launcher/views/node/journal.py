"""The agent's messages as events of the run: what the agreement orders, what the supervisor reports, how it ended.

One journal feeds all that looks at a run's past: the timeline, the buffer that others read, the file of --events and
the one beside the logs. It is told what happened and when, and reads no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from launcher.logs.reports.report import parse_failure
from launcher.model.errors import describe
from launcher.model.mesh import Mesh
from launcher.parts.part import Fact, RoundStarting
from launcher.placement.adapter.description import NodeAssignment
from launcher.supervisor.messages import Exited, Spawned, SpawnFailed
from launcher.views.event_buffer import EventBuffer
from launcher.views.run_events import (
    AgentEnded,
    AgentStarted,
    CheckpointReported,
    FailureFound,
    RemarkMade,
    RootCause,
    RoundEnded,
    RoundStarted,
    RoundStopping,
    RunEvent,
    WaitChanged,
    WorkerEnded,
    WorkerStarted,
)
from launcher.views.sinks.event_file import EventSink
from launcher.views.timeline import RunTimeline
from rendezvous import events
from rendezvous.reasons import Reason

LINES_MAX, LINE_MAX = 10, 300
"""Of a worker's last lines in an event."""
NOT_STARTED = 127
"""The exit code of a worker that could not be started, as a shell has it."""


# docs/internals/decisions/0052-one-journal-and-questions-to-the-loop.md
class Journal(Struct, eq=False):
    """What has happened, as events, with all that is made of them."""

    started: AgentStarted
    """The first event; all others have its run and node."""
    max_restarts: int
    mesh: Mesh | None
    sinks: Sequence[EventSink] = ()
    """Each gets every event."""
    find_failure: Callable[[int], str] = lambda round: ""
    """Returns the failure that ended a round on any node, as an agent writes it; "" if it is not known here."""

    timeline: RunTimeline = field(default_factory=RunTimeline)
    buffer: EventBuffer = field(default_factory=EventBuffer)
    _round: int = 0
    assignment: NodeAssignment | None = None
    """Of the round that runs here."""
    is_stopping: bool = False
    is_leaving: bool = False
    _round_at: float = 0.0
    _idle_since: float = 0.0
    _stop: tuple[int, str] = (0, "")  # round and mode
    _failure: tuple[int, str] = (0, "")  # of this node: round, and as an agent writes it

    def __post_init__(self) -> None:
        self._idle_since = self.started.at
        self._add(self.started, self.started.at)

    def take(self, fact: Fact) -> None:
        """Take what has happened; most kinds say nothing about the run."""
        message, at, self._round = fact.what, fact.wall, fact.round
        match message:
            case RoundStarting():
                self._start(message.start, message.share, at)
            case Spawned(round=number, local_rank=local_rank, pid=pid) if number == self._round:
                rank = self._find_rank(local_rank)
                self._add(WorkerStarted(rank=rank, local_rank=local_rank, pid=pid), at)
            case SpawnFailed(round=number, local_rank=local_rank, sentence=sentence) if number == self._round:
                self._end_worker(local_rank, 0, NOT_STARTED, at, sentence)
            case Exited(round=number, local_rank=local_rank, pid=pid, exit_code=exit_code) if number == self._round:
                self._end_worker(local_rank, pid, exit_code, message.at)
            case events.LeaveRequest():
                self.is_leaving = True
            case RunEvent():  # of a part, which leaves what all events have to this journal
                self._add(message, message.at or at)
            case events.CheckpointSaved():
                self._add(CheckpointReported(), at)
            case events.RoundFailed():
                self._add_failure(message, at)
            case events.StopRound(number, mode, reason, cause, nodes) if (
                number == self._round and (number, mode) != self._stop
            ):
                self.is_stopping, self._stop = True, (number, mode)  # the agent may be told again after a pause
                told: dict[str, Any] = {"reason": describe(reason), "reason_kind": reason.kind}
                own = self._failure[1] if self._failure[0] == number else ""
                root = find_root_cause((self.find_failure(number) or own) if cause == "failure" else "")
                self._add(RoundStopping(**told, cause=cause, mode=mode, nodes=nodes, root_cause=root), at, reason)
            case events.RoundStopped(number, _, step) if number == self._round and self.assignment is not None:
                self._end(step, at)
            case events.Log(reason, True, rule):
                self._add(RemarkMade(sentence=describe(reason), reason_kind=reason.kind, rule=rule), at)
            case events.Log(reason) if self.assignment is None and _is_wait(reason):
                self._add(WaitChanged(sentence=describe(reason), reason_kind=reason.kind), at, reason)
            case events.Exit(exit_code, reason, verdict):
                kind = verdict.kind if verdict is not None else ""
                number = verdict.round if verdict is not None else 0  # it may have run without a spare
                told = {"round": number, "reason": describe(reason), "reason_kind": reason.kind}
                root = find_root_cause(verdict.failure if verdict is not None else "")
                self._add(AgentEnded(**told, exit_code=exit_code, verdict=kind, root_cause=root), at)

    def _add(self, event: RunEvent, at: float, reason: Reason | None = None) -> None:
        """Add an event, with what all events have; without a round of its own it is of the one here."""
        own = {"run_id": self.started.run_id, "node": self.started.node, "round": event.round or self._round}
        event = replace(event, at=at, **own)
        self.timeline.take(event, reason)
        self.buffer.take(event)
        for sink in self.sinks:
            sink.write(event)

    def _find_rank(self, local_rank: int) -> int:
        ranks = self.assignment.ranks if self.assignment is not None else ()
        return ranks[local_rank] if 0 <= local_rank < len(ranks) else -1

    def _start(self, start: events.StartRound, assignment: NodeAssignment, at: float) -> None:
        self.assignment, self._round_at, self.is_stopping = assignment, at, False
        sizes = zip(self.mesh.axes if self.mesh is not None else (), assignment.shape, strict=False)
        started = RoundStarted(
            world_size=assignment.world_size,
            node_count=assignment.group_world_size,
            ranks=assignment.ranks,
            mesh=",".join(f"{axis.name}={size}" for axis, size in sizes),
            restart_count=start.restart_count,
            max_restarts=self.max_restarts,
            waited_s=round(max(0.0, at - self._idle_since), 3),
            summary=describe(assignment.summary),
        )
        self._add(started, at, assignment.summary)

    def _end_worker(self, local_rank: int, pid: int, exit_code: int, at: float, sentence: str = "") -> None:
        outcome: Literal["succeeded", "failed", "terminated"] = "succeeded"
        if exit_code:
            outcome = "terminated" if self.is_stopping else "failed"
        ended = WorkerEnded(
            rank=self._find_rank(local_rank),
            local_rank=local_rank,
            pid=pid,
            outcome=outcome,
            exit_code=exit_code,
            sentence=sentence,
        )
        self._add(ended, at)

    def _add_failure(self, failed: events.RoundFailed, at: float) -> None:
        self._failure = failed.round, failed.failure
        failure = parse_failure(failed.failure) if failed.failure else None
        found = FailureFound(
            rank=failed.rank,
            exit_code=failed.exit_code,
            failure_class=describe(failed.failure_class),
            error=(failure.exception or failure.sentence or "") if failure is not None else "",
            log_file=failure.log_file if failure is not None else "",
        )
        self._add(found, at, failed.failure_class)

    def _end(self, step: int, at: float) -> None:
        current = self.timeline.current
        cause, reason = (current.cause, describe(current.ended)) if current is not None else ("", "")
        ran_s = round(max(0.0, at - self._round_at), 3)
        self._add(RoundEnded(cause=cause, reason=reason, ran_s=ran_s, step=step), at)
        self.assignment, self._idle_since, self.is_stopping = None, at, False


def _is_wait(reason: Reason) -> bool:
    """Return whether a node without a round waits: not for its workers, which start in a moment, nor as a leader."""
    return reason.kind not in ("sealed", "running")


def find_root_cause(text: str) -> RootCause | None:
    """Return what is told of a failure that an agent has written; None for none."""
    failure = parse_failure(text) if text else None
    if failure is None:
        return None
    last_lines = failure.tail or (failure.message or "").splitlines()
    return RootCause(
        node=failure.host,
        rank=failure.rank,
        exit_code=failure.exit_code,
        failure_class=": ".join(filter(None, (failure.failure_class, failure.class_reason))),
        error=failure.exception or failure.sentence or "",
        log_file=failure.log_file or failure.error_file or "",
        last_lines=tuple(line[:LINE_MAX] for line in last_lines[-LINES_MAX:]),
    )
