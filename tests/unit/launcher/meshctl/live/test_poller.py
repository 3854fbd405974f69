"""Asking all nodes over and over: none holds up the others, and a silent one is not asked in vain."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from launcher.meshctl.live.poller import NodePoller, PolledNode
from launcher.meshctl.live.ranks import describe_ranks
from launcher.meshctl.live.top_state import TopState
from launcher.model.errors import TemporaryError
from launcher.views.requests import ReadEvents
from launcher.views.run_view import RunView
from launcher.views.sentences import format_headline
from tests.support.run_reports import CALM, REPORT, FakeSource, make_node, make_silent
from tests.support.waiting import wait_until


def make_request(node: PolledNode) -> ReadEvents:
    return ReadEvents(after=-1)


class Polling:
    """A poller of this source with a clock that moves with each look, what it remarks, and nodes that refuse."""

    def __init__(self, report: RunView) -> None:
        self.source = FakeSource(report)
        self.source.before_answer = self.refuse
        self.remarks: list[str] = []
        self.broken: dict[str, Exception] = {}
        self.now = 0.0
        self.poller = NodePoller(self.source, self.remarks.append, clock=lambda: self.now)

    def refuse(self, member_id: str) -> None:
        if member_id in self.broken:
            raise self.broken[member_id]

    def look(self, step_s: float = 0.5) -> list[str]:
        self.now += step_s
        return [node.member_id for node, _ in self.poller.poll(make_request, 0.02)]

    def look_until(self, condition: Callable[[], object], what: str) -> None:
        wait_until(lambda: (self.look() and False) or condition(), 20, what)

    def count(self, member_id: str) -> int:
        return sum(node == member_id for node, _ in self.source.requests)


def test_a_node_that_hangs_holds_up_no_other() -> None:
    source = FakeSource(CALM)
    released = threading.Event()
    source.before_answer = lambda member_id: (member_id == "m1" and released.wait(20)) and None
    poller = NodePoller(source, print)
    heard: list[str] = []

    def hear() -> bool:
        heard.extend(node.name for node, _ in poller.poll(make_request, 0.05))
        return heard.count("h0") >= 3

    wait_until(hear, 20, "three answers of h0")
    assert "h1" not in heard
    assert not poller.has_begun
    released.set()
    wait_until(lambda: hear() and "h1" in heard, 20, "an answer of h1")
    assert poller.has_begun


def test_a_node_that_the_report_misses_is_not_asked_until_it_is_back() -> None:
    polling = Polling(CALM)
    polling.look_until(lambda: polling.poller.has_begun, "the first answers")
    polling.source.report = replace(REPORT, nodes=(make_node(0), make_silent("h1")))
    polling.broken["m1"] = TemporaryError("it is frozen")
    polling.look_until(lambda: polling.remarks[-1:] == ["node h1 does not answer"], "its silence")
    asked = polling.count("m1")
    for _ in range(20):
        polling.look(0.1)
    assert polling.count("m1") <= asked + 2
    polling.broken.clear()
    polling.source.report = CALM
    polling.look_until(lambda: polling.remarks[-1] == "node h1 answers again", "its return")


def test_a_failing_or_silent_node_is_named_once_and_asked_more_seldom() -> None:
    polling = Polling(CALM)
    polling.broken["m1"] = TemporaryError("its disk hangs")
    polling.look_until(lambda: polling.count("m0") >= 60, "sixty requests to h0")
    assert polling.remarks == ["node h1 does not answer: its disk hangs"]
    assert polling.count("m1") < 15
    polling = Polling(replace(REPORT, nodes=(make_node(0), make_silent("h1"))))
    nodes = polling.poller.nodes
    polling.look_until(lambda: len(nodes) == 1, "the first report")
    polling.source.events |= {"m1": [], "m2": [], "m3": []}
    polling.source.report = replace(REPORT, nodes=(make_node(0), make_node(1), make_node(2)))
    polling.look_until(lambda: len(nodes) == 3, "the second report")
    assert {node.name: node.is_first for node in nodes.values()} == {"h0": True, "h1": True, "h2": False}
    polling.source.report = replace(REPORT, nodes=(make_node(0), make_node(3, name="h1")))
    polling.look_until(lambda: len(nodes) == 4, "the third report")
    assert not nodes["m3"].is_first, "what it writes after its return is new"


def test_an_unexpected_error_is_raised_and_every_node_is_asked_again() -> None:
    polling = Polling(CALM)
    polling.broken = dict.fromkeys(("m0", "m1"), RuntimeError("a bug"))
    heard: set[str] = set()

    def look() -> bool:
        try:
            heard.update(polling.look())
        except RuntimeError:
            polling.broken.clear()
        return len(heard) == 2 and not polling.broken

    wait_until(look, 20, "answers of both")


def test_an_answer_that_has_no_room_for_ranks_or_nodes_says_so() -> None:
    run = replace(REPORT, member_count=3)
    short = run.shorten()
    sentence = "an answer through the store is too short for the ranks of 3 nodes: run the command on a node of the run"
    assert describe_ranks(short) == f"h0-h1: running\nh7: no answer\n{sentence}"
    assert format_headline(short) == format_headline(run) == "round 2 runs 4 ranks on 2 nodes"
    state = TopState("exp")
    state.report = short
    assert sentence in " ".join(state.describe_head(short.at).split())
    polling = Polling(short.shorten())
    with pytest.raises(TemporaryError, match=r"^run exp: an answer through the store is too short for 3 nodes"):
        polling.look_until(lambda: False, "")
