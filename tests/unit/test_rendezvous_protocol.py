"""The contract of `step`: what comes out for what went in, one event at a time, with a single member.

`Bench` gives one protocol a store and a clock. Nothing is answered until the test says so: `settle` answers
everything, and single events can be stepped in before.
"""

from __future__ import annotations

import itertools
import json
import math
from collections import deque
from typing import Any, TypeVar

import pytest

from rendezvous import keys, messages, records
from rendezvous.decide import Size
from rendezvous.errors import LeaseNotFound, StoreError
from rendezvous.messages import (
    Action,
    Ask,
    Begin,
    End,
    Event,
    ExtendLeash,
    Follow,
    LeashEnded,
    Leave,
    MakePlan,
    Planned,
    RoundFailed,
    RoundStopped,
    RoundSucceeded,
    Say,
    StartRound,
    StopRound,
    Tick,
    Unfollow,
    WatchLost,
)
from rendezvous.protocol import Protocol
from rendezvous.records import Seal, Spec, Status, Verdict
from rendezvous.settings import Settings
from rendezvous.store import Batch, Watch
from rendezvous.stores.memory import MemoryStore

Kind = TypeVar("Kind")


class Bench:
    """One member, its store and its clock."""

    def __init__(self, store: MemoryStore | None = None, digest: str = "train.py", **settings: Any) -> None:
        self.now = 100.0
        self.store = store or MemoryStore(clock=lambda: self.now, threaded=False)
        self.asks: deque[Ask] = deque()
        self.made: list[Action] = []
        self._watches: dict[str, Watch] = {}
        self._events: deque[Event] = deque()
        chance = itertools.count(1)
        self.protocol = Protocol(
            settings=Settings(**settings),
            spec=Spec(mesh="dp=*", limits="1:1", digest=digest),
            node_name="node",
            boot_id="boot",
            description="{}",
            worker_port=4000,
            prefix="p",
            run_id="r",
            sizer=lambda members: Size(len(members), True, "enough"),
            chance=lambda: next(chance) / 1000,
        )

    @property
    def job(self) -> keys.Keys:
        current = self.store.get(keys.current("p", "r")).first
        assert current is not None
        return keys.of_job("p", "r", current.value.decode())

    def step(self, event: Event) -> list[Action]:
        """One event, and nothing is answered. Watches follow the member's wishes at once."""
        actions = self.protocol.step(event, self.now)
        self.made += actions
        for action in actions:
            match action:
                case Ask():
                    self.asks.append(action)
                case Follow(key, start_revision):
                    self._watch(key, start_revision)
                case Unfollow(key):
                    self._watches.pop(key).cancel()
                case MakePlan():
                    contents = {candidate.member_id: "ranks" for candidate in action.roster}
                    self._events.append(Planned(action.id, contents, len(contents), "node:4000"))
        return actions

    def _watch(self, key: str, start_revision: int) -> None:
        def on_batch(batch: Batch) -> None:
            self._events.append(messages.Watched(key, batch))

        def on_lost(error: StoreError) -> None:
            self._events.append(WatchLost(key, error))

        assert key not in self._watches
        self._watches[key] = self.store.watch(
            key, prefix=key.endswith("/"), start_revision=start_revision, on_batch=on_batch, on_lost=on_lost
        )

    def lose(self, key: str) -> list[Action]:
        """End a watch, as a store does that has restarted."""
        self._watches.pop(key).cancel()
        return self.step(WatchLost(key, StoreError("the watch has ended")))

    @property
    def watched(self) -> set[str]:
        return set(self._watches)

    def answer(self, ask: Ask) -> list[Action]:
        self.asks.remove(ask)
        return self.step(messages.Answered(ask.id, self._serve(ask.request)))

    def _serve(self, request: messages.Request) -> messages.Answer:
        match request:
            case messages.Grant(ttl_s):
                return self.store.lease_grant(ttl_s)
            case messages.KeepAlive(lease):
                return self.store.lease_keep_alive(lease)
            case messages.Revoke(lease):
                self.store.lease_revoke(lease)
                return None
            case messages.Txn(compares, success, failure):
                return self.store.txn(compares, success, failure)

    def settle_one(self) -> bool:
        """Answer one thing, or deliver one event; False if nothing is under way."""
        if not self._events and not self.asks:
            self.store.deliver()
        if self._events:
            self.step(self._events.popleft())
        elif self.asks:
            self.answer(self.asks[0])
        else:
            return False
        return True

    def settle(self) -> list[Action]:
        """Answer everything, and deliver every event, until nothing is under way."""
        start = len(self.made)
        while self.settle_one():
            assert len(self.made) < start + 500, "it never comes to rest"
        return self.made[start:]

    def tell(self, event: Event) -> list[Action]:
        """One event, and all that follows."""
        return [*self.step(event), *self.settle()]

    def wait(self, duration_s: float) -> list[Action]:
        """Let time pass in one leap, wake the member, and settle."""
        self.now += duration_s
        return self.tell(Tick())


