"""What this agent notes of its run, and what shows it: one object for the agent's loop.

What makes events of messages takes milliseconds to import, which no worker shall wait for. So messages are kept as they
are until the first workers run, a question comes, or the agent ends.

The agent has workers to look after: whatever fails here costs what is shown, is said once, and never ends the loop.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from launcher.model.console import log
from launcher.model.errors import describe_bug
from rendezvous.errors import is_shortage

if TYPE_CHECKING:
    from launcher.agent.inspection.live_page import LivePage
    from launcher.agent.inspection.node_answers import NodeAnswers
    from launcher.extensions.kubernetes.node_requester import NodeRequester
    from launcher.model.concurrency import LateThread
    from launcher.observe.journal import Journal
    from launcher.observe.local_socket import Question
    from launcher.observe.run_events import NodesRequested
    from launcher.observe.sinks.event_file import EventSink

ROUNDS_MAX = 8
"""Rounds of which the log files are remembered."""


DELAY_S = 1.0
"""From the first message until a journal that is written somewhere is made, if nobody asks before."""
KEPT_MAX = 1000
"""Messages that are kept without a journal: then it is made, since it takes less memory than they do."""
START_PAUSE_S = 1.0
"""Between two tries to start a thread."""


class History:
    """`make_journal` is called until it succeeds. `clock`: of `wake_at`.

    `is_wanted`: whether the journal is written somewhere, so that the end needs one.
    """

    def __init__(self, make_journal: Callable[[], Journal], clock: Callable[[], float], *, is_wanted: bool) -> None:
        self._make_journal = make_journal
        self._clock = clock
        self._is_wanted = is_wanted
        self._kept: deque[tuple[object, float]] = deque()
        self._journal: Journal | None = None
        self._is_broken = False  # whether a journal could not be made
        self._has_complained = False
        self.wake_at = math.inf
        """When to call `advance`."""

    @property
    def is_open(self) -> bool:
        """Whether the journal is made, and so what takes time may be done."""
        return self._journal is not None

    def take(self, message: object) -> None:
        """Take a message of the agent, at this time."""
        if self._journal is not None:
            self._pass(self._journal, message, time.time())
            return
        if self._is_broken:
            return
        self._kept.append((message, time.time()))
        if len(self._kept) >= KEPT_MAX:
            self.wake_at = self._clock()
        elif self._is_wanted and self.wake_at == math.inf:
            self.wake_at = self._clock() + DELAY_S

    def open(self) -> Journal:
        """Return the journal, with all messages so far. Raises what its creation does, such as ImportError."""
        if self._journal is None:
            self.wake_at, self._is_broken = math.inf, True
            try:
                self._journal = self._make_journal()
            except Exception as error:
                if is_shortage(error):  # nothing is left to import it with: what happens meanwhile is kept
                    self.wake_at, self._is_broken = self._clock() + DELAY_S, False
                raise
            while self._kept:
                self._pass(self._journal, *self._kept.popleft())
        return self._journal

    def advance(self) -> None:
        """Make the journal."""
        try:
            self.open()
        except Exception as error:
            self.complain(error)

    def add_hang(self, kind: str, ranks: tuple[int, ...], sentence: str, folders: tuple[str, ...]) -> None:
        """Add what the leader concludes of workers that make no progress."""
        try:
            self.open().add_hang(kind, ranks, sentence, folders, time.time())
        except Exception as error:
            self.complain(error)

    def add_request(self, wanted: int, present: int, reason: str, since: str) -> NodesRequested:
        """Add that nodes are asked for, or none any more; return the event. Raises what `open` does."""
        return self.open().add_request(wanted, present, reason, since, time.time())

    def finish(self) -> None:
        """Write down what is kept, if it is to be written anywhere."""
        if self._is_wanted:
            self.advance()

    def complain(self, error: Exception) -> None:
        """Say once that something has failed: a bug, or a package that was replaced while this agent runs."""
        if not self._has_complained:
            self._has_complained = True
            log(f"the view of this run is incomplete: {describe_bug(error)}")

    def _pass(self, journal: Journal, message: object, at: float) -> None:
        try:
            journal.take(message, at)
        except Exception as error:
            self.complain(error)


# docs/internals/decisions/0052-one-journal-and-questions-to-the-loop.md
class Observer:
    """`files`: the log files of the last rounds, by round: (rank, stream) -> path. `make_answers`: makes what answers
    for this node, once it is asked.

    `sinks`: where events go; they are closed at the end. `make_page`: what makes the page of --serve. `requester`: the
    one of --request-nodes.
    """

    def __init__(
        self,
        history: History,
        files: dict[int, dict[tuple[int, str], str]],
        make_answers: Callable[[], NodeAnswers],
        sinks: Sequence[EventSink] = (),
        make_page: Callable[[Callable[[Question, float], bytes]], LivePage] | None = None,
        requester: NodeRequester | None = None,
    ) -> None:
        self.history = history
        self._files = files
        self.make_answers = make_answers
        self._sinks = sinks
        self._make_page = make_page
        self._requester = requester
        self._page: LivePage | None = None
        self.socket_name = ""
        """Of this agent, once it is open; "" without one."""
        self._start_at = -math.inf  # when the threads that are missing are tried again

    def ask(self, question: Question, limit_s: float) -> bytes:
        """Ask this agent from another of its threads, as other processes do. Raises OSError."""
        from launcher.observe.local_socket import exchange

        if not self.socket_name:
            raise OSError(0, "this system does not allow the agent to open its socket")
        return exchange(self.socket_name, question, limit_s)

    @property
    def wake_at(self) -> float:
        """When to call `advance`."""
        request_at = self._requester.wake_at if self._requester is not None and self.history.is_open else math.inf
        start_at = self._start_at if self._list_missing() else math.inf
        return min(self.history.wake_at, request_at, start_at)

    def advance(self, now: float) -> None:
        """Do what is due."""
        if now >= self.history.wake_at:
            self.history.advance()
        if now >= self._start_at and (missing := self._list_missing()):
            self._start_at = now + START_PAUSE_S
            for thread in missing:
                thread.start()
        if self._requester is not None and self.history.is_open:
            try:
                self._requester.advance(now)
            except Exception as error:
                self._requester = None
                self.history.complain(error)
        if self._make_page is not None and self.history.is_open:
            try:
                if self._page is None:
                    self._page = self._make_page(self.ask)
                self._page.advance()
            except Exception as error:
                if not is_shortage(error):
                    self._make_page = None
                self.history.complain(error)

    def begin_round(self, round: int, files: dict[tuple[int, str], str]) -> None:
        """Note which files keep the output of a round's workers here."""
        self._files[round] = files
        for old in sorted(self._files)[:-ROUNDS_MAX]:
            del self._files[old]

    def finish(self) -> None:
        """Write down what is kept, and let go what was opened."""
        if self._requester is not None:
            self.attempt(self._requester.close)
        self.history.finish()
        for sink in self._sinks:
            self.attempt(sink.close)
        if self._page is not None:
            self.attempt(self._page.close)

    def attempt(self, call: Callable[[], object]) -> None:
        """Do what may fail, and costs what is shown then."""
        try:
            call()
        except Exception as error:
            self.history.complain(error)

    def _list_missing(self) -> list[LateThread]:
        """Return the threads that are needed and could not be started yet."""
        parts = (*self._sinks, self._requester, self._page)
        return [part.thread for part in parts if part is not None and part.thread.is_missing]
