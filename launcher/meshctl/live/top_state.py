"""What `meshctl top` shows: the head of `meshctl status`, the table of `meshctl ps` and its order, the last events.

Nothing here draws, reads a clock or asks anyone, so that all of it can be tested without a terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from launcher.meshctl.live.events import format_events
from launcher.meshctl.live.ranks import RankRow, list_ranks, make_rank_columns
from launcher.meshctl.status import describe_head
from launcher.meshctl.table import format_clock, format_table
from launcher.model.console import escape
from launcher.views.event_view import EventView
from launcher.views.run_view import RunView
from rendezvous.records import name_run

EVENTS_MAX = 200
_LOW_ATTENTION = ("running", "succeeded")

SORT_KEYS: dict[str, Callable[[RankRow], tuple[object, ...]]] = {
    "rank": lambda row: (row[1].rank, row[0].name),
    "cpu": lambda row: (-row[1].cores, row[1].rank),
    "memory": lambda row: (-row[1].rss_bytes, row[1].rank),
    "progress": lambda row: (-row[1].progress_age_s, row[1].rank),
    "state": lambda row: (row[1].state in _LOW_ATTENTION, row[1].state, row[1].rank),
}


class TopState:
    """The last report, the events so far, and how to sort. `problem`: why there is nothing newer, "" if there is.

    `ending`: once no agent of the run is here any more, how its last round ended, as far as that is known.
    """

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.report: RunView | None = None
        self.events: list[EventView] = []
        self.sort_key = "rank"
        self.problem = self.ending = ""

    def take(self, report: RunView | None, events: Sequence[EventView], problem: str = "", ending: str = "") -> None:
        """Take what has come; the events in any order."""
        self.report, self.problem, self.ending = report or self.report, problem, ending
        if events:
            self.events = sorted([*self.events, *events], key=lambda event: (event.at, event.node))[-EVENTS_MAX:]

    def change_sort(self) -> None:
        """Sort by the next key."""
        keys = list(SORT_KEYS)
        self.sort_key = keys[(keys.index(self.sort_key) + 1) % len(keys)]

    def describe_head(self, now: float) -> str:
        """Describe the run as `meshctl status` does, above its nodes. `now`: seconds since 1970."""
        report = self.report
        if report is None:
            return escape(f"{name_run(self.run_id)}: {self.problem or 'waiting for its agents to answer'}")
        if self.ending:
            remark = self._describe_end(name_run(report.run_id))
        elif self.problem:
            remark = f"state as of {format_clock(report.at, now)}: {self.problem}"
        else:
            remark = ""
        return describe_head(replace(report, at=now)) + escape(remark)

    def describe_ranks(self, width: int = 0) -> str:
        """Describe the ranks as `meshctl ps` does, sorted. `width`: of the terminal, 0 for all columns."""
        rows = list_ranks(self.report) if self.report is not None else []
        return format_table(make_rank_columns(sorted(rows, key=SORT_KEYS[self.sort_key])), width)

    def list_events(self, now: float) -> list[str]:
        """List the last events, the newest last."""
        return format_events(self.events, now)

    def _describe_end(self, name: str) -> str:
        """Describe how the run ended, as far as it was seen: its agents end right after it."""
        for event in reversed(self.events):
            if event.kind == "agent_ended":
                return f"{name} has ended: {event.sentence}"
        return self.ending