def only(actions: list[Action], kind: type[Kind]) -> Kind:
    (found,) = [action for action in actions if isinstance(action, kind)]
    return found


def none(actions: list[Action], *kinds: type[Action]) -> bool:
    return not any(isinstance(action, kinds) for action in actions)


def running(**settings: Any) -> Bench:
    """A bench whose member leads and runs round 1."""
    bench = Bench(**settings)
    assert only(bench.tell(Begin()), StartRound).round == 1
    return bench


# --- requests


def test_a_request_is_not_repeated_while_it_is_under_way() -> None:
    bench = Bench()
    assert only(bench.step(Begin()), Ask).why == "grant a lease"
    assert none(bench.step(Tick()), Ask)


@pytest.mark.parametrize("is_refused", [True, False], ids=["refused", "unknown"])
def test_a_request_that_brought_nothing_is_made_again_after_a_pause(is_refused: bool) -> None:
    bench = Bench(retry_delay_s=0.5)
    ask = only(bench.step(Begin()), Ask)
    outcome = messages.Refused(ask.id, StoreError("no")) if is_refused else messages.Unknown(ask.id)
    assert none(bench.step(outcome), Ask)
    assert bench.protocol.wake_at == bench.now + 0.5
    bench.now += 0.5
    assert only(bench.step(Tick()), Ask).request == ask.request


def test_an_answer_that_nobody_waits_for_changes_nothing() -> None:
    bench = running()
    for event in (messages.Answered(999, None), messages.Unknown(999), messages.Refused(999, LeaseNotFound("gone"))):
        assert bench.step(event) == []


# --- the end


def test_nothing_comes_after_the_end_and_nobody_needs_to_wake_it() -> None:
    bench = running()
    stop = only(bench.tell(RoundSucceeded(1)), StopRound)
    assert (stop.mode, stop.reason) == ("kill", "all workers succeeded")
    end = only(bench.tell(RoundStopped(1, 4001)), End)
    assert (end.exit_code, end.reason) == (0, "all workers succeeded")
    assert bench.watched == set()
    assert bench.protocol.wake_at == math.inf
    assert bench.step(Tick()) == bench.step(Leave("SIGTERM", 143)) == []
    assert [item.key for item in bench.store.get(bench.job.members, prefix=True).items] == []


def finished(kind: str, exit_code: int) -> Bench:
    """A bench whose job has ended so."""
    bench = running()
    verdict = Verdict(kind=kind, exit_code=exit_code, round=1, reason="it is over")
    bench.store.put(bench.job.verdict, records.encode(verdict))
    bench.settle()
    assert only(bench.tell(RoundStopped(1, 4001)), End).exit_code == exit_code
    return bench


@pytest.mark.parametrize(
    ("kind", "digest", "opens_next_job", "exit_code", "reason"),
    [
        ("success", "train.py", True, 0, "run r has already ended: it is over"),
        ("failure", "train.py", False, 9, "run r has already ended: it is over"),
        ("success", "other.py", True, 2, "run r was started with command 'train.py', this agent has 'other.py'"),
        ("failure", "other.py", False, 2, "run r was started with command 'train.py', this agent has 'other.py'"),
    ],
)
def test_an_agent_that_comes_too_late_ends_at_once_and_for_good(
    kind: str, digest: str, opens_next_job: bool, exit_code: int, reason: str
) -> None:
    before = finished(kind, 0 if kind == "success" else 9)
    late = Bench(before.store, digest=digest, opens_next_job=opens_next_job)
    actions = late.tell(Begin())
    end = only(actions, End)
    assert (end.exit_code, end.reason) == (exit_code, reason)
    assert none(actions, StartRound)
    assert isinstance(actions[-1], End), "nothing may come after it"
    assert late.protocol.wake_at == math.inf


def test_a_failed_run_s_name_is_free_for_another_command() -> None:
    late = Bench(finished("failure", 9).store, digest="other.py")
    assert only(late.tell(Begin()), StartRound).round == 1


