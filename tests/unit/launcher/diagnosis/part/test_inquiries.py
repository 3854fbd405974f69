"""Who asks on this node and gets the answer: sockets, requests through the store, and what waits in vain."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from launcher.diagnosis.answer import Conclusion, Gap, make_answer
from launcher.diagnosis.part.facts import SilenceChanged
from launcher.diagnosis.part.inquiries import Inquiries
from launcher.diagnosis.verdict import Diagnosis
from launcher.logs.reports.report import Finding
from launcher.parts.part import (
    Diagnosed,
    EndWorkers,
    Fact,
    HoldQuit,
    Publish,
    QuitSignalled,
    RunningRound,
    VictimSuspected,
    WaitUnexplained,
)
from launcher.placement.adapter.description import NodeAssignment
from launcher.views.questions import question_server
from launcher.views.questions.messages import Diagnose, Examine, Question, pack, unpack
from launcher.views.questions.question_server import STORED_MAX, Finish, QuestionServer, StoreAsker
from launcher.views.questions.survey import Survey
from launcher.views.requests import EventPage, Identify, NodeRequest, ReadEvents, ReadRun, ReadState, Replace
from launcher.views.run_events import HangEnded
from launcher.views.run_view import NodeView, RunView
from launcher.worker.grid import WorkerMesh
from rendezvous import __version__, codec
from rendezvous.events import AnswerCommand, LeaveRequest, PassOn
from rendezvous.reasons import Reason
from rendezvous.records import LeaderRecord
from tests.support.reasons import because
from tests.support.run_reports import make_node, make_rank, make_round

SHARE = NodeAssignment(
    ranks=(0, 1), world_size=2, shape=(2,), group_rank=0, group_world_size=1, role_ranks=(0, 1), role_world_size=2,
    master_addr="h",
)  # fmt: skip
MESH = WorkerMesh(axes=("dp",), shape=(2,), rank=0, group_names=("dp",))
ANSWER = make_answer(Diagnosis(kind="unclear", culprits=(), sentences=("unclear",)), (), MESH)


IDENTITY = b'{"run_id":"night","node":"h1","version":"%s","job":"/meshrun/night/j"}' % __version__.encode()


class FakeConnection:
    def has_room(self, text: bytes) -> bool:
        return True

    def __init__(self) -> None:
        self.lines: list[bytes] = []

    def answer(self, text: bytes) -> None:
        self.lines.append(text)


class Bench:
    """Who asks waits in `asked`. This node answers with an empty page of events, or fails with `error`."""

    wake_at = math.inf
    has_results = False
    member_id = "m0"
    joined_root = "/meshrun/night/j"
    leader: LeaderRecord | None = None

    def __init__(self) -> None:
        self.member = self
        self.asked: list[Survey] = []
        self.identity = {"run_id": "night", "node": "h1"}
        self.error: Exception | None = None
        parts: Any = self
        self.effects: deque[Any] = deque()
        self.running = RunningRound()
        self.failures = 0
        self.news: list[Conclusion] = []
        self.server = QuestionServer(parts, parts, self.make_answers, self.identity, None)
        self.inquiries = Inquiries(self.server, parts, self.running, self.effects, "report", lambda: 0.5)

    def ask(self, survey: Survey) -> None:
        if self.error is not None:
            raise self.error
        self.asked.append(survey)

    def examine(self, request: Examine, finish: Finish, now: float) -> None:
        raise AssertionError(request)

    def diagnose(self, request: Diagnose, finish: Finish, now: float) -> None:
        raise AssertionError(request)

    def report_failure(self) -> None:
        self.failures += 1

    def advance(self, now: float = 0.0) -> list[Conclusion]:
        return self.news

    def report_silence(self, now: float, *, is_silent: bool) -> None:
        pass

    def say_silence(self, round: int, *, is_silent: bool = True) -> list[Any]:
        """What follows when this node's workers make no progress, or do again."""
        self.inquiries.take(Fact(SilenceChanged(is_silent, "for 9 s"), round, 0.0, 0.0))
        return list(self.inquiries.advance(0.0))

    def make_answers(self) -> Any:
        if self.error is not None:
            raise self.error
        return self

    def answer(self, request: NodeRequest, now: float) -> tuple[str, Callable[[], EventPage]]:
        return "state", lambda: EventPage(lines=(), first=0, next_after=0)

    def submit(self, kind: str, work: Callable[[], EventPage], take: Callable[[EventPage | None, str], object]) -> None:
        take(work(), "")

    def put(self, request: Any, node: str = "") -> FakeConnection:
        """A question, as if it had come to the socket."""
        connection = FakeConnection()
        self.server.put(connection, Question(request=request, node=node), 0.0)
        return connection

    def end(self, index: int = 0, **more: Any) -> None:
        """End a survey with what has come."""
        asked = self.asked[index]
        for name, value in more.items():
            setattr(asked, name, value)
        for take in asked.takes:
            take(asked)


