"""What one agent is asked of its node, and pages of its events and output: the records.

A request goes to one node, its reply comes back the same way (launcher/views/node). They travel as notes of the
agreement, so a page of events or output is cut to `PAGE_BYTES_MAX`, and its cursor says where the next one begins:
whoever repeats a request that was lost gets the same page again, neither less nor twice.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from launcher.views.run_view import NodeView

PAGE_BYTES_MAX = 40_000
"""Of text in a page: with all of it escaped, it still fits in a note."""


class Identify(Struct, frozen=True, kw_only=True, tag="identify"):
    """Answered by the agent that is asked, with the fields of a `LocalAgent`."""


class ReadRun(Struct, frozen=True, kw_only=True, tag="run"):
    """Answered by a RunView, from all nodes by way of the leader."""


class Replace(Struct, frozen=True, kw_only=True, tag="replace"):
    """Answered by {}: an agent of an earlier attempt of `run_id` than `attempt` leaves; others do not."""

    run_id: str
    attempt: int


class ReadState(Struct, frozen=True, kw_only=True, tag="state"):
    """Answered by a NodeView; with `of_run` by the leader with what is known of the run, too."""

    of_run: bool = True


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


NodeReply = NodeView | EventPage | LogPage
REPLY_KINDS: dict[type, type[NodeView] | type[EventPage] | type[LogPage]] = {
    ReadState: NodeView,
    ReadEvents: EventPage,
    ReadLogs: LogPage,
}