def test_who_is_told_to_leave_before_it_has_joined_leaves_at_once() -> None:
    bench = Bench()
    bench.step(Begin())
    end = only(bench.step(Leave("SIGTERM", 143)), End)
    assert (end.exit_code, end.verdict) == (143, None)
    assert bench.protocol.wake_at == math.inf


def test_joining_has_an_end_and_says_what_stood_in_the_way() -> None:
    bench = Bench(start_timeout_s=10.0)
    ask = only(bench.step(Begin()), Ask)
    bench.step(messages.Refused(ask.id, StoreError("etcd at 10.0.0.1 does not let us in")))
    bench.now += 10.0
    end = only(bench.step(Tick()), End)
    assert (end.exit_code, end.reason) == (75, "could not join run r within 10 s: etcd at 10.0.0.1 does not let us in")


# --- the lease and the leash


def test_the_leash_ends_a_margin_before_a_lease_counted_from_the_request() -> None:
    bench = Bench(lease_ttl_s=10.0, kill_margin_s=2.0)
    ask = only(bench.step(Begin()), Ask)
    bench.now += 0.7
    assert only(bench.answer(ask), ExtendLeash).until == 100.0 + 10.0 - 2.0


def test_a_lease_without_end_needs_no_renewal_and_no_leash() -> None:
    bench = running(lease_ttl_s=math.inf)
    assert none(bench.made, ExtendLeash)
    assert bench.protocol.wake_at == math.inf


def test_a_store_may_count_in_whole_seconds() -> None:
    bench = running()
    bench.now += 1.0
    ask = only(bench.step(Tick()), Ask)
    assert isinstance(ask.request, messages.KeepAlive)
    assert only(bench.step(messages.Answered(ask.id, 5)), ExtendLeash).until == bench.now + 4.0


def test_a_lease_that_cannot_be_renewed_costs_the_membership_and_the_workers() -> None:
    bench = running()
    former = bench.protocol.member_id
    bench.now += 5.0
    actions = bench.step(Tick())
    assert only(actions, StopRound).mode == "fence"
    assert bench.watched == set()
    assert none(actions, Ask), "a new membership begins when nothing is left of the round"
    assert only(bench.step(RoundStopped(1, 4001)), Ask).why == "grant a lease"
    assert bench.protocol.member_id != former


def test_a_leash_that_has_ended_gives_the_lease_back_for_others_to_go_on() -> None:
    bench = running()
    actions = bench.step(LeashEnded())
    assert isinstance(only(actions, Ask).request, messages.Revoke)
    assert only(actions, StopRound).mode == "fence"


def test_a_member_whose_key_is_deleted_while_its_lease_lives_is_fenced() -> None:
    bench = running()
    bench.store.delete(bench.job.member(bench.protocol.member_id))
    actions = bench.settle()
    assert only(actions, StopRound).mode == "fence"
    assert only(actions, End).exit_code == 137
    assert bench.watched == set()


def test_no_round_starts_so_late_that_the_leash_would_not_allow_it_and_nobody_asks_in_a_circle() -> None:
    bench = Bench()
    bench.step(Begin())
    while not (reads := [ask for ask in bench.asks if ask.why.startswith("read the assignment")]):
        bench.settle_one()
    bench.now += 4.5
    actions = bench.answer(reads[0])
    assert none(actions, StartRound)
    assert [ask for ask in bench.asks if ask.why.startswith("read the assignment")] == []
    assert only(bench.wait(0.3), StartRound).round == 1


# --- watches


@pytest.mark.parametrize("is_refused", [True, False], ids=["refused", "unknown"])
def test_what_a_lost_watch_covered_is_read_again_until_that_succeeds(is_refused: bool) -> None:
    bench = running()
    control = bench.job.control
    assert none(bench.lose(control), Ask), "a store that drops watches is not pressed"
    bench.now += 0.2
    ask = only(bench.step(Tick()), Ask)
    bench.step(messages.Refused(ask.id, StoreError("no")) if is_refused else messages.Unknown(ask.id))
    bench.asks.clear()
    bench.store.put(bench.job.verdict, records.encode(Verdict(kind="failure", exit_code=3, round=1, reason="over")))
    bench.now += 0.2
    actions = bench.tell(Tick())
    assert only(actions, Follow).key == control
    assert only(actions, StopRound).reason == "over"


def test_a_leader_that_has_lost_a_watch_decides_nothing_until_it_has_read_again() -> None:
    bench = running()
    bench.lose(bench.job.members)
    assert none(bench.tell(RoundFailed(1, 1, False, "first")), StopRound)
    assert only(bench.wait(0.2), StopRound).mode == "kill"


