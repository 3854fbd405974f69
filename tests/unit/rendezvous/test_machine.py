"""The contract of `step`: what comes out for what went in, one event at a time, with a single member.

The bench is in tests/support/protocol/member_harness.py.
"""

from __future__ import annotations

import math

import pytest
from msgspec import structs

from rendezvous import events, records
from rendezvous.errors import LeaseNotFound, StoreError, StoreReplaced
from rendezvous.events import (
    CheckpointSaved,
    Event,
    Exit,
    ExtendWatchdog,
    LeaveRequest,
    Log,
    RoundFailed,
    RoundStopped,
    RoundSucceeded,
    Start,
    StartRound,
    StartWatch,
    StopRound,
    StoreRequest,
    Tick,
    WatchdogExpired,
    WatchLost,
)
from rendezvous.member import local_round
from rendezvous.reasons import Reason
from rendezvous.records import Command, Status, Verdict
from rendezvous.state.state import LeaseState
from rendezvous.stores.contract import GetResult, Put, Renewal, TxnResult
from tests.support.protocol.member_harness import Bench, none, only, running
from tests.support.reasons import because

# --- requests


def test_a_request_is_not_repeated_while_it_is_under_way() -> None:
    bench = Bench()
    assert only(bench.step(Start()), StoreRequest).kind == "grant lease"
    assert none(bench.step(Tick()), StoreRequest)


@pytest.mark.parametrize("is_refused", [True, False], ids=["refused", "unknown"])
def test_a_request_that_brought_nothing_is_made_again_after_a_pause(is_refused: bool) -> None:
    bench = Bench(retry_delay_s=0.5)
    ask = only(bench.step(Start()), StoreRequest)
    outcome = events.StoreRejected(ask.id, StoreError("no")) if is_refused else events.StoreOutcomeUnknown(ask.id)
    assert none(bench.step(outcome), StoreRequest)
    assert bench.protocol.wake_at == bench.now + 0.5
    bench.now += 0.5
    assert only(bench.step(Tick()), StoreRequest).request == ask.request


def test_an_answer_that_nobody_waits_for_changes_nothing() -> None:
    bench = running()
    for event in (
        events.StoreReply(999, None),
        events.StoreOutcomeUnknown(999),
        events.StoreRejected(999, LeaseNotFound("gone")),
    ):
        assert bench.step(event) == []


# --- the end


def test_nothing_comes_after_the_end_and_nobody_needs_to_wake_it() -> None:
    bench = running()
    stop = only(bench.tell(RoundSucceeded(1)), StopRound)
    assert (stop.mode, stop.reason) == ("kill", Reason.of("all-succeeded"))
    end = only(bench.tell(RoundStopped(1, 4001)), Exit)
    assert (end.exit_code, end.reason) == (0, Reason.of("all-succeeded"))
    assert bench.watched == set()
    assert bench.protocol.wake_at == math.inf
    assert bench.step(Tick()) == bench.step(LeaveRequest(because("SIGTERM"), 143)) == []
    assert [item.key for item in bench.store.get(bench.job.members, prefix=True).items] == []


def finished(kind: str, exit_code: int) -> Bench:
    """A bench whose job has ended so."""
    bench = running()
    verdict = Verdict(kind=kind, exit_code=exit_code, round=1, reason=because("it is over"))
    bench.store.put(bench.job.verdict, records.encode(verdict))
    bench.settle()
    assert only(bench.tell(RoundStopped(1, 4001)), Exit).exit_code == exit_code
    return bench


@pytest.mark.parametrize(
    ("kind", "digest", "on_finished", "exit_code", "reason"),
    [
        ("success", "train.py", "next", 0, "already-ended"),
        ("failure", "train.py", "exit", 9, "already-ended"),
        ("success", "other.py", "next", 2, "other-command"),
        ("failure", "other.py", "exit", 2, "other-command"),
    ],
)
def test_an_agent_that_comes_too_late_ends_at_once_and_for_good(
    kind: str, digest: str, on_finished: str, exit_code: int, reason: str
) -> None:
    before = finished(kind, 0 if kind == "success" else 9)
    late = Bench(before.store, digest=digest, on_finished=on_finished)
    actions = late.tell(Start())
    end = only(actions, Exit)
    assert (end.exit_code, end.reason.kind) == (exit_code, reason)
    assert none(actions, StartRound)
    assert isinstance(actions[-1], Exit), "nothing may come after it"
    assert late.protocol.wake_at == math.inf


