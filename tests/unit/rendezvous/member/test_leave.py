"""The end of whoever serves the store to the others: last, but not for ever."""

from __future__ import annotations

import math

from rendezvous import records
from rendezvous.events import Exit, LeaveRequest, Revoke, RoundStopped, RoundSucceeded, Start, StartRound
from rendezvous.records import Member
from tests.support.protocol.member_harness import Bench, none, only


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
    assert (end.exit_code, end.reason) == (0, "all workers succeeded")
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


def test_nothing_that_happens_meanwhile_changes_how_the_host_ends() -> None:
    bench = host()
    bench.tell(RoundSucceeded(1))
    bench.tell(RoundStopped(1, 4001))
    assert none(bench.tell(LeaveRequest("SIGTERM", 143)), Exit)
    bench.store.delete(bench.job.make_member_key("other"))
    assert only(bench.wait(1.0), Exit).exit_code == 0


def test_a_host_that_never_became_a_member_ends_at_once() -> None:
    bench = Bench(options={"hosts_store": True})
    bench.step(Start())
    assert only(bench.step(LeaveRequest("SIGTERM", 143)), Exit).exit_code == 143
