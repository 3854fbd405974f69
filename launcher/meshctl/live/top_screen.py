"""`meshctl top`: the full screen, by textual. What it shows is made by `top_state`; here it is put on a terminal.

One thread asks the nodes, and hands what has come to the screen, which is never held by a node that does not answer.
When the run ends, the last state stays, with how it ended.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable, Footer, Static

from launcher.meshctl.live.events import EventCollector
from launcher.meshctl.live.poller import NodePoller
from launcher.meshctl.live.top_state import TopState
from launcher.meshctl.table import Column
from launcher.model.errors import TemporaryError, describe_bug
from launcher.views.event_view import EventView
from launcher.views.questions.local_socket import QuestionSource
from launcher.views.run_view import RunView

REDRAW_S = 1.0


class TopScreen(App[None]):
    """The application. `source`: the run."""

    TITLE = "meshctl top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen { layout: vertical; background: $background; }
    #head { height: auto; max-height: 50%; padding: 0 1; text-style: bold; }
    #title { height: 1; padding: 0 1; text-style: dim; }
    DataTable { height: 1fr; background: $background; }
    #events { height: 7; padding: 0 1; border-top: solid $secondary; overflow: hidden; text-wrap: nowrap;
              text-overflow: ellipsis; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("q", "quit", "quit"), Binding("s", "change_sort", "sort")]

    def __init__(self, source: QuestionSource) -> None:
        super().__init__(ansi_color=bool(os.environ.get("NO_COLOR")))
        self._source = source
        self._state = TopState(source.run_id)
        self._filled: list[Column] = []  # what the table holds
        self._is_closing = threading.Event()

    def compose(self) -> ComposeResult:
        yield Static(id="head", markup=False)
        yield Static(id="title", markup=False)
        yield DataTable(id="ranks", cursor_type="row", zebra_stripes=False)
        yield Static(id="events", markup=False)
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        threading.Thread(target=self._read, daemon=True).start()
        self.set_interval(REDRAW_S, self._draw)
        self._draw()

    def on_unmount(self) -> None:
        self._is_closing.set()

    def action_change_sort(self) -> None:
        self._state.change_sort()
        self._draw()

    def on_resize(self) -> None:
        self._draw()

    def _read(self) -> None:
        """Ask all nodes until the screen is closed or no agent is left here; in a thread of its own."""
        problems: list[str] = []
        collector = EventCollector(problems.append)
        poller = NodePoller(self._source, problems.append)
        shown: RunView | None = None
        while not self._is_closing.is_set() and not poller.is_over:
            try:
                answers = poller.poll(collector.make_request, 0.2)
                events = [event for answer in answers for event in collector.take(answer)]
            except Exception as error:  # without this thread the screen would show an old state as that of now
                problem = str(error) if isinstance(error, TemporaryError) else describe_bug(error)
                self._hand_over(None, [], problem)
                self._is_closing.wait(REDRAW_S)
                continue
            if events or poller.report is not shown or poller.problem != self._state.problem:
                shown = poller.report
                self._hand_over(shown, events, poller.problem)
        if poller.is_over and poller.report is not None:
            self._state.ending = poller.describe_end()
            self._hand_over(None, [], "")

    def _hand_over(self, report: RunView | None, events: list[EventView], problem: str) -> None:
        def take() -> None:
            self._state.report = report or self._state.report
            self._state.problem = problem
            self._state.take_events(events)
            self._draw()

        if not self._is_closing.is_set():
            self.call_later(take)

    def _draw(self) -> None:
        if not self.is_running:  # while the screen closes, its widgets go before its timer
            return
        now = time.time()
        self.query_one("#head", Static).update(self._state.describe_head(now))
        self.query_one("#title", Static).update(f"ranks, sorted by {self._state.sort_key}")
        self.query_one("#events", Static).update("\n".join(self._state.list_events(now)[-6:]))
        columns = self._state.make_rank_columns(self.size.width - 2)
        _fill(self.query_one("#ranks", DataTable), self._filled, columns)
        self._filled = columns


def _fill(table: DataTable[Text], shown: Sequence[Column], columns: Sequence[Column]) -> None:
    """Show these columns instead of those that are shown, and leave cursor and scrolling where they are.

    Cells are `Text`: in a str, textual takes square brackets for markup.
    """
    if [(one.header, len(one.cells)) for one in shown] != [(one.header, len(one.cells)) for one in columns]:
        row = table.cursor_row
        table.clear(columns=True)
        for column in columns:
            table.add_column(column.header, key=column.header)
        for index, cells in enumerate(zip(*(column.cells for column in columns), strict=True)):
            table.add_row(*map(Text, cells), key=str(index))
        table.move_cursor(row=min(row, max(0, table.row_count - 1)))
        return
    widths = {column.key.value: column.content_width for column in table.ordered_columns}
    for before, column in zip(shown, columns, strict=True):
        for index, (old, cell) in enumerate(zip(before.cells, column.cells, strict=True)):
            if old != cell:  # a column that became narrower would be measured anew for each of its cells
                text, width = Text(cell), widths[column.header]
                table.update_cell(str(index), column.header, text, update_width=text.cell_len > width)
                widths[column.header] = max(width, text.cell_len)


def run_screen(source: QuestionSource) -> None:
    """Show the run until the user leaves."""
    TopScreen(source).run()
