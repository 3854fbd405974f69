"""The page that the leader serves with `--serve`: it comes and goes with the leadership.

Listening may ask a name server and importing the server takes tens of milliseconds, so both happen in a thread of their
own, after the first workers have started. A port that is taken costs the page and not the job: it is logged once, and
tried again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from launcher.model.concurrency import LateThread
from launcher.observe.run_source import RunSource

if TYPE_CHECKING:
    from launcher.extensions.page.server import PageServer

RETRY_S = 30.0


class LivePage:
    """`address`: host and port; `origin`: the option that named them. `is_leader` is called in the loop's thread."""

    def __init__(
        self,
        address: tuple[str, int],
        origin: str,
        source: RunSource,
        is_leader: Callable[[], bool],
        log: Callable[[str], None],
    ) -> None:
        self._address = address
        self._origin = origin
        self._source = source
        self._is_leader = is_leader
        self._log = log
        self._problem: type[Exception] | None = None  # the kind that was said last
        self._is_wanted = False
        self._is_closed = False
        self._changed = threading.Event()
        self.thread = LateThread(self._run, "live page")

    def advance(self) -> None:
        """Have the page opened if this agent has begun to lead, closed if it leads no more. Takes no time."""
        is_wanted = self._is_leader()
        if is_wanted == self._is_wanted:
            return
        self._is_wanted = is_wanted
        self._changed.set()
        self.thread.start()

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
            self._changed.wait(RETRY_S if self._is_wanted and server is None else None)
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
                self._log(f"{self._origin}: {error}; the job continues; retrying every {RETRY_S:g} s")
            return None
        self._problem = None
        self._log(f"live page: {server.url}")
        return server