def test_a_failed_run_s_name_is_free_for_another_command() -> None:
    late = Bench(finished("failure", 9).store, digest="other.py")
    assert only(late.tell(Start()), StartRound).round == 1


def test_a_run_that_has_succeeded_is_begun_anew_only_on_request() -> None:
    late = Bench(finished("success", 0).store, digest="other.py", on_finished="rerun")
    assert only(late.tell(Start()), StartRound).round == 1
    assert none(Bench(finished("success", 0).store).tell(Start()), StartRound)


def test_who_is_told_to_leave_before_it_has_joined_leaves_at_once() -> None:
    bench = Bench()
    bench.step(Start())
    end = only(bench.step(LeaveRequest(because("SIGTERM"), 143)), Exit)
    assert (end.exit_code, end.verdict) == (143, None)
    assert bench.protocol.wake_at == math.inf


def test_joining_has_an_end_and_says_what_stood_in_the_way() -> None:
    bench = Bench(start_timeout_s=10.0)
    ask = only(bench.step(Start()), StoreRequest)
    bench.step(events.StoreRejected(ask.id, StoreError("etcd at 10.0.0.1 does not let us in")))
    bench.now += 10.0
    end = only(bench.step(Tick()), Exit)
    why = Reason.of("store-error", error="etcd at 10.0.0.1 does not let us in")
    assert (end.exit_code, end.reason) == (75, Reason.of("join-timeout", run="r", within_s=10.0, why=why))


# --- the lease and the watchdog


def test_the_watchdog_ends_a_margin_before_the_lease_from_its_request() -> None:
    bench = Bench(lease_ttl_s=10.0, kill_margin_s=2.0)
    ask = only(bench.step(Start()), StoreRequest)
    bench.now += 0.7
    assert only(bench.answer(ask), ExtendWatchdog).until == 100.0 + 10.0 - 2.0


def test_a_lease_without_end_needs_no_renewal_and_no_watchdog() -> None:
    bench = running(lease_ttl_s=math.inf)
    assert none(bench.made, ExtendWatchdog)
    assert bench.protocol.wake_at == math.inf


def test_a_store_may_count_in_whole_seconds() -> None:
    bench = running()
    bench.now += 1.0
    ask = only(bench.step(Tick()), StoreRequest)
    assert isinstance(ask.request, events.KeepAlive)
    renewal = Renewal(5, True, 99, bench.state.membership.revision)
    assert only(bench.step(events.StoreReply(ask.id, renewal)), ExtendWatchdog).until == bench.now + 4.0


def test_a_lease_that_cannot_be_renewed_ends_the_membership_and_workers() -> None:
    bench = running()
    former = bench.protocol.member_id
    bench.now += 5.0
    actions = bench.step(Tick())
    assert only(actions, StopRound).mode == "fence"
    assert bench.watched == set()
    assert none(actions, StoreRequest), "a new membership begins when nothing is left of the round"
    assert only(bench.step(RoundStopped(1, 4001)), StoreRequest).kind == "grant lease"
    assert bench.protocol.member_id != former


def test_an_expired_watchdog_revokes_the_lease_so_others_can_go_on() -> None:
    bench = running()
    actions = bench.step(WatchdogExpired())
    assert isinstance(only(actions, StoreRequest).request, events.Revoke)
    assert only(actions, StopRound).mode == "fence"


def test_a_member_whose_key_is_deleted_while_its_lease_lives_is_fenced() -> None:
    bench = running()
    bench.store.delete(bench.job.make_member_key(bench.protocol.member_id))
    actions = bench.settle()
    assert only(actions, StopRound).mode == "fence"
    assert only(actions, Exit).exit_code == 137
    assert bench.watched == set()


def test_no_round_starts_too_late_for_the_watchdog_and_reads_do_not_loop() -> None:
    bench = Bench()
    bench.step(Start())
    while not (reads := [ask for ask in bench.asks if ask.kind.startswith("read assignment")]):
        bench.settle_one()
    bench.now += 4.5
    actions = bench.answer(reads[0])
    assert none(actions, StartRound)
    assert [ask for ask in bench.asks if ask.kind.startswith("read assignment")] == []
    assert only(bench.wait(0.3), StartRound).round == 1