def test_the_loss_of_a_watch_that_nobody_wants_any_more_is_ignored() -> None:
    bench = running()
    former = bench.job.member(bench.protocol.member_id)
    bench.step(LeashEnded())
    bench.tell(RoundStopped(1, 4001))
    bench.step(WatchLost(former, StoreError("the watch has ended")))
    assert none(bench.wait(0.5), Follow)


def test_a_leader_whose_key_has_gone_stops_watching_everybody_until_it_leads_again() -> None:
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


def test_a_failure_after_the_order_to_stop_is_no_failure() -> None:
    bench = running()
    assert only(bench.tell(Leave("SIGTERM", 143)), StopRound).mode == "grace"
    bench.tell(RoundFailed(1, 1, False, "killed by SIGTERM"))
    stored = bench.store.get(bench.job.status(bench.protocol.member_id)).first
    assert stored is not None
    assert records.decode(Status, stored.value, stored.key).outcome == ""
    assert only(bench.tell(RoundStopped(1, 4001)), End).exit_code == 143


@pytest.mark.parametrize("event", [RoundSucceeded(7), RoundFailed(7, 1, False, ""), RoundStopped(7, 4001)])
def test_what_is_told_of_another_round_is_ignored(event: Event) -> None:
    bench = running()
    assert bench.tell(event) == []
    assert bench.protocol.alive_round == 1


def test_when_a_failure_was_first_told_survives_what_is_told_later() -> None:
    bench = running()
    key = bench.job.status(bench.protocol.member_id)

    def stored() -> tuple[Status, int]:
        item = bench.store.get(key).first
        assert item is not None
        return records.decode(Status, item.value, key), item.mod_revision

    bench.step(RoundFailed(1, 3, False, "first"))
    write = bench.asks[-1]
    bench.asks.remove(write)
    assert bench._serve(write.request) is not None
    _, first_told = stored()
    bench.step(messages.Unknown(write.id))
    bench.wait(0.2)
    bench.tell(Leave("SIGTERM", 143))
    bench.tell(RoundStopped(1, 4001))
    status, revision = stored()
    assert (status.is_stopped, status.failed_revision) == (True, first_told)
    assert revision > first_told


def test_a_seal_keeps_what_a_later_version_wrote_into_the_one_before() -> None:
    bench = running(max_restarts=1)
    sealed = bench.store.get(bench.job.round).first
    assert sealed is not None
    bench.store.put(bench.job.round, json.dumps({**json.loads(sealed.value), "benches": ["x"]}).encode())
    bench.settle()
    bench.tell(RoundFailed(1, 1, False, "first"))
    assert only(bench.tell(RoundStopped(1, 4001)), StartRound).round == 2
    sealed = bench.store.get(bench.job.round).first
    assert sealed is not None
    assert records.decode(Seal, sealed.value, sealed.key).unknown == {"benches": ["x"]}


# --- what the store brings


def test_a_verdict_s_lease_that_has_gone_does_not_cost_the_membership() -> None:
    bench = running()
    bench.step(RoundSucceeded(1))
    while not (writes := [ask for ask in bench.asks if ask.why == "end the job: success"]):
        bench.settle_one()
    bench.asks.remove(writes[0])
    actions = bench.step(messages.Refused(writes[0].id, LeaseNotFound("the verdict's lease has expired")))
    assert none(actions, StopRound, Say)
    assert only(bench.wait(0.2), StopRound).reason == "all workers succeeded"


def test_a_verdict_once_seen_is_obeyed_even_when_its_key_has_expired() -> None:
    bench = running()
    bench.store.put(bench.job.verdict, records.encode(Verdict(kind="failure", exit_code=3, round=1, reason="over")))
    assert only(bench.settle(), StopRound).reason == "over"
    bench.store.delete(bench.job.verdict)
    assert none(bench.settle(), Ask)
    assert only(bench.tell(RoundStopped(1, 4001)), End).exit_code == 3


@pytest.mark.parametrize("name", ["round", "stop", "verdict"])
def test_a_record_that_cannot_be_read_ends_the_agent_with_its_key_and_without_a_traceback(name: str) -> None:
    bench = running()
    key = getattr(bench.job, name)
    bench.store.put(key, b"rubbish")
    end = only(bench.settle(), End)
    assert (end.exit_code, end.reason) == (2, f"the value of {key} is not JSON, so it was not written by meshrun")
    assert bench.watched == set()
