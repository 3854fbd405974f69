"""An overview as people and programs read it: whole answers, and what holds for every answer."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from launcher.meshctl import status
from launcher.model.text import WIDTH, format_duration
from launcher.views.run_json import encode_run
from launcher.views.run_view import NodeView, RankView, RoundView, RunView, find_lost_nodes
from launcher.views.sentences import format_headline
from rendezvous.records import Command, Drain, RoundHistory, Verdict
from rendezvous.stores.memory.store import MemoryStore
from tests.support.reasons import because
from tests.support.run_reports import NOW, REPORT, make_node, make_round
from tests.support.stores.stored_job import StoredJob


@pytest.fixture
def job() -> Iterator[StoredJob]:
    store = MemoryStore(clock=lambda: 0.0)
    yield StoredJob(store)
    store.close()


def running(job: StoredJob) -> None:
    """Round 2 on three of four nodes, after one was lost."""
    job.join(0, 1, locality=(("pod", "pod-a"), ("leaf", "l1")))
    job.join(2, 3, locality=(("pod", "pod-a"), ("leaf", "l2")))
    job.seal(1, 0, 1, 9, reason="3 nodes of at least 2 are there, and nobody else came within 30 s")
    past = RoundHistory(
        round=1, world_size=12, node_count=3, coordinator="", reason=because("3 nodes of at least 2 are there"),
        ended=because("node h9 lost in round 1"), ran_s=3725.0,
    )  # fmt: skip
    job.put(job.keys.make_history_key(1), past)
    job.seal(2, 1, 0, 2, reason="h2, a spare, takes the place of h9")
    job.lead(0)
    job.spares({3: "the world is full"})


def test_a_small_job_in_words(job: StoredJob) -> None:
    running(job)
    assert (
        status.describe(job.view())
        == """\
run       exp-41, job 0a1b
now       round 2 runs 12 ranks on 3 nodes
why       h2, a spare, takes the place of h9
mesh      dp=6, tp=2
leader    h0
workers   meet at 10.0.0.1:29500
place     all nodes are on pod pod-a
spares    h3: the world is full

node  state    ranks  leaf  last seen
h1    running  0-3    l1    0 s ago
h0    running  4-7    l1    0 s ago    leads
h2    running  8-11   l2    0 s ago
h3    spare    -      l2    0 s ago    the world is full

round 1   12 ranks on 3 nodes: 3 nodes of at least 2 are there; ended after 1 h
          2 min: node h9 lost in round 1
round 2   12 ranks on 3 nodes"""
    )


def test_clock_times_ages_restarts_and_lost_nodes(job: StoredJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    running(job)
    now = 1_800_000_000.0
    why = because("world of 12 ranks on 3 of 3 nodes: dp=6 is the largest whole number of replicas")
    past = RoundView(
        round=1, world_size=12, node_count=3, reason=why,
        ended=because("a worker failed on h2"), ran_s=3600.0,
        began_at=now - 100_000, ended_at=now - 96_400, cause="failure", failed_rank=5,
        failure_class=because("user code: KeyError"),
    )  # fmt: skip
    lost = replace(
        past, round=2, cause="loss", ended=because("node h9 is lost"), failed_rank=-1, failure_class=None, nodes=("h9",)
    )
    here = replace(
        past, round=3, began_at=now - 185, ended=None, ran_s=0.0, cause="", failed_rank=-1, failure_class=None
    )
    seen = replace(
        job.view(), at=now, round=3, rounds=(past, lost, here), restart_count=1, max_restarts=3, reason=why,
        lost=find_lost_nodes((past, lost, here), {"h0", "h1", "h2"}), nodes=(),
    )  # fmt: skip
    assert (
        status.describe(seen)
        == """run       exp-41, job 0a1b
now       round 3 runs 12 ranks on 3 nodes, since 07:56:55 (3 min 5 s)
why       world of 12 ranks on 3 of 3 nodes: dp=6 is the largest whole number of
          replicas
mesh      dp=6, tp=2
leader    h0
workers   meet at 10.0.0.1:29500
restarts  1 of 3
lost      h9 in round 2

round 1   2027-01-14 04:13:20  12 ranks on 3 nodes; ended after 1 h: a worker
          failed on h2 (rank 5: user code: KeyError)
round 2   2027-01-14 04:13:20  12 ranks on 3 nodes; ended after 1 h: node h9 is
          lost