# --- watches


@pytest.mark.parametrize("is_refused", [True, False], ids=["refused", "unknown"])
def test_what_a_lost_watch_covered_is_read_again_until_that_succeeds(is_refused: bool) -> None:
    bench = running()
    control = bench.job.control
    assert none(bench.lose(control), StoreRequest), "a store that drops watches is not pressed"
    bench.now += 0.2
    ask = only(bench.step(Tick()), StoreRequest)
    bench.step(events.StoreRejected(ask.id, StoreError("no")) if is_refused else events.StoreOutcomeUnknown(ask.id))
    bench.asks.clear()
    bench.store.put(
        bench.job.verdict, records.encode(Verdict(kind="failure", exit_code=3, round=1, reason=because("over")))
    )
    bench.now += 0.2
    actions = bench.tell(Tick())
    assert only(actions, StartWatch).key == control
    assert only(actions, StopRound).reason == because("over")


def test_a_leader_that_lost_a_watch_decides_nothing_until_it_reads_again() -> None:
    bench = running()
    bench.lose(bench.job.members)
    assert none(bench.tell(RoundFailed(1, 1, False, "first")), StopRound)
    assert only(bench.wait(0.2), StopRound).mode == "kill"


def test_the_loss_of_a_watch_that_nobody_wants_any_more_is_ignored() -> None:
    bench = running()
    former = bench.job.make_member_key(bench.protocol.member_id)
    bench.step(WatchdogExpired())
    bench.tell(RoundStopped(1, 4001))
    bench.step(WatchLost(former, StoreError("the watch has ended")))
    assert none(bench.wait(0.5), StartWatch)


def test_a_leader_without_its_key_stops_watching_all_until_it_leads_again() -> None:
    bench = running()
    everybody = {bench.job.members, bench.job.statuses}
    assert everybody < bench.watched
    bench.store.delete(bench.job.leader)
    bench.settle()
    assert not everybody & bench.watched
    bench.wait(1.0)
    assert everybody < bench.watched


# --- a round on this node


def test_a_round_is_started_with_what_was_sealed() -> None:
    bench = running()
    start = only(bench.made, StartRound)
    assert start == StartRound(1, 0, 1, "node:4000", "ranks")


@pytest.mark.parametrize(
    ("failure", "outcome"),
    [
        (RoundFailed(1, 1, False, "killed by SIGTERM"), ""),
        (RoundFailed(1, 75, False, "blamed its node", is_node_fault=True), "failed"),
        (RoundFailed(1, 76, False, "gave up", is_final=True), "failed"),
    ],
    ids=["killed", "blames its node", "gives up"],
)
def test_a_failure_after_the_order_to_stop_is_one_if_the_worker_says_so(failure: RoundFailed, outcome: str) -> None:
    bench = running()
    assert only(bench.tell(LeaveRequest(because("SIGTERM"), 143)), StopRound).mode == "grace"
    bench.tell(failure)
    stored = bench.store.get(bench.job.make_status_key(bench.protocol.member_id)).first
    assert stored is not None
    assert records.decode(Status, stored.value, stored.key).outcome == outcome
    assert only(bench.tell(RoundStopped(1, 4001)), Exit).exit_code == 143


@pytest.mark.parametrize("event", [RoundSucceeded(7), RoundFailed(7, 1, False, ""), RoundStopped(7, 4001)])
def test_what_is_told_of_another_round_is_ignored(event: Event) -> None:
    bench = running()
    assert bench.tell(event) == []
    assert bench.state.round.alive_round == 1


@pytest.mark.parametrize("is_seen", [False, True], ids=["found when it is told again", "seen by the watch before"])
def test_the_time_of_a_failure_survives_a_lost_answer_and_later_reports(is_seen: bool) -> None:
    bench = running()
    key = bench.job.make_status_key(bench.protocol.member_id)

    def stored() -> tuple[Status, int]:
        item = bench.store.get(key).first
        assert item is not None
        return records.decode(Status, item.value, key), item.mod_revision

    bench.step(RoundFailed(1, 3, False, "first"))
    write = bench.asks[-1]
    bench.asks.remove(write)
    assert bench.serve(write.request) is not None
    _, first_told = stored()
    bench.step(events.StoreOutcomeUnknown(write.id))
    if is_seen:
        bench.deliver()
    bench.wait(0.2)
    bench.tell(LeaveRequest(because("SIGTERM"), 143))
    bench.tell(RoundStopped(1, 4001))
    status, revision = stored()
    assert (status.is_stopped, status.failed_revision) == (True, first_told)
    assert revision > first_told


