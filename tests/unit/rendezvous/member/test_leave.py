"""The end of whoever serves the store to the others: last, but not for ever; and of the others when it has ended."""

from __future__ import annotations

import math
from typing import Any

import pytest

from rendezvous import records
from rendezvous.errors import StoreEnded
from rendezvous.events import (
    Exit,
    LeaveRequest,
    Log,
    Revoke,
    RoundStopped,
    RoundSucceeded,
    Start,
    StartRound,
    StopRound,
    WatchLost,
)
from rendezvous.reasons import Reason
from rendezvous.records import Member, StoreOwner, Verdict
from tests.support.protocol.follower import JOB, Follower
from tests.support.protocol.member_harness import Bench, none, only
from tests.support.reasons import because


def host(farewell_s: float = 10.0) -> Bench:
    """A member that leads and runs round 1, and serves the store; another member is there, too."""
    bench = Bench(options={"hosts_store": True}, farewell_s=farewell_s)
    assert only(bench.tell(Start()), StartRound).round == 1
    other = Member(member_id="other", node_name="other", boot_id="", description="")
    bench.store.put(bench.job.make_member_key("other"), records.encode(other))
    bench.settle()
    return bench


def test_the_host_of_the_store_ends_when_every_member_has_gone() -> None:
    bench = host()
    bench.tell(RoundSucceeded(1))
    actions = bench.tell(RoundStopped(1, 4001))
    assert none(actions, Exit)
    assert any(isinstance(ask.request, Revoke) for ask in actions if hasattr(ask, "request")), "others need not wait"
    assert none(bench.wait(1.0), Exit)
    bench.store.delete(bench.job.make_member_key("other"))
    end = only(bench.wait(1.0), Exit)
    assert (end.exit_code, end.reason) == (0, Reason.of("all-succeeded"))
    assert end.verdict is not None
    assert bench.protocol.wake_at == math.inf


def test_the_host_of_the_store_does_not_wait_longer_than_it_should() -> None:
    bench = host(farewell_s=3.0)
    bench.tell(RoundSucceeded(1))
    assert none(bench.tell(RoundStopped(1, 4001)), Exit)
    assert none(bench.wait(2.0), Exit)
    assert only(bench.wait(1.0), Exit).exit_code == 0


def test_the_host_of_the_store_ends_at_its_limit_without_a_store_answer() -> None:
    bench = host(farewell_s=3.0)
    bench.tell(RoundSucceeded(1))
    bench.tell(RoundStopped(1, 4001))
    bench.is_away = True
    assert none(bench.wait(2.0), Exit)
    assert only(bench.wait(1.0), Exit).exit_code == 0


@pytest.mark.parametrize("has_others", [True, False])
def test_the_host_says_once_that_it_stays_and_only_for_another_member(has_others: bool) -> None:
    bench = host()
    if not has_others:
        bench.store.delete(bench.job.make_member_key("other"))
    bench.tell(RoundSucceeded(1))
    said = [*bench.tell(RoundStopped(1, 4001)), *bench.wait(1.0), *bench.wait(1.0)]
    stays = Reason.of("all-succeeded").add(Reason.of("store-host-stays", up_to_s=10.0))
    assert [action.reason for action in said if isinstance(action, Log)].count(stays) == has_others
    assert none(said, Exit) is has_others


def test_nothing_that_happens_meanwhile_changes_how_the_host_ends() -> None:
    bench = host()
    bench.tell(RoundSucceeded(1))
    bench.tell(RoundStopped(1, 4001))
    assert none(bench.tell(LeaveRequest(because("SIGTERM"), 143)), Exit)
    bench.store.delete(bench.job.make_member_key("other"))
    assert only(bench.wait(1.0), Exit).exit_code == 0


def test_a_host_that_never_became_a_member_ends_at_once() -> None:
    bench = Bench(options={"hosts_store": True})
    bench.step(Start())
    assert only(bench.step(LeaveRequest(because("SIGTERM"), 143)), Exit).exit_code == 143


# --- the store has ended, or does not return

OWNER = StoreOwner(prefix="p", run_id="r", node_name="head", presence_address="10.0.0.9:7000")
GOODBYE = StoreEnded("the store at head:29400 has ended with the agent that served it")


def follower(**options: object) -> Follower:
    return Follower(options={"store_owner": OWNER, **options})


def hear_goodbye(member: Bench) -> list[Any]:
    member.is_away = True
    return member.tell(WatchLost(member.job.control, GOODBYE))


def test_the_goodbye_of_the_store_is_a_stop() -> None:
    member = follower()
    stop = only(hear_goodbye(member), StopRound)
    assert (stop.mode, stop.cause) == ("grace", "end")
    end = only(member.tell(RoundStopped(1, 4001)), Exit)
    assert (end.exit_code, end.reason) == (143, Reason.of("store-ended", node="head"))


