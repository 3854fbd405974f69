"""Asks all nodes of a run for what is new there, over and over: for logs, events and the full screen.

A few requests are under way at once, each in a thread, so one node that does not answer holds up no other. Each node is
asked again when its answer is there: at once if it has more, else after a pause, which is longer with many nodes, since
all requests pass through the leader. The threads are daemons, so a request that hangs does not hold the program's end.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial

from msgspec import Struct, field

from launcher.model.errors import TemporaryError, sanitize
from launcher.views.questions.local_socket import QuestionSource, RunGoneError, SilentNodeError
from launcher.views.requests import EventPage, LogPage, NodeReply, NodeRequest
from launcher.views.run_view import SILENT, RunView
from launcher.views.sentences import describe_gone, explain_shortness, format_headline
from rendezvous.records import name_run

REQUESTS_MAX = 8
PAUSE_S = 0.25
PAUSE_PER_NODE_S = 0.01
STORE_PAUSE_S = 2.0
"""Where each question is written to the store, and each answer told to all members."""
REPORT_INTERVAL_S = 2.0
BACKOFF_MAX_S = 10.0
FAILURES_MAX = 2
"""Requests in a row without an answer, after which a node counts as one that does not answer."""


class PolledNode(Struct, kw_only=True):
    """A node of the run."""

    member_id: str
    name: str
    is_first: bool = True
    """Whether it was there when the view began, even if it did not answer then."""
    has_answered: bool = False
    has_all: bool = False
    """Whether its last answer was the newest."""
    is_busy: bool = False
    is_gone: bool = False
    is_unread: bool = False
    """Its run has ended, and what it has written last is not here."""
    asked_of: int = 0
    """The source's `switch_count`, when it was asked last."""
    next_at: float = 0.0
    failures: int = 0
    last_event: int = -1
    """The number of the last event that it has told."""


NodeAnswer = tuple[PolledNode, NodeReply]


class RequestPool:
    """Does work in daemon threads; `wait` returns what is done, as (key, result or error)."""

    def __init__(self, size: int = REQUESTS_MAX) -> None:
        self._tasks: queue.SimpleQueue[tuple[object, Callable[[], object]]] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[object, object]] = queue.SimpleQueue()
        for _ in range(size):
            threading.Thread(target=self._run, daemon=True).start()

    def submit(self, key: object, work: Callable[[], object]) -> None:
        self._tasks.put((key, work))

    def wait(self, limit_s: float) -> list[tuple[object, object]]:
        """Return what is done; wait for the first for a limited time."""
        found = []
        try:
            found.append(self._done.get(timeout=limit_s) if limit_s > 0 else self._done.get_nowait())
            while True:
                found.append(self._done.get_nowait())
        except queue.Empty:
            return found

    def _run(self) -> None:
        while True:
            key, work = self._tasks.get()
            result: object
            try:
                result = work()
            except Exception as error:  # handed to the thread that asked
                result = error
            self._done.put((key, result))


