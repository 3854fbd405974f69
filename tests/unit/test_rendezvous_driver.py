"""The driver: what the store, the planner and the clock say reaches the protocol, and nothing waits for a slow request.

The protocol is a script here: a list of actions for the first event, and a record of all events.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import pytest

from rendezvous.driver import Driver
from rendezvous.errors import LeaseNotFound, OutcomeUnknown, StoreError
from rendezvous.messages import (
    Action,
    Answered,
    Ask,
    Begin,
    End,
    Event,
    Follow,
    KeepAlive,
    MakePlan,
    Planned,
    Refused,
    Revoke,
    Say,
    Tick,
    Txn,
    Unfollow,
    Unknown,
    Watched,
    WatchLost,
)
from rendezvous.protocol import Protocol
from rendezvous.store import Get, Operation, Put, TxnResult
from rendezvous.stores.memory import MemoryStore
from tests.support.waiting import wait_until

SLOW, QUICK = Txn((), (Get("slow"),)), Txn((), (Get("quick"),))


class Script:
    """What the driver sees of a protocol: `actions` for each Begin, and every event it was given."""

    def __init__(self, actions: Sequence[Action]) -> None:
        self.actions = list(actions)
        self.events: list[Event] = []
        self.wake_at = math.inf

    def step(self, event: Event, now: float) -> list[Action]:
        self.events.append(event)
        if isinstance(event, Tick):
            self.wake_at = math.inf
        return self.actions if isinstance(event, Begin) else []


class SlowStore(MemoryStore):
    """A store whose requests for the key "slow" wait for `gate`."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.revoked: list[int] = []

    def lease_revoke(self, lease: int) -> None:
        super().lease_revoke(lease)
        self.revoked.append(lease)

    def txn(self, compares: Any, success: Sequence[Operation], failure: Any = ()) -> TxnResult:
        if success and success[0].key == "slow":
            assert self.gate.wait(20.0)
        return super().txn(compares, success, failure)


class Bench:
    def __init__(self, actions: Sequence[Action], store: MemoryStore, is_local: bool) -> None:
        self.script = Script(actions)
        self.store = store
        self.now = 0.0
        self.on_clock: Callable[[], None] = lambda: None
        self.woken = threading.Event()
        self.driver = Driver(
            protocol=cast("Protocol", self.script),
            store=store,
            planner=lambda order: Planned(order.id, {}, len(order.roster), "host:1"),
            clock=self._clock,
            wake=self.woken.set,
            is_local=is_local,
        )

    def _clock(self) -> float:
        self.on_clock()
        return self.now

    def begin(self) -> list[Action]:
        self.driver.submit(Begin())
        return self.driver.run()

    def heard(self, *events: Event) -> bool:
        """Whether the protocol has heard these, among others, in this order."""
        self.driver.run()
        rest = iter(self.script.events)
        return all(event in rest for event in events)


@contextmanager
def driven(*actions: Action, store: MemoryStore | None = None, is_local: bool = False) -> Iterator[Bench]:
    bench = Bench(actions, store or MemoryStore(), is_local)
    try:
        yield bench
    finally:
        bench.driver.close(20.0)


def test_what_concerns_the_agent_is_returned_in_order_and_the_rest_is_done() -> None:
    say, end = Say("so it is"), End(0, "over", None)
    with driven(say, Ask(1, "look", QUICK), end, is_local=True) as bench:
        assert bench.begin() == [say, end]


def test_a_store_within_the_process_answers_in_the_same_turn_without_a_thread() -> None:
    store = MemoryStore(threaded=False)
    before = threading.active_count()
    with driven(Ask(1, "look", QUICK), store=store, is_local=True) as bench:
        bench.begin()
        assert bench.script.events == [Begin(), Answered(1, store.txn((), (Get("quick"),)))]
        assert threading.active_count() == before


def test_a_slow_request_does_not_hold_up_a_keep_alive_nor_the_caller() -> None:
    store = SlowStore()
    lease = store.lease_grant(60.0)
    with driven(Ask(1, "look", SLOW), Ask(2, "keep the lease", KeepAlive(lease.id)), store=store) as bench:
        bench.begin()
        wait_until(lambda: bench.heard(Answered(2, 60.0)), what="the keep-alive")
        assert not any(isinstance(event, Answered) and event.id == 1 for event in bench.script.events)
        store.gate.set()
        wait_until(lambda: any(isinstance(e, Answered) and e.id == 1 for e in bench.script.events if bench.heard()))


