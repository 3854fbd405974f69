"""The events of all nodes in one: by time, the same of several nodes as one line, none lost or doubled."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest
from msgspec.structs import replace

from launcher.meshctl.live import events as views
from launcher.meshctl.live import poller
from launcher.meshctl.live.events import format_events, show_events
from launcher.views import event_view
from launcher.views.event_view import EventView, describe_event, read_event
from launcher.views.questions.local_socket import RunGoneError
from launcher.views.run_events import parse_time
from tests.support.run_reports import CALM, EVENT_NAMES, FakeSource, keep_events, make_event, make_node, make_start

NOW = parse_time("2026-01-31T08:06:00.000Z")
ROUND = {"world_size": 4, "node_count": 2, "mesh": "dp=4", "restart_count": 1, "max_restarts": 3}


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> FakeSource:
    monkeypatch.setattr(views, "format_clock", lambda at, now: f"{at - NOW:+.3f}")
    found = FakeSource(CALM)
    for index in range(2):
        found.events[f"m{index}"] = [
            make_event("round_started", f"h{index}", f"08:05:00.{index}00", **ROUND),
            *(
                make_event("worker_started", f"h{index}", f"08:05:01.{rank}00", rank=rank, local_rank=0, pid=rank)
                for rank in (2 * index, 2 * index + 1)
            ),
        ]
    return found


def show(source: FakeSource, *, follow: bool = False, as_json: bool = False) -> tuple[list[str], list[str]]:
    lines: list[str] = []
    remarks: list[str] = []

    def write(some: Iterable[str]) -> None:
        lines.extend(some)

    show_events(poller.NodePoller(source, remarks.append), write, follow=follow, as_json=as_json)
    return lines, remarks


def test_what_all_nodes_did_is_one_line(source: FakeSource) -> None:
    failure = make_event(
        "failure_found", "h1", "08:05:02.000", rank=3, exit_code=1, failure_class="user code: KeyError"
    )
    source.events["m1"].append(failure)
    assert show(source) == (
        [
            "-60.000  h0-h1  round 1 starts: 4 ranks on 2 nodes, dp=4, 1 of 3 restarts",
            "-59.000  h0-h1  ranks 0-3 started",
            "-58.000  h1  round 1 failed: rank 3: user code: KeyError",
        ],
        [],
    )


def test_json_is_what_the_nodes_have_written_in_order_of_time(source: FakeSource) -> None:
    lines, _ = show(source, as_json=True)
    assert sorted(lines) == sorted([*source.events["m0"], *source.events["m1"]])
    assert [json.loads(line)["time"] for line in lines] == sorted(json.loads(line)["time"] for line in lines)


def test_following_shows_each_event_once_until_a_run_ends(source: FakeSource, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poller, "PAUSE_S", 0.01)
    monkeypatch.setattr(poller, "REPORT_INTERVAL_S", 0.01)
    monkeypatch.setattr(views, "HOLD_S", 0.05)
    calls = iter(range(1000))

    def go_on(member_id: str) -> None:
        step = next(calls)
        if 10 <= step < 30:
            line = make_event("remark", member_id, f"08:05:10.{step:03}", sentence=f"remark {step}")
            source.events[member_id].append(line)
        elif step == 40:
            source.error = RunGoneError("run exp no longer has an agent on this machine")

    source.before_answer = go_on
    lines, remarks = show(source, follow=True)
    told = [line.rpartition("  ")[2] for line in lines if "remark" in line]
    assert sorted(told) == sorted(f"remark {step}" for step in range(10, 30))
    assert remarks == ["run exp no longer has an agent on this machine"]


def test_every_kind_of_event_is_a_line_with_its_own_sentence_that_controls_no_terminal() -> None:
    assert set(EVENT_NAMES) == set(event_view._SENTENCES), "each has its row in launcher/views/event_view.py"
    line = make_event("worker_started", "h0", "08:05:01.000", rank=0, local_rank=0, pid=1)
    event = read_event(line, "h0")
    assert event is not None
    assert len(format_events([event, event], NOW)) == 2
    line = make_event("remark", "\x1b[2J", "08:00:00.000", sentence="\x1b]0;x\x07")
    event = read_event(line, "h0")
    assert event is not None
    assert all(letter.isprintable() for letter in format_events([event], NOW)[0])
    fields = {"event": "worker_ended", "rank": 1, "outcome": "failed", "exit_code": -9}
    assert describe_event(fields) == "rank 1 was killed by signal 9"
    ended = {"event": "round_ended", "round": 2, "ran_s": 65.0, "reason": "node h9 is lost", "step": 7}
    assert describe_event(ended) == "round 2 ended after 1 min 5 s, at step 7: node h9 is lost"
    assert describe_event({"event": "agent_ended", "exit_code": 0, "verdict": "success"}) == (
        "the agent ended with exit code 0, the job: success"
    )


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ('{"event": "new_kind", "rank": 1, "time": "x"}', 'new_kind: {"rank":1}'),
        ('{"event": "round_started", "round": []}', 'round_started: {"round":[]}'),
        ('{"event": "worker_ended", "rank": "x\\u001b"}', 'worker_ended: {"rank":"x\\u001b"}'),
    ],
)
def test_an_event_of_another_version_is_shown_as_it_is(line: str, sentence: str) -> None:
    event = read_event(line, "h0")
    assert event is not None
    assert (event.sentence, event.node) == (sentence, "h0")


@pytest.mark.parametrize("line", ["", "[]", "{", '{"event":' + "[" * 99_000])
def test_what_is_no_event_is_left_out(line: str) -> None:
    assert read_event(line, "h0") is None


def test_a_loss_is_a_line_and_what_lasts_is_not_left_out() -> None:
    def make(kind: str, node: str, at: str, **fields: object) -> EventView:
        event = read_event(make_event(kind, node, at, **fields), node)
        assert event is not None
        return event

    told = {"cause": "loss", "reason": "node b lost in round 1"}
    killed = {"local_rank": 0, "pid": 1, "outcome": "terminated", "exit_code": -9}
    events = [
        event
        for at, node in enumerate(("a", "c"))
        for event in (
            make("round_stopping", node, "08:00:01.000", **told, mode="kill"),
            make("worker_ended", node, "08:00:01.100", rank=at, **killed),
            make("round_ended", node, "08:00:01.200", **told, ran_s=7.7),
        )
    ]
    lines = format_events(sorted(events, key=lambda event: event.at), NOW)
    assert [line.partition("  ")[2] for line in lines] == ["a, c  round 1 ended after 7.7 s: node b lost in round 1"]
    slow = [replace(event, at=event.at + 30 * (event.kind == "round_ended")) for event in events[:3]]
    assert [line.partition("  ")[2] for line in format_events(slow, NOW)] == [
        "a  round 1 is being ended: node b lost in round 1",
        "a  rank 0 was ended",
        "a  round 1 ended after 7.7 s: node b lost in round 1",
    ]


def test_the_events_of_a_lost_node_are_read_where_its_log_directory_is_shared(
    source: FakeSource, tmp_path: Path
) -> None:
    keep_events(tmp_path / "h9", make_start(1, "h9"), make_event("remark", "h9", "08:02:00.000", sentence="it is hot"))
    nodes = tuple(make_node(index, log_dir=str(tmp_path / f"h{index}")) for index in range(2))
    source.report = replace(source.report, nodes=nodes)
    lines, _ = show(source)
    assert [line.partition("  ")[2] for line in lines if "h9  " in line] == [
        "h9  round 1 starts: 4 ranks on 2 nodes", "h9  it is hot"
    ]  # fmt: skip
    assert sum("it is hot" in line for line in show(source, as_json=True)[0]) == 1
