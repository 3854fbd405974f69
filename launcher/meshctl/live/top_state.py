"""What `meshctl top` shows: texts and tables made of the last report and events, and how they are sorted.

Nothing here draws, reads a clock or asks anyone, so that all of it can be tested without a terminal.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from msgspec import Struct

from launcher.meshctl.live.events import SeenEvent, format_events
from launcher.meshctl.live.local_files import describe_gone
from launcher.meshctl.live.ranks import RankRow, format_names, list_ranks, make_rank_columns
from launcher.meshctl.live.tables import Column, fit_columns, format_age, format_size
from launcher.meshctl.status.agents import derive_overview
from launcher.meshctl.status.render import format_headline, format_mesh
from launcher.model.console import escape
from launcher.model.ranges import format_ranges
from launcher.model.text import format_clock, format_duration
from launcher.observe.goodput import Goodput
from launcher.observe.node_report import NodeReport, RunReport
from launcher.observe.timeline import RoundSummary
from rendezvous.records import name_run

EVENTS_MAX = 200
_LOW_ATTENTION = ("running", "succeeded")

SORT_KEYS: dict[str, Callable[[RankRow], tuple[object, ...]]] = {
    "rank": lambda row: (row[1].rank, row[0].node),
    "cpu": lambda row: (-row[1].cores, row[1].rank),
    "memory": lambda row: (-row[1].rss_bytes, row[1].rank),
    "progress": lambda row: (-row[1].progress_age_s, row[1].rank),
    "state": lambda row: (row[1].state in _LOW_ATTENTION, row[1].state, row[1].rank),
}


class TopTable(Struct, frozen=True):
    """Headers and rows of a table, all of them texts."""

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


class TopState:
    """The last report, the events so far, and how to sort. `problem`: why there is nothing newer, "" if there is.

    `is_over`: no agent of the run is here any more, and `ending` how its last round ended, if that is known.
    """

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.report: RunReport | None = None
        self.events: deque[SeenEvent] = deque(maxlen=EVENTS_MAX)
        self.sort_key = "rank"
        self.problem = ""
        self.is_over = False
        self.ending = ""

    def take_events(self, events: Sequence[SeenEvent]) -> None:
        """Take events, in any order."""
        merged = sorted([*self.events, *events], key=lambda event: (event.at, event.node))
        self.events = deque(merged, maxlen=EVENTS_MAX)

    def change_sort(self) -> None:
        """Sort by the next key."""
        keys = list(SORT_KEYS)
        self.sort_key = keys[(keys.index(self.sort_key) + 1) % len(keys)]

    def describe_head(self, now: float) -> list[str]:
        """Describe the run in a few lines. `now`: seconds since 1970."""
        report = self.report
        if report is None:
            return [f"{name_run(escape(self.run_id))}: {self.problem or 'waiting for its agents to answer'}"]
        overview = derive_overview(report)
        current = report.rounds[-1] if report.rounds else None
        since = (
            f" for {format_duration(now - current.began_at)}" if current is not None and not current.ended_at else ""
        )
        state = self._describe_end() if self.is_over else f"{format_headline(overview)}{since}"
        parts = [f"mesh {format_mesh(overview)}", f"leader {report.leader or 'none'}"]
        if overview.max_restarts or overview.restart_count:
            parts.append(f"restarts {overview.restart_count} of {overview.max_restarts}")
        step = max((node.step for node in report.nodes), default=-1)
        if step >= 0:
            parts.append(f"step {step:,}")
        lines = [f"{name_run(report.run_id)}: {state}", "   ".join(parts)]
        if report.goodput is not None:
            lines.append(format_goodput(report.goodput))
        absent = [f"lost: {format_names([name for name, _ in overview.lost])}"] if overview.lost else []
        absent += [f"no answer: {format_names(report.missing)}"] if report.missing else []
        lines += ["   ".join(absent)] if absent else []
        if self.problem and not self.is_over:
            lines.append(f"state as of {format_clock(report.at, now)}: {self.problem}")
        return [escape(line) for line in lines]

    def make_node_table(self) -> TopTable:
        """Make the table of nodes, and of those that do not answer."""
        report = self.report
        nodes = report.nodes if report is not None else ()
        rows = [_make_node_row(node) for node in nodes]
        rows += [(escape(name), "no answer", "", "", "", "") for name in (report.missing if report else ())]
        return TopTable(("node", "state", "ranks", "cpu", "memory", "waits for"), tuple(rows))

    def make_rank_table(self, width: int = 0) -> TopTable:
        """Make the table of ranks, sorted. `width`: of the terminal, 0 for all columns."""
        rows = list_ranks(self.report) if self.report is not None else []
        rows.sort(key=SORT_KEYS[self.sort_key])
        return _make_table(make_rank_columns(rows), width)

    def make_round_table(self, now: float) -> TopTable:
        """Make the table of rounds, the newest first."""
        rounds = self.report.rounds if self.report is not None else ()
        rows = tuple(_make_round_row(one, now) for one in reversed(rounds))
        return TopTable(("round", "began", "ran", "ranks", "ended by"), rows)

    def list_events(self, now: float) -> list[str]:
        """List the last events, the newest last."""
        return format_events(list(self.events), now)

    def _describe_end(self) -> str:
        """Describe how the run ended, as far as it was seen: its agents end right after it."""
        for event in reversed(self.events):
            if event.kind == "agent_ended":
                return f"has ended: {event.sentence}"
        last = self.report.rounds[-1] if self.report is not None and self.report.rounds else None
        seen = f"it was last seen in round {last.round}" if last is not None else ""
        return describe_gone(self.ending or seen)


def format_goodput(goodput: Goodput) -> str:
    """goodput 93 %: trained 2 h of 2 h 10 min; lost 8 min to failure, 2 min to start"""
    lost = sorted(goodput.lost_s.items(), key=lambda one: -one[1])
    parts = ", ".join(f"{format_duration(seconds)} to {cause}" for cause, seconds in lost if seconds >= 0.05)
    trained = f"trained {format_duration(goodput.trained_s)} of {format_duration(goodput.total_s)}"
    return f"goodput {100 * goodput.ratio:.0f} %: {trained}" + (f"; lost {parts}" if parts else "")


def _make_node_row(node: NodeReport) -> tuple[str, ...]:
    cores = [rank.cores for rank in node.ranks if rank.cores >= 0]
    memory = sum(rank.rss_bytes for rank in node.ranks)
    cells = (
        f"{node.node}{' *' if node.is_leader else ''}",
        node.state,
        format_ranges(sorted(rank.rank for rank in node.ranks)) or "-",
        f"{sum(cores):.1f}" if cores else "-",
        format_size(memory) if memory else "-",
        node.waiting,
    )
    return tuple(map(escape, cells))


def _make_round_row(one: RoundSummary, now: float) -> tuple[str, ...]:
    failure = ", ".join(filter(None, (one.failure_class, one.error)))
    ended = (one.reason or one.cause) if one.ended_at else "runs"
    cells = (
        str(one.round),
        format_clock(one.began_at, now),
        format_age((one.ended_at or now) - one.began_at),
        f"{one.world_size} on {one.node_count}",
        f"{ended} ({failure})" if failure else ended,
    )
    return tuple(map(escape, cells))


def _make_table(columns: Sequence[Column], width: int) -> TopTable:
    kept = fit_columns(columns, width)
    rows = tuple(zip(*(tuple(map(escape, column.cells)) for column in kept), strict=True))
    return TopTable(tuple(column.header for column in kept), rows)