round 3   07:56:55  12 ranks on 3 nodes"""
    )
    ended = replace(
        seen,
        phase="ended",
        verdict=Verdict(kind="stopped", exit_code=143, round=3, reason=because("by ada"), ended_at=now - 12),
    )
    ended = replace(
        ended, rounds=(*seen.rounds[:2], replace(here, ended_at=now - 12, ended=because("by ada"), ran_s=173.0))
    )
    text = status.describe(ended)
    assert "ended     stopped in round 3, exit code 143: by ada, at 07:59:48 (12 s ago)" in text
    assert text.count("largest whole number") == 1  # as the reason of its first round


def test_a_job_with_trouble_in_words(job: StoredJob) -> None:
    running(job)
    job.lose(2)
    job.status(1, 2, outcome="failed", rank=2, exit_code=139)
    job.stop(2, "node h2 lost in round 2")
    job.put(job.keys.make_drain_key("h7"), Drain(node_name="h7"))
    job.put(job.keys.make_command_key("t"), Command(kind="drain", target="h3", by="ada@login"))
    job.store.put(job.keys.make_history_key(1), b"\x1b[31mred")
    assert (
        status.describe(job.view())
        == """\
run       exp-41, job 0a1b
now       round 2 is being stopped: node h2 lost in round 2
why       h2, a spare, takes the place of h9
mesh      dp=6, tp=2
leader    h0
place     all nodes are on pod pod-a
spares    h3: the world is full
drained   h7
asked     drain h3, asked for by ada@login

node  state     ranks  leaf  last seen
h1    failed    0-3    l1    0 s ago    rank 2, exit code 139
h0    stopping  4-7    l1    0 s ago    leads
h2    lost      8-11   -     -
h3    spare     -      l2    0 s ago    the world is full

round 2   12 ranks on 3 nodes

unread    the value of /meshrun/exp-41/0a1b/history/00000001 is not JSON, so it
          was not written by meshrun"""
    )


def test_a_thousand_nodes_are_a_summary_and_those_that_need_a_look(job: StoredJob) -> None:
    job.join(*range(1000))
    job.seal(1, *range(992))
    job.lead(3)
    job.spares(dict.fromkeys(range(992, 1000), "no whole replica left"))
    job.status(17, 1, leaving="stopped by SIGTERM")
    text = status.describe(job.view())
    assert (
        text
        == """\
run       exp-41, job 0a1b
now       round 1 runs 3,968 ranks on 992 nodes
why       all nodes are there
mesh      dp=1984, tp=2
leader    h3
workers   meet at 10.0.0.0:29500
leaving   h17
spares    h992-h999: no whole replica left

running   991 nodes: h0-h16, h18-h991
spare     8 nodes: h992-h999
leaving   1 node: h17

node  state    ranks  last seen
h17   leaving  68-71  0 s ago    stopped by SIGTERM