# --- what the store brings


def test_a_verdict_s_lease_that_has_gone_does_not_cost_the_membership() -> None:
    bench = running()
    bench.step(RoundSucceeded(1))
    while not (writes := [ask for ask in bench.asks if ask.kind == "end job"]):
        bench.settle_one()
    bench.asks.remove(writes[0])
    actions = bench.step(events.StoreRejected(writes[0].id, LeaseNotFound("the verdict's lease has expired")))
    assert none(actions, StopRound, Log)
    assert only(bench.wait(0.2), StopRound).reason == Reason.of("all-succeeded")


def test_a_verdict_s_lease_that_has_gone_is_granted_again() -> None:
    bench = running()
    bench.step(RoundSucceeded(1))
    while not (writes := [ask for ask in bench.asks if ask.kind == "end job"]):
        bench.settle_one()
    assert isinstance(writes[0].request, events.Txn)
    (lease,) = {operation.lease for operation in writes[0].request.success if isinstance(operation, Put)} - {0}
    bench.store.lease_revoke(lease)
    bench.settle()
    bench.wait(1.0)
    assert bench.store.get(bench.job.verdict).first is not None


def test_a_verdict_s_lease_that_was_granted_long_ago_is_replaced() -> None:
    """A conclusion may come to nothing and the job go on; the verdict that it ends with is to be read for as long."""
    bench = running(keep_finished_s=600.0)
    command = bench.job.make_command_key("t")
    bench.store.put(command, records.encode(Command(kind="stop", target="")))
    while not [ask for ask in bench.asks if ask.kind == "end job"]:
        bench.settle_one()
    bench.store.delete(command)
    bench.settle()
    for _ in range(500):
        bench.wait(1.0)
    bench.tell(RoundSucceeded(1))
    verdict = bench.store.get(bench.job.verdict).first
    assert verdict is not None
    assert bench.store.lease_remaining(verdict.lease) > 300.0


def test_a_verdict_once_seen_is_obeyed_even_when_its_key_has_expired() -> None:
    bench = running()
    bench.store.put(
        bench.job.verdict, records.encode(Verdict(kind="failure", exit_code=3, round=1, reason=because("over")))
    )
    assert only(bench.settle(), StopRound).reason == because("over")
    bench.store.delete(bench.job.verdict)
    assert none(bench.settle(), StoreRequest)
    assert only(bench.tell(RoundStopped(1, 4001)), Exit).exit_code == 3


@pytest.mark.parametrize("name", ["leader", "round", "stop", "verdict", "spares"])
def test_a_record_that_cannot_be_read_is_named_once_and_ignored(name: str) -> None:
    bench = running()
    key = getattr(bench.job, name)
    bench.store.put(key, b"rubbish")
    actions = bench.settle()
    said = [action.reason for action in actions if isinstance(action, Log)]
    ignored = f"the value of {key} is not JSON, so it was not written by meshrun"
    assert said.count(Reason.of("record-ignored", error=ignored)) == 1
    assert none(actions, StopRound, StartRound, Exit)
    assert bench.state.round.alive_round == 1


def test_a_round_goes_on_to_the_next_though_somebody_has_spoilt_its_seal() -> None:
    bench = running(max_restarts=1)
    bench.store.put(bench.job.round, b"rubbish")
    bench.settle()
    bench.tell(RoundFailed(1, 1, False, "first"))
    assert only(bench.tell(RoundStopped(1, 4001)), StartRound).round == 2


def test_a_checkpoint_that_workers_tell_of_is_counted_in_the_status() -> None:
    bench = running()
    bench.tell(CheckpointSaved(1))
    bench.tell(CheckpointSaved(1))
    bench.tell(CheckpointSaved(7))
    stored = bench.store.get(bench.job.make_status_key(bench.protocol.member_id)).first
    assert stored is not None
    assert records.decode(Status, stored.value, stored.key).saved_count == 2


