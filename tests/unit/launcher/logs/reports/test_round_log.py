"""What people are told of rounds, and of what is waited for."""

from __future__ import annotations

import math
from typing import Any

import pytest

from launcher.logs.reports.round_log import STABLE_S, RoundLog
from launcher.model.errors import describe
from launcher.placement.adapter.description import NodeAssignment
from rendezvous.events import Log, StartRound
from rendezvous.reasons import Reason
from rendezvous.settings import Settings
from tests.support.reasons import because

SHARE = NodeAssignment(
    ranks=(8, 9, 10, 11), world_size=224, shape=(4, 7, 8), group_rank=1, group_world_size=28, role_ranks=(8, 9, 10, 11),
    role_world_size=224, master_addr="h", master_port=1,
    summary=Reason.of("placement/summary", nodes=28, present=31, ranks=224, sizes=("dp=7",)),
)  # fmt: skip


def make_log(*, is_alone: bool = False, max_restarts: int = 0, **settings: Any) -> RoundLog:
    return RoundLog(is_standalone=is_alone, settings=Settings(max_restarts=max_restarts, **settings))


def told(capfd: pytest.CaptureFixture[str]) -> list[str]:
    return capfd.readouterr().err.splitlines()


def test_every_round_is_told_by_each_node_and_by_one_alone_only_restarts(capfd: pytest.CaptureFixture[str]) -> None:
    narrator = make_log(is_alone=False, max_restarts=3)
    narrator.log_start(StartRound(1, 0, 224, "h:1", ""), SHARE)
    narrator.log_end(1, because("node h17 lost in round 1"))
    narrator.log_start(StartRound(2, 1, 224, "h:1", ""), SHARE)
    assert told(capfd) == [
        "meshrun: round 1: 28 of 31 nodes, 224 ranks, dp=7; ranks 8-11 here",
        "meshrun: round 1 ends: node h17 lost in round 1",
        "meshrun: round 2: 28 of 31 nodes, 224 ranks, dp=7; 1 of 3 restarts used; ranks 8-11 here",
    ]
    narrator = make_log(is_alone=True, max_restarts=3)
    narrator.log_start(StartRound(1, 0, 4, "h:1", ""), SHARE)
    narrator.log_end(1, because("a worker failed"))
    narrator.log_start(StartRound(2, 1, 4, "h:1", ""), SHARE)
    assert told(capfd) == ["meshrun: round 2 starts with 4 workers, 1 of 3 restarts used"]


def test_what_is_waited_for_is_told_once_it_lasts_or_now_and_then(capfd: pytest.CaptureFixture[str]) -> None:
    narrator = make_log(is_alone=False, max_restarts=0)
    narrator.note(Log(because("waiting for nodes: 2 are present")), 10.0)
    narrator.advance(10.0)
    assert told(capfd) == []
    assert narrator.wake_at == 10.0 + STABLE_S
    narrator.advance(narrator.wake_at)
    narrator.advance(30.0)
    assert told(capfd) == ["meshrun: waiting for nodes: 2 are present"]
    assert narrator.wake_at == math.inf
    narrator = make_log(is_alone=False, max_restarts=0)
    for count in range(21):  # an eighth of a second from one to the next
        narrator.note(Log(because(f"{count} nodes are present")), 10.0)
        narrator.advance(10.0 + count / 8)
    assert told(capfd) == ["meshrun: 16 nodes are present"]
    narrator.advance(narrator.wake_at)
    assert told(capfd) == ["meshrun: 20 nodes are present"]


def test_what_happens_is_told_at_once_where_there_are_other_nodes(capfd: pytest.CaptureFixture[str]) -> None:
    for is_alone in (True, False):
        narrator = make_log(is_alone=is_alone, max_restarts=0)
        narrator.note(Log(because("round 1 runs 4 ranks")), 10.0)
        narrator.note(Log(because("the store is back"), True), 10.0)
        assert told(capfd) == ([] if is_alone else ["meshrun: the store is back"])
        narrator.advance(10.0)
        narrator.advance(11.0)
        assert told(capfd) == ["meshrun: round 1 runs 4 ranks"]


def test_a_node_that_does_not_lead_asks_after_a_while_what_it_waits_for_once(
    capfd: pytest.CaptureFixture[str],
) -> None:
    narrator = make_log(is_alone=False, max_restarts=0)
    assert [narrator.advance(at) for at in (10.0, 11.0, 12.5, 13.0)] == [False, False, True, False]
    narrator.log_start(StartRound(1, 0, 224, "h:1", ""), SHARE)
    narrator.end_round()
    told(capfd)
    assert [narrator.advance(at) for at in (20.0, 21.0, 22.5, 23.0)] == [False, False, True, False]
    assert told(capfd) == []


def test_why_a_round_has_its_size_is_not_told_apart_from_its_start(capfd: pytest.CaptureFixture[str]) -> None:
    narrator = make_log(is_alone=False, max_restarts=0)
    narrator.note(Log(because("waiting for more nodes")), 10.0)
    narrator.advance(10.0)
    narrator.note(Log(Reason.of("sealed", round=1, why=because("no node has joined for 30 s"))), 10.1)
    assert not narrator.advance(11.9)
    assert told(capfd) == []