def conclude(**more: Any) -> Conclusion:
    return Conclusion(round=1, answer=ANSWER, **more)


NO_REPORT = NodeView(
    name="n1",
    member_id="m1",
    run_id="night",
    version="1",
    at=0.0,
    started_at=0.0,
    agent_pid=1,
    state="waiting",
    is_leader=True,
)


@pytest.mark.parametrize(
    ("answers", "sentence"),
    [
        (
            {"m1": replace(NO_REPORT, why=because("2 of 3 nodes"))},
            "n1 leads, but has not started a round yet: 2 of 3 nodes",
        ),
        ({"m1": NO_REPORT}, "n1 leads, but has not started a round yet: the reason is in its log"),
        ({"m1": "it has a bug"}, "n1 leads, but has not started a round yet: the reason is in its log"),
        ({}, "n1 leads, but has not started a round yet: the reason is in its log"),
    ],
    ids=["it waits", "it waits for nothing", "it cannot answer", "it is silent"],
)
def test_who_waits_names_the_node_that_leads_and_its_reason(
    answers: dict[str, Any], sentence: str, capfd: pytest.CaptureFixture[str]
) -> None:
    bench = Bench()
    bench.leader = LeaderRecord(member_id="m1", node_name="n1")
    bench.inquiries.take(Fact(WaitUnexplained(), 0, 0.0, 0.0))
    bench.inquiries.advance(0.0)
    assert bench.asked == []
    assert bench.inquiries.wake_at == 4.0
    bench.inquiries.advance(4.0)
    assert [(one.node, one.request) for one in bench.asked] == [("m1", ReadState(of_run=False))]
    bench.end(answers=answers)
    assert capfd.readouterr().err == f"meshrun: {sentence}\n"
    bench.running.has_workers = True  # it came too late
    bench.end(answers=answers)
    assert capfd.readouterr().err == ""


def wait(bench: Bench) -> None:
    """It is not known why no round starts; time passes until nothing more happens."""
    bench.inquiries.take(Fact(WaitUnexplained(), 0, 0.0, 0.0))
    bench.inquiries.advance(0.0)
    while bench.inquiries.wake_at < math.inf:
        bench.inquiries.advance(bench.inquiries.wake_at)


def test_a_leader_asks_nobody_why_it_waits_and_a_node_with_workers_does_not_wait() -> None:
    for leader_id, has_workers in (("m0", False), ("m1", True)):
        bench = Bench()
        bench.leader = LeaderRecord(member_id=leader_id, node_name="n0")
        bench.running.has_workers = has_workers
        wait(bench)
        assert bench.asked == []


def test_who_waits_says_once_that_no_node_leads_and_asks_once_more(capfd: pytest.CaptureFixture[str]) -> None:
    bench = Bench()
    wait(bench)
    sentence = "meshrun: waiting for a round: this node does not know which node leads\n"
    assert capfd.readouterr().err == sentence
    bench.inquiries.take(Fact(WaitUnexplained(), 0, 0.0, 0.0))
    for _ in range(2):
        bench.inquiries.advance(max(0.0, bench.inquiries.wake_at))
    assert capfd.readouterr().err == sentence
    bench.leader = LeaderRecord(member_id="m1", node_name="n1")
    bench.inquiries.advance(bench.inquiries.wake_at)
    assert [one.node for one in bench.asked] == ["m1"]
    assert capfd.readouterr().err == ""


