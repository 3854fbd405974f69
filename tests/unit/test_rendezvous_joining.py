"""From nothing to a member: attempts, drains, secrets, and what cannot be a job."""

from __future__ import annotations

import pytest

from rendezvous import keys, records
from rendezvous.errors import SettingsError
from rendezvous.messages import Appear, Begin, End, RoundStopped, RoundSucceeded, Say, StartRound, StopRound
from rendezvous.records import Drain, Member, Spec, Verdict
from rendezvous.stores.memory import MemoryStore
from tests.support.follower import JOB, Follower
from tests.support.member_bench import Bench, none, only, running


def current(store: MemoryStore) -> str:
    found = store.get(keys.current("p", "r")).first
    assert found is not None
    return found.value.decode()


def attempt(number: str, store: MemoryStore | None = None) -> Bench:
    """An agent of this attempt, started where others may have been."""
    return Bench(store, chance_from=500 if store else 1, options={"incarnation": number})


def test_a_new_member_appears_under_its_own_name() -> None:
    bench = running()
    assert only(bench.made, Appear) == Appear(bench.job.root, bench.protocol.member_id)


def test_a_member_says_where_it_listens() -> None:
    bench = Bench(options={"presence_address": "10.0.0.1:7000"})
    bench.tell(Begin())
    stored = bench.store.get(bench.job.member(bench.protocol.member_id)).first
    assert stored is not None
    assert records.decode(Member, stored.value, stored.key).presence_address == "10.0.0.1:7000"


def test_agents_of_one_attempt_meet_in_a_job_that_bears_its_number() -> None:
    first = attempt("3")
    first.tell(Begin())
    assert current(first.store).startswith("3-")
    second = attempt("3", first.store)
    second.tell(Begin())
    assert second.job == first.job


def test_an_agent_of_an_earlier_attempt_is_refused() -> None:
    others = attempt("4")
    others.tell(Begin())
    end = only(attempt("3", others.store).tell(Begin()), End)
    assert (end.exit_code, end.reason) == (2, "this is attempt 3, run r is at attempt 4")


def test_a_later_attempt_waits_for_the_earlier_one_s_agents_and_then_opens_its_own_job() -> None:
    bench = running()
    before = current(bench.store)
    later = attempt("1", bench.store)
    assert none(later.tell(Begin()), StartRound, End)
    assert current(bench.store) == before
    bench.store.delete(bench.job.member(bench.protocol.member_id))
    later.now += 0.2
    assert only(later.wait(0.2), StartRound).round == 1
    assert current(bench.store).startswith("1-")


def test_an_attempt_that_is_no_number_is_refused() -> None:
    with pytest.raises(SettingsError, match="the attempt is 'x1', it must be a number"):
        attempt("x1")


@pytest.mark.parametrize("value", [b"a/b", b"", b"x" * 65, b"\xff"])
def test_what_cannot_be_the_name_of_a_job_is_not_used_as_one(value: bytes) -> None:
    bench = Bench()
    bench.store.put(keys.current("p", "r"), value)
    end = only(bench.tell(Begin()), End)
    assert (end.exit_code, end.reason) == (
        2,
        "the value of /p/r/current is no job key, so it was not written by meshrun",
    )


@pytest.mark.parametrize("version", [2, None])
def test_a_job_of_another_record_version_is_refused(version: int | None) -> None:
    bench = Bench()
    bench.store.put(keys.current("p", "r"), b"job")
    bench.store.put("/p/r/job/spec", f'{{"version":{version or "null"}}}'.encode())
    end = only(bench.tell(Begin()), End)
    assert end.exit_code == 2
    assert end.reason == f"/p/r/job/spec has record version {version}, this agent reads version 1"


def test_who_does_not_know_the_job_s_secret_is_refused_with_a_sentence() -> None:
    bench = Bench(options={"secret": b"quiet"})
    assert only(bench.tell(Begin()), StartRound).round == 1
    stranger = Bench(bench.store, chance_from=500)
    end = only(stranger.tell(Begin()), End)
    assert (end.exit_code, end.reason) == (2, "run r was started with a job secret, this agent is not")
    stranger = Bench(bench.store, chance_from=500, options={"secret": b"wrong"})
    end = only(stranger.tell(Begin()), End)
    assert end.exit_code == 2
    assert end.reason.endswith("was not written by an agent that knows the job's secret")


def test_a_record_without_the_job_s_code_is_ignored() -> None:
    bench = Bench(options={"secret": b"quiet"})
    bench.tell(Begin())
    forged = Verdict(kind="failure", exit_code=3, round=1, reason="over")
    bench.store.put(bench.job.verdict, records.encode(forged, bench.job.verdict, b"guessed"))
    actions = bench.settle()
    assert none(actions, StopRound, End)
    assert any(
        "does not know" in a.sentence or "knows the job's secret" in a.sentence for a in actions if isinstance(a, Say)
    )


# --- drains


def test_a_drained_node_does_not_join_and_leaves_if_it_has() -> None:
    bench = running()
    bench.store.put(bench.job.drain("node"), records.encode(Drain(node_name="node")))
    assert only(bench.settle(), StopRound).mode == "grace"
    end = only(bench.tell(RoundStopped(1, 4001)), End)
    assert (end.exit_code, end.reason) == (143, "node node was drained")
    store = MemoryStore(clock=lambda: 100.0, threaded=False)
    store.put(keys.current("p", "r"), b"job")
    store.put("/p/r/job/spec", records.encode(Spec(mesh="dp=*", limits="1:1", digest="train.py")))
    store.put("/p/r/job/ctl/drained/node", records.encode(Drain(node_name="node")))
    end = only(Bench(store).tell(Begin()), End)
    assert (end.exit_code, end.reason) == (75, "node node is drained from run r")


def test_one_of_two_nodes_with_a_name_is_drained_by_its_member_id() -> None:
    member = Follower()
    member.record(JOB.drain(member.id), Drain(node_name="node"))
    assert only(member.settle(), StopRound).mode == "grace"


def test_a_job_that_is_removed_while_its_leader_is_about_to_end_it_is_removed() -> None:
    bench = running()
    bench.step(RoundSucceeded(1))
    while not (granting := [ask for ask in bench.asks if ask.why == "grant the verdict's lease"]):
        assert bench.settle_one()
    bench.store.delete(bench.job.root + "/", prefix=True)
    bench.store.deliver()
    while bench._events:
        bench.step(bench._events.popleft())
    bench.answer(granting[0])
    end = only(bench.tell(RoundStopped(1, 4001)), End)
    assert (end.exit_code, end.verdict) == (1, None)


@pytest.mark.parametrize("is_sealed_again", [False, True])
def test_a_member_whose_seal_is_deleted_under_a_living_round_ends(is_sealed_again: bool) -> None:
    bench = running()
    seal = bench.store.get(bench.job.round).first
    assert seal is not None
    if is_sealed_again:
        bench.store.put(bench.job.round, seal.value.replace(b'"plan_token":"', b'"plan_token":"f'))
    else:
        bench.store.delete(bench.job.round)
    made = bench.settle()
    assert only(made, StopRound).mode == "fence"
    reason = "round 1 is not in the store any more: somebody has deleted its keys"
    assert (only(made, End).exit_code, only(made, End).reason) == (1, reason)
