"""What the leader decides before a round and while it runs, a row per rule: sizes, losses, growth. Drawn by `views`."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from rendezvous.policy.budget import RestartBudget
from rendezvous.policy.decide import decide
from rendezvous.policy.decisions import EndRound, QuitJob, SealRound, Wait
from rendezvous.policy.view import MemberView, Size, View
from rendezvous.settings import Settings
from tests.support.protocol.views import (
    RUNS,
    SEAL,
    THREE_LOSSES,
    Row,
    failed,
    first_round,
    losses,
    members,
    running,
    see,
    show,
    sizer,
    status,
    verdict,
)

FULL = SealRound(("a", "b", "c"), RestartBudget(), "here nodes=3")


def complete(members: Sequence[MemberView]) -> Size:
    """As usual, of members that are all there can be."""
    return replace(sizer(members), is_complete=True)


ROWS = [
    # --- the first round
    Row("a full world starts at once", first_round("abc"), 1.0, FULL),
    Row(
        "a world that could grow waits for more after the last arrival",
        first_round("ab", b=5.0),
        6.0,
        Wait(35.0, "awaiting-more-nodes why=(here nodes=2)", setting="join_grace_s"),
    ),
    Row(
        "and starts when nobody has come",
        first_round("ab", b=5.0),
        35.0,
        SealRound(("a", "b"), RestartBudget(), "here nodes=2; no-node-joined for_s=30"),
    ),
    Row(
        "no world is waited for",
        first_round("a"),
        1.0,
        Wait(600.0, "awaiting-nodes size=(here nodes=1)", setting="start_timeout_s"),
    ),
    Row(
        "but not for ever",
        first_round("a"),
        600.0,
        verdict("failure", 75, "too-few-joined within_s=600 size=(here nodes=1)", round=0),
    ),
    Row(
        "nor where nobody else can come",
        first_round("a"),
        1.0,
        verdict("failure", 2, "no-world size=(here nodes=1)", round=0),
        sizer=complete,
    ),
    Row("a world of all there are starts at once", first_round("abc"), 1.0, FULL, sizer=complete),
    Row(
        "who is leaving is not counted",
        first_round("abc", {"c": status(leaving_at=1.0)}),
        1.0,
        Wait(30.0, "awaiting-more-nodes why=(here nodes=2)", setting="join_grace_s"),
    ),
    Row(
        "a leader that leaves lets another one lead",
        first_round("ab", {"a": status(leaving_at=1.0)}),
        1.0,
        QuitJob("leader-leaves"),
    ),
    Row(
        "the last one to leave ends the job",
        first_round("a", {"a": status(leaving_at=1.0)}),
        1.0,
        verdict("stopped", 143, "sigterm", round=0),
    ),
    # --- the first round of a chosen size
    Row(
        "a target is waited for though fewer would do",
        first_round("ab"),
        100.0,
        Wait(600.0, "awaiting-more-nodes why=(target-nodes joined=2 target=3)", setting="start_timeout_s"),
        {"target_nodes": 3},
    ),
    Row(
        "at the target the round starts at once",
        first_round("ab"),
        1.0,
        SealRound(("a", "b"), RestartBudget(), "here nodes=2; target-nodes joined=2 target=2"),
        {"target_nodes": 2},
    ),
    Row(
        "after the start time-out what is there is taken",
        first_round("ab"),
        600.0,
        SealRound(
            ("a", "b"),
            RestartBudget(),
            "here nodes=2; target-nodes-after after_s=600 why=(target-nodes joined=2 target=4)",
        ),
        {"target_nodes": 4, "start_timeout_s": 600.0},
    ),
    Row(
        "a drained node is not counted",
        see(first_round("abc"), drained={"nc": 0.0}),
        1.0,
        Wait(30.0, "awaiting-more-nodes why=(here nodes=2)", setting="join_grace_s"),
    ),
    # --- a round runs
    Row("a round runs", running(), 130.0, Wait(math.inf, "running round=4 ranks=2 is_spare=False")),
    Row(
        "all active members have succeeded",
        running(a=status("succeeded"), b=status("succeeded")),
        130.0,
        verdict("success", 0, "all-succeeded"),
    ),
    Row(
        "what succeeded in a round before does not count",
        running(a=status("succeeded"), b=status("succeeded", plan_token="older")),
        130.0,
        Wait(math.inf, "running round=4 ranks=2 is_spare=False"),
    ),
    Row(
        "a member that has finished and is lost changes nothing",
        running("a", b=status("succeeded")),
        130.0,
        Wait(math.inf, "running round=4 ranks=2 is_spare=False"),
    ),
    Row(
        "a loss stops the round",
        running("a"),
        130.0,
        EndRound("kill", "lost nodes=(nodes names=nb count=1) round=4", "loss", nodes=("nb",)),
    ),
    Row(
        "a failure stops the round",
        running(b=status("failed", at=130.0)),
        130.0,
        EndRound("kill", "failed nodes=(nodes names=nb count=1) round=4", "failure", nodes=("nb",)),
    ),
    Row(
        "a loss is the reason when it comes with a failure",
        running("a", a=status("failed", at=130.0)),
        130.0,
        EndRound("kill", "lost nodes=(nodes names=nb count=1) round=4", "loss", nodes=("nb",)),
    ),
    Row(
        "departures are gathered for a moment",
        running("abc", b=status(leaving_at=130.0)),
        130.1,
        Wait(130.2, "gathering-departures round=4"),
    ),
    Row(
        "then the round is stopped with its grace",
        running("abc", b=status(leaving_at=130.0)),
        130.2,
        EndRound("grace", "leaving nodes=(nodes names=nb count=1) round=4", "leaving", nodes=("nb",)),
    ),
    Row(
        "there is nothing to gather when all leave",
        running(a=status(leaving_at=130.0), b=status(leaving_at=130.1)),
        130.1,
        EndRound("grace", "leaving nodes=(nodes names=na,nb count=2) round=4", "leaving", nodes=("na", "nb")),
    ),
    Row(
        "a member that said it leaves is not lost when it has gone",
        running("ac", b=status(leaving_at=130.0)),
        130.1,
        Wait(130.2, "gathering-departures round=4"),
    ),
    Row(
        "a leader whose own workers are gone gathers departures, or the next leader would from the beginning",
        running("abc", a=status(stopped=True, leaving_at=130.0)),
        130.1,
        Wait(130.2, "gathering-departures round=4"),
    ),
    Row(
        "and ends the round before it lets another one lead",
        running("abc", a=status(stopped=True, leaving_at=130.0)),
        130.2,
        EndRound("grace", "leaving nodes=(nodes names=na count=1) round=4", "leaving", nodes=("na",)),
    ),
    Row(
        "a leader that has succeeded and leaves has nothing to end",
        running("abc", a=status("succeeded", leaving_at=130.0)),
        130.1,
        QuitJob("leader-leaves"),
    ),
    Row(
        "a spare that leaves restarts nobody",
        running("abc", c=status(leaving_at=130.0)),
        130.3,
        Wait(math.inf, "running round=4 ranks=2 is_spare=False"),
    ),
    Row(
        "who leaves is named beside the failures that this causes",
        running(a=failed(130.1), b=status(leaving_at=130.0)),
        130.1,
        EndRound(
            "kill",
            (
                "failed-while-leaving leaving=(nodes names=nb count=1) why=(failed nodes=(nodes names=na "
                "count=1) round=4)"
            ),
            "failure",
            nodes=("na",),
        ),
    ),
    # --- growth
    Row(
        "an arrival that makes the world larger waits for quiet",
        running("abc", seen={"c": 150.0}),
        160.0,
        Wait(450.0, "running round=4 ranks=2 is_spare=False; could-grow size=(here nodes=3)", setting="grow_delay_s"),
    ),
    Row(
        "and is used after it",
        running("abc", seen={"c": 150.0}),
        450.0,
        EndRound("grace", "growing round=4 size=(here nodes=3)", "growth"),
    ),
    Row(
        "no round grows soon after its seal",
        running("abc"),
        130.0,
        Wait(400.0, "running round=4 ranks=2 is_spare=False; could-grow size=(here nodes=3)", setting="grow_delay_s"),
    ),
    Row(
        "nor when one of its members has finished",
        running("abc", b=status("succeeded")),
        1000.0,
        Wait(math.inf, "running round=4 ranks=2 is_spare=False"),
    ),
    Row(
        "a leader without ranks says that it stands by",
        replace(running("abc"), active=("b", "c")),
        130.0,
        Wait(math.inf, "running round=4 ranks=2 is_spare=True"),
        {"grow": "never"},
    ),
    Row("a job that never grows does not", running("abc"), 5000.0, Wait(math.inf, RUNS), {"grow": "never"}),
    Row(
        "growth at a checkpoint waits for one",
        running("abc", seen={"c": 150.0}),
        5000.0,
        Wait(
            math.inf,
            "running round=4 ranks=2 is_spare=False; could-grow-at-checkpoint size=(here nodes=3)",
            setting="grow",
        ),
        {"grow": "checkpoint"},
    ),
    Row(
        "one from before the arrival will not do",
        see(running("abc", seen={"c": 150.0}), saved_at=149.0),
        5000.0,
        Wait(
            math.inf,
            "running round=4 ranks=2 is_spare=False; could-grow-at-checkpoint size=(here nodes=3)",
            setting="grow",
        ),
        {"grow": "checkpoint"},
    ),
    Row(
        "one after it will",
        see(running("abc", seen={"c": 150.0}), saved_at=151.0),
        152.0,
        EndRound("grace", "growing round=4 size=(here nodes=3)", "growth"),
        {"grow": "checkpoint"},
    ),
    Row(
        "that an active member registered again is no arrival",
        running("abc", seen={"a": 9000.0, "c": 150.0}),
        450.0,
        EndRound("grace", "growing round=4 size=(here nodes=3)", "growth"),
    ),
    Row(
        "a node on the bench is no arrival before its bench is over",
        see(running("abc"), budget=losses(*THREE_LOSSES, node="nc boot")),
        130.0,
        Wait(170.0, RUNS),
    ),
    Row(
        "and then one of that time",
        see(running("abc"), budget=losses(*THREE_LOSSES, node="nc boot")),
        171.0,
        Wait(470.0, "running round=4 ranks=2 is_spare=False; could-grow size=(here nodes=3)", setting="grow_delay_s"),
    ),
    Row(
        "people are told of the growth, not of the end of another node's bench",
        see(running("abcd", seen={"c": 150.0}), budget=losses(*THREE_LOSSES, node="nd boot")),
        155.0,
        Wait(
            170.0,
            "running round=4 ranks=2 is_spare=False; could-grow size=(here nodes=3)",
            setting="grow_delay_s",
            limit_at=450.0,
        ),
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.rule)
def test_the_leader_decides(row: Row) -> None:
    row.check()


def test_many_nodes_are_named_by_four_and_a_number() -> None:
    names = {f"m{index}": f"n{index}" for index in range(7)}
    view = View(
        own_id="a",
        members=members("a"),
        statuses={},
        opened_at=0.0,
        seal=SEAL,
        active=tuple(names),
        lost_at=dict.fromkeys(names, 120.0),
        names=names,
        budget=RestartBudget(),
    )
    assert show(decide(view, 130.0, Settings(), sizer)) == EndRound(
        "kill",
        "lost nodes=(nodes names=n0,n1,n2,n3 count=7) round=4",
        "loss",
        nodes=tuple(f"n{index}" for index in range(7)),
    )
