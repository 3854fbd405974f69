"""The page that the leader serves with `--serve`: it comes and goes with the leadership.

This part is told of the leadership alone. What the page shows is asked for through launcher/views/questions when it is
read, as by any other view.

Listening may ask a name server and importing the server takes tens of milliseconds, so both happen in a thread of their
own, after the first workers have started. A port that is taken costs the page and not the job: it is logged once, and
tried again.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from launcher.agent.composition import Ask, PartContext
from launcher.model.concurrency import LateThread
from launcher.model.console import log
from launcher.parts.part import RETRY_S, Effect, Fact, LeadershipChanged
from launcher.views.questions.local_socket import QuestionSource
from launcher.views.questions.run_source import RunSource

if TYPE_CHECKING:
    from launcher.extensions.page.server import PageServer

REOPEN_S = 30.0


class LivePage:
    """The part that opens the page and closes it. `address`: host and port; `origin`: the option that named them."""

    def __init__(self, address: tuple[str, int], origin: str, source: RunSource, log: Callable[[str], None]) -> None:
        self._address = address
        self._origin = origin
        self._source = source
        self._log = log
        self._problem: type[Exception] | None = None  # the kind that was said last
        self._is_wanted = False
        self._is_closed = False
        self._changed = threading.Event()
        self._thread = LateThread(self._run, "live page")
        self.wake_at = math.inf

    def take(self, fact: Fact) -> None:
        """Have the page opened if this agent has begun to lead, closed if it leads no more."""
        if isinstance(fact.what, LeadershipChanged):
            self._is_wanted, self.wake_at = fact.what.is_leader, -math.inf

    def advance(self, now: float) -> Iterable[Effect]:
        self._changed.set()
        self._thread.start()
        self.wake_at = now + RETRY_S if self._thread.is_missing else math.inf
        return ()

    def close(self) -> None:
        """End the page."""
        self._is_closed = True
        self._changed.set()

    def _run(self) -> None:
        server: PageServer | None = None
        while not self._is_closed:
            if self._is_wanted and server is None:
                server = self._open()
            elif server is not None and not self._is_wanted:
                server.close()
                server = None
            self._changed.wait(REOPEN_S if self._is_wanted and server is None else None)
            self._changed.clear()
        if server is not None:
            server.close()

    def _open(self) -> PageServer | None:
        try:
            from launcher.extensions.page.server import PageServer  # not before the first worker

            server = PageServer(self._source, *self._address)
        except Exception as error:  # a port that is taken, no thread, or a bug: it costs the page, and no job
            if type(error) is not self._problem:
                self._problem = type(error)
                self._log(f"{self._origin}: {error}; the job continues; retrying every {REOPEN_S:g} s")
            return None
        self._problem = None
        self._log(f"live page: {server.url}")
        return server


def make_page(node: PartContext, ask: Ask) -> LivePage:
    """Make the part for --serve."""
    asked = node.config.extensions["serve"]
    return LivePage(asked.read(), asked.origin, QuestionSource(ask, node.layout.run_id), log)
