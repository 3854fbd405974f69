"""What many readers share: how often the run is asked, and what they get when it does not answer."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from launcher.extensions.page import shared_run
from launcher.extensions.page.shared_run import EVENT_NODES_MAX, EVENTS_MAX, SharedRun
from launcher.model.errors import TemporaryError
from launcher.views.questions.local_socket import SilentNodeError
from launcher.views.requests import EventPage, NodeReply, NodeRequest, ReadEvents, ReadLogs
from launcher.views.run_view import NodeView, RunView
from tests.support.page.fake_run import FakeRun
from tests.support.run_reports import make_event
from tests.support.waiting import wait_until


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_readers_share_one_question_a_second_and_its_compressed_answer() -> None:
    source, clock = FakeRun(4), Clock()
    shared = SharedRun(source, clock)
    source.gate.clear()
    with ThreadPoolExecutor(200) as readers:
        answers = [readers.submit(shared.read_run) for _ in range(200)]
        wait_until(lambda: source.counts.get("run"), 20, "the first question")
        source.gate.set()
        assert len({answer.result().body for answer in answers}) == 1
    assert source.counts == {"run": 1, "ReadEvents": 5}, "each of five nodes once"
    clock.now += 1.0
    shared.read_run()
    shared.read_run()
    assert source.counts == {"run": 2, "ReadEvents": 10}
    body = SharedRun(FakeRun(4)).read_run()
    assert gzip.decompress(body.gzip) == body.body


def test_what_was_last_known_is_shown_with_its_age_and_no_answer_is_an_error() -> None:
    source, clock = FakeRun(4), Clock()
    shared = SharedRun(source, clock)
    shared.read_run()
    source.problem, clock.now = "the agent has ended", 190.0
    view = msgspec.json.decode(shared.read_run().body)
    assert (view["problem"], view["age_s"], len(view["nodes"])) == ("the agent has ended", 90.0, 6)
    source, clock = FakeRun(4), Clock()
    source.problem = "no leader has answered"
    shared = SharedRun(source, clock)
    for _ in range(3):
        with pytest.raises(TemporaryError, match="no leader"):
            shared.read_run()
    assert source.counts == {"run": 1}


def test_an_inquiry_into_all_ranks_is_made_once_in_ten_seconds() -> None:
    source, clock = FakeRun(4), Clock()
    shared = SharedRun(source, clock)
    first = msgspec.json.decode(shared.ask_why())
    clock.now += 9
    again = msgspec.json.decode(shared.ask_why())
    assert (first["age_s"], again["age_s"], source.counts) == (0.0, 9.0, {"why": 1})
    clock.now += 2
    shared.ask_why()
    assert source.counts == {"why": 2}


def test_questions_at_a_time_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_run, "WAIT_LIMIT_S", 0.05)
    source = FakeRun(4)
    shared = SharedRun(source)
    source.gate.clear()

    def read(rank: int) -> str:
        try:
            shared.list_logs("h0", ReadLogs(rank=rank))
        except TemporaryError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(8) as readers:
        held = [readers.submit(read, rank) for rank in range(4)]
        wait_until(lambda: source.counts.get("ReadLogs") == 4, 20, "four questions")
        assert read(5) == "4 questions to the run were not answered within 0.05 s"
        source.gate.set()
        assert [one.result() for one in held] == [""] * 4


class EventRun(FakeRun):
    """Nodes that have `lines`, by member id, of which those before `first` are kept no more; three at a time."""

    def __init__(self, node_count: int = 2) -> None:
        super().__init__(node_count, calm=True)
        self.first = 0
        self.lines: dict[str, list[str]] = {}
        self.away: set[str] = set()

    def read_node(self, node: str, request: NodeRequest) -> NodeReply:
        assert isinstance(request, ReadEvents)
        self._count("ReadEvents")
        if node in self.away:
            raise SilentNodeError(f"{node} has not answered in time")
        lines = self.lines.get(node, [])
        start = max(request.after + 1, self.first)
        found = tuple(lines[start : start + 3])
        after = start + len(found) - 1
        return EventPage(lines=found, first=start, next_after=after, is_last=after + 1 >= len(lines))


def make_lines(node: str, times: Iterable[int]) -> list[str]:
    """One event in each of these seconds, with a sentence that names both."""
    clocks = {at: f"{at // 60:02}:{at % 60:02}" for at in times}
    return [make_event("remark", node, f"08:{clock}.000", sentence=f"{node} {at}") for at, clock in clocks.items()]


def told(shared: SharedRun) -> list[str]:
    """The sentences of the events, the oldest first."""
    rows = msgspec.json.decode(shared.read_run().body)["event_rows"]
    return [row["sentence"] for row in reversed(rows)]


def test_events_of_all_nodes_are_read_once_and_shown_by_time() -> None:
    source, clock = EventRun(), Clock()
    shared = SharedRun(source, clock)
    source.lines = {"m0": make_lines("h0", range(0, 10, 2)), "m1": make_lines("h1", range(1, 10, 2))}
    seen = [f"h{at % 2} {at}" for at in range(10)]
    assert told(shared) == seen
    source.lines["m1"] += make_lines("h1", [10])
    clock.now += 1
    asked = source.counts["ReadEvents"]
    assert told(shared) == [*seen, "h1 10"]
    assert source.counts["ReadEvents"] == asked + 2
    source.lines["m0"] += make_lines("h0", range(11, 50))
    source.first, clock.now = 40, 103.0  # those between are kept no more
    assert told(shared) == [*seen, "h1 10", *(f"h0 {at}" for at in range(46, 50))]


def test_a_node_that_does_not_answer_costs_its_own_events() -> None:
    source, clock = EventRun(), Clock()
    shared = SharedRun(source, clock)
    source.lines, source.away = {"m0": make_lines("h0", [1]), "m1": make_lines("h1", [2])}, {"m0"}
    assert told(shared) == ["h1 2"]
    source.away, clock.now = set(), 101.0
    assert told(shared) == ["h0 1", "h1 2"]


def test_events_that_are_told_again_are_shown_once() -> None:
    """By an agent that has joined again under another member id, or from its file."""
    source, clock = EventRun(), Clock()
    shared = SharedRun(source, clock)
    source.lines = {"m0": make_lines("h0", [1, 3]), "m1": make_lines("h1", [2])}
    assert told(shared) == ["h0 1", "h1 2", "h0 3"]
    source.lines = {"m0": make_lines("h0", [1, 3, 5]), "m1": make_lines("h0", [1, 3])}
    source.is_live, clock.now = False, 101.0
    assert told(shared) == ["h0 1", "h1 2", "h0 3", "h0 5"]


def test_what_others_have_told_is_kept_when_a_node_refuses() -> None:
    class Refusing(EventRun):
        def read_node(self, node: str, request: NodeRequest) -> NodeReply:
            if node in self.refusing:
                raise TemporaryError(f"unknown node {node}")
            return super().read_node(node, request)

        refusing: frozenset[str] = frozenset({"m1"})

    source, clock = Refusing(3), Clock()
    shared = SharedRun(source, clock)
    source.lines = {f"m{index}": make_lines(f"h{index}", [index]) for index in range(3)}
    view = msgspec.json.decode(shared.read_run().body)
    assert [row["sentence"] for row in view["event_rows"]] == ["h2 2", "h0 0"]
    assert view["problem"] == "unknown node m1"
    source.refusing, clock.now = frozenset(), 101.0
    assert told(shared) == ["h0 0", "h1 1", "h2 2"]


def test_of_a_large_run_the_leader_alone_is_asked_for_events() -> None:
    source = EventRun(EVENT_NODES_MAX + 1)
    leader = next(node.member_id for node in source.read_run().nodes if node.is_leader)
    source.lines = {f"m{index}": make_lines(f"h{index}", [index]) for index in range(EVENT_NODES_MAX + 1)}
    name = leader.replace("m", "h")
    assert told(SharedRun(source)) == [f"{name} {name[1:]}"]


@pytest.mark.parametrize("count", [0, EVENT_NODES_MAX + 1])
def test_without_a_leader_whoever_is_asked_anyway_tells(count: int) -> None:
    nodes = tuple(NodeView(name=f"h{index}", member_id=f"m{index}", state="running") for index in range(count))
    assert shared_run.choose_tellers(RunView(run_id="exp", nodes=nodes), EVENT_NODES_MAX) == [""]
    silent = NodeView(name="h0", member_id="m0")
    run = RunView(run_id="exp", nodes=(silent, *nodes[:1]))
    assert shared_run.choose_tellers(run, EVENT_NODES_MAX) == (["m0"] if count else [""])
    assert shared_run.choose_tellers(run, 0) == [""], "through the store the leader alone is asked"


def test_a_run_whose_events_cannot_be_had_is_shown_with_the_reason() -> None:
    class Silent(FakeRun):
        def read_node(self, node: str, request: NodeRequest) -> NodeReply:
            raise TemporaryError("h0 has not answered in time")

    view = msgspec.json.decode(SharedRun(Silent(4)).read_run().body)
    assert (view["problem"], view["event_rows"], len(view["nodes"])) == ("h0 has not answered in time", [], 6)


def test_events_and_answers_are_bounded() -> None:
    source, clock = EventRun(), Clock()
    shared = SharedRun(source, clock)
    source.lines = {"m0": make_lines("h0", range(EVENTS_MAX + 500))}
    for _ in range(12):  # a refresh takes only so many pages
        shared.read_run()
        clock.now += 1
    assert told(shared)[-1] == f"h0 {EVENTS_MAX + 499}"
    assert len(shared._events) == EVENTS_MAX
    before = threading.active_count()
    shared = SharedRun(FakeRun(4))
    for rank in range(shared_run.ANSWERS_MAX * 2):
        shared.list_logs("h0", ReadLogs(rank=rank))
    assert len(shared._answers) == shared_run.ANSWERS_MAX
    assert threading.active_count() < before + 50


def test_what_a_silent_node_has_said_before_counts_in_no_row() -> None:
    source, clock = FakeRun(4), Clock()
    shared = SharedRun(source, clock)
    shared.read_run()
    source.silent, clock.now = True, 110.0
    source.began -= 100.0
    view = msgspec.json.decode(shared.read_run().body)
    silent = next(node for node in view["nodes"] if node["name"] == "h1")
    rows = {label: text for label, text, *_ in view["rows"]}
    assert (len(silent["ranks"]), silent["silent_s"]) == (8, 10.0)
    assert rows["silent"] == "h1: no answer"
    assert rows["step"] == "1,291 to 1,300"
