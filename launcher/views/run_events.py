"""The facts of a run as one agent sees them, each a record with a time: the lines of `--events`.

Everything that is shown of a run's past is made from these records, also when it has ended: the timeline, goodput, the
metrics, `meshctl events`. A line is a JSON object with `schema`, `event` and `time` first; a later version may add
events and fields, which a reader ignores, and raises `schema` when it changes the meaning of one.
"""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any, Literal, Union

import msgspec
from msgspec import Struct

from launcher.model.console import format_time
from rendezvous import codec
from rendezvous.errors import RecordError
from rendezvous.records import Cause, Count, ExitCode

SCHEMA = 1


class RunEvent(Struct, frozen=True, kw_only=True, tag_field="event"):
    """What every event has: `at`, seconds since 1970 by the node's clock, in a line as `time`; `round` 0 for none."""

    at: float = 0.0
    run_id: str = ""
    node: str = ""
    round: Count = 0


class AgentStarted(RunEvent, frozen=True, kw_only=True, tag="agent_started"):
    """The agent has started. `reason` explains the number of workers."""

    pid: int
    version: str
    worker_count: int
    reason: str = ""


class WaitChanged(RunEvent, frozen=True, kw_only=True, tag="waiting"):
    """This node is waiting for a round. `sentence` gives the reason; `reason_kind` classifies it for programs."""

    sentence: str
    reason_kind: str = ""


class RoundStarted(RunEvent, frozen=True, kw_only=True, tag="round_started"):
    """This node is about to start its workers for a round."""

    world_size: int
    node_count: int
    ranks: tuple[int, ...]
    mesh: str
    restart_count: int
    max_restarts: int
    waited_s: float
    """Time since the start of the agent or the end of its last round."""
    summary: str = ""


class WorkerStarted(RunEvent, frozen=True, kw_only=True, tag="worker_started"):
    """A worker has started its program."""

    rank: int
    local_rank: int
    pid: int


class WorkerEnded(RunEvent, frozen=True, kw_only=True, tag="worker_ended"):
    """A worker has ended."""

    rank: int
    local_rank: int
    pid: int
    outcome: Literal["succeeded", "failed", "terminated"]
    """"terminated": ended because the round ended."""
    exit_code: int
    """Exit code, or the negative number of a signal."""
    sentence: str = ""


class FailureFound(RunEvent, frozen=True, kw_only=True, tag="failure_found"):
    """A failure on this node has ended the round."""

    rank: int
    exit_code: int
    failure_class: str = ""
    """As in the failure report, such as "user code: KeyError"."""
    error: str = ""
    """Type and message of the exception, if known."""
    log_file: str = ""
    """File with the worker's stderr."""


class CheckpointReported(RunEvent, frozen=True, kw_only=True, tag="checkpoint_saved"):
    """The workers have reported that they saved a checkpoint."""


class HangReported(RunEvent, frozen=True, kw_only=True, tag="hang_reported"):
    """The leader has found that no worker is making progress. `folders` lists the evidence folders, as NODE:PATH."""

    kind: str
    ranks: tuple[int, ...]
    """Ranks that the others are waiting for; empty if unknown."""
    sentence: str
    details: tuple[str, ...] = ()
    """Further sentences, such as a rank's function and line."""
    folders: tuple[str, ...] = ()


class HangEnded(RunEvent, frozen=True, kw_only=True, tag="hang_ended"):
    """Workers on this node are making progress again after a reported hang."""

    sentence: str


class RemarkMade(RunEvent, frozen=True, kw_only=True, tag="remark"):
    """A message that is logged once, such as the start of a store outage."""

    sentence: str
    rule: str = ""
    """Rule that handles the fault, if the message reports one."""
    reason_kind: str = ""


class NoticeRead(RunEvent, frozen=True, kw_only=True, tag="notice"):
    """The cloud has announced an event for this machine, or has withdrawn an announcement."""

    source: str
    """Name of the cloud."""
    what: str
    state: Literal["announced", "withdrawn"]
    leaves: bool
    """Whether this node leaves because of the notice, now or later."""
    left_s: float
    """Time until the machine is taken away; -1 if unknown."""
    sentence: str


class NodesRequested(RunEvent, frozen=True, kw_only=True, tag="nodes_requested"):
    """The leader has run the command of --request-nodes with these numbers."""

    wanted: int
    """Nodes that the run can use; 0 if it has ended."""
    present: int
    reason: str
    since: str = ""
    """Start of the shortage."""


class RootCause(Struct, frozen=True, kw_only=True):
    """The failure of a worker, on any node, that ended a round or the job."""

    node: str
    rank: int
    exit_code: int
    failure_class: str = ""
    """As in failure_found."""
    error: str = ""
    """As in failure_found."""
    log_file: str = ""
    """File on that node with the worker's stderr, or its error file."""
    last_lines: tuple[str, ...] = ()
    """Last lines of the worker's stderr, or of the traceback in its error file; 10 at most."""


class RoundStopping(RunEvent, frozen=True, kw_only=True, tag="round_stopping"):
    """The round is stopping on all nodes."""

    cause: Cause
    reason: str
    mode: str
    """"grace" if workers have time to save, "kill" if not, "fence" if the node has lost its membership."""
    nodes: tuple[str, ...] = ()
    """Nodes that were lost, failed or left."""
    reason_kind: str = ""
    root_cause: RootCause | None = None
    """Failure that caused the stop, if known to this node; the leader knows the failures of all nodes."""


class RoundEnded(RunEvent, frozen=True, kw_only=True, tag="round_ended"):
    """All processes of the round on this node have exited."""

    cause: Cause
    reason: str
    ran_s: float
    """Time since the start of the round."""
    step: int = -1
    """Highest step that workers have reported."""


class AgentEnded(RunEvent, frozen=True, kw_only=True, tag="agent_ended"):
    """The agent is about to exit."""

    exit_code: ExitCode
    verdict: Literal["success", "failure", "stopped", ""]
    """Verdict on the job; empty if only this node is leaving."""
    reason: str
    reason_kind: str = ""
    root_cause: RootCause | None = None
    """Failure that ended the job, if one did."""


def encode_event(event: RunEvent) -> bytes:
    """Encode an event as a line of JSON, without the newline."""
    fields: dict[str, Any] = msgspec.to_builtins(event)
    return codec.encode(
        {"schema": SCHEMA, "event": fields.pop("event"), "time": format_time(fields.pop("at")), **fields}
    )


def decode_event(line: bytes | str) -> RunEvent | None:
    """Read back a line of `encode_event`; None for anything else."""
    try:
        fields = msgspec.json.decode(line, type=dict[str, Any])
        at = parse_time(str(fields.get("time", "")))
        return codec.convert(Union[tuple(RunEvent.__subclasses__())], {**fields, "at": at}, "an event")  # type: ignore[arg-type]  # noqa: UP007
    except (msgspec.MsgspecError, RecordError, RecursionError, UnicodeError):
        return None


def parse_time(text: str) -> float:
    """Return the seconds since 1970 of what `format_time` has written; 0 for anything else."""
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=timezone.utc).timestamp()
    except ValueError:
        return 0.0
