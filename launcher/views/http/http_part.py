"""The part that serves an address: it listens there while there is something to serve, and its thread accepts.

Where it has to listen from the start, its thread is there before the workers, who may use up all threads, and waits
until they have been started. Listening may ask a name server, so it happens in the thread, too. A port that is taken
costs what was to be served and not the job: it is logged once, and tried again. Where it has to be free from the start,
the agent does not join.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from launcher.config.options.readers import Value
from launcher.model.concurrency import LateThread
from launcher.model.console import log
from launcher.model.errors import LauncherError, describe_bug
from launcher.parts.host import PartHost
from launcher.parts.part import LATER_S, RETRY_S, Effect, Fact, LeadershipChanged
from launcher.views.http.path_group import Answer, PathGroup, open_listener
from launcher.views.questions.kept_answer import KeptAnswer

if TYPE_CHECKING:
    import socket

    from launcher.views.http.http_server import HttpServer
    from launcher.views.questions.local_socket import Exchange

REOPEN_S = 30.0


class HttpPart:
    """Serves groups of paths. `address`: host and port; `origin`: the option that named it first."""

    def __init__(
        self, address: tuple[str, int], origin: str, groups: list[PathGroup], log: Callable[[str], None]
    ) -> None:
        self.address = address
        self.groups = groups
        self._origin = origin
        self._log = log
        self._delay_s = 0.0
        self._is_leader = False
        self._listener: socket.socket | None = None
        self._server: HttpServer | None = None
        self._announced: set[str] = set()
        self._problem: type[Exception] | None = None  # the kind that was said last
        self._changed = threading.Event()
        self._closed = threading.Event()
        self._thread = LateThread(self._run, origin)
        self.wake_at = math.inf

    def listen(self, delay_s: float = LATER_S) -> int:
        """Listen now, and have the thread accept in a moment; return the port. Raises LauncherError."""
        self._delay_s = delay_s
        self._listener = self._listener or open_listener(*self.address, self._origin)
        self._thread.start()
        self.wake_at = -math.inf
        return int(self._listener.getsockname()[1])

    def take(self, fact: Fact) -> None:
        """Have the page served if this agent has begun to lead, and no more if it leads no more."""
        if isinstance(fact.what, LeadershipChanged):
            self._is_leader, self.wake_at = fact.what.is_leader, -math.inf

    def advance(self, now: float) -> Iterable[Effect]:
        self._thread.start()
        self.wake_at = now + RETRY_S if self._thread.is_missing else math.inf
        self._serve_groups()
        self._changed.set()
        return ()

    def close(self) -> None:
        """End the service."""
        self._closed.set()
        self._changed.set()
        if (server := self._server) is not None:
            server.close()
        elif self._listener is not None:
            self._listener.close()

    @property
    def _wanted(self) -> list[PathGroup]:
        return [group for group in self.groups if self._is_leader or not group.is_leaders]

    def _serve_groups(self) -> None:
        """Have the server, if there is one, serve what is wanted now; nothing wanted closes it."""
        if (server := self._server) is None:
            return
        server.groups = self._wanted
        for group in server.groups:
            sentence = group.announcement.format(url=server.url, address=server.address)
            if sentence and sentence not in self._announced:
                self._announced.add(sentence)
                self._log(sentence)
        if not server.groups:
            server.close()

    def _run(self) -> None:
        self._closed.wait(self._delay_s)
        while not self._closed.is_set():
            self._changed.clear()
            if self._wanted and (server := self._open()) is not None:
                self._server = server
                self._serve_groups()
                if not self._closed.is_set():
                    server.run()
                server.close()
                self._server = self._listener = None
            else:
                self._changed.wait(REOPEN_S if self._wanted else None)

    def _open(self) -> HttpServer | None:
        try:
            from launcher.views.http.http_server import HttpServer  # not before the first worker

            self._listener = self._listener or open_listener(*self.address, self._origin)
            server = HttpServer(self._listener, [], self.address[0])
        except Exception as error:  # a port that is taken, no descriptor, or a bug: it costs what is served, and no job
            if type(error) is not self._problem:
                self._problem = type(error)
                why = str(error) if isinstance(error, LauncherError) else f"{self._origin}: {describe_bug(error)}"
                self._log(f"{why}; the job continues; retrying every {REOPEN_S:g} s")
            return None
        self._problem = None
        return server


def make_part(
    parts: PartHost, option: Value, entry: str, ask: Exchange, run_id: str, *, is_open: bool = False,
    is_leaders: bool = False, announcement: str = "",
) -> HttpPart | None:  # fmt: skip
    """Make the part for paths at the address of an option; None if one that is there has that address, and serves them.

    `entry`: of an extension, as in its tables: makes the answers by path from what asks this agent. The rest as in
    PathGroup.
    """
    made: KeptAnswer[Mapping[str, Answer]] = KeptAnswer(time.monotonic)  # the first readers wait for one, too

    def make() -> Mapping[str, Answer]:
        from launcher.extensions import load_entry
        from launcher.views.questions.local_socket import QuestionSource

        return load_entry(entry)(QuestionSource(ask, run_id))  # type: ignore[no-any-return]

    group = PathGroup(partial(made.read, math.inf, make), is_open, is_leaders, announcement)
    for part in parts.list_parts():
        if isinstance(part, HttpPart) and part.address == option.read():
            part.groups.append(group)
            part.wake_at = -math.inf
            return None
    return HttpPart(option.read(), option.origin, [group], log)
