"""Whom the leader takes into the next round: who is left, who sits out, and what people ask for. Drawn by `views`."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from rendezvous.policy.decisions import ApplyCommand, EndRound, QuitJob, SealRound, Wait
from rendezvous.policy.quarantine import Strike
from rendezvous.records import Command
from tests.support.protocol.views import (
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
            1920.0,
            "awaiting-return size=(here nodes=1); nodes-lost nodes=(nodes names=nb count=1)",
            is_limit=True,
            setting="rejoin_timeout_s",
        ),
    ),
    Row(
        "who left is told apart from who was lost",
        stopping("ab", active="abc", b=status(stopped=True, leaving_at=119.0)),
        121.0,
        Wait(
            1920.0,
            (
                "awaiting-return size=(here nodes=1); nodes-lost nodes=(nodes names=nc count=1); "
                "nodes-left nodes=(nodes names=nb count=1); stop-ends-job"
            ),
            is_limit=True,
            setting="rejoin_timeout_s",
        ),
    ),
    Row(
        "but not for ever",
        stopping("a"),
        1920.0,
        verdict(
            "failure",
            75,
            ("too-few-returned within_s=1800 size=(here nodes=1); nodes-lost nodes=(nodes names=nb count=1)"),
        ),
    ),
    Row(
        "nobody is left",
        stopping("a", active="a", a=status(stopped=True, leaving_at=119.0)),
        121.0,
        verdict("stopped", 143, "sigterm"),
    ),
    Row(
        "a leader that has stopped and leaves lets another one lead",
        stopping("ab", a=status(stopped=True, leaving_at=119.0)),
        121.0,
        QuitJob("leader-leaves"),
    ),
    Row(
        "the oldest members come first",
        stopping("dcba", active="ab"),
        121.0,
        SealRound(("d", "c", "b", "a"), ONE_USED, "here nodes=4"),
    ),
    # --- benches
    Row(
        "a loss is remembered by node",
        see(stopping("ac")),
        121.0,
        SealRound(("a", "c"), replace(ONE_USED, losses=(LOST_B,)), "here nodes=2"),
    ),
    Row(
        "a departure is not",
        see(stopping("abc", b=status(stopped=True, leaving_at=119.0))),
        121.0,
        SealRound(("a", "c"), ONE_USED, "here nodes=2"),
    ),
    Row(
        "a node that is lost again and again sits out, whatever its member id",
        see(stopping("abc"), budget=losses(*THREE_LOSSES)),
        121.0,
        SealRound(
            ("a", "c"),
            losses(*THREE_LOSSES),
            (
                "here nodes=2; node-quarantined node=nb why=(quarantined cause=losses times=3 "
                "window_s=1800 duration_s=60)"
            ),
        ),
    ),
    Row(
        "unless nothing is possible without it",
        see(stopping("ab"), budget=losses(*THREE_LOSSES)),
        121.0,
        SealRound(("a", "b"), losses(*THREE_LOSSES), "here nodes=2"),
    ),
    Row(
        "until its bench is over",
        see(stopping("abc"), budget=losses(*THREE_LOSSES)),
        170.0,
        SealRound(("a", "b", "c"), losses(*THREE_LOSSES), "here nodes=3"),
    ),
    Row(
        "who comes back after a bench and is lost again sits out twice as long",
        see(stopping("abc"), budget=losses(*THREE_LOSSES[:2], 61.0, 110.0)),
        229.0,
        SealRound(
            ("a", "c"),
            losses(*THREE_LOSSES[:2], 61.0, 110.0),
            (
                "here nodes=2; node-quarantined node=nb why=(quarantined cause=losses times=4 "
                "window_s=1800 duration_s=120)"
            ),
        ),
    ),
    Row(
        "the first failure of a round is remembered by node and rank",
        see(stopping(b=failed(119.0, rank=0))),
        121.0,
        SealRound(
            ("a", "b"), replace(charged(121.0, 119.0, is_settled=True), first_failures=(FIRST_ON_B,)), "here nodes=2"
        ),
    ),
    Row(
        "who only lost a connection is not to blame",
        see(stopping(b=failed(110.0, rank=0, is_peer_loss=True))),
        121.0,
        SealRound(("a", "b"), charged(121.0, 110.0, is_settled=True), "here nodes=2"),
    ),
    Row(
        "a node whose workers fail first again and again sits out",
        see(stopping("abc"), budget=faults(*marks(90.0, 100.0, 110.0, rank=1))),
        121.0,
        SealRound(
            ("a", "c"),
            faults(*marks(90.0, 100.0, 110.0, rank=1)),
            (
                "here nodes=2; node-quarantined node=nb why=(quarantined cause=failures times=3 "
                "window_s=1800 duration_s=60)"
            ),
        ),
    ),
    Row(
        "a rank that fails first on two nodes benches nobody, and frees who was quarantined for it",
        see(stopping("abc"), budget=faults(*marks(90.0, 100.0, 110.0, rank=0), Strike("na boot", 115.0, 0))),
        121.0,
        SealRound(
            ("a", "b", "c"), faults(*marks(90.0, 100.0, 110.0, rank=0), Strike("na boot", 115.0, 0)), "here nodes=3"
        ),
    ),
    Row(
        "rounds that are lost with a node on the bench make no progress, however long they took",
        see(stopping("ac", ran_s=20.0), budget=replace(losses(*THREE_LOSSES[:2]), short_rounds=2)),
        121.0,
        verdict(
            "failure",
            1,
            "short-rounds rounds=3 least_s=5 is_futile=True",
        ),
        {"no_progress_rounds": 3},
    ),
    # --- what people ask for
    Row(
        "a request to stop ends the job",
        see(running(), commands={"t": Command(kind="stop", by="ann")}),
        130.0,
        verdict("stopped", 143, "stop-requested by=ann", token="t"),
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
        ApplyCommand("t1", refused="ambiguous-node node=nb member_ids=b,c"),
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
        ApplyCommand("t1", refused="not-a-node"),
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
        ApplyCommand("t1", refused="not-drained target=nb drained=nx"),
    ),
    Row(
        "nobody takes over from a leader that is there",
        ask(running(), "takeover"),
        130.0,
        ApplyCommand("t1", refused="has-leader node=na"),
    ),
    Row(
        "a request that is none is answered",
        ask(running(), "dance"),
        130.0,
        ApplyCommand("t1", refused="unknown-request request=dance"),
    ),
    Row(
        "a drained node leaves with grace",
        see(running("abc"), drained={"nb": 130.0}),
        130.2,
        EndRound("grace", "leaving nodes=(nodes names=nb count=1) round=4", "leaving", nodes=("nb",)),
    ),
    Row(
        "when all nodes are drained the job ends",
        see(stopping(), drained={"na": 119.0, "nb": 119.0}),
        121.0,
        verdict("stopped", 143, "all-drained"),
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.rule)
def test_the_leader_decides(row: Row) -> None:
    row.check()