def test_events_that_come_together_are_compared_once() -> None:
    bench = running()
    actions = bench.protocol.steps((RoundFailed(1, 3, False, "first", 5, True, True), Tick(), Tick()), bench.now)
    ask = only(actions, StoreRequest)
    assert ask.kind == "stop"  # of the leader: with its report
    assert isinstance(ask.request, events.Txn)
    put = ask.request.success[0]
    assert isinstance(put, Put)
    status = records.decode(Status, put.value, put.key)
    assert (status.outcome, status.rank, status.is_port_taken, status.is_final) == ("failed", 5, True, True)


@pytest.mark.parametrize(("is_final", "outcome"), [(False, ""), (True, "failed")])
def test_a_failure_after_the_stop_counts_only_if_it_is_the_node_s_last(is_final: bool, outcome: str) -> None:
    bench = running()
    local_round.stop_workers(bench.state, "kill", "a worker failed elsewhere", "failure", bench.now)
    bench.tell(RoundFailed(1, 3, False, "late", is_final=is_final))
    assert bench.state.round.status.outcome == outcome


def test_a_seal_that_is_applied_late_is_not_sealed_over() -> None:
    bench = Bench()
    bench.step(Start())
    _settle_until(bench, "seal")
    late = bench.asks.popleft()
    bench.step(events.StoreOutcomeUnknown(late.id))
    bench.now += 1.0
    bench.step(Tick())
    _settle_until(bench, "seal")
    again = bench.asks.popleft()
    bench.serve(late.request)
    answer = bench.serve(again.request)
    bench.deliver()  # the watch tells of the seal before the answer to the second try is there
    bench.step(events.StoreReply(again.id, answer))
    bench.settle()
    sealed = bench.store.get(bench.job.round).first
    assert sealed is not None
    assert sealed.version == 1


def test_an_unanswered_seal_is_written_again_with_the_same_assignments() -> None:
    bench = Bench()
    bench.step(Start())
    _settle_until(bench, "seal")
    first = bench.asks.popleft()
    bench.step(events.StoreOutcomeUnknown(first.id))
    bench.now += 1.0
    bench.step(Tick())
    _settle_until(bench, "seal")
    assert isinstance(first.request, events.Txn)
    assert isinstance(bench.asks[0].request, events.Txn)
    assignment = first.request.success[0]
    assert assignment.key.startswith(bench.job.all_assignments)
    assert bench.asks[0].request.success[0] == assignment
    bench.serve(first.request)  # it comes late, and is what counts
    bench.settle()
    assert bench.state.round.alive_round == 1
    assert len(bench.store.get(bench.job.make_assignments_prefix(1), prefix=True).items) == 1


def _settle_until(bench: Bench, why: str) -> None:
    """Answer everything until the member asks for this."""
    while not bench.asks or bench.asks[0].kind != why:
        assert bench.settle_one()


def test_no_round_is_started_when_what_was_read_last_is_nearly_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watchdog ends with that as it does with the lease: such workers would be killed as they begin."""
    bench = Bench()
    bench.step(Start())
    while not [ask for ask in bench.asks if ask.kind == "read assignment"]:
        bench.settle_one()
    margin_s = bench.protocol.settings.kill_margin_s
    with monkeypatch.context() as patch:
        patch.setattr(LeaseState, "membership_until", property(lambda self: bench.now + margin_s / 2))
        assert none(bench.answer(bench.asks[0]), StartRound)
    bench.now += bench.protocol.settings.retry_delay_s
    assert only(bench.tell(Tick()), StartRound).round == 1


def test_an_unreadable_assignment_fails_the_round_and_another_is_sealed() -> None:
    """Others wait for this node's ranks: standing by as a spare would hold them up for ever."""
    bench = Bench(max_restarts=1)
    bench.step(Start())
    while not any(ask.kind == "read assignment" for ask in bench.asks):
        assert bench.settle_one()
    (item,) = bench.store.get(f"{bench.job.root}/assign/", prefix=True).items
    bench.store.put(item.key, b"rubbish")
    made = bench.settle()
    assert only(made, StartRound).assignment == ""  # which no agent can run
    assert [say for say in made if isinstance(say, Log) and say.reason.kind == "record-ignored"]
    made = bench.tell(RoundFailed(1, 1, False, "")) + bench.wait(2.0)
    assert only(made, StopRound).round == 1
    made = bench.tell(RoundStopped(1, 4001)) + bench.wait(2.0)
    assert only(made, StartRound).round == 2