def test_the_goodbye_may_come_as_the_answer_to_a_request() -> None:
    member = follower()
    member.is_away, member.away_error = True, GOODBYE
    assert only(member.wait(1.0), StopRound).mode == "grace"


def test_after_the_goodbye_workers_live_no_longer_than_the_lease() -> None:
    member = follower()
    hear_goodbye(member)
    modes = [action.mode for action in member.pass_time(8.0) if isinstance(action, StopRound)]
    assert modes == ["fence"]
    assert only(member.tell(RoundStopped(1, 4001)), Exit).exit_code == 143


def test_a_node_whose_workers_succeeded_ends_with_success_at_the_goodbye() -> None:
    member = follower()
    member.tell(RoundSucceeded(1))
    hear_goodbye(member)
    end = only(member.tell(RoundStopped(1, 4001)), Exit)
    assert (end.exit_code, end.reason) == (0, Reason.of("succeeded-without-store"))


def test_a_verdict_that_is_known_is_obeyed_though_the_store_has_ended() -> None:
    member = follower()
    verdict = Verdict(kind="failure", exit_code=3, round=1, reason=because("a worker failed"))
    member.record(JOB.verdict, verdict)
    member.settle()
    hear_goodbye(member)
    assert only(member.tell(RoundStopped(1, 4001)), Exit).exit_code == 3


def test_who_is_asked_to_leave_ends_as_asked_though_the_job_is_stopped() -> None:
    member = follower()
    member.tell(LeaveRequest(because("stopped by SIGINT"), 130))
    member.record(JOB.verdict, Verdict(kind="stopped", exit_code=143, round=1, reason=because("node head leaves")))
    member.settle()
    assert only(member.tell(RoundStopped(1, 4001)), Exit).exit_code == 130


def test_an_agent_that_never_joined_may_try_again_after_the_goodbye() -> None:
    bench = Bench(options={"store_owner": OWNER})
    bench.is_away, bench.away_error = True, GOODBYE
    end = only(bench.tell(Start()), Exit)
    assert (end.exit_code, end.reason.kind) == (75, "not-joined")


@pytest.mark.parametrize("is_served", [True, False])
def test_who_succeeded_waits_a_moment_for_a_served_store(is_served: bool) -> None:
    member = follower() if is_served else Follower()
    member.tell(RoundSucceeded(1))
    member.tell(RoundStopped(1, 4001))
    member.is_away = True
    waited = member.pass_time(6.0)
    logged = [action.reason for action in waited if isinstance(action, Log)]
    assert (Reason.of("ending-unless-store-returns", in_s=10.0) in logged) is is_served
    assert none(waited, Exit)
    ended = [action.exit_code for action in member.pass_time(12.0) if isinstance(action, Exit)]
    assert ended == ([0] if is_served else [])


def test_a_served_store_that_returns_in_time_is_joined_again() -> None:
    member = follower()
    member.tell(RoundSucceeded(1))
    member.tell(RoundStopped(1, 4001))
    member.is_away = True
    member.pass_time(8.0)
    member.is_away = False
    assert none(member.pass_time(20.0), Exit)


def test_a_node_with_workers_looks_for_a_served_store_as_before() -> None:
    member = follower()
    member.is_away = True
    made = member.pass_time(6.0)
    assert only(made, StopRound).mode == "fence"
    assert none([*made, *member.tell(RoundStopped(1, 4001)), *member.pass_time(60.0)], Exit)


@pytest.mark.parametrize(("kind", "limit_s"), [("stopped", 13.0), ("success", 3.0)])
def test_after_a_stop_the_host_stays_as_long_as_others_may_save(kind: str, limit_s: float) -> None:
    member = Follower(options={"store_owner": OWNER, "hosts_store": True}, farewell_s=3.0, shutdown_timeout_s=10.0)
    member.record(JOB.verdict, Verdict(kind=kind, exit_code=0, round=1, reason=because("why")))  # type: ignore[arg-type]
    member.settle()
    assert none(member.tell(RoundStopped(1, 4001)), Exit)
    assert none(member.pass_time(limit_s - 0.5), Exit)
    assert not none(member.pass_time(1.0), Exit)


def test_a_success_of_an_earlier_membership_ends_no_later_one() -> None:
    member = follower()
    member.tell(RoundSucceeded(1))
    member.tell(RoundStopped(1, 4001))
    member.is_away = True
    member.pass_time(8.0)
    member.is_away = False
    member.pass_time(2.0)
    assert member.state.is_member
    member.is_away = True
    assert none(member.pass_time(60.0), Exit)