def test_nodes_that_wait_for_the_same_reason_ask_at_different_times() -> None:
    found = []
    for drawn in (0.25, 0.5, 1.0):
        bench = Bench()
        bench.inquiries.draw = partial(float, drawn)
        bench.inquiries.take(Fact(WaitUnexplained(), 0, 0.0, 0.0))
        bench.inquiries.advance(0.0)
        found.append(bench.inquiries.wake_at)
    assert found == [2.0, 4.0, 8.0]


def test_each_question_gets_its_own_answer_or_is_answered_with_that_there_is_none() -> None:
    bench = Bench()
    first, second = bench.put(Diagnose()), bench.put(Diagnose())
    assert [one.request for one in bench.asked] == [Diagnose()] * 2
    bench.end(1, answers={"m": conclude(stacks="second")})
    bench.end(0, answers={"m": conclude(stacks="first")})
    texts = [msgspec.json.decode(line, type=Conclusion).stacks for one in (first, second) for line in one.lines]
    assert texts == ["first", "second"]
    bench = Bench()
    connection = bench.put(Diagnose())
    bench.end(members={"m": "h1"})
    assert connection.lines == [b'{"error":"h1 has not answered in time","is_silent":true}']


def test_other_questions_are_told_apart_and_a_bug_costs_its_own_answer() -> None:
    bench = Bench()
    assert bench.put(Identify()).lines == [IDENTITY]
    assert bench.asked == []
    assert bench.put(ReadRun()).lines == []
    assert (bench.asked[0].node, bench.asked[0].request) == ("", ReadState())
    assert bench.put(ReadEvents(), "h2").lines == []
    assert (bench.asked[1].node, bench.asked[1].request) == ("h2", ReadEvents())
    bench, connection = Bench(), FakeConnection()
    questions: list[Any] = [(connection, Question(request=ReadRun())), (connection, Question(request=Identify()))]
    socket: Any = SimpleNamespace(take=lambda now: questions)
    bench.server.question_socket, bench.error = socket, ValueError("a bug")
    assert bench.inquiries.advance(0.0) == []
    assert connection.lines == [IDENTITY]


def test_an_agent_leaves_for_a_later_attempt_of_its_run_alone() -> None:
    bench = Bench()
    bench.joined_root = "/meshrun/night/2-abc"
    for run_id, attempt in (("", 0), ("day", 3), ("night", 2), ("night", 0)):
        assert bench.put(Replace(run_id=run_id, attempt=attempt)).lines == [b"{}"]
    assert list(bench.effects) == []
    later = Replace(run_id="night", attempt=3)
    bench.server.put_stored("t", codec.encode(Question(request=later)).decode(), bench.effects.append, 0.0)
    assert isinstance(bench.effects.pop(), AnswerCommand), "only a process of this node may say so"
    assert bench.put(later).lines == [b"{}"]
    (left,) = bench.effects
    assert left == LeaveRequest(Reason.of("replaced", attempt="3", node="h1"), 76)
    bench = Bench()  # it has joined no job yet
    bench.joined_root = ""
    bench.put(Replace(run_id="night", attempt=1))
    assert len(bench.effects) == 1


def test_a_question_about_its_node_or_through_the_store_is_answered_there() -> None:
    bench = Bench()
    (line,) = bench.put(ReadEvents()).lines
    assert msgspec.json.decode(line, type=EventPage).is_last
    bench = Bench()
    bench.error = ImportError("cannot import name 'NEW' from 'launcher'")
    assert bench.put(ReadEvents()).lines == [b"{\"error\":\"ImportError: cannot import name 'NEW' from 'launcher'\"}"]
    assert bench.asked == []
    bench = Bench()
    text = codec.encode(Question(request=Diagnose())).decode()
    bench.inquiries.take(Fact(PassOn("token", text), 0, 0.0, 0.0))
    assert bench.inquiries.advance(0.0) == []
    stacks = Random(1).randbytes(STORED_MAX).hex()
    bench.end(answers={"m": conclude(stacks=stacks)})
    (event,) = bench.inquiries.advance(0.0)
    assert isinstance(event, AnswerCommand)
    found = msgspec.json.decode(unpack(event.text, 1 << 20), type=Conclusion)
    assert (event.token, found.round, found.stacks) == ("token", 1, ""), "there is no room for so much"
    bench.inquiries.take(Fact(PassOn("token", "{"), 0, 0.0, 0.0))
    (event,) = bench.inquiries.advance(0.0)
    assert event == AnswerCommand("token", pack(b'{"error":"the question cannot be read"}'))


