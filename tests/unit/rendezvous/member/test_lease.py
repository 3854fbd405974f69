"""A lease: what counts as a renewal, where its id comes from, and what the end of it is taken for."""

from __future__ import annotations

import pytest

from rendezvous import events
from rendezvous.errors import LeaseNotFound, StoreError
from rendezvous.events import (
    Exit,
    ExtendWatchdog,
    Grant,
    KeepAlive,
    Log,
    RoundStopped,
    Start,
    StopRound,
    StoreRequest,
    Tick,
)
from rendezvous.member import lease
from rendezvous.reasons import Reason
from rendezvous.stores.contract import KeyValue, Renewal
from tests.support.protocol.member_harness import Bench, none, only, running

REVISION = 99  # of a read later than all that the bench has written


def renewal(bench: Bench) -> StoreRequest:
    """The next one, sent when it is due."""
    bench.now += 1.0
    return only([action for action in bench.step(Tick()) if _is_renewal(action)], StoreRequest)


def _is_renewal(action: object) -> bool:
    return isinstance(action, StoreRequest) and isinstance(action.request, KeepAlive)


def answer(bench: Bench, ask: StoreRequest, answered: Renewal) -> list[events.Action]:
    bench.asks.remove(ask)
    return bench.step(events.StoreReply(ask.id, answered))


def test_a_renewal_reads_the_own_key_and_extends_from_when_it_was_sent() -> None:
    bench = running()
    ask = renewal(bench)
    assert ask.request == KeepAlive(bench.state.lease.id or 0, bench.job.make_member_key(bench.protocol.member_id))
    sent_at, bench.now = bench.now, bench.now + 0.7
    own = Renewal(5.0, True, REVISION, bench.state.membership.revision)
    assert only(answer(bench, ask, own), ExtendWatchdog).until == sent_at + 4.0


def test_a_renewal_by_a_stale_leader_extends_nothing_and_is_repeated() -> None:
    bench = running()
    until = bench.state.lease.membership_until
    ask = renewal(bench)
    actions = answer(bench, ask, Renewal(5.0, False, REVISION, bench.state.membership.revision))
    assert none(actions, ExtendWatchdog, StopRound, StoreRequest)
    assert bench.state.lease.membership_until == until
    bench.now += 0.2
    assert [action for action in bench.step(Tick()) if _is_renewal(action)]
    bench.now = until
    assert only(bench.step(Tick()), StopRound).mode == "fence"


@pytest.mark.parametrize("created", [0, 3], ids=["gone", "another's"])
def test_a_renewal_without_the_own_key_extends_nothing_and_stops_the_round(created: int) -> None:
    bench = running()
    actions = answer(bench, renewal(bench), Renewal(5.0, True, REVISION, created))
    assert none(actions, ExtendWatchdog)
    assert only(actions, StopRound).mode == "fence"
    assert only(actions, StoreRequest).kind == "probe lease"


def test_a_read_from_before_the_own_key_was_there_says_nothing_about_it() -> None:
    bench = running()
    bench.state.requests.revision = 0  # as when a renewal is requested while the agent joins
    actions = answer(bench, renewal(bench), Renewal(5.0, True, bench.state.membership.revision - 1, 0))
    assert none(actions, StopRound)
    assert only(actions, ExtendWatchdog).until == bench.now + 4.0


def lose_key(bench: Bench) -> StoreRequest:
    """Have the own key deleted under the lease; the question that follows."""
    bench.store.delete(bench.job.make_member_key(bench.protocol.member_id))
    bench.deliver()
    assert bench.state.round.phase == "fencing", "killed first, asked later"
    (ask,) = (ask for ask in bench.asks if ask.kind == "probe lease")
    return ask


def test_a_key_lost_with_its_lease_ends_the_membership_and_is_made_anew() -> None:
    bench = running()
    former, lease = bench.protocol.member_id, bench.state.lease.id
    assert lease is not None
    bench.store.lease_revoke(lease)
    bench.deliver()
    actions = bench.settle()
    assert none(actions, Exit)
    assert Log(Reason.of("membership-lost", why=Reason.of("lease-ended-early")), True) in actions
    bench.tell(RoundStopped(1, 4001))
    assert bench.protocol.member_id != former
    assert bench.state.round.alive_round == 2


