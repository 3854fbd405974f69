"""What the leader decides while a round is being stopped, and of members that may be dead. Drawn by `views`."""

from __future__ import annotations

import math

import pytest
from msgspec.structs import replace

from rendezvous.policy.decisions import ApplyCommand, EndJob, EndRound, Fence, QuitJob, SealRound, Wait
from rendezvous.policy.quarantine import Strike
from rendezvous.policy.view import View
from rendezvous.records import Command, Verdict
from tests.support.protocol.views import (
    ONE_USED,
    RUNS,
    Row,
    failed,
    first_round,
    reach,
    running,
    see,
    status,
    stopping,
    verdict,
)

HOST_LEAVES = EndJob(
    Verdict(kind="stopped", exit_code=143, round=4, reason="store-host-leaves-because node=nb why=(sigterm)")
)


def served_by_b(view: View) -> View:
    members = {
        m: replace(one, member=replace(one.member, presence_address=f"{m}:7000")) for m, one in view.members.items()
    }
    names = {m: f"n{m}" for m in members}
    return replace(view, members=members, names=names, store_address="b:7000")


ROWS = [
    # --- it is being stopped
    Row(
        "all must have stopped",
        stopping(b=status()),
        121.0,
        Wait(155.0, "stopping round=4 why=(why) nodes=(nodes names=nb count=1)", setting="stop_limit_s"),
    ),
    Row(
        "with grace it may take longer",
        stopping(mode="grace", b=status()),
        121.0,
        Wait(180.0, "stopping round=4 why=(why) nodes=(nodes names=nb count=1)", setting="stop_limit_s"),
    ),
    Row(
        "who has not stopped is fenced",
        stopping(b=status()),
        155.0,
        Fence(("b",), "not-stopped nodes=(nodes names=nb count=1) round=4", rule="fenced"),
    ),
    Row(
        "but not before it must have stopped by itself, if it heard nothing",
        stopping(b=status()),
        154.9,
        Wait(155.0, "stopping round=4 why=(why) nodes=(nodes names=nb count=1)", setting="stop_limit_s"),
        {"stop_limit_s": 0.0, "restart_grace_s": 0.0},
    ),
    Row(
        "a leader that cannot stop its own fences the others first",
        stopping(a=status(), b=status()),
        155.0,
        Fence(("b",), "not-stopped nodes=(nodes names=nb count=1) round=4", rule="fenced"),
    ),
    Row(
        "and then lets go itself",
        stopping(a=status()),
        155.0,
        QuitJob("not-stopped-here round=4"),
    ),
    Row(
        "that a member stopped an older round does not count",
        stopping(b=status(stopped=True, plan_token="older")),
        121.0,
        Wait(155.0, "stopping round=4 why=(why) nodes=(nodes names=nb count=1)", setting="stop_limit_s"),
    ),
    Row(
        "a round that had succeeded everywhere when the stop came is a success",
        stopping(mode="grace", a=status("succeeded"), b=status("succeeded")),
        121.0,
        verdict("success", 0, "all-succeeded"),
    ),
    # --- who is dead
    Row(
        "who is proven gone is removed at once",
        see(running("abc"), gone=frozenset("bc")),
        130.0,
        Fence(("b", "c"), "gone nodes=(nodes names=nb,nc count=2)", is_confirmed_gone=True, rule="loss proven"),
    ),
    Row(
        "that everybody has succeeded comes before that",
        see(running(a=status("succeeded"), b=status("succeeded")), gone=frozenset("b")),
        130.0,
        verdict("success", 0, "all-succeeded"),
    ),
    Row(
        "who cannot be reached for a while is only looked at again",
        reach(running("abc"), 1, 2, b=121.0),
        130.0,
        Wait(
            131.0,
            "running round=4 ranks=2 is_spare=False; could-grow size=(here nodes=3)",
            setting="grow_delay_s",
            limit_at=400.0,
        ),
    ),
    Row(
        "who could be reached, renews and cannot for two leases stops the round",
        reach(running("abc"), 1, 2, b=120.0),
        130.0,
        EndRound(
            "kill",
            "isolated nodes=(nodes names=nb count=1) for_s=10 round=4",
            "isolation",
            "isolated member",
            ("nb",),
        ),
    ),
    Row(
        "such a spare is removed without that",
        reach(running("abc"), 1, 2, c=120.0),
        130.0,
        Fence(("c",), "isolated nodes=(nodes names=nc count=1) for_s=10 round=0", rule="isolated member"),
    ),
    Row(
        "so is an active member, once it has stopped",
        reach(stopping("abc"), 1, 2, b=110.0),
        121.0,
        Fence(("b",), "isolated nodes=(nodes names=nb count=1) for_s=10 round=0", rule="isolated member"),
    ),
    Row(
        "and not while its workers may still run",
        reach(stopping("abc", b=status()), 1, 2, b=110.0),
        125.0,
        Wait(155.0, "stopping round=4 why=(why) nodes=(nodes names=nb count=1)", setting="stop_limit_s"),
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
        EndRound(
            "kill",
            "leader-isolated node=na reached=0 others=2 round=4",
            "isolation",
            "isolated leader",
            nodes=("na",),
        ),
    ),
    Row(
        "it goes when its own round is gone",
        reach(stopping("abc", b=status()), 0, 2, b=120.0, c=121.0),
        130.0,
        QuitJob("leader-isolated node=na reached=0 others=2 round=0"),
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
        Wait(
            140.0,
            "round-awaits-return nodes=(nodes names=nb count=1) round=4",
            rule="omission put off",
            setting="lease_ttl_s",
        ),
    ),
    Row(
        "it is one when nobody can run there any more",
        see(running("a"), no_omission_before=140.0),
        140.0,
        EndRound("kill", "lost nodes=(nodes names=nb count=1) round=4", "loss", nodes=("nb",)),
    ),
    Row(
        "or when presence has proven it",
        see(running("a"), no_omission_before=140.0, confirmed_gone=frozenset("b")),
        130.0,
        EndRound("kill", "lost nodes=(nodes names=nb count=1) round=4", "loss", nodes=("nb",)),
    ),
    Row(
        "no seal leaves out who may still run",
        see(stopping("ac", b=status()), no_omission_before=140.0),
        130.0,
        Wait(
            140.0,
            "next-round-awaits-return nodes=(nodes names=nb count=1)",
            rule="omission put off",
            setting="lease_ttl_s",
        ),
    ),
    Row(
        "nor is the job stopped while anybody may be held, though a late watch shows it as a member",
        see(running("ab"), no_omission_before=140.0, commands={"t": Command(kind="stop", target="")}),
        130.0,
        Wait(140.0, "stop-awaits-held nodes=(nodes names=nb count=1)", rule="omission put off", setting="lease_ttl_s"),
    ),
    Row(
        "but when all others have stopped",
        see(stopping("ab"), no_omission_before=140.0, commands={"t": Command(kind="stop", target="")}),
        130.0,
        EndJob(Verdict(kind="stopped", exit_code=143, round=4, reason="stop-requested by="), "t"),
    ),
    Row(
        "who has said that it stopped may be left out",
        see(stopping("ac"), no_omission_before=140.0, lost_at={"b": 115.0}),
        130.0,
        SealRound(("a", "c"), replace(ONE_USED, losses=(Strike("nb boot", 115.0),)), "here nodes=2"),
    ),
    # --- whose lease the store has ended early
    Row(
        "a round is stopped at once when a connected member loses its key",
        see(running("a"), unaware_until={"b": 140.0}),
        130.0,
        EndRound("kill", "lost nodes=(nodes names=nb count=1) round=4", "loss", nodes=("nb",)),
    ),
    Row(
        "but no seal leaves out who may not know of it",
        see(stopping("ac", b=status()), unaware_until={"b": 140.0}),
        130.0,
        Wait(140.0, "next-round-awaits-unaware nodes=(nodes names=nb count=1)", setting="lease_ttl_s"),
    ),
    Row(
        "nor is the job stopped before",
        see(stopping("ac", b=status()), unaware_until={"b": 140.0}, commands={"t": Command(kind="stop", target="")}),
        130.0,
        Wait(140.0, "stop-awaits-unaware nodes=(nodes names=nb count=1)", setting="lease_ttl_s"),
    ),
    Row(
        "until its watchdog has ended",
        see(stopping("ac"), unaware_until={"b": 130.0}, lost_at={"b": 115.0}),
        130.0,
        SealRound(("a", "c"), replace(ONE_USED, losses=(Strike("nb boot", 115.0),)), "here nodes=2"),
    ),
    Row(
        "or a new member stands on its node",
        see(stopping("ac"), unaware_until={"b": 140.0}, lost_at={"b": 115.0}, nodes={"b": "nc boot"}),
        130.0,
        SealRound(("a", "c"), replace(ONE_USED, losses=(Strike("nc boot", 115.0),)), "here nodes=2"),
    ),
    Row(
        "or it has said that it stopped",
        see(stopping("ac", b=status(stopped=True)), unaware_until={"b": 140.0}, lost_at={"b": 115.0}),
        130.0,
        SealRound(("a", "c"), replace(ONE_USED, losses=(Strike("nb boot", 115.0),)), "here nodes=2"),
    ),
    # --- the store ends with the agent that serves it
    Row(
        "the departure of the member that serves the store ends the job",
        served_by_b(running("abc", b=status(leaving_at=119.0))),
        121.0,
        HOST_LEAVES,
    ),
    Row(
        "whoever fails for that reason",
        served_by_b(running("abc", a=failed(), b=status(leaving_at=119.0))),
        121.0,
        HOST_LEAVES,
    ),
    Row(
        "also when its own work is done, or the round is being stopped",
        served_by_b(stopping("ab", b=status("succeeded", leaving_at=119.0))),
        121.0,
        HOST_LEAVES,
    ),
    Row(
        "and before any round",
        served_by_b(first_round("ab", {"b": status(leaving_at=119.0)})),
        121.0,
        EndJob(replace(HOST_LEAVES.verdict, round=0)),
    ),
    Row(
        "but a success stays one",
        served_by_b(running(a=status("succeeded"), b=status("succeeded", leaving_at=119.0))),
        121.0,
        EndJob(Verdict(kind="success", exit_code=0, round=4, reason="all-succeeded")),
    ),
    Row(
        "and another member's departure is waited out, as with an etcd",
        served_by_b(running("abc", a=status(leaving_at=121.0), b=status())),
        121.0,
        Wait(121.2, "gathering-departures round=4"),
    ),
    Row(
        "a drain of that node is refused, by name",
        replace(served_by_b(running("abc")), commands={"t": Command(kind="drain", target="nb")}),
        121.0,
        ApplyCommand("t", refused="store-host-not-drained node=nb"),
    ),
    Row(
        "and by member id",
        replace(served_by_b(running("abc")), commands={"t": Command(kind="drain", target="b")}),
        121.0,
        ApplyCommand("t", refused="store-host-not-drained node=b"),
    ),
    Row(
        "not that of another",
        replace(served_by_b(running("abc")), commands={"t": Command(kind="drain", target="nc")}),
        121.0,
        ApplyCommand("t", drain="nc"),
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.rule)
def test_the_leader_decides(row: Row) -> None:
    row.check()