def test_what_comes_from_elsewhere_makes_no_line_and_who_goes_waits_not(capfd: pytest.CaptureFixture[str]) -> None:
    narrator = make_log(is_alone=False, max_restarts=0)
    narrator.log_end(1, because("lost\nmeshrun: all is well\x1b[2J"))
    assert told(capfd) == ["meshrun: round 1 ends: lost\\nmeshrun: all is well\\x1b[2J"]
    narrator = make_log(is_alone=False, max_restarts=0)
    narrator.set_leaving()
    narrator.advance(10.0)
    assert narrator.wake_at == math.inf
    narrator.advance(20.0)
    assert told(capfd) == []


GIVING_UP = because("waiting for nodes to come back: 1 here").add(Reason.of("giving-up", in_s=1800))


@pytest.mark.parametrize(
    ("entry", "settings", "line"),
    [
        (Log(because("waiting for more nodes"), until=41.0, setting="join_grace_s"), {},
         "waiting for more nodes; up to 27 s more (--join-grace)"),
        (Log(because("round 2 was short: pausing"), until=14.6, setting="backoff_first_s"), {},
         "round 2 was short: pausing for 1 s"),
        (Log(GIVING_UP, until=1814.0, setting="rejoin_timeout_s"), {},
         "waiting for nodes to come back: 1 here; giving up in 1800 s (--rejoin-timeout)"),
        (Log(because("waiting for nodes"), until=1814.0, setting="rejoin_timeout_s"), {},
         "waiting for nodes; up to 1800 s more (--rejoin-timeout)"),
        (Log(because("stopping round 2"), until=44.0, setting="stop_limit_s"), {}, "stopping round 2; up to 30 s more"),
        (Log(because("waiting for word"), until=math.inf, setting="join_grace_s"), {}, "waiting for word"),
        (Log(because("waiting for an answer"), until=44.0), {}, "waiting for an answer"),
        (Log(because("the store does not answer"), True, until=608.0, setting="outage_limit_s"), {},
         "the store does not answer, for up to 595 s"),
        (Log(because("run y has already ended"), True, setting="on_finished"), {},
         "run y has already ended; for 3600 s after its end nothing is run (--on-finished next); set --on-finished "
         "rerun to start again"),
        (Log(because("this node stands by"), setting="spare"), {"grow": "delay"},
         "this node stands by; if a larger world is possible, it starts 300 s after the last node has joined (--grow)"),
        (Log(because("this node stands by"), setting="spare"), {"grow": "never"}, "this node stands by (--grow never)"),
        # On one machine, too.
        (Log(Reason.of("same-failure", rank=1, failure_class="E", times=3), True), {"is_alone": True},
         "rank 1 (E) failed in the same way 3 times in a row"),
    ],
)  # fmt: skip
def test_what_happens_is_told_with_its_limit_and_the_option_for_it(
    entry: Log, settings: dict[str, Any], line: str, capfd: pytest.CaptureFixture[str]
) -> None:
    narrator = make_log(**settings)
    narrator.note(entry, 13.0)
    for at in (13.0, 14.0, 20.0):
        narrator.advance(at)
    assert told(capfd).count(f"meshrun: {line}") == 1


GROWTH = Log(because("round 1 runs 1 rank; could grow"), until=308.0, setting="grow_delay_s")


@pytest.mark.parametrize(
    ("entry", "settings", "end"),
    [
        (GROWTH, {}, "; the job restarts with that size in 298 s (--grow)"),
        (Log(because("round 1 could"), setting="grow"), {"grow": "checkpoint"},
         "; the job then restarts with that size (--grow checkpoint)"),
    ],
)  # fmt: skip
def test_growth_is_announced_while_the_round_runs(
    entry: Log, settings: dict[str, Any], end: str, capfd: pytest.CaptureFixture[str]
) -> None:
    narrator = make_log(**settings)
    narrator.log_start(StartRound(1, 0, 224, "h:1", ""), SHARE)
    told(capfd)
    narrator.note(entry, 9.5)
    narrator.advance(narrator.wake_at)
    narrator.advance(1000.0)
    assert told(capfd) == [f"meshrun: {describe(entry.reason)}{end}"]
    assert narrator.wake_at == math.inf


@pytest.mark.parametrize("what", ["the node has gone", "the round ends"])
def test_growth_that_comes_to_nothing_is_not_announced(what: str, capfd: pytest.CaptureFixture[str]) -> None:
    narrator = make_log(is_alone=True)
    narrator.note(GROWTH, 10.0)
    if what == "the round ends":
        narrator.log_end(1, because("a worker failed"))
    else:
        narrator.note(Log(because("round 1 runs 1 rank")), 10.2)
    narrator.advance(20.0)
    assert told(capfd) == []