@pytest.mark.parametrize(
    ("ended", "line"),
    [
        ({}, b'{"error":"no leader has answered: the nodes may be electing one, or this node may be cut off from it"}'),
        ({"error": "unknown node h2; the nodes are h1"}, b'{"error":"unknown node h2; the nodes are h1"}'),
        ({"members": {"m": "h2"}}, b'{"error":"h2 has not answered in time","is_silent":true}'),
        ({"members": {"m": "h2"}, "answers": {"m": "its disk hangs"}}, b'{"error":"its disk hangs"}'),
    ],
    ids=["no leader", "refused", "silent", "cannot"],
)
def test_of_a_node_without_an_answer_it_is_told_why(ended: dict[str, Any], line: bytes) -> None:
    bench = Bench()
    connection = bench.put(ReadEvents(), "h2")
    bench.end(**ended)
    assert connection.lines == [line]


def test_a_run_whose_name_is_no_text_answers() -> None:
    bench = Bench()
    bench.identity["run_id"] = "l\udcff"
    assert bench.put(Identify()).lines == [IDENTITY.replace(b"night", b"l?", 1)]


@pytest.mark.parametrize(
    ("count", "nodes", "ranks", "is_short"),
    [(50, 50, 400, False), (1000, 1000, 8000, False), (4000, 4000, 0, True), (60_000, 0, 0, True)],
)
def test_a_run_goes_through_the_store_with_what_there_is_room_for(
    count: int, nodes: int, ranks: int, is_short: bool
) -> None:
    random = Random(1)
    run = RunView(
        run_id="night",
        round=2,
        nodes=tuple(
            make_node(
                index,
                member_id=f"{random.getrandbits(64):x}",
                last=make_round(2),
                ranks=tuple(
                    make_rank(rank, pid=random.getrandbits(22), rss_bytes=random.getrandbits(35)) for rank in range(8)
                ),
            )
            for index in range(count)
        ),
    )
    told = list[AnswerCommand]()
    question_server._answer(StoreAsker("token", told.append), run, "")  # type: ignore[arg-type]
    assert len(told[0].text) <= STORED_MAX
    found = msgspec.json.decode(unpack(told[0].text, 1 << 26), type=RunView)
    assert (found.is_short, found.round, len(found.nodes)) == (is_short, 2, nodes)
    assert sum(len(node.ranks) for node in found.nodes) == ranks


def test_an_answer_that_is_too_long_for_the_store_is_refused() -> None:
    told = list[AnswerCommand]()
    StoreAsker("token", told.append).answer(Random(1).randbytes(STORED_MAX))  # type: ignore[arg-type]
    refusal = unpack(told[0].text, 1 << 26)
    assert refusal.startswith(b'{"error":"the answer has 400,000 bytes, too many for the store')


