"""From nothing to a member: attempts, drains, secrets, and what cannot be a job."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from rendezvous import __version__, records
from rendezvous.errors import SettingsError
from rendezvous.events import (
    Exit,
    Log,
    RoundStopped,
    RoundSucceeded,
    SetIdentity,
    Start,
    StartRound,
    StopRound,
    StoreOutcomeUnknown,
    StoreRequest,
)
from rendezvous.member import join
from rendezvous.reasons import Reason
from rendezvous.records import Command, Drain, Member, Spec, Verdict
from rendezvous.stores.memory.store import MemoryStore
from tests.support.protocol.follower import JOB, Follower
from tests.support.protocol.member_harness import Bench, none, only, running
from tests.support.reasons import because


def current(store: MemoryStore) -> str:
    found = store.get(records.make_current_key("p", "r")).first
    assert found is not None
    return found.value.decode()


def attempt(number: int, store: MemoryStore | None = None) -> Bench:
    """An agent of this attempt, started where others may have been."""
    return Bench(store, chance_from=500 if store else 1, options={"attempt": number})


def test_a_new_member_appears_under_its_own_name() -> None:
    bench = running()
    assert only(bench.made, SetIdentity) == SetIdentity(bench.job.root, bench.protocol.member_id)


def test_a_member_says_where_it_listens() -> None:
    bench = Bench(options={"presence_address": "10.0.0.1:7000"})
    bench.tell(Start())
    stored = bench.store.get(bench.job.make_member_key(bench.protocol.member_id)).first
    assert stored is not None
    assert records.decode(Member, stored.value, stored.key).presence_address == "10.0.0.1:7000"


def test_agents_of_one_attempt_meet_in_a_job_that_bears_its_number() -> None:
    first = attempt(3)
    first.tell(Start())
    assert current(first.store).startswith("3-")
    second = attempt(3, first.store)
    second.tell(Start())
    assert second.job.root == first.job.root


def test_an_agent_of_an_earlier_attempt_is_refused() -> None:
    others = attempt(4)
    others.tell(Start())
    end = only(attempt(3, others.store).tell(Start()), Exit)
    assert (end.exit_code, end.reason) == (2, Reason.of("earlier-attempt", attempt=3, run="r", theirs=4))


def test_a_later_attempt_opens_its_job_once_the_earlier_agents_have_left() -> None:
    bench = running()
    before = current(bench.store)
    later = attempt(1, bench.store)
    assert none(later.tell(Start()), StartRound, Exit)
    assert current(bench.store) == before
    bench.store.delete(bench.job.make_member_key(bench.protocol.member_id))
    later.now += 0.2
    assert only(later.wait(0.2), StartRound).round == 1
    assert current(bench.store).startswith("1-")


def test_an_attempt_of_too_many_digits_is_refused() -> None:
    with pytest.raises(SettingsError, match=f"the attempt is '{10**15}', it must be a number"):
        attempt(10**15)


@pytest.mark.parametrize("value", [b"a/b", b"", b"x" * 65, b"\xff"])
def test_what_cannot_be_the_name_of_a_job_is_not_used_as_one(value: bytes) -> None:
    bench = Bench()
    bench.store.put(records.make_current_key("p", "r"), value)
    end = only(bench.tell(Start()), Exit)
    assert (end.exit_code, end.reason) == (2, Reason.of("not-a-job-key", key="/p/r/current"))


def decode_versions(decode: Callable[..., Any]) -> Callable[..., Any]:
    """`decode`, for the version of a record alone."""

    def decode_version(kind: type, data: bytes, what: str) -> Any:
        assert kind is records._Version
        return decode(kind, data, what)

    return decode_version


@pytest.mark.parametrize("secret", [b"", b"quiet"])
@pytest.mark.parametrize("version", ["0.0.9", "99.1"])
def test_a_job_of_another_version_is_refused_with_both_and_nothing_of_it_is_decoded(
    version: str, secret: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(options={"secret": secret})
    bench.store.put(records.make_current_key("p", "r"), b"job")
    for name in ("spec", "ctl/verdict", "ctl/drained/node", "ctl/leader"):
        bench.store.put(f"/p/r/job/{name}", f'{{"version":"{version}","mesh":[7]}}'.encode())
    monkeypatch.setattr(records.codec, "decode", decode_versions(records.codec.decode))
    end = only(bench.tell(Start()), Exit)
    other = Reason.of("other-version", run="r", theirs=version, node="node", ours=__version__)
    assert (end.exit_code, end.reason) == (2, other)
    assert bench.store.get("/p/r/job/members/", prefix=True).items == ()


def test_an_agent_of_a_later_attempt_begins_anew_whatever_version_the_last_one_had() -> None:
    bench = attempt(2)
    bench.store.put(records.make_current_key("p", "r"), b"1-job")
    bench.store.put("/p/r/1-job/spec", b'{"version":"99.1"}')
    assert only(bench.tell(Start()), StartRound).round == 1


def test_a_spec_of_no_version_is_not_meshrun_s() -> None:
    bench = Bench()
    bench.store.put(records.make_current_key("p", "r"), b"job")
    bench.store.put("/p/r/job/spec", b'{"version":null}')
    end = only(bench.tell(Start()), Exit)
    error = "the value of /p/r/job/spec cannot be read: expected str, got null in version"
    assert (end.exit_code, end.reason) == (2, Reason.of("unreadable", error=error))


def test_who_does_not_know_the_job_s_secret_is_refused() -> None:
    bench = Bench(options={"secret": b"quiet"})
    assert only(bench.tell(Start()), StartRound).round == 1
    stranger = Bench(bench.store, chance_from=500)
    end = only(stranger.tell(Start()), Exit)
    assert (end.exit_code, end.reason) == (2, Reason.of("other-secret", run="r", has_secret=True))
    stranger = Bench(bench.store, chance_from=500, options={"secret": b"wrong"})
    end = only(stranger.tell(Start()), Exit)
    assert (end.exit_code, end.reason.kind) == (2, "unreadable")


def test_a_record_without_the_job_s_code_is_ignored() -> None:
    bench = Bench(options={"secret": b"quiet"})
    bench.tell(Start())
    forged = Verdict(kind="failure", exit_code=3, round=1, reason=because("over"))
    bench.store.put(bench.job.verdict, records.encode(forged, bench.job.verdict, b"guessed"))
    actions = bench.settle()
    assert none(actions, StopRound, Exit)
    assert "record-ignored" in [action.reason.kind for action in actions if isinstance(action, Log)]


# --- as few requests as it takes


SPEC = Spec(mesh="dp=*", options={"--nnodes": "1:1"}, digest="train.py")


def asked_to_join(bench: Bench) -> list[str]:
    """The requests that it took to be a member, in order."""
    actions = bench.tell(Start()) if not bench.made else [*bench.made, *bench.settle()]
    names = [
        "" if isinstance(action, SetIdentity) else action.kind
        for action in actions
        if isinstance(action, StoreRequest | SetIdentity)
    ]
    return names[: names.index("")] if "" in names else names


def until_asked(bench: Bench, why: str) -> StoreRequest:
    """Begin, and stop before this request is answered."""
    bench.step(Start())
    while not any(ask.kind == why for ask in bench.asks):
        assert bench.settle_one()
    return next(ask for ask in bench.asks if ask.kind == why)


def with_job(**records_below: records.Record) -> MemoryStore:
    """A store with a job `job`; the keys below it are written with "_" for "/"."""
    store = MemoryStore(clock=lambda: 100.0)
    store.put(records.make_current_key("p", "r"), b"job")
    for name, record in records_below.items():
        store.put(f"/p/r/job/{name.replace('_', '/')}", records.encode(record))
    return store


def test_one_write_opens_a_job_joins_it_and_takes_its_leadership() -> None:
    bench = Bench()
    assert asked_to_join(bench) == ["grant lease", "find job", "open job"]
    job = bench.job
    written = (records.make_current_key("p", "r"), job.spec, job.make_member_key(bench.protocol.member_id), job.leader)
    assert len({bench.store.get(key).items[0].create_revision for key in written}) == 1
    assert bench.protocol.is_leader
    assert "lead" not in [action.kind for action in bench.made if isinstance(action, StoreRequest)]


def test_an_agent_registers_in_an_equal_job_without_reading_it_first() -> None:
    first = running()
    second = Bench(first.store, chance_from=500)
    assert asked_to_join(second) == ["grant lease", "find job", "register"]
    assert second.job.root == first.job.root


def test_of_two_that_find_no_job_one_opens_it_and_the_other_meets_it_there() -> None:
    first = Bench()
    second = Bench(first.store, chance_from=500)
    both = [(bench, until_asked(bench, "open job")) for bench in (first, second)]
    for bench, ask in both:
        bench.answer(ask)
    assert asked_to_join(second) == ["grant lease", "find job", "open job", "register"]
    assert len(second.store.get(first.job.members, prefix=True).items) == 2
    assert {item.key.split("/")[3] for item in second.store.get("/p/r/", prefix=True).items} == {
        "current",
        second.job.name,
    }


def test_an_equal_spec_in_another_encoding_is_joined_once_it_is_read() -> None:
    store = with_job()
    spec = {**json.loads(records.encode(SPEC)), "added": 1}
    store.put(records.make_job_keys("p", "r", "job").spec, json.dumps(spec).encode())
    assert asked_to_join(Bench(store))[2:] == ["register", "register"]
    assert asked_to_join(Bench(with_job()))[2:] == ["register", "register"], "the spec is missing, and is written"


def test_a_drained_node_that_is_to_come_back_joins_once_that_has_been_read() -> None:
    undrain = Command(kind="undrain", target="node", by="somebody")
    bench = Bench(with_job(spec=SPEC, ctl_drained_node=Drain(node_name="node"), ctl_command_x=undrain))
    assert asked_to_join(bench)[2:] == ["register", "register"]


def test_a_job_that_ends_before_an_agent_has_registered_is_not_joined() -> None:
    bench = Bench(with_job(spec=SPEC))
    ask = until_asked(bench, "register")
    verdict = Verdict(kind="success", exit_code=0, round=1, reason=because("all done"))
    bench.store.put(bench.job.verdict, records.encode(verdict))
    bench.answer(ask)
    end = only(bench.made, Exit)
    assert (end.exit_code, end.reason, end.verdict) == (
        0,
        Reason.of("already-ended", run="r", why=because("all done")),
        verdict,
    )
    assert bench.store.get(bench.job.members, prefix=True).items == ()


def test_a_job_whose_spec_appears_and_differs_while_joining_is_refused() -> None:
    bench = Bench(with_job())
    bench.answer(until_asked(bench, "register"))  # there is no spec
    bench.store.put(bench.job.spec, records.encode(Spec(mesh="dp=*", options={"--nnodes": "1:1"}, digest="other.py")))
    end = only(bench.settle(), Exit)
    assert (end.exit_code, end.reason.kind) == (2, "other-command")


def with_arguments(digest: str) -> Spec:
    """The spec of a script with other arguments."""
    return Spec(mesh="dp=*", options={"--nnodes": "1:1"}, digest="train.py", arguments_digest=digest)


OTHER = {"spec": with_arguments("--lr 2")}


def test_a_node_may_have_other_arguments_than_the_run_and_says_so_once() -> None:
    bench = Bench(with_job(spec=with_arguments("--lr 1")), options=OTHER)
    bench.tell(Start())
    assert bench.store.get(bench.job.make_member_key(bench.protocol.member_id)).first is not None
    said = [action.reason for action in bench.made if isinstance(action, Log) and action.is_remark]
    assert said == [Reason.of("other-arguments", run="r")]
    bench.made.clear()
    bench.state.requests.actions = []
    join.restart(bench.state)  # as when another agent has written meanwhile
    bench.state.membership.is_current_read = bench.state.membership.is_inspected = True
    assert join._may_join(bench.state, bench.now)
    assert not bench.state.requests.actions
    found = bench.store.get(bench.job.spec).first
    assert found is not None
    assert records.decode(Spec, found.value, found.key).arguments_digest == "--lr 1", "it stays the first agent's"


@pytest.mark.parametrize(
    ("kind", "on_finished", "exit_code", "reason"),
    [
        ("success", "next", 2, "already-ended-otherwise"),
        ("failure", "exit", 9, "already-ended"),
    ],
)
def test_other_arguments_have_not_succeeded_because_earlier_ones_have(
    kind: str, on_finished: str, exit_code: int, reason: str
) -> None:
    verdict = Verdict(kind=kind, exit_code=0 if kind == "success" else 9, round=1, reason=because("done"))
    store = with_job(spec=with_arguments("--lr 1"), ctl_verdict=verdict)
    end = only(Bench(store, options=OTHER, on_finished=on_finished).tell(Start()), Exit)
    assert (end.exit_code, end.reason.kind) == (exit_code, reason)


def test_a_member_that_comes_back_after_success_has_succeeded_too() -> None:
    """Its own arguments are no reason to say otherwise: it has run them."""
    verdict = Verdict(kind="success", exit_code=0, round=1, reason=because("done"))
    bench = Bench(with_job(spec=with_arguments("--lr 1"), ctl_verdict=verdict), options=OTHER)
    bench.state.membership.joined_root = "/p/r/job"
    end = only(bench.tell(Start()), Exit)
    assert (end.exit_code, end.verdict) == (0, verdict)


def test_a_member_that_is_drained_before_it_registers_stays_away() -> None:
    bench = Bench(with_job(spec=SPEC))
    ask = until_asked(bench, "register")
    bench.store.put(bench.job.make_drain_key(bench.protocol.member_id), records.encode(Drain(node_name="node")))
    bench.answer(ask)
    assert only(bench.made, Exit).exit_code == 75


def test_an_agent_registers_where_the_run_id_leads_by_then() -> None:
    bench = Bench(with_job(spec=SPEC))
    ask = until_asked(bench, "register")
    bench.store.put(records.make_current_key("p", "r"), b"next")
    bench.answer(ask)
    bench.settle()
    assert [item.key for item in bench.store.get("/p/r/job/", prefix=True).items] == ["/p/r/job/spec"]
    assert bench.store.get(f"/p/r/next/members/{bench.protocol.member_id}").first is not None


def test_what_cannot_be_the_name_of_a_job_is_not_used_as_one_later_either() -> None:
    bench = Bench(with_job(spec=SPEC))
    ask = until_asked(bench, "register")
    bench.store.put(records.make_current_key("p", "r"), b"a/b")
    bench.answer(ask)
    assert only(bench.made, Exit).exit_code == 2
    assert none(bench.made, SetIdentity)


@pytest.mark.parametrize("why", ["open job", "register"])
def test_a_registration_whose_answer_is_lost_is_found(why: str) -> None:
    bench = Bench(with_job(spec=SPEC) if why == "register" else None)
    ask = until_asked(bench, why)
    bench.serve(ask.request)
    bench.asks.remove(ask)
    bench.step(StoreOutcomeUnknown(ask.id))
    bench.wait(1.0)
    bench.settle()
    assert only(bench.made, SetIdentity).member_id == bench.protocol.member_id
    assert len(bench.store.get(bench.job.members, prefix=True).items) == 1


@pytest.mark.parametrize("why", ["open job", "register"])
def test_a_registration_that_is_lost_is_made_again(why: str) -> None:
    bench = Bench(with_job(spec=SPEC) if why == "register" else None)
    ask = until_asked(bench, why)
    bench.asks.remove(ask)
    bench.step(StoreOutcomeUnknown(ask.id))
    bench.wait(1.0)
    assert only(bench.made, SetIdentity).member_id == bench.protocol.member_id


# --- drains


def test_a_drained_node_does_not_join_and_leaves_if_it_has() -> None:
    bench = running()
    bench.store.put(bench.job.make_drain_key("node"), records.encode(Drain(node_name="node")))
    assert only(bench.settle(), StopRound).mode == "grace"
    end = only(bench.tell(RoundStopped(1, 4001)), Exit)
    assert (end.exit_code, end.reason) == (143, Reason.of("drained", node="node"))
    store = MemoryStore(clock=lambda: 100.0)
    store.put(records.make_current_key("p", "r"), b"job")
    store.put("/p/r/job/spec", records.encode(Spec(mesh="dp=*", options={"--nnodes": "1:1"}, digest="train.py")))
    store.put("/p/r/job/ctl/drained/node", records.encode(Drain(node_name="node")))
    end = only(Bench(store).tell(Start()), Exit)
    assert (end.exit_code, end.reason) == (75, Reason.of("drained-from-run", node="node", run="r"))


def test_one_of_two_nodes_with_a_name_is_drained_by_its_member_id() -> None:
    member = Follower()
    member.record(JOB.make_drain_key(member.id), Drain(node_name="node"))
    assert only(member.settle(), StopRound).mode == "grace"


def test_a_leader_whose_job_is_removed_while_it_ends_it_exits_with_75() -> None:
    bench = running()
    bench.step(RoundSucceeded(1))
    while not (granting := [ask for ask in bench.asks if ask.kind == "grant verdict lease"]):
        assert bench.settle_one()
    bench.store.delete(bench.job.root + "/", prefix=True)
    bench.deliver()
    bench.answer(granting[0])
    end = only(bench.tell(RoundStopped(1, 4001)), Exit)
    assert (end.exit_code, end.verdict) == (75, None)


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
    assert (only(made, Exit).exit_code, only(made, Exit).reason) == (75, Reason.of("round-lost", round=1))
