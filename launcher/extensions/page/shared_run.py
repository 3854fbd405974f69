"""What all readers of the page share: a question to the run is asked once a second at most, however many they are.

Nothing is asked while there is no reader. Each kind of answer has its own age: a view of the run is made anew after a
second, and an inquiry into what all ranks do, which has every node look at its workers, after ten. Who comes while a
question is under way waits for its answer. Questions are limited in number, because an agent takes only a few at once.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from launcher.extensions.page.tables import make_tables
from launcher.model.errors import TemporaryError
from launcher.views.event_view import EventView, read_event
from launcher.views.http.http_server import JSON, Response
from launcher.views.questions.kept_answer import WAIT_LIMIT_S, KeptAnswer
from launcher.views.questions.local_socket import QuestionSource, SilentNodeError
from launcher.views.requests import EventPage, LogPage, ReadEvents, ReadLogs
from launcher.views.run_json import encode_run
from launcher.views.run_view import SILENT, NodeView, RunView
from rendezvous.errors import MeshrunError

RUN_AGE_S = 1.0
LOGS_AGE_S = 1.0
WHY_AGE_S = 10.0
QUESTIONS_MAX = 4
"""At a time, fewer than the connections of an agent's socket."""
ANSWERS_MAX = 64
LOST_MAX = 200
"""Lost nodes that are shown, the first by name: a run of months may have lost thousands."""
Answer = TypeVar("Answer")
EVENTS_MAX = 1000
EVENT_NODES_MAX = 32
"""Nodes that are asked for their events, one after another; of a larger run it is the leader alone."""
EVENT_PAGES_MAX = 50  # of one refresh
EVENTS_LIMIT_S = 5.0
"""Of one refresh: nodes that have gone silent since its beginning cost a few seconds each."""
_COMPRESSION = 1  # an eighth of the time of the usual 6, and a tenth more bytes


