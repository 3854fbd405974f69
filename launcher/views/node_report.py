"""What one agent says of its node when it is asked, and what the leader makes of all of them: the records.

A request goes to one node, its reply comes back the same way (launcher/views/node). They travel as notes of the
agreement, so a page of events or output is cut to `PAGE_BYTES_MAX`, and its cursor says where the next one begins:
whoever repeats a request that was lost gets the same page again, neither less nor twice.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from launcher.views.goodput import Goodput
from launcher.views.timeline import RoundSummary
from rendezvous.reasons import Reason

REPORT_SCHEMA = 1
PAGE_BYTES_MAX = 40_000
"""Of text in a page: with all of it escaped, it still fits in a note."""


class RankReport(Struct, frozen=True, kw_only=True):
    """A worker now. Numbers of use are of the worker and of all that it has started; -1 is unknown."""

    rank: int
    local_rank: int
    pid: int
    state: str
    """As in `WorkerRecord`, or "stopped" (SIGSTOP) or "blocked" (in the kernel)."""
    place: str = ""
    """Its coordinates, "pp=1,tp=0"."""
    started_at: float = 0.0
    exit_code: int | None = None
    sentence: str = ""
    cores: float = -1.0
    """CPUs that it used since the last report."""
    cpu_s: float = 0.0
    """CPU time since its start."""
    rss_bytes: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    progress_age_s: float = -1.0
    """Since its last sign of progress, -1 if none is watched."""
    step: int = -1
    phase: str = ""
    device: str = ""
    device_memory_bytes: int = -1
    """In use by the worker on its devices."""
    device_memory_total_bytes: int = -1


class NodeReport(Struct, frozen=True, kw_only=True):
    """A node now."""

    node: str
    member_id: str
    run_id: str
    version: str
    at: float
    started_at: float
    agent_pid: int
    state: str
    """"waiting", "running", "stopping", "leaving" or "spare"."""
    is_leader: bool = False
    waiting: Reason | None = None
    """What it waits for."""
    round: int = 0
    """The round that runs here, 0 for none."""
    restart_count: int = 0
    max_restarts: int = 0
    world_size: int = 0
    node_count: int = 0
    member_count: int = -1
    """All nodes of the run, as the leader knows; -1 from any other node."""
    spare_count: int = -1
    """Nodes without ranks, as the leader knows; -1 from any other node."""
    group_rank: int = -1
    mesh_axes: tuple[str, ...] = ()
    """Of the round, as `mesh_shape`."""
    mesh_shape: tuple[int, ...] = ()
    step: int = -1
    locality: tuple[tuple[str, str], ...] = ()
    """Pairs of level and domain, outermost first."""
    store_latency_s: float = -1.0
    """Of the last request to the store, -1 if the store is in this process."""
    agent_rss_bytes: int = 0
    agent_cpu_s: float = 0.0
    log_dir: str = ""
    """"" if no files are kept."""
    ranks: tuple[RankReport, ...] = ()
    rounds: tuple[RoundSummary, ...] = ()
    """As this node saw them, the newest last."""
    end_counts: dict[str, int] = field(default_factory=dict)
    failure_counts: dict[str, int] = field(default_factory=dict)
    checkpoint_count: int = 0
    hang_count: int = 0
    goodput: Goodput | None = None
    slot_count: int = 0
    """Workers that fit here."""
    off: tuple[str, ...] = ()
    """Features of the agent that have failed, as its log names them."""


class RunReport(Struct, frozen=True, kw_only=True):
    """A run now, as its leader reports it."""

    run_id: str
    at: float
    leader: str
    nodes: tuple[NodeReport, ...]
    missing: tuple[str, ...] = ()
    """Names of members that have not answered in time."""
    lost: tuple[str, ...] = ()
    """Nodes that had ranks in an earlier round and are not members now."""
    rounds: tuple[RoundSummary, ...] = ()
    """As the leader saw them."""
    goodput: Goodput | None = None
    schema: int = REPORT_SCHEMA


# --- requests to one node ---


class ReadState(Struct, frozen=True, kw_only=True, tag="state"):
    """Answered by a NodeReport. `has_rounds`: with all of its rounds, else the last only."""

    has_rounds: bool = True


class ReadEvents(Struct, frozen=True, kw_only=True, tag="events"):
    """Answered by an EventPage with the events after the number `after`, -1 for all that are kept."""

    after: int = -1


class LogCursor(Struct, frozen=True, array_like=True):
    """Where the next page of a file begins. `file`: a name within the node's log directory; `offset`: in bytes."""

    file: str
    offset: int


class ReadLogs(Struct, frozen=True, kw_only=True, tag="logs"):
    """A request that is answered by a LogPage."""

    cursors: tuple[LogCursor, ...] = ()
    """Where to continue in files that were read before."""
    tail_lines: int = 10
    """Where other files begin: this many lines before their end, -1 for their beginning."""
    rank: int = -1
    """Of one worker only, -1 for all."""
    stream: Literal["stdout", "stderr", "both"] = "both"
    round: int = 0
    """0 for the newest."""


NodeRequest = ReadState | ReadEvents | ReadLogs


class EventPage(Struct, frozen=True, kw_only=True):
    """Events as lines of JSON, oldest first."""

    lines: tuple[str, ...]
    first: int
    """The number of the first line."""
    next_after: int
    """For the next request."""
    dropped: int = 0
    """How many before `first` are no longer kept."""
    is_last: bool = True
    """Whether there was nothing more."""


class LogChunk(Struct, frozen=True, kw_only=True):
    """A part of a file, of whole lines except for a very long one."""

    file: str
    rank: int
    stream: str
    round: int
    offset: int
    next_offset: int
    data: str
    """Bytes that are not UTF-8 are replaced."""


class LogPage(Struct, frozen=True, kw_only=True):
    """A part of the output of a node's workers."""

    chunks: tuple[LogChunk, ...]
    cursors: tuple[LogCursor, ...]
    """Of all files of the request, for the next one."""
    is_last: bool = True
    """Whether there was nothing more."""
    remark: str = ""
    """Why there is no output to read, for example because workers write to the agent's own terminal."""


NodeReply = NodeReport | EventPage | LogPage
REPLY_KINDS: dict[type, type[NodeReport] | type[EventPage] | type[LogPage]] = {
    ReadState: NodeReport,
    ReadEvents: EventPage,
    ReadLogs: LogPage,
}
