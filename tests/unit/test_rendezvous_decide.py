"""What the leader decides, one row per rule: who is there, what they said, and what follows.

Members are letters, the leader is `a`, and times are the leader's. A round of `a` and `b` was sealed at 100 s.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from rendezvous.budget import Ledger
from rendezvous.decide import (
    Conclude,
    Decision,
    EndRound,
    Fence,
    MemberView,
    Resign,
    SealRound,
    Size,
    StatusView,
    View,
    Wait,
    decide,
)
from rendezvous.records import Member, Seal, Status, Stop, Verdict
from rendezvous.settings import Settings

SEAL = Seal(round=4, plan_token="t", world_size=2, coordinator="a:1")
ONE_USED = Ledger(restart_count=1, charged_at=(50.0,))


def sizer(members: Sequence[MemberView]) -> Size:
    """Two to three nodes make a world."""
    count = len(members)
    return Size(min(count, 3) if count >= 2 else 0, count >= 3, f"{count} here")


def members(letters: str, **seen_at: float) -> dict[str, MemberView]:
    return {
        m: MemberView(
            Member(member_id=m, node_name=f"n{m}", boot_id="", description=""), order, order, seen_at.get(m, 0)
        )
        for order, m in enumerate(letters, start=1)
    }


def status(
    outcome: str = "", *, stopped: bool = False, leaving_at: float = math.inf, at: float = math.inf, **more: Any
) -> StatusView:
    """A status of the sealed round; `at`: when the leader saw the failure; `revision` orders failures."""
    revision = more.pop("revision", 7)
    more.setdefault("plan_token", "t")
    leaving: dict[str, Any] = {"leaving": "SIGTERM", "leaving_exit_code": 143} if leaving_at < math.inf else {}
    record = Status(round=4, outcome=outcome, is_stopped=stopped, **leaving, **more)
    return StatusView(record, revision, at, leaving_at)


STOPPED = status(stopped=True)


def failed(at: float = 110.0, **more: Any) -> StatusView:
    return status("failed", stopped=True, at=at, exit_code=more.pop("exit_code", 3), failure="text", **more)


def first_round(letters: str, statuses: Mapping[str, StatusView] | None = None, **seen_at: float) -> View:
    return View(
        own_id="a",
        members=members(letters, **seen_at),
        statuses=statuses or {},
        opened_at=0.0,
        lost_at={},
        names={},
        ledger=Ledger(),
    )


def running(letters: str = "ab", *, seen: Mapping[str, float] | None = None, **statuses: StatusView) -> View:
    return View(
        own_id="a",
        members=members(letters, **(seen or {})),
        statuses=statuses,
        opened_at=0.0,
        seal=SEAL,
        sealed_at=100.0,
        active=("a", "b"),
        lost_at={m: 120.0 for m in "ab" if m not in letters},
        names={m: f"n{m}" for m in "abcd"},
        ledger=ONE_USED,
    )


def stopping(
    letters: str = "ab",
    *,
    mode: str = "kill",
    ran_s: float = 20.0,
    active: str = "ab",
    lost_at: float = 120.0,
    ledger: Ledger = ONE_USED,
    **statuses: StatusView,
) -> View:
    """The round was stopped at 120 s; who is not in `statuses` has stopped."""
    return View(
        own_id="a",
        members=members(letters),
        statuses={**dict.fromkeys(active, STOPPED), **statuses},
        opened_at=0.0,
        seal=SEAL,
        sealed_at=100.0,
        active=tuple(active),
        stop=Stop(round=4, reason="why", mode=mode, ran_s=ran_s),
        stopped_at=120.0,
        lost_at={m: lost_at for m in active if m not in letters},
        names={m: f"n{m}" for m in "abcd"},
        ledger=ledger,
    )


def verdict(kind: str, exit_code: int, reason: str, round: int = 4, *, token: str = "", **more: Any) -> Conclude:
    return Conclude(Verdict(kind=kind, exit_code=exit_code, round=round, reason=reason, **more), token)


def charged(at: float, failed_at: float, *, is_settled: bool = False, short_rounds: int = 0) -> Ledger:
    ledger = Ledger(restart_count=1, charged_at=(50.0,), short_rounds=short_rounds).charge(4, failed_at, at)
    return ledger.settle(math.inf, 0.0) if is_settled else ledger


PROVISIONAL = ONE_USED.charge(3, failed_at=119.5, now=119.6)


class Row(NamedTuple):
    rule: str
    view: View
    now: float
    expected: Decision
    settings: Mapping[str, Any] = {}


ROWS = [
    # --- the first round
    Row("a full world starts at once", first_round("abc"), 1.0, SealRound(("a", "b", "c"), Ledger(), "3 here")),
    Row(
        "a world that could grow waits for more after the last arrival",
        first_round("ab", b=5.0),
        6.0,
        Wait(35.0, "waiting for more nodes: 2 here"),
    ),
    Row(
        "and starts when nobody has come",
        first_round("ab", b=5.0),
        35.0,
        SealRound(("a", "b"), Ledger(), "2 here; nobody came for 30 s"),
    ),
    Row("no world is waited for", first_round("a"), 1.0, Wait(600.0, "waiting for nodes: 1 here")),
    Row(
        "but not for ever",
        first_round("a"),
        600.0,
        verdict("failure", 75, "no world could be formed within 600 s: 1 here", round=0),
    ),
    Row(
        "who is leaving is not counted",
        first_round("abc", {"c": status(leaving_at=1.0)}),
        1.0,
        Wait(30.0, "waiting for more nodes: 2 here"),
    ),
    Row(
        "a leader that leaves lets another one lead",
        first_round("ab", {"a": status(leaving_at=1.0)}),
        1.0,
        Resign("this node leaves, another will lead"),
    ),
    Row(
        "the last one to leave ends the job",
        first_round("a", {"a": status(leaving_at=1.0)}),
        1.0,
        verdict("stopped", 143, "SIGTERM", round=0),
    ),
    # --- a round runs
    Row("a round runs", running(), 130.0, Wait(math.inf, "round 4 runs 2 ranks")),
    Row(
        "all active members have succeeded",
        running(a=status("succeeded"), b=status("succeeded")),
        130.0,
        verdict("success", 0, "all workers succeeded"),
    ),
    Row(
        "what succeeded in a round before does not count",
        running(a=status("succeeded"), b=status("succeeded", plan_token="older")),
        130.0,
        Wait(math.inf, "round 4 runs 2 ranks"),
    ),
    Row(
        "a member that has finished and is lost changes nothing",
        running("a", b=status("succeeded")),
        130.0,
        Wait(math.inf, "round 4 runs 2 ranks"),
    ),
    Row("a loss stops the round", running("a"), 130.0, EndRound("kill", "node nb lost in round 4")),
    Row(
        "a failure stops the round",
        running(b=status("failed", at=130.0)),
        130.0,
        EndRound("kill", "a worker failed on node nb in round 4"),
    ),
    Row(
        "a loss is the reason when it comes with a failure",
        running("a", a=status("failed", at=130.0)),
        130.0,
        EndRound("kill", "node nb lost in round 4"),
    ),
    Row(
        "departures are gathered for a moment",
        running("abc", b=status(leaving_at=130.0)),
        130.1,
        Wait(130.2, "gathering departures of round 4"),
    ),
    Row(
        "then the round is stopped with its grace",
        running("abc", b=status(leaving_at=130.0)),
        130.2,
        EndRound("grace", "node nb leaving in round 4"),
    ),
    Row(
        "there is nothing to gather when all leave",
        running(a=status(leaving_at=130.0), b=status(leaving_at=130.1)),
        130.1,
        EndRound("grace", "nodes na, nb leaving in round 4"),
    ),
    Row(
        "a member that said it leaves is not lost when it has gone",
        running("ac", b=status(leaving_at=130.0)),
        130.1,
        Wait(130.2, "gathering departures of round 4"),
    ),
    Row(
        "a spare that leaves restarts nobody",
        running("abc", c=status(leaving_at=130.0)),
        130.3,
        Wait(math.inf, "round 4 runs 2 ranks"),
    ),
    Row(
        "who leaves is named beside the failures that this causes",
        running(a=failed(130.1), b=status(leaving_at=130.0)),
        130.1,
        EndRound("kill", "node nb leaving, and a worker failed on node na in round 4"),
    ),
    # --- growth
    Row(
        "an arrival that makes the world larger waits for quiet",
        running("abc", seen={"c": 150.0}),
        160.0,
        Wait(450.0, "round 4 runs 2 ranks; could grow: 3 here"),
    ),
    Row(
        "and is used after it",
        running("abc", seen={"c": 150.0}),
        450.0,
        EndRound("grace", "growing after round 4: 3 here"),
    ),
    Row(
        "no round grows soon after its seal",
        running("abc"),
        130.0,
        Wait(400.0, "round 4 runs 2 ranks; could grow: 3 here"),
    ),
    Row(
        "nor when one of its members has finished",
        running("abc", b=status("succeeded")),
        1000.0,
        Wait(math.inf, "round 4 runs 2 ranks"),
    ),
    # --- it is being stopped
    Row(
        "all must have stopped",
        stopping(b=status()),
        121.0,
        Wait(155.0, "stopping round 4 (why): waiting for node nb"),
    ),
    Row(
        "with grace it may take longer",
        stopping(mode="grace", b=status()),
        121.0,
        Wait(180.0, "stopping round 4 (why): waiting for node nb"),
    ),
    Row(
        "who has not stopped is fenced",
        stopping(b=status()),
        155.0,
        Fence(("b",), "node nb has not stopped round 4 in time"),
    ),
    Row(
        "but not before it must have stopped by itself, if it heard nothing",
        stopping(b=status()),
        154.9,
        Wait(155.0, "stopping round 4 (why): waiting for node nb"),
        {"stop_limit_s": 0.0, "restart_grace_s": 0.0},
    ),
    Row(
        "a leader that cannot stop its own fences the others first",
        stopping(a=status(), b=status()),
        155.0,
        Fence(("b",), "node nb has not stopped round 4 in time"),
    ),
    Row(
        "and then lets go itself",
        stopping(a=status()),
        155.0,
        Resign("this node has not stopped round 4 in time"),
    ),
    Row(
        "that a member stopped an older round does not count",
        stopping(b=status(stopped=True, plan_token="older")),
        121.0,
        Wait(155.0, "stopping round 4 (why): waiting for node nb"),
    ),
    Row(
        "a round that had succeeded everywhere when the stop came is a success",
        stopping(mode="grace", a=status("succeeded"), b=status("succeeded")),
        121.0,
        verdict("success", 0, "all workers succeeded"),
    ),
    # --- it is gone: the charge
    Row("nothing is charged for a stop", stopping(), 121.0, SealRound(("a", "b"), ONE_USED, "2 here")),
    Row(
        "a failure costs one restart, and the next round starts at once",
        stopping(a=failed(119.9), b=failed(119.8)),
        120.1,
        SealRound(("a", "b"), charged(120.1, 119.8), "2 here"),
    ),
    Row(
        "which is final once the time to settle has passed",
        stopping(a=failed(119.0)),
        120.1,
        SealRound(("a", "b"), charged(120.1, 119.0, is_settled=True), "2 here"),
    ),
    Row(
        "with the budget spent a failure waits whether a loss explains it",
        stopping(a=failed(119.9)),
        120.1,
        Wait(120.9, "round 4 failed: waiting whether a lost node explains it"),
        {"max_restarts": 1},
    ),
    Row(
        "then it ends the job with its own exit code",
        stopping(a=failed(119.9)),
        120.9,
        verdict("failure", 3, "a worker failed on na in round 4, 1 of 1 restarts used", failure="text"),
        {"max_restarts": 1},
    ),
    Row(
        "a node that runs alone has nobody to wait for",
        stopping("abc", active="a", a=failed(119.9)),
        120.0,
        verdict("failure", 3, "a worker failed on na in round 4, no restarts allowed", failure="text"),
        {"max_restarts": 0},
    ),
    Row(
        "charges that are too old do not count",
        stopping(a=failed(119.9)),
        121.0,
        SealRound(("a", "b"), charged(121.0, 119.9, is_settled=True), "2 here"),
        {"max_restarts": 1, "restart_window_s": 60.0},
    ),
    Row(
        "broken connections alone wait for a lease, whatever is left of the budget, while somebody does not answer",
        replace(stopping(a=failed(119.9, is_peer_loss=True)), others_count=2, reached_count=1),
        122.0,
        Wait(124.9, "round 4 failed: waiting whether a lost node explains it"),
    ),
    Row(
        "on a private store there is no lease to wait for",
        stopping(a=failed(119.9, is_peer_loss=True)),
        120.0,
        Wait(120.9, "round 4 failed: waiting whether a lost node explains it"),
        {"lease_ttl_s": math.inf},
    ),
    Row(
        "a failure beside broken connections is believed",
        stopping(a=failed(119.9, is_peer_loss=True), b=failed(119.95)),
        120.1,
        SealRound(("a", "b"), charged(120.1, 119.9), "2 here"),
    ),
    Row(
        "a loss makes the failure free",
        stopping("ac", a=failed(119.9)),
        120.1,
        SealRound(("a", "c"), ONE_USED, "2 here"),
        {"max_restarts": 1},
    ),
    Row(
        "so does a departure",
        stopping("abc", a=failed(119.9), b=status(stopped=True, leaving_at=119.0)),
        120.1,
        SealRound(("a", "c"), ONE_USED, "2 here"),
        {"max_restarts": 1},
    ),
    Row(
        "not so the loss of a member that had finished",
        stopping("ac", a=failed(119.0), b=status("succeeded")),
        121.0,
        verdict("failure", 3, "a worker failed on na in round 4, 1 of 1 restarts used", failure="text"),
        {"max_restarts": 1},
    ),
    Row(
        "a loss soon after a charge takes it back",
        stopping("ac", lost_at=120.5, ledger=PROVISIONAL),
        130.0,
        SealRound(("a", "c"), ONE_USED, "2 here"),
    ),
    Row(
        "a departure too",
        stopping("abc", b=status(stopped=True, leaving_at=120.4), ledger=PROVISIONAL),
        130.0,
        SealRound(("a", "c"), ONE_USED, "2 here"),
    ),
    Row(
        "a later loss does not",
        stopping("ac", lost_at=120.6, ledger=PROVISIONAL),
        130.0,
        SealRound(("a", "c"), PROVISIONAL.settle(130.0, 1.0), "2 here"),
    ),
    # --- the cause
    Row(
        "the first failure that was written is the cause",
        stopping(a=failed(119.0, revision=9), b=failed(119.5, revision=8, exit_code=5)),
        121.0,
        verdict(
            "failure", 5, "a worker failed on nb in round 4, 1 of 1 restarts used", failure="text", others=("text",)
        ),
        {"max_restarts": 1},
    ),
    Row(
        "a broken connection is a cause only without a better one",
        stopping(a=failed(119.0, revision=8, is_peer_loss=True), b=failed(119.5, revision=9, exit_code=5)),
        121.0,
        verdict(
            "failure", 5, "a worker failed on nb in round 4, 1 of 1 restarts used", failure="text", others=("text",)
        ),
        {"max_restarts": 1},
    ),
    Row(
        "a failure without an exit code still ends the job with one",
        stopping(a=failed(119.0, exit_code=0)),
        121.0,
        verdict("failure", 1, "a worker failed on na in round 4, 1 of 1 restarts used", failure="text"),
        {"max_restarts": 1},
    ),
    # --- no progress
    Row(
        "the second short round in a row makes a pause",
        stopping(ran_s=1.0, ledger=Ledger(short_rounds=1)),
        120.5,
        Wait(121.0, "round 4 was short, as 1 before it: pausing"),
    ),
    Row(
        "and then it goes on",
        stopping(ran_s=1.0, ledger=Ledger(short_rounds=1)),
        121.0,
        SealRound(("a", "b"), Ledger(short_rounds=2), "2 here"),
    ),
    Row(
        "rounds without progress end the job, whatever their reason",
        stopping(ran_s=1.0, ledger=Ledger(short_rounds=2)),
        121.0,
        verdict("failure", 1, "no progress: 3 rounds in a row lasted less than 5 s"),
        {"no_progress_rounds": 3},
    ),
    Row(
        "with the failure of the last one, if there is one",
        stopping(a=failed(119.0), ran_s=1.0, ledger=Ledger(short_rounds=2)),
        121.0,
        verdict("failure", 3, "no progress: 3 rounds in a row lasted less than 5 s", failure="text"),
        {"no_progress_rounds": 3},
    ),
    # --- who is left
    Row(
        "too few are waited for, and the sentence says who is missing",
        stopping("a"),
        121.0,
        Wait(1920.0, "waiting for nodes to come back: 1 here; lost: node nb", is_limit=True),
    ),
    Row(
        "who left is told apart from who was lost",
        stopping("ab", active="abc", b=status(stopped=True, leaving_at=119.0)),
        121.0,
        Wait(1920.0, "waiting for nodes to come back: 1 here; lost: node nc; left: node nb", is_limit=True),
    ),
    Row(
        "but not for ever",
        stopping("a"),
        1920.0,
        verdict("failure", 75, "too few nodes came back within 1800 s: 1 here; lost: node nb"),
    ),
    Row(
        "nobody is left",
        stopping("a", active="a", a=status(stopped=True, leaving_at=119.0)),
        121.0,
        verdict("stopped", 143, "SIGTERM"),
    ),
    Row(
        "a leader that has stopped and leaves lets another one lead",
        stopping("ab", a=status(stopped=True, leaving_at=119.0)),
        121.0,
        Resign("this node leaves, another will lead"),
    ),
    Row(
        "the oldest members come first",
        stopping("dcba", active="ab"),
        121.0,
        SealRound(("d", "c", "b", "a"), ONE_USED, "4 here"),
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.rule)
def test_the_leader_decides(row: Row) -> None:
    settings = Settings(**{"max_restarts": 3, **row.settings})
    assert decide(row.view, row.now, settings, sizer) == row.expected


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
        ledger=Ledger(),
    )
    assert decide(view, 130.0, Settings(), sizer) == EndRound("kill", "nodes n0, n1, n2, n3 and 3 more lost in round 4")