class SharedRun:
    """A run for many readers, in any threads. Its methods raise TemporaryError or UsageError with a sentence.

    `clock`: monotonic, in seconds.
    """

    def __init__(self, source: QuestionSource, clock: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self._clock = clock
        self._questions = threading.BoundedSemaphore(QUESTIONS_MAX)
        self._lock = threading.Lock()  # of the answers
        self._answers: OrderedDict[tuple[object, ...], KeptAnswer[Any]] = OrderedDict()
        self._run: tuple[RunView, float] | None = None
        self._seen: dict[str, tuple[NodeView, float]] = {}  # the last answer of each node, by name, and when it came
        self._events: list[EventView] = []
        self._is_live = True
        self._last_events: dict[str, int] = {}  # number of the last event of each node, by member id
        self.last_why: bytes = b""
        """The last answer of `ask_why`, b"" before there is one."""

    def read_run(self) -> Response:
        """Return the run by the schema of `run_json`, its ranks as rows of `rank_fields`.

        After the first, it is an old one with a `problem` if the run does not answer; `age_s` is since it was made.
        """
        return self._keep(("run",), RUN_AGE_S, self._make_run)

    def list_logs(self, node: str, request: ReadLogs) -> LogPage:
        """Return a page of a node's logs."""

        def ask() -> LogPage:
            page = self._ask(lambda: self._source.read_node(node, request))
            assert isinstance(page, LogPage), page
            return page

        return self._keep(("logs", node, msgspec.json.encode(request)), LOGS_AGE_S, ask)

    def ask_why(self) -> bytes:
        """Return the Conclusion as JSON, with `age_s`: which rank the run waits for, and where all ranks stand."""

        def ask() -> tuple[dict[str, object], float]:
            answer = self._ask(self._source.ask_why)
            fields = msgspec.json.decode(answer, type=dict[str, object])
            return fields, self._clock()

        fields, at = self._keep(("why",), WHY_AGE_S, ask)
        self.last_why = msgspec.json.encode({**fields, "age_s": round(self._clock() - at, 1)})
        return self.last_why

    def list_log_nodes(self, most: int) -> list[str]:
        """List the nodes whose logs say most, as far as is known: with failed ranks first, then by oldest progress."""
        if self._run is None:
            return []

        def worth(node: NodeView) -> tuple[bool, float]:
            oldest_s = max((rank.progress_age_s for rank in node.ranks), default=-1.0)
            return any(rank.exit_code for rank in node.ranks), oldest_s

        nodes = sorted((one for one in self._run[0].nodes if one.log_dir), key=worth, reverse=True)
        return [node.name for node in nodes[:most]]

    def _make_run(self) -> Response:
        now = self._clock()
        problem = ""
        try:
            run = self._ask(self._source.read_run)
            self._run = self._fill_in(run, now), now
            self._take_events(run)
        except MeshrunError as error:
            if self._run is None:
                raise
            problem = str(error)
        run, at = self._run
        own = {"problem": problem, "age_s": round(now - at, 1)}
        text = msgspec.json.encode({**encode_run(run, has_rows=True), **make_tables(run, self._events), **own})
        return Response(body=text, gzip=compress(text), content_type=JSON)

    def _fill_in(self, run: RunView, now: float) -> RunView:
        """Return the run with what nodes that are silent or lost have said last: the picture keeps its shape."""
        gone = [NodeView(name=name, state="lost") for name, _ in run.lost[:LOST_MAX]]
        nodes, seen = [], {}
        for node in (*run.nodes, *gone):
            before = self._seen.get(node.name)
            if node.state not in (SILENT, "lost"):
                before = node, now
            elif before is not None:
                node = replace(before[0], state=node.state, is_leader=False, silent_s=round(now - before[1], 1))
            if before is not None:
                seen[node.name] = before
            nodes.append(node)
        self._seen = seen
        return replace(run, nodes=tuple(nodes))

    def _take_events(self, run: RunView) -> None:
        """Add what nodes have told since. One that cannot answer costs its own events; why is raised at the end."""
        if self._is_live != self._source.is_live:  # files are numbered from their beginning
            self._is_live, self._last_events = self._source.is_live, {}
        until, page_count = self._clock() + EVENTS_LIMIT_S, 0
        problem: TemporaryError | None = None
        for node in choose_tellers(run, EVENT_NODES_MAX * (not self._source.is_through_store)):
            is_last = False
            try:
                while not is_last and page_count < EVENT_PAGES_MAX and self._clock() < until:
                    after = self._last_events.get(node, -1)
                    page = self._ask(partial(self._source.read_node, node, ReadEvents(after=after)))
                    assert isinstance(page, EventPage), page
                    self._last_events[node] = page.next_after
                    self._add_events(page)
                    page_count, is_last = page_count + 1, page.is_last
            except SilentNodeError:
                pass
            except TemporaryError as error:
                problem = problem or error
        if problem is not None:
            raise problem

    def _add_events(self, page: EventPage) -> None:
        """Add events by time. An agent that has joined again, or that is read from its file, tells them all again."""
        told = {event.line: event for event in self._events}
        told |= {line: event for line in page.lines if (event := read_event(line, "")) is not None}
        self._events = sorted(told.values(), key=lambda event: event.at)[-EVENTS_MAX:]

    def _ask(self, question: Callable[[], Answer]) -> Answer:
        if not self._questions.acquire(timeout=WAIT_LIMIT_S):
            raise TemporaryError(f"{QUESTIONS_MAX} questions to the run were not answered within {WAIT_LIMIT_S:g} s")
        try:
            return question()
        finally:
            self._questions.release()

    def _keep(self, key: tuple[object, ...], age_s: float, make: Callable[[], Answer]) -> Answer:
        """Return the answer that is kept, or make it; an error is kept for as long."""
        with self._lock:
            kept: KeptAnswer[Answer] = self._answers.setdefault(key, KeptAnswer(self._clock))
            self._answers.move_to_end(key)
            while len(self._answers) > ANSWERS_MAX:
                self._answers.popitem(last=False)
        return kept.read(age_s, make)


def choose_tellers(run: RunView, most: int) -> list[str]:
    """Choose by member id who is asked for events: the leader knows the rounds, the losses and the failures of all.

    `most`: of more nodes it is the leader alone. "" is the agent that is asked anyway, or what is left after the end.
    """
    there = [node for node in run.nodes if node.member_id and node.state != SILENT]
    return [node.member_id for node in there if node.is_leader or len(there) <= most] or [""]


def compress(text: bytes) -> bytes:
    """Compress for `Content-Encoding: gzip`."""
    packer = zlib.compressobj(_COMPRESSION, wbits=31)
    return packer.compress(text) + packer.flush()
