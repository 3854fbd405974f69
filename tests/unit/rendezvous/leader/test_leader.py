"""What the leader writes down of a round that ends: its cause, its first failure, and when."""

from __future__ import annotations

import math

from rendezvous import events, records
from rendezvous.events import Start, StartRound, StopRound
from rendezvous.records import RoundHistory, Stop, Verdict
from tests.support.protocol.member_harness import Bench, only

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
    return bench.tell(events.RoundFailed(1, 1, False, "", 3, failure_class="user code: KeyError"))


def test_a_failure_is_the_cause_with_rank_class_and_times() -> None:
    bench = run_with_clock(max_restarts=1, lease_ttl_s=math.inf)
    began_at = read_history(bench).began_at
    assert abs(began_at - (OFFSET_S + bench.now)) < 1.0
    bench.now += 20.0
    assert only(fail(bench), StopRound).cause == "failure"
    history = read_history(bench)
    assert (history.cause, history.failed_rank, history.failure_class) == ("failure", 3, "user code: KeyError")
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
