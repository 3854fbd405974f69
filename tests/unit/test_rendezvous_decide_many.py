"""What the leader of many nodes decides: reach, benches, growth, requests and outages, one row per rule.

Drawn like the table of `test_rendezvous_decide`: members are letters, the leader is `a`, a round of `a` and `b`
was sealed at 100 s and, where it was stopped, stopped at 120 s. Two to three nodes make a world.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from rendezvous.benches import Mark
from rendezvous.budget import Ledger
from rendezvous.decide import Conclude, EndRound, Fence, MemberView, Obey, Resign, SealRound, View, Wait, decide
from rendezvous.records import Command, Member, Status
from rendezvous.settings import Settings
from tests.unit.test_rendezvous_decide import (
    ONE_USED,
    Row,
    charged,
    failed,
    first_round,
    running,
    sizer,
    status,
    stopping,
    verdict,
)

RUNS = "round 4 runs 2 ranks"
NODES = {m: f"n{m} boot" for m in "abcd"}


def see(view: View, **more: Any) -> View:
    """The same picture with more in it; every node is known by its boot."""
    members = {m: v._replace(member=replace(v.member, boot_id="boot")) for m, v in view.members.items()}
    return replace(view, members=members, **{"nodes": NODES, "names": {m: f"n{m}" for m in "abcd"}, **more})


def reach(view: View, reached: int, others: int, **since: float) -> View:
    return see(view, reached_count=reached, others_count=others, unreachable_since=since)


def ask(view: View, kind: str, target: str = "", **more: Any) -> View:
    return see(view, commands={"t1": Command(kind=kind, target=target), "t2": Command(kind="stop")}, **more)


def marks(*at: float, node: str = "nb boot", rank: int = -1) -> tuple[Mark, ...]:
    return tuple(Mark(node, time, rank) for time in at)


def losses(*at: float, node: str = "nb boot") -> Ledger:
    return replace(ONE_USED, losses=marks(*at, node=node))


def faults(*found: Mark) -> Ledger:
    return replace(ONE_USED, first_failures=found)


LOST_B = Mark("nb boot", 120.0)
THREE_LOSSES = (50.0, 60.0, 110.0)  # benched for 60 s, until 170 s
BENCHED = "nb: lost 3 times within 1800 s, benched for 60 s"
FIRST_ON_B = Mark("nb boot", 119.0, 0)
TWINS = {
    **first_round("ab").members,
    "c": MemberView(Member(member_id="c", node_name="nb", boot_id="", description=""), 3, 3, 0.0),
}

ROWS = [
    # --- the first round of a chosen size
    Row(
        "a target is waited for though fewer would do",
        first_round("ab"),
        100.0,
        Wait(600.0, "waiting for more nodes: 2 of the 3 nodes asked for are here"),
        {"target_nodes": 3},
    ),
    Row(
        "at the target the round starts at once",
        first_round("ab"),
        1.0,
        SealRound(("a", "b"), Ledger(), "2 here; 2 of the 2 nodes asked for are here"),
        {"target_nodes": 2},
    ),
    Row(
        "after the start time-out what is there is taken",
        first_round("ab"),
        600.0,
        SealRound(("a", "b"), Ledger(), "2 here; after 600 s 2 of the 4 nodes asked for are here"),
        {"target_nodes": 4, "start_timeout_s": 600.0},
    ),
    Row(
        "a drained node is not counted",
        see(first_round("abc"), drained={"nc": 0.0}),
        1.0,
        Wait(30.0, "waiting for more nodes: 2 here"),
    ),
    # --- growth
    Row("a job that never grows does not", running("abc"), 5000.0, Wait(math.inf, RUNS), {"growth": "never"}),
    Row(
        "growth at a checkpoint waits for one",
        running("abc", seen={"c": 150.0}),
        5000.0,
        Wait(math.inf, f"{RUNS}; could grow at the next checkpoint: 3 here"),
        {"growth": "checkpoint"},
    ),
    Row(
        "one from before the arrival will not do",
        see(running("abc", seen={"c": 150.0}), saved_at=149.0),
        5000.0,
        Wait(math.inf, f"{RUNS}; could grow at the next checkpoint: 3 here"),
        {"growth": "checkpoint"},
    ),
    Row(
        "one after it will",
        see(running("abc", seen={"c": 150.0}), saved_at=151.0),
        152.0,
        EndRound("grace", "growing after round 4: 3 here"),
        {"growth": "checkpoint"},
    ),
    Row(
        "that an active member registered again is no arrival",
        running("abc", seen={"a": 9000.0, "c": 150.0}),
        450.0,
        EndRound("grace", "growing after round 4: 3 here"),
    ),
    Row(
        "a node on the bench is no arrival before its bench is over",
        see(running("abc"), ledger=losses(*THREE_LOSSES, node="nc boot")),
        130.0,
        Wait(170.0, RUNS),
    ),
    Row(
        "and then one of that time",
        see(running("abc"), ledger=losses(*THREE_LOSSES, node="nc boot")),
        171.0,
        Wait(470.0, f"{RUNS}; could grow: 3 here"),
    ),
    # --- who is dead
    Row(
        "who is proven gone is removed at once",
        see(running("abc"), gone=frozenset("bc")),
        130.0,
        Fence(("b", "c"), "nodes nb, nc gone: nothing listens there any more", is_proven=True),
    ),
    Row(
        "that everybody has succeeded comes before that",
        see(running(a=status("succeeded"), b=status("succeeded")), gone=frozenset("b")),
        130.0,
        verdict("success", 0, "all workers succeeded"),
    ),
    Row(
        "who cannot be reached for a while is only looked at again",
        reach(running("abc"), 1, 2, b=121.0),
        130.0,
        Wait(131.0, f"{RUNS}; could grow: 3 here"),
    ),
    Row(
        "who could be reached, renews and cannot for two leases stops the round",
        reach(running("abc"), 1, 2, b=120.0),
        130.0,
        EndRound("kill", "node nb cut off: the store is reached, but no peer for 10 s in round 4"),
    ),
    Row(
        "such a spare is removed without that",
        reach(running("abc"), 1, 2, c=120.0),
        130.0,
        Fence(("c",), "node nc cut off: the store is reached, but no peer for 10 s"),
    ),
    Row(
        "so is an active member, once it has stopped",
        reach(stopping("abc"), 1, 2, b=110.0),
        121.0,
        Fence(("b",), "node nb cut off: the store is reached, but no peer for 10 s"),
    ),
    Row(
        "and not while its workers may still run",
        reach(stopping("abc", b=status()), 1, 2, b=110.0),
        125.0,
        Wait(155.0, "stopping round 4 (why): waiting for node nb"),
    ),
    Row(
        "a finished member may be cut off",
        reach(running("abc", b=status("succeeded")), 1, 2, b=120.0),
        130.0,
        Wait(math.inf, RUNS),
    ),
    Row(
        "a leader that has lost most of the others is the one that is cut off",
        reach(running("abc"), 0, 2, b=120.0, c=121.0),
        130.0,
        EndRound("kill", "na leads, but reaches only 0 of 2 other nodes in round 4"),
    ),
    Row(
        "it goes when its own round is gone",
        reach(stopping("abc", b=status()), 0, 2, b=120.0, c=121.0),
        130.0,
        Resign("na leads, but reaches only 0 of 2 other nodes"),
    ),
    Row(
        "a leader that never reached anybody stays: perhaps nobody can",
        reach(running("ab"), 0, 1),
        5000.0,
        Wait(math.inf, RUNS),
    ),
    # --- after an outage of the store
    Row(
        "a key that vanished in an outage is no loss yet",
        see(running("a"), no_omission_before=140.0),
        130.0,
        Wait(140.0, "waiting for node nb to register again after an outage of the store in round 4"),
    ),
    Row(
        "it is one when nobody can run there any more",
        see(running("a"), no_omission_before=140.0),
        140.0,
        EndRound("kill", "node nb lost in round 4"),
    ),
    Row(
        "or when presence has proven it",
        see(running("a"), no_omission_before=140.0, proven=frozenset("b")),
        130.0,
        EndRound("kill", "node nb lost in round 4"),
    ),
    Row(
        "no seal leaves out who may still run",
        see(stopping("ac", b=status()), no_omission_before=140.0),
        130.0,
        Wait(140.0, "waiting for node nb to register again after an outage of the store before the next round"),
    ),
    Row(
        "who has said that it stopped may be left out",
        see(stopping("ac"), no_omission_before=140.0, lost_at={"b": 115.0}),
        130.0,
        SealRound(("a", "c"), replace(ONE_USED, losses=(Mark("nb boot", 115.0),)), "2 here"),
    ),
    # --- the charge
    Row(
        "broken connections wait only until silence would have been noticed when everybody answers",
        reach(stopping(a=failed(119.9, is_peer_loss=True)), 2, 2),
        121.0,
        Wait(122.4, "round 4 failed: waiting whether a lost node explains it"),
    ),
    Row(
        "and not for a lease",
        reach(stopping(a=failed(119.9, is_peer_loss=True)), 2, 2),
        122.4,
        SealRound(("a", "b"), charged(122.4, 119.9, is_settled=True), "2 here"),
    ),
    Row(
        "a failure waits while somebody who could be reached cannot",
        reach(stopping(a=failed(119.9)), 0, 1, b=119.8),
        120.9,
        Wait(129.8, "round 4 failed: waiting whether a lost node explains it"),
    ),
    Row(
        "a port that somebody else listens on costs no restart",
        stopping(a=failed(119.0, is_port_taken=True)),
        121.0,
        SealRound(("a", "b"), replace(ONE_USED, port_taken_rounds=1), "2 here"),
        {"max_restarts": 1},
    ),
    Row(
        "but a few times in a row only",
        stopping(a=failed(119.0, is_port_taken=True), ledger=replace(ONE_USED, port_taken_rounds=3)),
        121.0,
        verdict("failure", 3, "a worker failed on na in round 4, 1 of 1 restarts used", failure="text"),
        {"max_restarts": 1},
    ),
    Row(
        "a round that ends otherwise ends the row",
        stopping(ledger=replace(ONE_USED, port_taken_rounds=2)),
        121.0,
        SealRound(("a", "b"), ONE_USED, "2 here"),
    ),
    # --- the cause
    Row(
        "when two failures come together it is not sure which was first",
        stopping(a=failed(119.0, revision=8), b=failed(119.05, revision=9)),
        121.0,
        verdict(
            "failure",
            3,
            "a worker failed on na in round 4, 1 of 1 restarts used",
            failure="text",
            is_first_sure=False,
            others=("text",),
        ),
        {"max_restarts": 1},
    ),
    Row(
        "a broken connection is no rival of a cause",
        stopping(a=failed(119.0, revision=8), b=failed(119.05, revision=7, is_peer_loss=True)),
        121.0,
        verdict(
            "failure",
            3,
            "a worker failed on na in round 4, 1 of 1 restarts used",
            failure="text",
            others=("text",),
        ),
        {"max_restarts": 1},
    ),
    # --- benches
    Row(
        "a loss is remembered by node",
        see(stopping("ac")),
        121.0,
        SealRound(("a", "c"), replace(ONE_USED, losses=(LOST_B,)), "2 here"),
    ),
    Row(
        "a departure is not",
        see(stopping("abc", b=status(stopped=True, leaving_at=119.0))),
        121.0,
        SealRound(("a", "c"), ONE_USED, "2 here"),
    ),
    Row(
        "a node that is lost again and again sits out, whatever its member id",
        see(stopping("abc"), ledger=losses(*THREE_LOSSES)),
        121.0,
        SealRound(("a", "c"), losses(*THREE_LOSSES), f"2 here; {BENCHED}"),
    ),
    Row(
        "unless nothing is possible without it",
        see(stopping("ab"), ledger=losses(*THREE_LOSSES)),
        121.0,
        SealRound(("a", "b"), losses(*THREE_LOSSES), "2 here"),
    ),
    Row(
        "until its bench is over",
        see(stopping("abc"), ledger=losses(*THREE_LOSSES)),
        170.0,
        SealRound(("a", "b", "c"), losses(*THREE_LOSSES), "3 here"),
    ),
    Row(
        "who comes back after a bench and is lost again sits out twice as long",
        see(stopping("abc"), ledger=losses(*THREE_LOSSES[:2], 61.0, 110.0)),
        229.0,
        SealRound(
            ("a", "c"),
            losses(*THREE_LOSSES[:2], 61.0, 110.0),
            "2 here; nb: lost 4 times within 1800 s, benched for 120 s",
        ),
    ),
    Row(
        "the first failure of a round is remembered by node and rank",
        see(stopping(b=failed(119.0, rank=0))),
        121.0,
        SealRound(("a", "b"), replace(charged(121.0, 119.0, is_settled=True), first_failures=(FIRST_ON_B,)), "2 here"),
    ),
    Row(
        "who only lost a connection is not to blame",
        see(stopping(b=failed(110.0, rank=0, is_peer_loss=True))),
        121.0,
        SealRound(("a", "b"), charged(121.0, 110.0, is_settled=True), "2 here"),
    ),
    Row(
        "a node whose workers fail first again and again sits out",
        see(stopping("abc"), ledger=faults(*marks(90.0, 100.0, 110.0, rank=1))),
        121.0,
        SealRound(
            ("a", "c"),
            faults(*marks(90.0, 100.0, 110.0, rank=1)),
            "2 here; nb: its workers failed first 3 times within 1800 s, benched for 60 s",
        ),
    ),
    Row(
        "a rank that fails first on two nodes benches nobody, and frees who was benched for it",
        see(stopping("abc"), ledger=faults(*marks(90.0, 100.0, 110.0, rank=0), Mark("na boot", 115.0, 0))),
        121.0,
        SealRound(("a", "b", "c"), faults(*marks(90.0, 100.0, 110.0, rank=0), Mark("na boot", 115.0, 0)), "3 here"),
    ),
    Row(
        "rounds that are lost with a node on the bench make no progress, however long they took",
        see(stopping("ac", ran_s=20.0), ledger=replace(losses(*THREE_LOSSES[:2]), short_rounds=2)),
        121.0,
        verdict(
            "failure",
            1,
            "no progress: 3 rounds in a row lasted less than 5 s, or were lost with a node that is lost "
            "again and again",
        ),
        {"no_progress_rounds": 3},
    ),
    # --- what people ask for
    Row(
        "a request to stop ends the job",
        see(running(), commands={"t": Command(kind="stop", by="ann")}),
        130.0,
        verdict("stopped", 143, "stopped at the request of ann", token="t"),
    ),
    Row("requests are met in their order", ask(running(), "drain", "nb"), 130.0, Obey("t1", drain="nb")),
    Row("a node that is not here can be drained too", ask(running(), "drain", "nx"), 130.0, Obey("t1", drain="nx")),
    Row("a node may be named by its member id", ask(running(), "drain", "b"), 130.0, Obey("t1", drain="nb")),
    Row(
        "a name that two nodes have is answered with their member ids",
        ask(replace(first_round("ab"), members=TWINS), "drain", "nb"),
        1.0,
        Obey("t1", answer="2 nodes are called nb: give a member id, b or c"),
    ),
    Row(
        "by member id one of them can be drained",
        ask(replace(first_round("ab"), members=TWINS), "drain", "c"),
        1.0,
        Obey("t1", drain="c"),
    ),
    Row(
        "what is no name is refused",
        ask(running(), "drain", "a/b"),
        130.0,
        Obey("t1", answer="a node to drain is named by its name or its member id"),
    ),
    Row(
        "a drained node can be called back",
        ask(running(), "undrain", "nx", drained={"nx": 1.0}),
        130.0,
        Obey("t1", undrain="nx"),
    ),
    Row(
        "one that is not drained cannot",
        ask(running(), "undrain", "nb", drained={"nx": 1.0}),
        130.0,
        Obey("t1", answer="nb is not drained; drained: nx"),
    ),
    Row(
        "nobody takes over from a leader that is there",
        ask(running(), "takeover"),
        130.0,
        Obey("t1", answer="this job has a leader, on node na"),
    ),
    Row(
        "a request of another version is answered",
        ask(running(), "dance"),
        130.0,
        Obey("t1", answer="'dance' is no request that this version of meshrun knows"),
    ),
    Row(
        "a drained node leaves with grace",
        see(running("abc"), drained={"nb": 130.0}),
        130.2,
        EndRound("grace", "node nb leaving in round 4"),
    ),
    Row(
        "when all nodes are drained the job ends",
        see(stopping(), drained={"na": 119.0, "nb": 119.0}),
        121.0,
        verdict("stopped", 143, "every node is drained"),
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.rule)
def test_the_leader_of_many_decides(row: Row) -> None:
    settings = Settings(**{"max_restarts": 3, **row.settings})
    assert decide(row.view, row.now, settings, sizer) == row.expected


def test_a_verdict_carries_few_other_failures_and_none_that_is_long() -> None:
    texts = ["cause", "x" * 30_000, "2", "", "4", "5", "6", "7"]
    statuses = {
        f"m{index}": failed(100.0 + index, revision=index)._replace(
            status=Status(round=4, plan_token="t", outcome="failed", is_stopped=True, failure=text)
        )
        for index, text in enumerate(texts)
    }
    members = {
        m: MemberView(Member(member_id=m, node_name=m, boot_id="", description=""), index, index, 0.0)
        for index, m in enumerate(statuses)
    }
    view = replace(stopping(), active=tuple(statuses), statuses=statuses, members=members)
    decision = decide(view, 200.0, Settings(), sizer)
    assert isinstance(decision, Conclude)
    assert (decision.verdict.failure, decision.verdict.others) == ("cause", ("2", "4", "5", "6"))
