"""Who looks at a run is answered by its nodes, through the leader, whatever of it is lost."""

from __future__ import annotations

import threading
from collections import deque

import pytest
from msgspec.structs import replace

from launcher.diagnosis.part.messages import decode_note
from launcher.model.concurrency import NO_THREAD
from launcher.views import requests
from launcher.views.questions import messages
from launcher.views.questions.reporter import Reporter
from launcher.views.questions.survey import PENDING_MAX, Survey, Surveys, shorten_view
from launcher.views.run_view import NodeView, RankView, RoundView, RunView, make_run_view
from rendezvous.events import TO_ALL, TO_LEADER, TO_ROUND, Event, SendNote
from rendezvous.member import notes
from rendezvous.peers.messages import NOTE_MAX
from tests.support.threads import no_threads
from tests.support.waiting import wait_until


def make_report(name: str, **fields: object) -> NodeView:
    base: dict[str, object] = {
        "name": name, "member_id": f"id-{name}", "run_id": "r", "version": "1", "at": 1.0, "started_at": 0.0,
        "agent_pid": 1, "state": "running",
    }  # fmt: skip
    return NodeView(**{**base, **fields})  # type: ignore[arg-type]


LIMIT_S = 3.0


class Node:
    """An agent: its member, and its answers."""

    def __init__(self, net: Net, name: str) -> None:
        self.net, self.name, self.member_id = net, name, f"id-{name}"
        self.asked: list[messages.Request] = []
        self.surveys = Surveys(self, self.submit)  # type: ignore[arg-type]

    def list_members(self) -> dict[str, str]:
        return {f"id-{name}": name for name in self.net.nodes} if self.net.leader == self.name else {}

    def submit(self, event: Event) -> None:
        assert isinstance(event, SendNote)
        is_own = event.to == self.member_id or (event.to == TO_LEADER and self.net.leader == self.name)
        if is_own or notes.fits(event.text):  # as rendezvous.member.notes sends them
            self.net.notes.append((self.member_id, event.to, event.text))

    def take_note(self, sender: str, text: str) -> None:
        note = decode_note(text)
        if isinstance(note, messages.PassedRequest):
            self.asked.append(note.request)
            self.surveys.reply(sender, note, *self.answer(note.request))
        else:
            assert isinstance(note, messages.Inspect | messages.Expect | messages.Reply)
            self.surveys.take_note(sender, note)

    def answer(self, request: messages.Request) -> tuple[requests.NodeReply | None, str]:
        if isinstance(request, requests.ReadEvents):
            return requests.EventPage(lines=(self.name,), first=0, next_after=0), ""
        if isinstance(request, requests.ReadLogs):
            return requests.LogPage(chunks=(), cursors=()), ""
        return make_report(self.name), ""


class Net:
    """Agents, and their notes under way."""

    def __init__(self, *names: str) -> None:
        self.leader = names[0]
        self.notes: deque[tuple[str, str, str]] = deque()
        self.nodes: dict[str, Node] = {}
        for name in names:
            self.nodes[name] = Node(self, name)

    def deliver(self, lost: str = "") -> None:
        while self.notes:
            sender, to, text = self.notes.popleft()
            name = self.leader if to == TO_LEADER else to.removeprefix("id-")
            if name in self.nodes and name != lost:
                self.nodes[name].take_note(sender, text)

    def begin(self, by: str, node: str = "", request: messages.Request | None = None, lost: str = "") -> list[Survey]:
        """Ask, and return where the result comes."""
        found: list[Survey] = []
        kind = NodeView if isinstance(request, messages.Diagnose) else None
        survey = Survey(
            node=node, request=request or requests.ReadState(), answer_kind=kind, until=LIMIT_S, takes=[found.append]
        )
        self.nodes[by].surveys.ask(survey)
        self.deliver(lost)
        self.nodes[by].surveys.advance(0.0)
        return found

    def ask(self, by: str, node: str = "", request: messages.Request | None = None) -> Survey:
        (asked,) = self.begin(by, node, request)
        return asked


def report_run(asked: Survey) -> RunView:
    assert asked.members is not None
    return make_run_view(asked.answers, asked.members, asked.leader, "r", 1.0)


@pytest.mark.parametrize("by", ["a", "c"])
def test_all_nodes_are_seen_from_any_of_them(by: str) -> None:
    net = Net("a", "b", "c")
    asked = net.ask(by)
    report = report_run(asked)
    assert [one.name for one in report.nodes] == ["a", "b", "c"]
    assert (report.leader, report.silent) == ("a", ())
    asked_of = {name: node.asked for name, node in net.nodes.items()}
    assert asked_of == {
        "a": [requests.ReadState()],
        "b": [requests.ReadState(of_run=False)],
        "c": [requests.ReadState(of_run=False)],
    }


