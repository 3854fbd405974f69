"""What one agent says of its node when it is asked, and what the leader makes of all of them: the records.

A request goes to one node, its reply comes back the same way (launcher/agent/inspection). They travel as notes of the
agreement, so a page of events or output is cut to `PAGE_BYTES_MAX`, and its cursor says where the next one begins:
whoever repeats a request that was lost gets the same page again, neither less nor twice.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from launcher.observe.goodput import Goodput
from launcher.observe.timeline import RoundSummary

REPORT_SCHEMA = 1
PAGE_BYTES_MAX = 40_000
"""Of text in a page: with all of it escaped, it still fits in a note."""


class RankReport(Struct, frozen=True, kw_only=True):
    """A worker now. `state`: as in `WorkerRecord`, or "stopped" (SIGSTOP) and "blocked" (in the kernel).

    `place`: its coordinates, "pp=1,tp=0". `cores`: CPUs that it used since the last report, -1 if unknown; `cpu_s`: in
    all. `rss_bytes`: of the worker and what it has started, as all that follows. `progress_age_s`: since its last sign
    of progress, -1 if none is watched. `device_memory_bytes`: in use by the worker on its devices, -1 if unknown.
    """

    rank: int
    local_rank: int
    pid: int
    state: str
    place: str = ""
    started_at: float = 0.0
    exit_code: int | None = None
    sentence: str = ""
    cores: float = -1.0
    cpu_s: float = 0.0
    rss_bytes: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    progress_age_s: float = -1.0
    step: int = -1
    phase: str = ""
    device: str = ""
    device_memory_bytes: int = -1
    device_memory_total_bytes: int = -1


class NodeReport(Struct, frozen=True, kw_only=True):
    """A node now. `state`: "waiting", "running", "stopping", "leaving" or "spare"; `waiting`: for what, a sentence.

    `round`: that runs here, 0 for none. `locality`: (level, domain) pairs, outermost first. `store_latency_s`: of the
    last request to the store, -1 if it is in this process. `log_dir`: "" if no files are kept.
    `mesh_axes` and `mesh_shape`: of the round. `rounds`: as this node saw them, the newest last. `member_count`: all
    nodes of the run, and `spare_count`: those without ranks, as the leader knows; -1 by any other. `slot_count`:
    workers that fit here.
    """

    node: str
    member_id: str
    run_id: str
    version: str
    at: float
    started_at: float
    agent_pid: int
    state: str
    is_leader: bool = False
    waiting: str = ""
    round: int = 0
    restart_count: int = 0
    max_restarts: int = 0
    world_size: int = 0
    node_count: int = 0
    member_count: int = -1
    spare_count: int = -1
    group_rank: int = -1
    mesh_axes: tuple[str, ...] = ()
    mesh_shape: tuple[int, ...] = ()
    step: int = -1
    locality: tuple[tuple[str, str], ...] = ()
    store_latency_s: float = -1.0
    agent_rss_bytes: int = 0
    agent_cpu_s: float = 0.0
    log_dir: str = ""
    ranks: tuple[RankReport, ...] = ()
    rounds: tuple[RoundSummary, ...] = ()
    end_counts: dict[str, int] = field(default_factory=dict)
    failure_counts: dict[str, int] = field(default_factory=dict)
    checkpoint_count: int = 0
    hang_count: int = 0
    goodput: Goodput | None = None
    slot_count: int = 0


class RunReport(Struct, frozen=True, kw_only=True):
    """A run now, by the leader. `missing`: the names of members that have not answered in time.

    `lost`: nodes that had ranks in an earlier round and are not members now. `rounds`: the leader's.
    """

    run_id: str
    at: float
    leader: str
    nodes: tuple[NodeReport, ...]
    missing: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    rounds: tuple[RoundSummary, ...] = ()
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
    """Answered by a LogPage. `cursors`: where to go on, of files read before; other files begin `tail_lines` before
    their end, or at their beginning with -1. `rank`: of one worker only, -1 for all. `round`: 0 for the newest.
    """

    cursors: tuple[LogCursor, ...] = ()
    tail_lines: int = 10
    rank: int = -1
    stream: Literal["stdout", "stderr", "both"] = "both"
    round: int = 0


NodeRequest = ReadState | ReadEvents | ReadLogs


class EventPage(Struct, frozen=True, kw_only=True):
    """Events as lines of JSON, oldest first, numbered from `first`; `dropped`: how many before that are kept no more.

    `next_after`: for the next request. `is_last`: whether there was nothing more.
    """

    lines: tuple[str, ...]
    first: int
    next_after: int
    dropped: int = 0
    is_last: bool = True


class LogChunk(Struct, frozen=True, kw_only=True):
    """A part of a file, of whole lines but for a very long one. `data`: bytes that are no UTF-8 are replaced."""

    file: str
    rank: int
    stream: str
    round: int
    offset: int
    next_offset: int
    data: str


class LogPage(Struct, frozen=True, kw_only=True):
    """`cursors`: of all files of the request, for the next one. `is_last`: whether there was nothing more.

    `remark`: why there is no output to read, as where the workers write to the agent's own terminal.
    """

    chunks: tuple[LogChunk, ...]
    cursors: tuple[LogCursor, ...]
    is_last: bool = True
    remark: str = ""


NodeReply = NodeReport | EventPage | LogPage
REPLY_KINDS: dict[type, type[NodeReport] | type[EventPage] | type[LogPage]] = {
    ReadState: NodeReport,
    ReadEvents: EventPage,
    ReadLogs: LogPage,
}