def test_requests_are_made_in_the_order_in_which_they_were_asked_for() -> None:
    store = SlowStore()
    writes = [Ask(id, "write", Txn((), (Put(name, b""),))) for id, name in enumerate(("slow", "b", "c"), start=1)]
    with driven(*writes, store=store) as bench:
        bench.begin()
        store.gate.set()
        wait_until(lambda: len([event for event in bench.script.events if bench.heard()]) == 4)
        assert [event.id for event in bench.script.events[1:] if isinstance(event, Answered)] == [1, 2, 3]
        assert [item.key for item in sorted(store.get("", prefix=True).items, key=lambda i: i.mod_revision)] == [
            "slow",
            "b",
            "c",
        ]


@pytest.mark.parametrize("is_local", [True, False])
@pytest.mark.parametrize(
    ("error", "kind"),
    [(OutcomeUnknown("no answer"), Unknown), (LeaseNotFound("gone"), Refused), (StoreError("no"), Refused)],
)
def test_only_a_request_that_nobody_knows_the_outcome_of_is_unknown(
    error: StoreError, kind: type[Event], is_local: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise error

    store = MemoryStore(threaded=False)
    monkeypatch.setattr(store, "lease_keep_alive", fail)
    expected = Unknown(1) if kind is Unknown else Refused(1, error)
    with driven(Ask(1, "keep the lease", KeepAlive(7)), store=store, is_local=is_local) as bench:
        bench.begin()
        wait_until(lambda: bench.heard(expected), what=str(expected))


def test_a_watch_brings_its_events_and_wakes_the_caller() -> None:
    with driven(Follow("d/", 1), is_local=True) as bench:
        bench.begin()
        bench.woken.clear()
        bench.store.put("d/a", b"1")
        assert bench.woken.wait(20.0)
        assert wait_until(lambda: bench.heard() and [e for e in bench.script.events if isinstance(e, Watched)])
        assert [event.key for event in bench.script.events if isinstance(event, Watched)] == ["d/"]


def test_a_watch_that_the_store_ends_is_reported_as_lost() -> None:
    store = MemoryStore()
    store.put("d/a", b"1")
    store.put("d/a", b"2")
    store.compact(3)
    with driven(Follow("d/", 1), store=store, is_local=True) as bench:
        bench.begin()
        wait_until(lambda: bench.heard() and any(isinstance(event, WatchLost) for event in bench.script.events))


def test_a_watch_that_the_store_does_not_even_begin_is_lost_too() -> None:
    store = MemoryStore(threaded=False)
    store.faults.refuse = "not now"
    with driven(Follow("d/", 1), store=store, is_local=True) as bench:
        bench.begin()
        lost = [event for event in bench.script.events if isinstance(event, WatchLost)]
        assert [(event.key, str(event.error)) for event in lost] == [("d/", "not now")]


@pytest.mark.parametrize("then", [Unfollow("d/"), Follow("d/", 2)], ids=["unfollow", "follow again"])
def test_a_watch_that_is_not_wanted_any_more_is_cancelled(then: Action) -> None:
    store = MemoryStore(threaded=False)
    with driven(Follow("d/", 1), then, store=store, is_local=True) as bench:
        bench.begin()
        store.put("d/a", b"1")
        assert store.deliver() == (1 if isinstance(then, Follow) else 0)


def test_the_planner_s_answer_reaches_the_protocol() -> None:
    with driven(MakePlan(5, 1, (), {}), is_local=True) as bench:
        bench.begin()
        assert bench.heard(Planned(5, {}, 0, "host:1"))


@pytest.mark.parametrize(("now", "is_due"), [(9.9, False), (10.0, True), (99.0, True)])
def test_the_protocol_is_woken_when_it_asked_for_it_and_once(now: float, is_due: bool) -> None:
    with driven(is_local=True) as bench:
        bench.script.wake_at = 10.0
        assert bench.driver.wake_at == 10.0
        bench.now = now
        bench.driver.run()
        assert bench.script.events == ([Tick()] if is_due else [])


def test_closing_waits_until_the_lease_has_been_given_back() -> None:
    store = SlowStore()
    lease = store.lease_grant(60.0)
    with driven(Ask(1, "look", SLOW), Ask(2, "give the lease back", Revoke(lease.id)), store=store) as bench:
        bench.begin()
        bench.on_clock = store.gate.set  # closing has begun when it looks at the clock
        bench.driver.close(20.0)
        assert store.revoked == [lease.id]


def test_closing_does_not_wait_for_ever_and_ends_the_watches() -> None:
    store = SlowStore()
    with driven(Follow("d/", 1), Ask(1, "look", SLOW), store=store) as bench:
        bench.begin()
        bench.driver.close(0.0)
        store.gate.set()
        with pytest.raises(StoreError, match="closed"):
            store.get("d/", prefix=True)