@pytest.mark.parametrize("name", ["b", "id-b"])
def test_one_node_is_asked_by_name_or_member_id(name: str) -> None:
    asked = Net("a", "b", "c").ask("c", name, requests.ReadEvents())
    (page,) = asked.answers.values()
    assert isinstance(page, requests.EventPage)
    assert page.lines == ("b",)


def test_the_leader_is_asked_and_without_one_there_is_no_answer() -> None:
    net = Net("a", "b", "c")
    net.begin("b", request=messages.Diagnose())
    assert {name: node.asked for name, node in net.nodes.items()} == {"a": [messages.Diagnose()], "b": [], "c": []}
    net = Net("a", "b")
    net.leader = "gone"
    found = net.begin("b")
    assert found == []
    net.nodes["b"].surveys.advance(LIMIT_S)
    assert [(one.members, one.answers, one.error) for one in found] == [(None, {}, "")]
    assert net.nodes["b"].surveys.wake_at == float("inf")


def test_a_node_that_is_not_there_or_cannot_answer_is_told_with_the_reason() -> None:
    asked = Net("a", "b").ask("b", "x")
    assert asked.error == "unknown node x; the nodes are a, b"
    net = Net("a", "b")
    net.nodes["b"].answer = lambda request: (None, "its disk is gone: /log\udcff")  # type: ignore[method-assign]
    assert list(net.ask("a", "b", requests.ReadEvents()).answers.values()) == ["its disk is gone: /log?"]


def test_a_silent_node_or_one_that_was_lost_is_named() -> None:
    net = Net("a", "b", "c")
    found = net.begin("b", lost="c")
    surveys = net.nodes["b"].surveys
    assert (found, surveys.wake_at) == ([], LIMIT_S)
    surveys.advance(LIMIT_S)
    report = report_run(found[0])
    assert (report.silent, [one.name for one in report.nodes]) == (("c",), ["a", "b", "c"])
    rounds = (
        RoundView(round=1, began_at=0.0, world_size=2, node_count=2, ranks=(0,), restart_count=0, waited_s=0.0,
                     ended_at=5.0, cause="loss", nodes=("a", "gone")),
    )  # fmt: skip
    answers = {"id-a": make_report("a", run=RunView(run_id="r", rounds=rounds))}
    assert make_run_view(answers, {"id-a": "a"}, "id-a", "r", 1.0).lost == (("gone", 1),)


def test_an_answer_of_another_kind_counts_as_lost_and_what_waits_is_bounded() -> None:
    net = Net("a", "b")
    net.nodes["b"].answer = lambda request: (requests.EventPage(lines=(), first=0, next_after=0), "")  # type: ignore[method-assign]
    found = net.begin("a")
    assert found == []
    net.nodes["a"].surveys.advance(LIMIT_S)
    assert report_run(found[0]).silent == ("b",)
    net = Net("a", "b")
    net.leader = "gone"
    for request in (requests.ReadState(), requests.ReadEvents()) * (PENDING_MAX // 2):
        assert net.begin("b", request=request) == []
    for request in (requests.ReadState(), requests.ReadEvents(), messages.Diagnose()):
        assert "waiting for answers" in net.ask("b", request=request).error


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"note":',
        '{"note":"reply"}',
        '{"note":"from tomorrow","id":"1"}',
        '{"note":"inspect","id":3}',
        '{"note":"silence"}',
        '{"note":"request","id":"x","asker":"a","request":{"type":"examine"}}',
        '{"id":"1","node":"","request":{"type":"state"}}',
        '{"note":"conclusion","round":1,"purpose":"failure","answer":{"kind":"unclear","culprits":[],"sentences":[],'
        '"stacks":[],"gaps":[],"stragglers":[],"folders":[],"hint":""}}',
        "[" * 9999,
    ],
)
def test_what_is_no_note_is_none(text: str) -> None:
    assert decode_note(text) is None


