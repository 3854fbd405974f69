"""Asking all nodes over and over: none holds up the others, and a silent one is not asked in vain."""

from __future__ import annotations

import threading

from msgspec.structs import replace

from launcher.meshctl.live.poller import NodePoller, PolledNode
from launcher.model.errors import TemporaryError
from launcher.observe.node_report import ReadEvents
from tests.support.run_reports import REPORT, FakeSource, make_node
from tests.support.waiting import wait_until


def make_request(node: PolledNode) -> ReadEvents:
    return ReadEvents(after=-1)


def test_a_node_that_hangs_holds_up_no_other() -> None:
    source = FakeSource(replace(REPORT, missing=()))
    released = threading.Event()
    source.before_answer = lambda member_id: (member_id == "m1" and released.wait(20)) and None
    poller = NodePoller(source, print)
    heard: list[str] = []

    def hear() -> bool:
        heard.extend(answer.node.name for answer in poller.poll(make_request, 0.05))
        return heard.count("h0") >= 3

    wait_until(hear, 20, "three answers of h0")
    assert "h1" not in heard
    assert not poller.has_begun
    released.set()
    wait_until(lambda: hear() and "h1" in heard, 20, "an answer of h1")
    assert poller.has_begun


def test_a_node_that_the_report_misses_is_not_asked_until_it_is_back() -> None:
    source = FakeSource(replace(REPORT, missing=()))
    remarks: list[str] = []
    now = [0.0]
    poller = NodePoller(source, remarks.append, clock=lambda: now[0])

    def refuse(member_id: str) -> None:
        if member_id == "m1":
            raise TemporaryError("it is frozen")

    def poll_until(condition: str) -> None:
        def step() -> bool:
            now[0] += 0.5
            poller.poll(make_request, 0.02)
            return any(remark.startswith(condition) for remark in remarks)

        wait_until(step, 20, condition)

    wait_until(lambda: poller.poll(make_request, 0.02) or poller.has_begun, 20, "the first answers")
    source.report = replace(source.report, nodes=(make_node(0),), missing=("h1",))
    source.before_answer = refuse
    poll_until("node h1 does not answer")
    asked = sum(node == "m1" for node, _ in source.requests)
    for _ in range(20):
        now[0] += 0.1
        poller.poll(make_request, 0.02)
    assert sum(node == "m1" for node, _ in source.requests) <= asked + 2
    source.before_answer = lambda member_id: None
    source.report = replace(source.report, nodes=(make_node(0), make_node(1)), missing=())
    poll_until("node h1 answers again")


def test_a_node_that_fails_is_named_once_and_asked_more_seldom() -> None:
    source = FakeSource(replace(REPORT, missing=()))

    def refuse(member_id: str) -> None:
        if member_id == "m1":
            raise TemporaryError("its disk hangs")

    source.before_answer = refuse
    remarks: list[str] = []
    now = [0.0]
    poller = NodePoller(source, remarks.append, clock=lambda: now[0])

    def step() -> bool:
        now[0] += 0.25
        poller.poll(make_request, 0.02)
        return sum(node == "m0" for node, _ in source.requests) >= 60

    wait_until(step, 30, "sixty requests to h0")
    assert remarks == ["node h1 does not answer: its disk hangs"]
    assert sum(node == "m1" for node, _ in source.requests) < 15


def test_a_node_that_was_silent_at_first_was_there_nevertheless() -> None:
    source = FakeSource(replace(REPORT, nodes=(make_node(0),), missing=("h1",)))
    now = [0.0]
    poller = NodePoller(source, lambda sentence: None, clock=lambda: now[0])

    def has(count: int) -> bool:
        now[0] += 0.5
        poller.poll(make_request, 0.02)
        return len(poller.nodes) == count

    wait_until(lambda: has(1), 20, "the first report")
    source.events |= {"m1": [], "m2": [], "m3": []}
    source.report = replace(REPORT, nodes=(make_node(0), make_node(1), make_node(2)), missing=())
    wait_until(lambda: has(3), 20, "the second report")
    assert {node.name: node.is_first for node in poller.nodes.values()} == {"h0": True, "h1": True, "h2": False}
    again = make_node(3, node="h1")
    source.report = replace(REPORT, nodes=(make_node(0), again), missing=())
    wait_until(lambda: has(4), 20, "the third report")
    assert not poller.nodes["m3"].is_first, "what it writes after its return is new"


def test_why_there_is_no_newer_report() -> None:
    source = FakeSource(replace(REPORT, missing=()))
    now = [0.0]
    poller = NodePoller(source, lambda sentence: None, clock=lambda: now[0])

    def poll_until(problem: str) -> None:
        def step() -> bool:
            now[0] += 0.5
            poller.poll(make_request, 0.02)
            return poller.report is not None and poller.problem == problem

        wait_until(step, 20, problem or "a new report")

    poll_until("")
    source.error = TemporaryError("no leader has answered")
    poll_until("no leader has answered")
    source.error = None
    poll_until("")


def test_an_unexpected_error_is_raised_and_every_node_is_asked_again() -> None:
    source = FakeSource(replace(REPORT, missing=()))
    now = [0.0]
    poller = NodePoller(source, lambda sentence: None, clock=lambda: now[0])
    broken = {"m0", "m1"}
    heard: set[str] = set()

    def fail(member_id: str) -> None:
        if member_id in broken:
            raise RuntimeError("a bug")

    def poll(until: int) -> bool:
        now[0] += 0.5
        try:
            heard.update(answer.node.member_id for answer in poller.poll(make_request, 0.02))
        except RuntimeError:
            broken.clear()
        return len(heard) == until and not broken

    source.before_answer = fail
    wait_until(lambda: poll(2), 20, "answers of both")