round 1   3,968 ranks on 992 nodes"""
    )
    assert len(status.describe(job.view(), all_nodes=True).splitlines()) > 1000


def test_no_line_is_wider_than_a_terminal_and_nothing_steers_it(job: StoredJob) -> None:
    long, rude = "word " * 60, "\x1b[2J\r\nx\u202e" + "y" * 300
    node = NodeView(
        name=rude,
        member_id="",
        state="running",
        why=because(rude),
        ranks=tuple(RankView(rank=rank) for rank in range(0, 60, 2)),
    )
    nodes = tuple(replace(node, member_id=str(at), locality=((rude, rude + str(at)),)) for at in range(3))
    past = RoundView(round=1, world_size=2, node_count=1, reason=because(rude), ended=because(long), ran_s=1.0)
    seen = RunView(
        run_id=rude[:40], job="k", phase="running", mesh=rude, round=1, world_size=2, leader=rude,
        reason=because(long),
        nodes=nodes, drained=(rude, "b"), requests=(rude,), rounds=(past,) * 30, faults=(rude,) * 30,
    )  # fmt: skip
    for all_nodes in (False, True):
        text = status.describe(seen, all_nodes=all_nodes)
        assert all(len(line) <= WIDTH for line in text.splitlines())
        assert all(letter.isprintable() or letter == "\n" for letter in text)
        assert "history   22 earlier rounds not shown" in text
        assert "and 25 more" in text


@pytest.mark.parametrize(
    ("kind", "code", "sentence"),
    [
        ("success", 0, "succeeded in round 3, exit code 0"),
        ("failure", 3, "failed in round 3, exit code 3: a worker failed on h1"),
        ("stopped", 143, "was stopped in round 3, exit code 143: a worker failed on h1"),
        ("odd", 1, "has ended in round 3, exit code 1: a worker failed on h1"),
    ],
)
def test_the_headline_of_a_job_that_has_ended(kind: str, code: int, sentence: str) -> None:
    verdict = Verdict(kind=kind, exit_code=code, round=3, reason=because("a worker failed on h1"))
    assert format_headline(RunView(run_id="r", job="k", phase="ended", verdict=verdict)) == sentence


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.44, "0.4 s"), (12.3, "12 s"), (185, "3 min 5 s"), (3600, "1 h"), (9600, "2 h 40 min"), (273600, "3 d 4 h")],
)
def test_durations(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_the_json_holds_all_of_it_and_can_be_read_again(job: StoredJob) -> None:
    running(job)
    found = json.loads(json.dumps(encode_run(job.view())))
    assert (found["run_id"], found["round"], found["world_size"], found["leader"]) == ("exp-41", 2, 12, "h0")
    assert [rank["rank"] for rank in found["nodes"][0]["ranks"]] == [0, 1, 2, 3]
    assert found["nodes"][0]["locality"] == {"pod": "pod-a", "leaf": "l1"}
    assert found["nodes"][0]["silent_s"] == 0.0
    assert found["rounds"][0]["ended"] == "node h9 lost in round 1"
    assert found["verdict"] is None
    assert (found["schema"], found["rounds"][1]["ended_at"]) == (1, None)
    assert found["at"].endswith("Z")
    assert found["now"] == "round 2 runs 12 ranks on 3 nodes"


def test_times_that_no_calendar_has_are_shown_as_unknown(job: StoredJob) -> None:
    running(job)
    past = RoundView(
        round=1, world_size=1, node_count=1, reason=because(""), ended=because("x"), began_at=1e300,
        ended_at=1e300,
    )  # fmt: skip
    seen = replace(job.view(), rounds=(past,))
    assert "round 1   ?  1 rank on 1 node" in status.describe(seen)
    assert encode_run(seen)["rounds"][0]["began_at"] is None


def test_a_run_whose_agents_have_answered_is_shown_as_one_from_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launcher.meshctl.status.format_clock", lambda at, now: f"T{at - NOW:+.0f}")
    assert (
        status.describe(REPORT)
        == """\
run       exp
now       round 2 runs 4 ranks on 2 nodes, since T-60 (1 min)
mesh      dp=2, tp=2
leader    h0
restarts  1 of 3
lost      h9 in round 1
silent    h7: no answer

node  state    ranks
h0    running  0-1    leads
h1    running  2-3
h7    silent   -

round 1   T-120  6 ranks on 2 nodes; ended after 30 s: node h9 is lost
round 2   T-60  4 ranks on 2 nodes"""
    )
    found = json.loads(json.dumps(encode_run(REPORT)))
    assert (found["schema"], found["phase"], found["lost"]) == (1, "running", [["h9", 1]])


def test_failed_features_are_shown_and_what_nodes_say_stays_in_its_line() -> None:
    off = make_node(1, off=("--hang-timeout", "--serve"))
    assert "--hang-timeout is off, --serve is off" in status.describe(replace(REPORT, nodes=(off,)))
    forged = make_node(0, name="h0\n", state="up\x1b[2J\u202e", locality=(("rack\n", "r1"),))
    text = status.describe(replace(REPORT, nodes=(forged, make_node(1))))
    assert text.isascii()
    assert "up\\x1b[2J\\u202e" in text
    assert next(line for line in text.splitlines() if line.startswith("h0")).startswith("h0\\n")


def test_a_hang_and_the_error_of_a_round_that_has_failed_are_shown() -> None:
    hang = make_round(2, hang=("the ranks are at 2 lines", "rank 0 is asleep"))
    text = status.describe(replace(REPORT, rounds=(hang,)))
    assert "hang      the ranks are at 2 lines; rank 0 is asleep" in text
    failed = make_round(
        1, ended_at=NOW, cause="failure", ended=because("rank 1 failed"), failed_rank=1, error="KeyError: 'lost'",
        failure_class=because("user code: KeyError"),
    )  # fmt: skip
    text = " ".join(status.describe(replace(REPORT, rounds=(failed,))).split())
    assert "rank 1 failed; KeyError: 'lost' (rank 1: user code: KeyError)" in text
