"""`meshctl top`: the full screen, by textual. What it shows is made by `top_state`; here it is put on a terminal.

One thread asks the nodes, and hands what has come to the screen, which is never held by a node that does not answer.
When the run ends, the last state stays, with how it ended.
"""

from __future__ import annotations

import os
import threading
import time
from typing import ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import Footer, Static

from launcher.meshctl.live.events import poll_events
from launcher.meshctl.live.poller import NodePoller
from launcher.meshctl.live.top_state import TopState
from launcher.model.errors import TemporaryError, describe_bug
from launcher.views.questions.local_socket import QuestionSource

REDRAW_S = 1.0


class TopScreen(App[None]):
    """The application. `source`: the run."""

    TITLE = "meshctl top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen { layout: vertical; background: $background; }
    #head { height: auto; max-height: 50%; padding: 0 1; text-style: bold; }
    #title { height: 1; padding: 0 1; text-style: dim; }
    #table { height: 1fr; padding: 0 1; } #ranks { width: auto; }
    #events { height: 7; padding: 0 1; border-top: solid $secondary; overflow: hidden; text-wrap: nowrap;
              text-overflow: ellipsis; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("q", "quit", "quit"), Binding("s", "change_sort", "sort")]

    def __init__(self, source: QuestionSource) -> None:
        super().__init__(ansi_color=bool(os.environ.get("NO_COLOR")))
        self._source = source
        self._state = TopState(source.run_id)
        self._shown: dict[str, str] = {}
        self._is_closing = threading.Event()

    def compose(self) -> ComposeResult:
        yield Static(id="head", markup=False)
        yield Static(id="title", markup=False)
        with VerticalScroll(id="table"):
            yield Static(id="ranks", markup=False)
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
        poller = NodePoller(self._source, lambda _: None)
        while not self._is_closing.is_set() and not poller.is_over:
            events, problem = [], ""
            try:
                events = poll_events(poller, 0.2)
            except Exception as error:  # without this thread the screen would show an old state as that of now
                problem = str(error) if isinstance(error, TemporaryError) else describe_bug(error)
                self._is_closing.wait(REDRAW_S)
            ending = poller.describe_end() if poller.is_over and poller.report is not None else ""
            self._state.take(poller.report, events, problem or poller.problem, ending)

    def _draw(self) -> None:
        if not self.is_running:  # while the screen closes, its widgets go before its timer
            return
        now = time.time()
        told = {
            "#head": self._state.describe_head(now),
            "#title": f"ranks, sorted by {self._state.sort_key}",
            "#events": "\n".join(self._state.list_events(now)[-6:]),
            "#ranks": self._state.describe_ranks(self.size.width - 2),
        }
        for name, text in told.items():
            if self._shown.get(name) != text:
                self.query_one(name, Static).update(text)
        self._shown = told