def test_a_long_report_is_shortened_and_a_bug_costs_one_answer() -> None:
    rounds = tuple(
        RoundView(
            round=number, began_at=0.0, world_size=1, node_count=1, ranks=tuple(range(64)), restart_count=0,
            waited_s=0.0, error="x" * 2000,
        )
        for number in range(100)
    )  # fmt: skip
    ranks = tuple(RankView(rank=rank, local_rank=rank, pid=1, state="running", sentence="y" * 90) for rank in range(64))
    report = make_report("b", run=RunView(run_id="r", rounds=rounds), ranks=ranks)
    assert not messages.is_sendable(report)
    short = shorten_view(report)
    assert short.run is not None
    assert (len(short.ranks), len(short.run.rounds)) == (64, 20)
    last = replace(rounds[0], round=7, ranks=tuple(range(1280)))
    many = shorten_view(make_report("b", run=RunView(run_id="r", round=7, rounds=rounds), ranks=ranks * 20, last=last))
    assert messages.is_sendable(many)
    run = make_run_view({"b": many}, {"b": "b"}, "b", "r", 0.0)
    assert len(run.nodes[0].ranks) == 100, "they are of the round that runs"
    net = Net("a", "b")
    net.nodes["b"].answer = lambda request: (report, "")  # type: ignore[method-assign]
    (found,) = net.ask("a", "b").answers.values()
    assert isinstance(found, NodeView)
    assert len(found.ranks) == 64
    woken = threading.Semaphore(0)
    reporter = Reporter(woken.release)
    seen: list[object] = []
    reporter.submit("state", lambda: 1 / 0, lambda result, problem: seen.append(problem))
    reporter.submit("state", lambda: "fine", lambda result, problem: seen.append(result))
    for _ in range(2):
        assert woken.acquire(timeout=30)
    reporter.advance()
    assert seen == ["ZeroDivisionError: division by zero", "fine"]


def test_without_a_thread_the_state_is_read_at_once_and_logs_later() -> None:
    reporter = Reporter(lambda: None)
    seen: list[object] = []
    with no_threads() as wanted:
        for kind in ("state", "logs"):
            reporter.submit(kind, lambda: "fine", lambda result, problem: seen.append(result or problem))
        reporter.advance()
    assert wanted == ["report state", "report logs"]
    assert seen == ["fine", f"its logs cannot be read: {NO_THREAD}"]
    for kind in ("state", "logs"):
        reporter.submit(kind, lambda: threading.current_thread().name, lambda result, problem: seen.append(result))
    wait_until(lambda: reporter.advance() or len(seen) == 4)
    assert sorted(map(str, seen[2:])) == ["report logs", "report state"]


def test_a_question_survives_its_encoding_and_what_no_message_can_hold_is_refused() -> None:
    question = messages.Inspect(id="1", node="n", request=requests.ReadEvents(after=3))
    assert decode_note(messages.encode_note(question)) == question
    net = Net("a", "b")
    request = requests.ReadLogs(
        cursors=tuple(requests.LogCursor(f"logs/{number}/stdout.log", 0) for number in range(5000))
    )
    asked = net.ask("b", "a", request)
    assert asked.error == "the question is too long for a message: ask on the leader's node"
    asked = net.ask("a", "a", request)
    assert (asked.error, len(asked.answers)) == ("", 1)
    net = Net("a", "b")
    page = requests.EventPage(lines=("x" * NOTE_MAX,), first=0, next_after=0)
    net.nodes["b"].answer = lambda request: (page, "")  # type: ignore[method-assign]
    assert list(net.ask("a", "b", requests.ReadEvents()).answers.values()) == ["the answer is too long for a message"]


def test_who_asks_for_all_while_others_do_is_answered_with_them() -> None:
    net = Net("a", "b", "c")
    found: list[Survey] = []
    surveys = net.nodes["b"].surveys
    for node in [""] * (PENDING_MAX - 1) + ["a"]:
        surveys.ask(Survey(node=node, request=requests.ReadState(), until=LIMIT_S, takes=[found.append]))
    net.deliver()
    surveys.advance(0.0)
    assert [len(asked.answers) for asked in found] == [3] * (PENDING_MAX - 1) + [1]
    assert len(net.nodes["c"].asked) == 1
    net.ask("b")
    assert len(net.nodes["c"].asked) == 2, "what was complete is asked anew"


@pytest.mark.parametrize("asker", [TO_LEADER, TO_ROUND, TO_ALL])
def test_a_reply_to_no_member_is_not_sent_round_in_circles(asker: str) -> None:
    net = Net("a", "b")
    net.nodes["a"].surveys.take_note("id-b", messages.Reply(id="1", asker=asker, member_id="id-b"))
    assert not net.notes


def test_a_leader_shows_too_many_nodes_alone() -> None:
    net = Net("a", *(f"node-{number:04}.of-a-machine-with-a-long-name.example" for number in range(1500)))
    by = list(net.nodes)[7]
    asked = net.ask(by)
    assert asked.error == "a message cannot name 1,501 nodes: ask on the leader's node, a"
    asked = net.ask("a")
    assert (asked.error, len(asked.answers)) == ("", 1501)
