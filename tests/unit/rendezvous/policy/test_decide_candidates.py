"""Whom the leader takes into the next round: who is left, who sits out, and what people ask for. Drawn by `views`."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from rendezvous.policy.decisions import ApplyCommand, EndRound, QuitJob, SealRound, Wait
from rendezvous.policy.quarantine import Strike
from rendezvous.records import Command
from tests.support.protocol.views import (
    BENCHED,
    FIRST_ON_B,
    LOST_B,
    ONE_USED,
    THREE_LOSSES,
    TWINS,
    Row,
    ask,
    charged,
    failed,
    faults,
    first_round,
    losses,
    marks,
    running,
    see,
    status,
    stopping,
    verdict,
)

ROWS = [
    # --- who is left
    Row(
        "too few are waited for, and the sentence says who is missing",
        stopping("a"),
        121.0,
        Wait(
            1920.0, "waiting for nodes to come back: 1 here; lost: node nb", is_limit=True, setting="rejoin_timeout_s"
        ),
    ),
    Row(
        "who left is told apart from who was lost",
        stopping("ab", active="abc", b=status(stopped=True, leaving_at=119.0)),
        121.0,
        Wait(
            1920.0,
            "waiting for nodes to come back: 1 here; lost: node nc; left: node nb; meshctl stop ends the job",
            is_limit=True,
            setting="rejoin_timeout_s",
        ),
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
        QuitJob("this node leaves, another will lead"),
    ),
    Row(
        "the oldest members come first",
        stopping("dcba", active="ab"),
        121.0,
        SealRound(("d", "c", "b", "a"), ONE_USED, "4 here"),
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
        see(stopping("abc"), budget=losses(*THREE_LOSSES)),
        121.0,
        SealRound(("a", "c"), losses(*THREE_LOSSES), f"2 here; {BENCHED}"),
    ),
    Row(
        "unless nothing is possible without it",
        see(stopping("ab"), budget=losses(*THREE_LOSSES)),
        121.0,
        SealRound(("a", "b"), losses(*THREE_LOSSES), "2 here"),
    ),
    Row(
        "until its bench is over",
        see(stopping("abc"), budget=losses(*THREE_LOSSES)),
        170.0,
        SealRound(("a", "b", "c"), losses(*THREE_LOSSES), "3 here"),
    ),
    Row(
        "who comes back after a bench and is lost again sits out twice as long",
        see(stopping("abc"), budget=losses(*THREE_LOSSES[:2], 61.0, 110.0)),
        229.0,
        SealRound(
            ("a", "c"),
            losses(*THREE_LOSSES[:2], 61.0, 110.0),
            "2 here; nb: lost 4 times within 1800 s, quarantined for 120 s",
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
        see(stopping("abc"), budget=faults(*marks(90.0, 100.0, 110.0, rank=1))),
        121.0,
        SealRound(
            ("a", "c"),
            faults(*marks(90.0, 100.0, 110.0, rank=1)),
            "2 here; nb: its workers failed first 3 times within 1800 s, quarantined for 60 s",
        ),
    ),
    Row(
        "a rank that fails first on two nodes benches nobody, and frees who was quarantined for it",
        see(stopping("abc"), budget=faults(*marks(90.0, 100.0, 110.0, rank=0), Strike("na boot", 115.0, 0))),
        121.0,
        SealRound(("a", "b", "c"), faults(*marks(90.0, 100.0, 110.0, rank=0), Strike("na boot", 115.0, 0)), "3 here"),
    ),
    Row(
        "rounds that are lost with a node on the bench make no progress, however long they took",
        see(stopping("ac", ran_s=20.0), budget=replace(losses(*THREE_LOSSES[:2]), short_rounds=2)),
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
    Row("requests are met in their order", ask(running(), "drain", "nb"), 130.0, ApplyCommand("t1", drain="nb")),
    Row(
        "a node that is not here can be drained too",
        ask(running(), "drain", "nx"),
        130.0,
        ApplyCommand("t1", drain="nx"),
    ),
    Row("a node may be named by its member id", ask(running(), "drain", "b"), 130.0, ApplyCommand("t1", drain="nb")),
    Row(
        "a name that two nodes have is answered with their member ids",
        ask(replace(first_round("ab"), members=TWINS), "drain", "nb"),
        1.0,
        ApplyCommand("t1", answer="2 nodes are called nb: give a member id, b or c"),
    ),
    Row(
        "by member id one of them can be drained",
        ask(replace(first_round("ab"), members=TWINS), "drain", "c"),
        1.0,
        ApplyCommand("t1", drain="c"),
    ),
    Row(
        "what is no name is refused",
        ask(running(), "drain", "a/b"),
        130.0,
        ApplyCommand("t1", answer="a node to drain is named by its name or its member id"),
    ),
    Row(
        "a drained node can be called back",
        ask(running(), "undrain", "nx", drained={"nx": 1.0}),
        130.0,
        ApplyCommand("t1", undrain="nx"),
    ),
    Row(
        "one that is not drained cannot",
        ask(running(), "undrain", "nb", drained={"nx": 1.0}),
        130.0,
        ApplyCommand("t1", answer="nb is not drained; drained: nx"),
    ),
    Row(
        "nobody takes over from a leader that is there",
        ask(running(), "takeover"),
        130.0,
        ApplyCommand("t1", answer="this job has a leader, on node na"),
    ),
    Row(
        "a request that is none is answered",
        ask(running(), "dance"),
        130.0,
        ApplyCommand("t1", answer="'dance' is no request that meshrun knows"),
    ),
    Row(
        "a drained node leaves with grace",
        see(running("abc"), drained={"nb": 130.0}),
        130.2,
        EndRound("grace", "node nb leaving in round 4", "leaving", nodes=("nb",)),
    ),
    Row(
        "when all nodes are drained the job ends",
        see(stopping(), drained={"na": 119.0, "nb": 119.0}),
        121.0,
        verdict("stopped", 143, "every node is drained"),
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.rule)
def test_the_leader_decides(row: Row) -> None:
    row.check()
