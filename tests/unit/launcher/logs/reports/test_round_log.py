"""What people are told of rounds, and of what is waited for."""

from __future__ import annotations

import math

import pytest

from launcher.logs.reports.round_log import STABLE_S, RoundLog
from launcher.placement.adapter.description import NodeAssignment
from rendezvous.events import StartRound

SHARE = NodeAssignment(
    ranks=(8, 9, 10, 11), world_size=224, shape=(4, 7, 8), group_rank=1, group_world_size=28, role_ranks=(8, 9, 10, 11),
    role_world_size=224, master_addr="h", master_port=1, summary="28 of 31 nodes, 224 ranks, dp=7; spares h4, h9, h11",
)  # fmt: skip


def told(capfd: pytest.CaptureFixture[str]) -> list[str]:
    return capfd.readouterr().err.splitlines()


def test_every_round_of_several_nodes_is_told_by_each_of_them(capfd: pytest.CaptureFixture[str]) -> None:
    narrator = RoundLog(is_standalone=False, max_restarts=3)
    narrator.log_start(StartRound(1, 0, 224, "h:1", ""), SHARE)
    narrator.log_end(1, "node h17 lost in round 1")
    narrator.log_start(StartRound(2, 1, 224, "h:1", ""), SHARE)
    assert told(capfd) == [
        "meshrun: round 1: 28 of 31 nodes, 224 ranks, dp=7; spares h4, h9, h11; ranks 8-11 here",
        "meshrun: round 1 ends: node h17 lost in round 1",
        "meshrun: round 2: 28 of 31 nodes, 224 ranks, dp=7; spares h4, h9, h11; 1 of 3 restarts used; ranks 8-11 here",
    ]


def test_on_one_machine_only_restarts_are_told(capfd: pytest.CaptureFixture[str]) -> None:
    narrator = RoundLog(is_standalone=True, max_restarts=3)
    narrator.log_start(StartRound(1, 0, 4, "h:1", ""), SHARE)
    narrator.log_end(1, "a worker failed")
    narrator.log_start(StartRound(2, 1, 4, "h:1", ""), SHARE)
    assert told(capfd) == ["meshrun: round 2 starts with 4 workers, 1 of 3 restarts used"]


def test_what_is_waited_for_is_told_once_and_only_when_it_lasts(capfd: pytest.CaptureFixture[str]) -> None:
    narrator = RoundLog(is_standalone=False, max_restarts=0)
    narrator.note("waiting for nodes: 2 are present")
    narrator.log_waiting(10.0)
    assert told(capfd) == []
    assert narrator.wake_at == 10.0 + STABLE_S
    narrator.log_waiting(narrator.wake_at)
    narrator.log_waiting(30.0)
    assert told(capfd) == ["meshrun: waiting for nodes: 2 are present"]
    assert narrator.wake_at == math.inf


def test_quick_changes_are_logged_now_and_then_and_the_last_one_always(
    capfd: pytest.CaptureFixture[str],
) -> None:
    narrator = RoundLog(is_standalone=False, max_restarts=0)
    for count in range(21):  # an eighth of a second from one to the next
        narrator.note(f"{count} nodes are present")
        narrator.log_waiting(10.0 + count / 8)
    assert told(capfd) == ["meshrun: 16 nodes are present"]
    narrator.log_waiting(narrator.wake_at)
    assert told(capfd) == ["meshrun: 20 nodes are present"]


def test_what_happens_is_told_at_once_where_there_are_other_nodes(capfd: pytest.CaptureFixture[str]) -> None:
    for is_alone in (True, False):
        narrator = RoundLog(is_standalone=is_alone, max_restarts=0)
        narrator.note("round 1 runs 4 ranks")
        narrator.note("the store is back", is_remark=True)
        assert told(capfd) == ([] if is_alone else ["meshrun: the store is back"])
        narrator.log_waiting(10.0)
        narrator.log_waiting(11.0)
        assert told(capfd) == ["meshrun: round 1 runs 4 ranks"]


def test_a_node_that_does_not_lead_says_after_a_while_that_it_waits(capfd: pytest.CaptureFixture[str]) -> None:
    narrator = RoundLog(is_standalone=False, max_restarts=0)
    for at in (10.0, 11.0, 12.5, 13.0):
        narrator.log_waiting(at)
    assert told(capfd) == ["meshrun: waiting for the first round: the agent that leads says what it waits for"]
    narrator.log_start(StartRound(1, 0, 224, "h:1", ""), SHARE)
    told(capfd)
    for at in (20.0, 21.0, 22.5, 23.0):
        narrator.log_waiting(at)
    assert told(capfd) == ["meshrun: waiting for the next round: the agent that leads says what it waits for"]


def test_what_comes_from_elsewhere_makes_no_line_of_its_own(capfd: pytest.CaptureFixture[str]) -> None:
    narrator = RoundLog(is_standalone=False, max_restarts=0)
    narrator.log_end(1, "lost\nmeshrun: all is well\x1b[2J")
    assert told(capfd) == ["meshrun: round 1 ends: lost\\nmeshrun: all is well\\x1b[2J"]


def test_who_was_told_to_go_waits_for_no_round(capfd: pytest.CaptureFixture[str]) -> None:
    narrator = RoundLog(is_standalone=False, max_restarts=0)
    narrator.set_leaving()
    narrator.log_waiting(10.0)
    assert narrator.wake_at == math.inf
    narrator.log_waiting(20.0)
    assert told(capfd) == []