class NodePoller(Struct, eq=False):
    """What is known of the nodes of a run, and what is under way."""

    source: QuestionSource
    warn: Callable[[str], object]
    """Gets a sentence."""
    clock: Callable[[], float] = time.monotonic
    nodes: dict[str, PolledNode] = field(default_factory=dict)
    report: RunView | None = None
    """The last of the run."""
    problem: str = ""
    """Why there is none that is newer, "" if there is."""
    is_over: bool = False
    """The run has ended, or no agent of it is on this machine any more."""
    ending: str = ""
    """What is said of that, "" if it was so from the beginning."""
    _pool: RequestPool = field(default_factory=RequestPool)
    _silent: set[str] = field(default_factory=set)  # names of nodes that the user was told about
    _first_missing: set[str] = field(default_factory=set)  # those that have not answered since the view began
    _report_at: float = 0.0
    _is_reading_run: bool = False
    _is_live: bool = True
    _was_live: bool = True

    @property
    def has_begun(self) -> bool:
        """Whether every node has answered once, or does not answer."""
        return self.report is not None and all(
            node.has_answered or node.is_gone or node.failures >= FAILURES_MAX for node in self.nodes.values()
        )

    @property
    def has_all(self) -> bool:
        """Whether every node has said all that there is now, or does not answer."""
        return self.report is not None and all(
            node.has_all or node.is_gone or node.failures >= FAILURES_MAX for node in self.nodes.values()
        )

    def poll(self, make_request: Callable[[PolledNode], NodeRequest | None], wait_s: float) -> list[NodeAnswer]:
        """Ask whom it is time to ask, and return the answers that come within `wait_s` seconds.

        `make_request`: gets a node and returns what to ask it, None for nothing.
        Raises TemporaryError if not even the first report can be had.
        """
        now = self.clock()
        if self._is_live and not self.source.is_live:
            self._is_live, self._was_live = False, self.report is not None
            self._take_report(self.source.read_run())
        if not self._is_reading_run and now >= self._report_at:
            self._is_reading_run = True
            self._pool.submit(None, self.source.read_run)
        for node in self.nodes.values():
            if node.is_busy or node.is_gone or now < node.next_at:
                continue
            request = make_request(node)
            if request is None:
                node.has_answered = node.has_all = True
                node.next_at = now + REPORT_INTERVAL_S
                continue
            node.is_busy, node.asked_of = True, self.source.switch_count
            self._pool.submit(node.member_id, partial(self.source.read_node, node.member_id, request))
        answers = []
        bugs: list[Exception] = []
        for key, result in self._pool.wait(wait_s):
            if isinstance(result, RunGoneError) and self.report is not None:
                self._end(str(result))
            elif isinstance(result, Exception) and not isinstance(result, TemporaryError):
                bugs.append(result)
            if key is None:
                self._take_report(result)
            elif (answered := self._take_reply(self.nodes[str(key)], result)) is not None:
                answers.append(answered)
        if bugs:
            raise bugs[0]
        if not self._is_live and self.has_all and self.report is not None and not self.is_over:
            self._end(f"{describe_gone(self.report.run_id)}: {format_headline(self.report)}" if self._was_live else "")
        return answers

    def describe_end(self) -> str:
        """Describe that the run has ended, or that no agent of it is here any more."""
        assert self.report is not None
        return self.ending or f"{name_run(self.report.run_id)} {format_headline(self.report)}"

    def _end(self, ending: str) -> None:
        self.is_over, self.ending = True, ending
        if self._is_live:
            for node in self.nodes.values():
                node.is_unread = not node.is_gone

    def _take_report(self, result: object) -> None:
        self._is_reading_run = False
        self._report_at = self.clock() + REPORT_INTERVAL_S
        if isinstance(result, RunView) and result.is_short and not result.nodes:
            result = TemporaryError(f"{name_run(result.run_id)}: {explain_shortness(result)}")
        if isinstance(result, RunView):
            is_first, self.report, self.problem = self.report is None, result, ""
            if is_first:
                self._first_missing = set(result.silent)
            names = {node.member_id: node.name for node in result.nodes if node.state != SILENT}
            for member_id, name in names.items():
                if member_id not in self.nodes:
                    was_there = is_first or name in self._first_missing
                    self.nodes[member_id] = PolledNode(member_id=member_id, name=name, is_first=was_there)
                    self._first_missing.discard(name)
            for node in self.nodes.values():
                is_silent = node.member_id not in names and node.name in result.silent
                is_gone = node.member_id not in names and not is_silent
                node.is_unread = node.is_unread or (is_gone and not node.is_gone and not self.source.is_live)
                node.is_gone = is_gone
                if is_silent:  # a request would only wait; the next report says whether it is back
                    node.failures = max(node.failures, FAILURES_MAX)
                    node.next_at = max(node.next_at, self._report_at)
            self._tell_silence(result, names)
        elif isinstance(result, TemporaryError):
            if self.report is None:
                raise result
            self.problem = str(result)

    def _take_reply(self, node: PolledNode, result: object) -> NodeAnswer | None:
        node.is_busy = False
        now = self.clock()
        if isinstance(result, Exception):
            node.failures += 1
            node.has_all = False
            node.next_at = now + min(BACKOFF_MAX_S, 2.0**node.failures / 2)
            if node.failures == FAILURES_MAX and not self.is_over:
                self._tell_one_silent(node.name, "" if isinstance(result, SilentNodeError) else str(result))
            return None
        assert isinstance(result, NodeReply)
        node.failures, node.has_answered = 0, True
        self._tell_return(node.name)
        is_last = not isinstance(result, (LogPage, EventPage)) or result.is_last
        node.has_all = is_last and node.asked_of == self.source.switch_count
        least_s = STORE_PAUSE_S if self.source.is_through_store else PAUSE_S
        pause_s = max(least_s, PAUSE_PER_NODE_S * len(self.nodes))
        node.next_at = now + (pause_s if node.has_all else 0.0)
        return node, result

    def _tell_silence(self, report: RunView, names: Mapping[str, str]) -> None:
        for name in report.silent:
            self._tell_one_silent(name, "")
        failing = {node.name for node in self.nodes.values() if node.failures and not node.is_gone}
        for name in sorted(self._silent - set(report.silent) - failing):
            if name in names.values():
                self._tell_return(name)
            else:
                self._silent.discard(name)

    def _tell_one_silent(self, name: str, why: str) -> None:
        if name not in self._silent:
            self._silent.add(name)
            self.warn(f"node {sanitize(name)} does not answer" + (f": {sanitize(why)}" if why else ""))

    def _tell_return(self, name: str) -> None:
        if name in self._silent:
            self._silent.discard(name)
            self.warn(f"node {sanitize(name)} answers again")
