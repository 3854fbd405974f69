"""What all readers of the page share: a question to the run is asked once a second at most, however many they are.

Nothing is asked while there is no reader. Each kind of answer has its own age: a view of the run is made anew after a
second, and an inquiry into what all ranks do, which has every node look at its workers, after ten. Who comes while a
question is under way waits for its answer. Questions are limited in number, because an agent takes only a few at once.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from launcher.model.errors import TemporaryError, UsageError
from launcher.observe.node_report import EventPage, LogPage, ReadEvents, ReadLogs, RunReport
from launcher.observe.page.view import RunView, SeenNode, make_view, remember
from launcher.observe.run_events import parse_time
from launcher.observe.run_source import RunSource
from rendezvous.errors import MeshrunError

RUN_AGE_S = 1.0
LOGS_AGE_S = 1.0
WHY_AGE_S = 10.0
QUESTIONS_MAX = 4
"""At a time, fewer than the connections of an agent's socket."""
WAIT_LIMIT_S = 20.0
ANSWERS_MAX = 64
Answer = TypeVar("Answer")
EVENTS_MAX, EVENTS_BYTES_MAX = 1000, 1 << 20
EVENT_PAGES_MAX = 50  # of one refresh
_COMPRESSION = 1  # an eighth of the time of the usual 6, and a tenth more bytes


class Body(Struct, frozen=True, kw_only=True):
    """An answer as JSON, and the same compressed, for browsers that take it."""

    text: bytes
    gzip: bytes


class EventLines(Struct, frozen=True, kw_only=True):
    """Event lines of the agent that was asked."""

    first: int
    """The number of the first line."""
    lines: tuple[str, ...]
    dropped: int = 0
    """How many before it are no longer kept."""


