"""Who looks at a run is answered by its nodes, through the leader, whatever of it is lost."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

import pytest

from launcher.agent.inspection.inspection import (
    LIMIT_S,
    PENDING_MAX,
    Inspected,
    Inspection,
    make_run_report,
    shorten_reply,
)
from launcher.agent.inspection.messages import Inspect, Reply, encode_inspection
from launcher.agent.inspection.notes import decode_note
from launcher.agent.inspection.reporter import Reporter
from launcher.model.concurrency import NO_THREAD
from launcher.observe.goodput import Goodput
from launcher.observe.node_report import (
    EventPage,
    LogCursor,
    NodeReply,
    NodeReport,
    NodeRequest,
    RankReport,
    ReadEvents,
    ReadLogs,
    ReadState,
)
from launcher.observe.timeline import RoundSummary
from rendezvous.events import TO_ALL, TO_LEADER, TO_ROUND, Event, SendNote
from rendezvous.member import notes
from rendezvous.peers.messages import NOTE_MAX
from tests.support.threads import no_threads
from tests.support.waiting import wait_until


def make_report(name: str, **fields: object) -> NodeReport:
    base: dict[str, object] = {
        "node": name, "member_id": f"id-{name}", "run_id": "r", "version": "1", "at": 1.0, "started_at": 0.0,
        "agent_pid": 1, "state": "running",
    }  # fmt: skip
    return NodeReport(**{**base, **fields})  # type: ignore[arg-type]


class Node:
    """An agent: its member, and a reporter that does its work at once."""

    def __init__(self, net: Net, name: str) -> None:
        self.net, self.name, self.member_id = net, name, f"id-{name}"
        self.asked: list[NodeRequest] = []
        self.answers = True
        self.inspection = Inspection("r", self, self.submit, self, self.answer)  # type: ignore[arg-type]

    def list_members(self) -> dict[str, str]:
        return {f"id-{name}": name for name in self.net.nodes} if self.net.leader == self.name else {}

    def submit(self, event: Event | str, *parts: object) -> None:
        if isinstance(event, SendNote):
            is_own = event.to == self.member_id or (event.to == TO_LEADER and self.net.leader == self.name)
            if is_own or notes.fits(event.text):  # as rendezvous.member.notes sends them
                self.net.notes.append((self.member_id, event.to, event.text))
        elif self.answers:
            work, take = parts
            take(work(), "")  # type: ignore[operator]

    def advance(self) -> None:
        pass

    def answer(self, request: NodeRequest) -> tuple[str, Callable[[], NodeReply]]:
        self.asked.append(request)
        if isinstance(request, ReadEvents):
            return "state", lambda: EventPage(lines=(self.name,), first=0, next_after=0)
        return "state", lambda: make_report(self.name)


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
                note = decode_note(text)
                assert note is not None
                self.nodes[name].inspection.take_note(sender, note)

    def ask(self, by: str, node: str = "", request: NodeRequest | None = None, lost: str = "") -> Inspected | None:
        found: list[Inspected] = []
        inspection = self.nodes[by].inspection
        inspection.inspect(node, request or ReadState(), found.append, 0.0)
        self.deliver(lost)
        inspection.advance(0.0)
        return found[0] if found else None


@pytest.mark.parametrize("by", ["a", "c"])
def test_all_nodes_are_seen_from_any_of_them(by: str) -> None:
    net = Net("a", "b", "c")
    asked = net.ask(by)
    assert asked is not None
    report = make_run_report(asked, "r", 1.0)
    assert [one.node for one in report.nodes] == ["a", "b", "c"]
    assert (report.leader, report.missing) == ("a", ())
    requests = {name: node.asked for name, node in net.nodes.items()}
    assert requests == {"a": [ReadState()], "b": [ReadState(has_rounds=False)], "c": [ReadState(has_rounds=False)]}


@pytest.mark.parametrize("name", ["b", "id-b"])
def test_one_node_is_asked_by_name_or_member_id(name: str) -> None:
    asked = Net("a", "b", "c").ask("c", name, ReadEvents())
    assert asked is not None
    (reply,) = asked.replies.values()
    assert reply.events is not None
    assert reply.events.lines == ("b",)


def test_a_name_that_no_node_has_is_refused_with_those_that_there_are() -> None:
    asked = Net("a", "b").ask("b", "x")
    assert asked is not None
    assert asked.error == "unknown node x; the nodes are a, b"


def test_a_silent_node_is_missing_and_the_rest_is_shown_at_the_limit() -> None:
    net = Net("a", "b", "c")
    assert net.ask("b", lost="c") is None
    inspection = net.nodes["b"].inspection
    assert inspection.wake_at == LIMIT_S
    found: list[Inspected] = []
    next(iter(inspection._pending.values())).takes = [found.append]
    inspection.advance(LIMIT_S)
    report = make_run_report(found[0], "r", 1.0)
    assert (report.missing, [one.node for one in report.nodes]) == (("c",), ["a", "b"])


def test_without_a_leader_there_is_no_answer() -> None:
    net = Net("a", "b")
    net.leader = "gone"
    assert net.ask("b") is None
    net.nodes["b"].inspection.advance(LIMIT_S)
    assert net.nodes["b"].inspection._pending == {}


def test_what_waits_is_bounded() -> None:
    net = Net("a", "b")
    net.leader = "gone"
    for request in (ReadState(), ReadEvents()) * (PENDING_MAX // 2):
        net.ask("b", request=request)
    for request in (ReadState(), ReadEvents()):
        found: list[Inspected] = []
        net.nodes["b"].inspection.inspect("", request, found.append, 0.0)
        (asked,) = found
        assert "waiting for answers" in asked.error


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
        '{"note":"ask"}',
        '{"note":"evidence","id":"x","ranks":[{}]}',
        '{"id":"1","purpose":"question"}',
        "[" * 9999,
    ],
)
def test_what_is_no_note_is_none(text: str) -> None:
    assert decode_note(text) is None


def test_a_reply_that_no_note_can_hold_is_shortened() -> None:
    rounds = tuple(
        RoundSummary(
            round=number, began_at=0.0, world_size=1, node_count=1, ranks=tuple(range(64)), restart_count=0,
            waited_s=0.0, error="x" * 2000,
        )
        for number in range(100)
    )  # fmt: skip
    ranks = tuple(
        RankReport(rank=rank, local_rank=rank, pid=1, state="running", sentence="y" * 90) for rank in range(64)
    )
    reply = Reply(id="1", asker="a", member_id="b", report=make_report("b", rounds=rounds, ranks=ranks))
    short = shorten_reply(reply)
    assert len(encode_inspection(reply)) > NOTE_MAX >= len(encode_inspection(short))
    assert short.report is not None
    assert len(short.report.ranks) == 64


def test_nodes_that_were_lost_and_are_not_back_are_named() -> None:
    rounds = (
        RoundSummary(round=1, began_at=0.0, world_size=2, node_count=2, ranks=(0,), restart_count=0, waited_s=0.0,
                     ended_at=5.0, cause="loss", nodes=("a", "gone")),
    )  # fmt: skip
    reply = Reply(id="1", asker="id-a", member_id="id-a", report=make_report("a", rounds=rounds))
    asked = Inspected(until=0.0, takes=[], members={"id-a": "a"}, leader="id-a", replies={"id-a": reply})
    assert make_run_report(asked, "r", 1.0).lost == ("gone",)


def test_a_bug_in_a_reply_costs_an_answer_and_no_thread() -> None:
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


def test_an_inspection_survives_its_encoding() -> None:
    question = Inspect(id="1", node="n", request=ReadEvents(after=3))
    assert decode_note(encode_inspection(question)) == question


def test_a_node_that_cannot_answer_says_why() -> None:
    net = Net("a", "b")

    def fail(request: NodeRequest) -> tuple[str, Callable[[], NodeReply]]:
        raise FileNotFoundError(2, "No such file or directory")  # os.getcwd() of a directory that was removed

    net.nodes["b"].inspection._make_answer = fail
    asked = net.ask("a", "b", ReadEvents())
    assert asked is not None
    (reply,) = asked.replies.values()
    assert reply.error == "FileNotFoundError: [Errno 2] No such file or directory"


def test_who_asks_for_all_while_others_do_is_answered_with_them() -> None:
    net = Net("a", "b", "c")
    found: list[Inspected] = []
    inspection = net.nodes["b"].inspection
    for _ in range(PENDING_MAX - 1):
        inspection.inspect("", ReadState(), found.append, 0.0)
    inspection.inspect("a", ReadState(), found.append, 0.0)
    net.deliver()
    inspection.advance(0.0)
    assert [len(asked.replies) for asked in found] == [3] * (PENDING_MAX - 1) + [1]
    assert len(net.nodes["c"].asked) == 1
    inspection.inspect("", ReadState(), found.append, 0.0)
    net.deliver()
    inspection.advance(0.0)
    assert len(net.nodes["c"].asked) == 2, "what was complete is asked anew"


def test_the_past_of_a_run_is_told_by_others_if_its_leader_was_a_spare() -> None:
    goodput = Goodput(total_s=9.0, trained_s=8.0, lost_s={})
    past = RoundSummary(round=1, began_at=1.0, world_size=1, node_count=1, ranks=(0,), restart_count=0, waited_s=0.0)
    reports = [
        make_report("a", is_leader=True),
        make_report("b", rounds=(past,), started_at=5.0),
        make_report("c", rounds=(past,), started_at=2.0, goodput=goodput),
    ]
    replies = {one.member_id: Reply(id="1", asker="id-a", member_id=one.member_id, report=one) for one in reports}
    asked = Inspected(until=0.0, takes=[], members={"id-a": "a"}, leader="id-a", replies=replies)
    report = make_run_report(asked, "r", 1.0)
    assert (report.rounds, report.goodput) == ((past,), goodput)


@pytest.mark.parametrize("asker", [TO_LEADER, TO_ROUND, TO_ALL])
def test_a_reply_to_no_member_is_not_sent_round_in_circles(asker: str) -> None:
    net = Net("a", "b")
    net.nodes["a"].inspection.take_note("id-b", Reply(id="1", asker=asker, member_id="id-b"))
    assert not net.notes


def test_more_nodes_than_a_message_can_name_are_shown_by_the_leader_alone() -> None:
    net = Net("a", *(f"node-{number:04}.of-a-machine-with-a-long-name.example" for number in range(1500)))
    by = list(net.nodes)[7]
    asked = net.ask(by)
    assert asked is not None
    assert asked.error == "1,501 nodes are more than a message can name: ask on a, which leads"
    asked = net.ask("a")
    assert asked is not None
    assert (asked.error, len(asked.replies)) == ("", 1501)


def test_a_question_too_long_for_a_message_is_refused() -> None:
    net = Net("a", "b")
    request = ReadLogs(cursors=tuple(LogCursor(f"logs/{number}/stdout.log", 0) for number in range(5000)))
    asked = net.ask("b", "a", request)
    assert asked is not None
    assert asked.error == "the question is too long for a message: ask on the leader's node"
    asked = net.ask("a", "a", request)
    assert asked is not None
    assert (asked.error, len(asked.replies)) == ("", 1)