@pytest.mark.parametrize("text", ["", "{}", "eJw", "AAAA", pack(b"x" * 99)[:-4], pack(b"x" * 2000), "\ud800"])
def test_what_was_not_packed_or_is_too_much_is_an_error(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - each has its own words
        unpack(text, 1000)
    assert unpack(pack(b"x" * 1000), 1000) == b"x" * 1000


def test_what_was_kept_over_a_shortage_is_not_done_in_another_round() -> None:
    bench = Bench()
    bench.running.begin(2, SHARE)
    bench.running.has_workers = True
    for number, count in ((1, 0), (2, 1)):
        for what in (VictimSuspected(0), QuitSignalled()):
            bench.inquiries.take(Fact(what, number, 0.0, 0.0))
        effects = bench.inquiries.advance(5.0)
        assert [type(one) for one in effects] == [HoldQuit] * count
        assert (len(bench.asked), bench.failures) == (count, count)


PLACES = ("it is unclear which rank the others wait for: the ranks are at 2 lines", "rank 0 is in a (t.py:1), asleep")
GAPS = (Gap(ranks=(0, 1), reason="no stacks: py-spy is not installed (pip install py-spy)"),)
LATE = ("rank 1 has not entered all_reduce 4", "rank 1 is in load (t.py:1), asleep")


@pytest.mark.parametrize(
    ("kind", "culprits", "to_end", "cause", "kept"),
    [
        ("unclear", (), (0,), "unknown", ()),
        ("unknown", (1,), (0,), "unknown", ()),
        ("late", (1,), (1,), "known", (1,)),
        ("odd", (1,), (1,), "likely", (1,)),
        ("odd", (1,), (0,), "likely", (1,)),
    ],
    ids=["nobody is named", "nothing is known of it", "late", "by stacks", "it has ended"],
)
def test_a_hang_is_told_everywhere_and_no_guess_is_its_cause(
    kind: Any, culprits: tuple[int, ...], to_end: tuple[int, ...], cause: Any, kept: tuple[int, ...],
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    sentences = LATE if culprits else PLACES
    answer = replace(ANSWER, kind=kind, culprits=culprits, sentences=sentences, gaps=GAPS)
    conclusion = Conclusion(round=1, purpose="silence", answer=answer, to_end=to_end, is_sure=kind != "odd")
    bench = Bench()
    bench.inquiries.on_hang = "restart"
    bench.running.begin(1, SHARE)
    bench.say_silence(1)
    bench.news = [conclusion]
    keep, publish, end = bench.inquiries.advance(0.0)
    assert keep == Diagnosed(1, Finding(sentences, cause, kept))
    event = publish.what  # type: ignore[union-attr]
    assert (event.ranks, event.sentence, event.details) == (culprits, sentences[0], sentences[1:])
    assert end == EndWorkers(1, to_end, "no sign of progress")
    logged = capfd.readouterr().err
    assert all(sentence in logged for sentence in sentences)
    assert "not known for ranks 0-1: no stacks: py-spy is not installed (pip install py-spy)" in logged


@pytest.mark.parametrize(
    ("kind", "silence", "is_logged"),
    [
        ("late", (), False),
        ("late", (True, False), False),
        ("late", (True, False, True), True),
        ("healthy", (True,), True),
    ],
    ids=["never silent", "progress since", "silent again", "none waits"],
)
def test_a_conclusion_that_is_overtaken_or_names_no_hang_is_none(
    kind: Any, silence: tuple[bool, ...], is_logged: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    bench = Bench()
    bench.inquiries.on_hang = "restart"
    bench.running.begin(1, SHARE)
    for is_silent in silence:
        bench.say_silence(1, is_silent=is_silent)
    answer = replace(ANSWER, kind=kind, culprits=(1,), sentences=LATE)
    bench.news = [Conclusion(round=1, purpose="silence", answer=answer, to_end=(1,))]
    types = [type(one) for one in bench.inquiries.advance(0.0)]
    assert types == ([Diagnosed, Publish, EndWorkers] if kind == "late" and is_logged else [])
    assert (LATE[0] in capfd.readouterr().err) == is_logged
    bench.news = []
    if silence[-1:] == (True,):
        assert [type(one) for one in bench.say_silence(1, is_silent=False)] == types[:2]


def test_with_progress_the_finding_is_dropped() -> None:
    bench = Bench()
    bench.inquiries.take(Fact(SilenceChanged(False, "progress again after 9 s: output"), 3, 0.0, 0.0))
    keep, publish = bench.inquiries.advance(0.0)
    assert (keep, publish) == (
        Diagnosed(3, Finding()),
        Publish(HangEnded(sentence="progress again after 9 s: output")),
    )