class _KeptAnswer:
    """An answer that is kept for `age_s`; `lock` is held while it is made anew."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.at = float("-inf")
        self.value: object = None
        self.error: MeshrunError | None = None


class SharedRun:
    """A run for many readers, in any threads. Its methods raise TemporaryError or UsageError with a sentence.

    `clock`: monotonic, in seconds.
    """

    def __init__(self, source: RunSource, clock: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self._clock = clock
        self._questions = threading.BoundedSemaphore(QUESTIONS_MAX)
        self._entries: OrderedDict[tuple[object, ...], _KeptAnswer] = OrderedDict()
        self._entries_lock = threading.Lock()
        self._report: tuple[RunReport, float] | None = None
        self._seen: dict[str, SeenNode] = {}
        self._events: deque[str] = deque()
        self._events_size = 0
        self._events_next = 0  # the number of the next line
        self._agent_next = 0  # the same as the agent that is asked counts
        self._switch_count = 0
        self._skip_until = 0.0  # seconds since 1970: earlier events of this agent are left out
        self._why: bytes = b""

    def read_run(self) -> Body:
        """Return the RunView as JSON; after the first, it is an old one with a `problem` if the run does not answer."""
        return self._keep(("run",), RUN_AGE_S, self._make_run)

    def read_events(self, after: int) -> bytes:
        """Return the EventLines of the lines after number `after`, -1 for all that are kept."""
        return msgspec.json.encode(self.list_events(after))

    def list_events(self, after: int) -> EventLines:
        self._keep(("events",), RUN_AGE_S, self._take_events)
        with self._entries_lock:
            lines, end = tuple(self._events), self._events_next
        oldest = end - len(lines)
        first = min(max(after + 1, oldest), end)
        return EventLines(first=first, lines=lines[first - oldest :], dropped=max(0, oldest - after - 1))

    def read_logs(self, node: str, request: ReadLogs) -> bytes:
        """Return a LogPage of a node as JSON."""
        return msgspec.json.encode(self.list_logs(node, request))

    def list_logs(self, node: str, request: ReadLogs) -> LogPage:
        def ask() -> LogPage:
            page = self._ask(lambda: self._source.read_node(node, request))
            if not isinstance(page, LogPage):
                raise TemporaryError(f"node {node} has answered something else")
            return page

        return self._keep(("logs", node, msgspec.json.encode(request)), LOGS_AGE_S, ask)

    def ask_why(self) -> bytes:
        """Return the Conclusion as JSON, with `age_s`: which rank the run waits for, and where all ranks stand."""

        def ask() -> tuple[dict[str, object], float]:
            answer = self._ask(self._source.ask_why)
            fields = msgspec.json.decode(answer, type=dict[str, object])
            if not fields:
                raise TemporaryError("no agent that leads has answered in time")
            return fields, self._clock()

        fields, at = self._keep(("why",), WHY_AGE_S, ask)
        self._why = msgspec.json.encode({**fields, "age_s": round(self._clock() - at, 1)})
        return self._why

    @property
    def last_why(self) -> bytes:
        """The last answer of `ask_why`, b"" before there is one."""
        return self._why

    def list_log_nodes(self, most: int) -> list[str]:
        """List the nodes whose logs say most, as far as is known: with failed ranks first, then by oldest progress."""
        if self._report is None:
            return []

        def worth(node: int) -> tuple[bool, float]:
            ranks = nodes[node].ranks
            return any(rank.exit_code for rank in ranks), max((rank.progress_age_s for rank in ranks), default=-1.0)

        nodes = [one for one in self._report[0].nodes if one.log_dir]
        chosen = sorted(range(len(nodes)), key=lambda index: worth(index), reverse=True)[:most]
        return [nodes[index].node for index in chosen]

    def _make_run(self) -> Body:
        now = self._clock()
        problem = ""
        try:
            report = self._ask(self._source.read_run)
            self._report, self._seen = (report, now), remember(self._seen, report, now)
        except MeshrunError as error:
            if self._report is None:
                raise
            problem = str(error)
        report, at = self._report
        view: RunView = make_view(report, self._seen, at)
        view = replace(view, problem=problem, age_s=round(now - at, 1))
        text = msgspec.json.encode(view)
        return Body(text=text, gzip=compress(text))

    def _take_events(self) -> None:
        for _ in range(EVENT_PAGES_MAX):
            switch_count = self._source.switch_count
            if switch_count != self._switch_count:  # another agent of this machine goes on where the last one was
                self._switch_count, self._agent_next = switch_count, 0
                self._skip_until = _read_time(self._events[-1]) if self._events else 0.0
            request = ReadEvents(after=self._agent_next - 1)
            page = self._ask(lambda request=request: self._source.read_node("", request))  # type: ignore[misc]
            if not isinstance(page, EventPage):
                raise TemporaryError("the agent has answered something else than events")
            if self._source.switch_count != switch_count:
                continue  # it may be of either agent
            with self._entries_lock:
                if page.first > self._agent_next and not self._skip_until:  # some are kept no more
                    self._events_next += page.first - self._agent_next  # numbers go on without them
                    self._events.clear()
                    self._events_size = 0
                lines = page.lines[max(0, self._agent_next - page.first) :]  # another thread may have taken some
                self._agent_next = max(self._agent_next, page.first + len(page.lines))
                lines = tuple(line for line in lines if not self._skip_until or _read_time(line) >= self._skip_until)
                self._skip_until = self._skip_until if not lines else 0.0
                self._events.extend(lines)
                self._events_size += sum(map(len, lines))
                self._events_next += len(lines)
                while len(self._events) > EVENTS_MAX or self._events_size > EVENTS_BYTES_MAX:
                    self._events_size -= len(self._events.popleft())
            if page.is_last:
                return

    def _ask(self, question: Callable[[], Answer]) -> Answer:
        if not self._questions.acquire(timeout=WAIT_LIMIT_S):
            raise TemporaryError(f"{QUESTIONS_MAX} questions to the run have waited for {WAIT_LIMIT_S:g} s")
        try:
            return question()
        finally:
            self._questions.release()

    def _keep(self, key: tuple[object, ...], age_s: float, make: Callable[[], Answer]) -> Answer:
        """Return the answer that is kept, or make it; an error is kept for as long."""
        with self._entries_lock:
            entry = self._entries.setdefault(key, _KeptAnswer())
            self._entries.move_to_end(key)
            while len(self._entries) > ANSWERS_MAX:
                self._entries.popitem(last=False)
        if not entry.lock.acquire(timeout=WAIT_LIMIT_S):
            raise TemporaryError(f"the run has not answered for {WAIT_LIMIT_S:g} s")
        try:
            if self._clock() - entry.at >= age_s:
                try:
                    entry.value, entry.error = make(), None
                except (TemporaryError, UsageError) as error:
                    entry.value, entry.error = None, error
                entry.at = self._clock()
            if entry.error is not None:
                raise entry.error.with_traceback(None)
            return entry.value  # type: ignore[return-value]
        finally:
            entry.lock.release()


def _read_time(line: str) -> float:
    """Return when an event happened, in seconds since 1970; 0 if its line does not tell."""
    try:
        return parse_time(str(msgspec.json.decode(line, type=dict[str, object]).get("time", "")))
    except msgspec.MsgspecError:
        return 0.0


def compress(text: bytes) -> bytes:
    """Compress for `Content-Encoding: gzip`."""
    packer = zlib.compressobj(_COMPRESSION, wbits=31)
    return packer.compress(text) + packer.flush()