def test_a_key_deleted_under_a_live_lease_ends_the_agent_without_remains() -> None:
    bench = running()
    lose_key(bench)
    assert only(bench.settle(), Exit).exit_code == 137
    assert bench.store.list_leases() == []
    assert not [item.key for item in bench.store.get(f"{bench.job.root}/lease/", prefix=True).items]


def test_whether_the_lease_lives_is_asked_again_until_its_time_is_over() -> None:
    bench = running()
    former, until = bench.protocol.member_id, bench.state.lease.membership_until
    questions = [lose_key(bench)]
    while bench.now < until:
        bench.asks.clear()
        assert none(bench.step(events.StoreRejected(questions[-1].id, StoreError("nobody listens there"))), Exit)
        bench.now = min(bench.protocol.wake_at, until)
        questions += [action for action in bench.step(Tick()) if isinstance(action, StoreRequest)][:1]
    assert len(questions) > 10
    assert bench.protocol.member_id != former, "others may have removed it, but nobody said so"


def test_a_grant_is_repeated_under_one_id_and_counts_from_its_first_try() -> None:
    bench = Bench()
    first = only(bench.step(Start()), StoreRequest)
    begun = bench.now
    assert isinstance(first.request, Grant)
    bench.serve(first.request)
    bench.asks.remove(first)
    bench.step(events.StoreOutcomeUnknown(first.id))
    bench.now += 2.0
    again = only(bench.step(Tick()), StoreRequest)
    assert again.request == first.request
    bench.answer(again)
    assert bench.store.list_leases() == [first.request.id]
    assert bench.state.lease.ends_at == begun + 5.0


def test_a_lease_that_seems_to_be_over_is_renewed_before_it_is_used() -> None:
    bench = Bench()
    grant = only(bench.step(Start()), StoreRequest)
    bench.now += 6.0
    asks = [action for action in bench.answer(grant) if isinstance(action, StoreRequest)]
    assert [ask.kind for ask in asks] == ["renew"]
    assert isinstance(grant.request, Grant)
    bench.settle()
    assert bench.state.round.alive_round == 1
    assert bench.state.lease.id == grant.request.id


def test_a_lease_that_was_over_is_replaced_by_one_of_another_id() -> None:
    bench = Bench()
    grant = only(bench.step(Start()), StoreRequest)
    bench.answer(grant)
    bench.now += 6.0
    bench.asks.clear()
    keep = only([action for action in bench.step(Tick()) if _is_renewal(action)], StoreRequest)
    bench.asks.clear()
    bench.step(events.StoreRejected(keep.id, LeaseNotFound("gone")))
    bench.now += 1.0
    bench.step(Tick())
    (again,) = (ask for ask in bench.asks if ask.kind == "grant lease")
    assert again.request != grant.request


def test_unanswered_writes_are_repeated_less_often_until_the_store_is_back() -> None:
    bench = Bench(retry_delay_s=0.5, retry_delay_max_s=3.0)
    ask = only(bench.step(Start()), StoreRequest)
    pauses = []
    for _ in range(5):
        bench.step(events.StoreOutcomeUnknown(ask.id))
        pauses.append(bench.protocol.wake_at - bench.now)
        bench.now = bench.protocol.wake_at
        ask = only(bench.step(Tick()), StoreRequest)
    assert pauses == [0.5, 1.0, 2.0, 3.0, 3.0]


@pytest.mark.parametrize(
    ("round_mod", "has_verdict", "kind"),
    [
        (0, False, "round-lost-meanwhile"),
        (7, False, "others-continued-meanwhile"),
        (7, True, "job-ended-meanwhile"),
        (5, False, "place-taken-meanwhile"),
    ],
)
def test_who_cannot_register_again_says_what_the_store_shows(round_mod: int, has_verdict: bool, kind: str) -> None:
    bench = running()
    bench.state.lease.held_seal = 5
    kept = {bench.job.round: round_mod, bench.job.verdict: 9 if has_verdict else 0}
    control = {key: KeyValue(key, b"", 1, mod, 1, 0) for key, mod in kept.items() if mod}
    assert lease._explain_refusal(control, bench.state).kind == kind