# --- a store that goes back, or is another one


def answer_renewal_at(bench: Bench, revision: int) -> list[events.Action]:
    """Have the next renewal answered as of this revision, with the own key in place."""
    bench.now += 1.0
    bench.step(Tick())
    (ask,) = (ask for ask in bench.asks if isinstance(ask.request, events.KeepAlive))
    bench.asks.remove(ask)
    own = bench.state.membership.revision
    return bench.step(events.StoreReply(ask.id, Renewal(5.0, True, revision, own)))


def went_back(known: int) -> Reason:
    return Reason.of("revision-went-back", revision=known - 1, was=known)


def require_end(actions: list[events.Action], evidence: Reason, exit_code: int = 75) -> None:
    """The workers must be killed at once, the reason said, and nothing follow."""
    assert only(actions, StopRound).mode == "fence"
    end = actions[-1]
    assert isinstance(end, Exit)
    assert end.exit_code == exit_code
    assert end.reason == Reason.of("store-went-back", why=evidence)


def test_an_answer_at_a_lower_revision_ends_the_agent() -> None:
    bench = running()
    known = bench.store.get("any").revision
    require_end(answer_renewal_at(bench, known - 1), went_back(known))


def test_an_answer_to_a_request_from_before_is_no_sign_of_it() -> None:
    bench = running()
    known = bench.store.get("any").revision
    bench.now += 1.0
    bench.step(Tick())
    (ask,) = (ask for ask in bench.asks if isinstance(ask.request, events.KeepAlive))
    bench.store.put(f"{bench.job.control}drained/other", b"{}")
    bench.deliver()  # of a later revision than the answer that is under way
    bench.asks.remove(ask)
    own = bench.state.membership.revision
    assert none(bench.step(events.StoreReply(ask.id, Renewal(5.0, True, known, own))), StopRound, Exit)


def test_what_a_watch_has_shown_counts() -> None:
    bench = running()
    known = bench.store.put(f"{bench.job.control}drained/other", b"{}")
    bench.deliver()
    require_end(answer_renewal_at(bench, known - 1), went_back(known))


def test_an_older_key_ends_the_agent_at_whatever_revision() -> None:
    bench = running()
    seal = bench.store.get(bench.job.round).first
    assert seal is not None
    older = structs.replace(seal, mod_revision=2, value=b"{}")
    bench.lose(bench.job.control)
    bench.now += 1.0
    bench.step(Tick())
    (ask,) = (ask for ask in bench.asks if ask.kind.endswith(" again"))
    bench.asks.remove(ask)
    actions = bench.step(events.StoreReply(ask.id, TxnResult(True, 99, (GetResult(99, (older,)),))))
    require_end(actions, Reason.of("key-went-back", key=seal.key, revision=2, was=seal.mod_revision))


@pytest.mark.parametrize("is_watch", [True, False], ids=["watch", "request"])
def test_another_store_ends_the_agent(is_watch: bool) -> None:
    bench = running()
    error = StoreReplaced("the store at h:1 belongs to cluster b")
    if is_watch:
        actions = bench.step(WatchLost(bench.job.control, error))
    else:
        bench.now += 1.0
        bench.step(Tick())
        actions = bench.step(events.StoreRejected(bench.asks[0].id, error))
    require_end(actions, Reason.of("store-error", error=str(error)))


def test_an_agent_that_was_told_to_leave_ends_with_that_code() -> None:
    bench = running()
    known = bench.store.get("any").revision
    bench.step(LeaveRequest(because("SIGTERM"), 143))
    actions = answer_renewal_at(bench, known - 1)
    require_end(actions, went_back(known), 143)


def test_a_verdict_that_was_seen_stays_the_verdict() -> None:
    bench = running()
    verdict = Verdict(kind="failure", exit_code=3, round=1, reason=because("a worker failed"))
    known = bench.store.put(bench.job.verdict, records.encode(verdict, bench.job.verdict, b""))
    bench.deliver()
    end = answer_renewal_at(bench, known - 1)[-1]
    assert isinstance(end, Exit)
    assert (end.exit_code, end.verdict) == (3, verdict)
