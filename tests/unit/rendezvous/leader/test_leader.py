"""What the leader writes of a round that ends: its cause, its first failure and when, and its own failure."""

from __future__ import annotations

import math

from rendezvous import events, records
from rendezvous.errors import StoreError
from rendezvous.events import Start, StartRound, StopRound
from rendezvous.records import Member, RoundHistory, Stop, Verdict
from rendezvous.stores.contract import TxnResult
from tests.support.protocol.member_harness import Bench, only, running
from tests.support.reasons import because

OFFSET_S = 1_767_225_600.0


def run_with_clock(**settings: object) -> Bench:
    bench = Bench(**settings)  # type: ignore[arg-type]
    assert only(bench.tell(Start(OFFSET_S)), StartRound).round == 1
    return bench


def read_history(bench: Bench) -> RoundHistory:
    key = bench.job.make_history_key(1)
    found = bench.store.get(key).first
    assert found is not None
    return records.decode(RoundHistory, found.value, key)


def fail(bench: Bench) -> list[events.Action]:
    return bench.tell(events.RoundFailed(1, 1, False, "", 3, failure_class=because("KeyError")))


def test_a_failure_is_the_cause_with_rank_class_and_times() -> None:
    bench = run_with_clock(max_restarts=1, lease_ttl_s=math.inf)
    began_at = read_history(bench).began_at
    assert abs(began_at - (OFFSET_S + bench.now)) < 1.0
    bench.now += 20.0
    assert only(fail(bench), StopRound).cause == "failure"
    history = read_history(bench)
    assert (history.cause, history.failed_rank, history.failure_class) == ("failure", 3, because("KeyError"))
    assert abs(history.ended_at - began_at - 20.0) < 1.0
    stop = bench.store.get(bench.job.stop).first
    assert stop is not None
    assert records.decode(Stop, stop.value, stop.key).cause == "failure"


def test_the_end_of_the_job_is_the_cause_of_its_last_round() -> None:
    bench = run_with_clock()
    bench.tell(events.RoundSucceeded(1))
    found = bench.store.get(bench.job.verdict).first
    assert found is not None
    verdict = records.decode(Verdict, found.value, found.key)
    assert abs(verdict.ended_at - (OFFSET_S + bench.now)) < 1.0
    history = read_history(bench)
    assert (history.cause, history.failed_rank) == ("end", -1)


def test_without_a_clock_no_time_is_written() -> None:
    bench = Bench(max_restarts=1)
    bench.tell(Start())
    fail(bench)
    assert (read_history(bench).began_at, read_history(bench).ended_at) == (0.0, 0.0)


def list_asked(bench: Bench) -> list[str]:
    return [ask.kind for ask in bench.asks]


def find_ask(bench: Bench, why: str) -> events.StoreRequest:
    (found,) = [ask for ask in bench.asks if ask.kind == why]
    bench.asks.remove(found)
    return found


def test_a_failure_whose_stop_was_refused_is_reported_alone() -> None:
    bench = running(max_restarts=1, lease_ttl_s=math.inf)
    bench.step(events.RoundFailed(1, 1, False, "", 3))
    found = bench.store.get(bench.job.control, prefix=True)
    refused = TxnResult(False, found.revision, (found,))
    bench.step(events.StoreReply(find_ask(bench, "stop").id, refused))
    bench.now = max(bench.now, bench.protocol.wake_at)
    bench.step(events.Tick())
    bench.step(events.StoreRejected(find_ask(bench, "report").id, StoreError("it is busy")))
    bench.now += bench.protocol.settings.retry_delay_s
    bench.step(events.Tick())
    assert list_asked(bench) == ["read all", "report"]


def test_an_own_failure_ends_no_round_on_what_may_be_old() -> None:
    bench = running(max_restarts=1, lease_ttl_s=math.inf)
    other = Member(member_id="other", node_name="other", boot_id="", description="", presence_address="")
    bench.store.put(bench.job.make_member_key("other"), records.encode(other))
    bench.deliver()
    bench.now = max(bench.now, bench.protocol.wake_at)
    bench.step(events.Tick())
    bench.step(events.StoreOutcomeUnknown(find_ask(bench, "list spares").id))
    bench.now += bench.protocol.settings.compute_retry_s(1)
    bench.step(events.RoundFailed(1, 1, False, "", 3))
    assert sorted(list_asked(bench)) == ["read all", "report"]
