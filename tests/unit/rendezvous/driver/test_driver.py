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

from rendezvous.driver.driver import Driver
from rendezvous.errors import LeaseNotFound, OutcomeUnknown, StoreError
from rendezvous.events import (
    Action,
    ConnectTo,
    Event,
    Exit,
    Grant,
    KeepAlive,
    LeaveRequest,
    Log,
    MakePlan,
    PeerDown,
    PeerGone,
    PlanReady,
    Revoke,
    SendToPeer,
    SetIdentity,
    Start,
    StartWatch,
    StopWatch,
    StoreOutcomeUnknown,
    StoreRejected,
    StoreReply,
    StoreRequest,
    Tick,
    Txn,
    WatchLost,
    WatchUpdate,
)
from rendezvous.machine import MemberMachine
from rendezvous.peers.connections import PeerConnections
from rendezvous.reasons import Reason
from rendezvous.settings import Settings
from rendezvous.stores.contract import Get, Lease, Operation, Renewal, TxnResult
from rendezvous.stores.memory.store import MemoryStore
from tests.support.reasons import because
from tests.support.stores.compaction import compact
from tests.support.stores.delivering import DeliveringStore
from tests.support.threads import no_threads
from tests.support.waiting import wait_until

SLOW, QUICK = Txn((), (Get("slow"),)), Txn((), (Get("quick"),))


class Script:
    """What the driver sees of a protocol: `actions` for each Begin, and every event it was given."""

    def __init__(self, actions: Sequence[Action]) -> None:
        self.actions = list(actions)
        self.events: list[Event] = []
        self.wake_at = math.inf
        self.settings = Settings()

    def steps(self, events: Sequence[Event], now: float) -> list[Action]:
        self.events += events
        self.now = now
        if Tick() in events:
            self.wake_at = math.inf
        return self.actions if Start() in events else []


class SlowStore(DeliveringStore):
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
            machine=cast(MemberMachine, self.script),
            store=store,
            planner=lambda order: PlanReady(order.id, {}, len(order.roster), "host:1"),
            clock=self._clock,
            wake=self.woken.set,
            memory=store if is_local else None,
        )

    def _clock(self) -> float:
        self.on_clock()
        return self.now

    def begin(self) -> list[Action]:
        self.driver.submit(Start())
        return self.driver.run()

    def heard(self, *events: Event) -> bool:
        """Whether the protocol has heard these, among others, in this order."""
        self.driver.run()
        rest = iter(self.script.events)
        return all(event in rest for event in events)


@contextmanager
def driven(*actions: Action, store: MemoryStore | None = None, is_local: bool = False) -> Iterator[Bench]:
    bench = Bench(actions, store or (MemoryStore() if is_local else DeliveringStore()), is_local)
    try:
        yield bench
    finally:
        bench.driver.close(20.0)


def test_what_concerns_the_agent_is_returned_and_the_planners_answer_reaches_the_protocol() -> None:
    say, end = Log("so it is"), Exit(0, "over", None)
    with driven(say, StoreRequest(1, "look", QUICK), end, is_local=True) as bench:
        assert bench.begin() == [say, end]
    with driven(MakePlan(5, 1, (), {}), is_local=True) as bench:
        bench.begin()
        assert bench.heard(PlanReady(5, {}, 0, "host:1"))


def test_a_store_in_the_process_answers_at_once_and_ends_leases_in_the_turn() -> None:
    store = MemoryStore()
    before = threading.active_count()
    with driven(StoreRequest(1, "look", QUICK), store=store, is_local=True) as bench:
        bench.begin()
        assert bench.script.events == [Start(), StoreReply(1, store.txn((), (Get("quick"),)))]
        assert threading.active_count() == before
    store = MemoryStore(clock=lambda: bench.now)
    with driven(StartWatch("d/", 1), store=store, is_local=True) as bench:
        store.put("d/a", b"1", lease=store.lease_grant(60.0).id)
        bench.begin()
        bench.driver.run()
        bench.now = 61.0
        bench.driver.run()
        changes = [event.batch.events for event in bench.script.events if isinstance(event, WatchUpdate)]
        assert [[change.item.value for change in batch] for batch in changes] == [[b"1"], [b""]]


def test_a_slow_request_does_not_hold_up_a_keep_alive_nor_the_caller() -> None:
    store = SlowStore()
    lease = store.lease_grant(60.0)
    with driven(
        StoreRequest(1, "look", SLOW), StoreRequest(2, "renew", KeepAlive(lease.id, "k")), store=store
    ) as bench:
        bench.begin()
        wait_until(lambda: bench.heard(StoreReply(2, Renewal(60.0, True, 1, 0))), what="the keep-alive")
        assert not any(isinstance(event, StoreReply) and event.id == 1 for event in bench.script.events)
        store.gate.set()
        wait_until(lambda: any(isinstance(e, StoreReply) and e.id == 1 for e in bench.script.events if bench.heard()))


def test_a_slow_request_holds_up_no_other_of_those_under_way() -> None:
    store = SlowStore()
    requests = [SLOW, SLOW, SLOW, QUICK]
    with driven(*[StoreRequest(id, "look", request) for id, request in enumerate(requests)], store=store) as bench:
        bench.begin()
        wait_until(lambda: bench.heard(StoreReply(3, store.txn((), (Get("quick"),)))), what="the quick one")
        assert len(bench.script.events) == 2
        store.gate.set()


def test_a_plan_over_a_network_is_made_while_the_caller_goes_on() -> None:
    store, planning = DeliveringStore(), threading.Event()
    with driven(MakePlan(5, 1, (), {}), Log("meanwhile"), store=store) as bench:

        def plan(order: MakePlan) -> PlanReady:
            assert planning.wait(20.0)
            return PlanReady(order.id, {}, 0, "host:1")

        bench.driver._planner = plan
        assert bench.begin() == [Log("meanwhile")]
        planning.set()
        wait_until(lambda: bench.heard(PlanReady(5, {}, 0, "host:1")))


def test_a_mistake_in_another_thread_reaches_the_caller() -> None:
    with driven(MakePlan(5, 1, (), {})) as bench:

        def plan(order: MakePlan) -> PlanReady:
            raise ZeroDivisionError

        bench.driver._planner = plan

        def hear() -> None:
            bench.begin()
            wait_until(lambda: bench.heard(Start(), Start()))

        with pytest.raises(ZeroDivisionError):
            hear()
        bench.driver._failure = None


def test_everything_that_came_in_reaches_the_protocol_at_once_and_late_words_do_not() -> None:
    with driven(is_local=True) as bench:
        taken: list[list[Event]] = []
        bench.script.steps = lambda events, now: taken.append(list(events)) or []  # type: ignore[method-assign,assignment]
        for event in (Start(), PeerDown("a"), PeerGone("a")):
            bench.driver.submit(event)
        bench.driver.run()
        assert taken == [[Start(), PeerDown("a"), PeerGone("a")]]
    store = MemoryStore()
    with driven(StartWatch("d/", 1), StartWatch("e/", 1), store=store, is_local=True) as bench:
        bench.begin()
        store.put("d/a", b"1")
        store.put("e/a", b"1")
        store.deliver()
        bench.driver._carry_out(StopWatch("d/"))
        bench.driver.run()
        assert [event.key for event in bench.script.events if isinstance(event, WatchUpdate)] == ["e/"]


def test_orders_to_presence_are_passed_on_and_it_is_closed_with_the_driver() -> None:
    orders: list[tuple[object, ...]] = []

    class Recorder:
        def __getattr__(self, name: str) -> Callable[..., None]:
            return lambda *words: orders.append((name, *words))

    told = SetIdentity("job", "a"), ConnectTo("b", "h:1"), SendToPeer("b", "x")
    with driven(*told, is_local=True) as bench:
        assert bench.begin() == []  # without presence they come to nothing
        bench.driver._presence = cast("PeerConnections", Recorder())
        bench.begin()
    assert orders == [*(("carry_out", action) for action in told), ("close",)]


@pytest.mark.parametrize("is_local", [True, False])
@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OutcomeUnknown("no answer"), StoreOutcomeUnknown),
        (LeaseNotFound("gone"), StoreRejected),
        (StoreError("no"), StoreRejected),
    ],
)
def test_only_a_request_that_nobody_knows_the_outcome_of_is_unknown(
    error: StoreError, kind: type[Event], is_local: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise error

    store = MemoryStore()
    monkeypatch.setattr(store, "lease_keep_alive", fail)
    expected = StoreOutcomeUnknown(1) if kind is StoreOutcomeUnknown else StoreRejected(1, error)
    with driven(StoreRequest(1, "renew", KeepAlive(7, "k")), store=store, is_local=is_local) as bench:
        bench.begin()
        wait_until(lambda: bench.heard(expected), what=str(expected))


@pytest.mark.parametrize("is_local", [True, False])
def test_a_lease_that_is_there_already_has_been_granted(is_local: bool) -> None:
    store = MemoryStore()
    store.lease_grant(60.0, id=7)
    with driven(StoreRequest(1, "grant lease", Grant(5.0, 7)), store=store, is_local=is_local) as bench:
        bench.begin()
        wait_until(lambda: bench.heard(StoreReply(1, Lease(7, 5.0))), what="the lease")
        assert store.list_leases() == [7]


def test_a_watch_brings_its_events_and_wakes_the_caller() -> None:
    with driven(StartWatch("d/", 1)) as bench:
        bench.begin()
        bench.woken.clear()
        bench.store.put("d/a", b"1")
        assert bench.woken.wait(20.0)
        assert wait_until(lambda: bench.heard() and [e for e in bench.script.events if isinstance(e, WatchUpdate)])
        assert [event.key for event in bench.script.events if isinstance(event, WatchUpdate)] == ["d/"]


def test_a_watch_that_the_store_ends_or_does_not_even_begin_is_lost() -> None:
    store = MemoryStore()
    store.put("d/a", b"1")
    store.put("d/a", b"2")
    compact(store, 3)
    with driven(StartWatch("d/", 1), store=store, is_local=True) as bench:
        bench.begin()
        wait_until(lambda: bench.heard() and any(isinstance(event, WatchLost) for event in bench.script.events))
    store = MemoryStore()
    store.close()
    with driven(StartWatch("d/", 1), store=store, is_local=True) as bench:
        bench.begin()
        lost = [event for event in bench.script.events if isinstance(event, WatchLost)]
        assert [(event.key, str(event.error)) for event in lost] == [("d/", "the store is closed")]


@pytest.mark.parametrize("then", [StopWatch("d/"), StartWatch("d/", 2)], ids=["unfollow", "follow again"])
def test_a_watch_that_is_not_wanted_any_more_is_cancelled(then: Action) -> None:
    store = MemoryStore()
    with driven(StartWatch("d/", 1), then, store=store, is_local=True) as bench:
        bench.begin()
        store.put("d/a", b"1")
        assert store.deliver() == (1 if isinstance(then, StartWatch) else 0)


LIBRARY = "/lib/_x.so: cannot open shared object file: Too many open files"


def wrap(error: ImportError) -> ImportError:
    """As numpy does."""
    wrapped = ImportError("IMPORTANT: PLEASE READ THIS")
    wrapped.__cause__ = error
    return wrapped


@pytest.mark.parametrize("is_local", [True, False])
@pytest.mark.parametrize(
    ("error", "why"),
    [
        (OSError(24, "Too many open files"), "Too many open files"),
        (ImportError(LIBRARY, path="/lib/_x.so"), LIBRARY),
        (wrap(ImportError(LIBRARY, path="/lib/_x.so")), LIBRARY),
        (MemoryError(), "out of memory"),
    ],
    ids=["no descriptor", "none for a library", "none for a library of numpy", "no memory"],
)
def test_a_plan_that_lacks_descriptors_or_memory_is_tried_again(is_local: bool, error: Exception, why: str) -> None:
    lacks = [True, True, False]

    def plan(order: MakePlan) -> PlanReady:
        if lacks.pop(0):
            raise error
        return PlanReady(order.id, {}, 0, "host:1")

    with driven(MakePlan(5, 1, (), {}), is_local=is_local) as bench:
        bench.driver._planner = plan
        said = [action for action in bench.begin() if isinstance(action, Log)]
        for left in (1, 0):
            wait_until(lambda left=left: len(lacks) == left + 1 and bench.driver.wake_at < math.inf)  # type: ignore[misc]
            bench.now = bench.driver.wake_at
            said += [action for action in bench.driver.run() if isinstance(action, Log)]
        wait_until(lambda: bench.heard(PlanReady(5, {}, 0, "host:1")))
        assert said == [Log(Reason.of("plan-put-off", error=why))]


@pytest.mark.parametrize(
    "error",
    [
        ImportError("cannot import name 'x'", path="/y.py"),
        ModuleNotFoundError("x"),
        ImportError("/lib/_x.so: undefined symbol: y", path="/lib/_x.so"),
        wrap(ImportError("liby.so: cannot open shared object file: No such file or directory", path="/lib/_x.so")),
    ],
)
def test_a_plan_that_lacks_a_part_of_this_program_is_a_bug(error: Exception) -> None:
    def plan(order: MakePlan) -> PlanReady:
        raise error

    with driven(MakePlan(5, 1, (), {}), is_local=True) as bench:
        bench.driver._planner = plan
        with pytest.raises(type(error)):
            bench.begin()
        assert bench.driver.wake_at == math.inf


def test_an_end_without_a_thread_is_one_and_a_plan_comes_after_the_agents_work() -> None:
    with driven(Log("x")) as bench:
        bench.begin()
        with no_threads():
            bench.driver.close(20.0)
    say = Log("stop the round")
    with driven(MakePlan(5, 1, (), {}), say, is_local=True) as bench:
        assert bench.begin() == [say]
        assert bench.script.events == [Start()]
        assert bench.driver.wake_at == -math.inf
        assert bench.heard(PlanReady(5, {}, 0, "host:1"))
        assert bench.driver.wake_at == math.inf


@pytest.mark.parametrize(("now", "is_due"), [(9.9, False), (10.0, True), (99.0, True)])
def test_the_protocol_is_woken_when_it_asked_for_it_and_once(now: float, is_due: bool) -> None:
    with driven(is_local=True) as bench:
        bench.script.wake_at = 10.0
        assert bench.driver.wake_at == 10.0
        bench.now = now
        bench.driver.run()
        assert bench.script.events == ([Tick()] if is_due else [])


def test_closing_waits_for_the_lease_and_not_for_ever() -> None:
    store = SlowStore()
    lease = store.lease_grant(60.0)
    with driven(StoreRequest(1, "look", SLOW), StoreRequest(2, "revoke", Revoke(lease.id)), store=store) as bench:
        bench.begin()
        bench.on_clock = store.gate.set  # closing has begun when it looks at the clock
        bench.driver.close(20.0)
        assert store.revoked == [lease.id]
    store = SlowStore()
    with driven(StartWatch("d/", 1), StoreRequest(1, "look", SLOW), store=store) as bench:
        bench.begin()
        bench.driver.close(0.0)
        wait_until(lambda: is_closed(store))
        store.gate.set()


def test_what_arrives_after_the_clock_was_read_waits_for_a_later_time() -> None:
    with driven() as bench:

        def freeze() -> None:
            """The process is frozen as soon as it has read the clock, and an event arrives before it goes on."""
            bench.on_clock = lambda: setattr(bench, "now", 10.0)
            bench.driver.submit(LeaveRequest(because("SIGTERM"), 143))

        bench.on_clock = freeze
        bench.driver.run()
        assert bench.heard(LeaveRequest(because("SIGTERM"), 143))
        assert bench.script.now == 10.0


def is_closed(store: MemoryStore) -> bool:
    try:
        store.get("d/", prefix=True)
    except StoreError as error:
        return "closed" in str(error)
    return False


def test_of_plans_that_lack_a_descriptor_the_last_is_tried_again() -> None:
    lacks = [True, True, False]

    def plan(order: MakePlan) -> PlanReady:
        if lacks.pop(0):
            raise OSError(24, "Too many open files")
        return PlanReady(order.id, {}, 0, "host:1")

    with driven(MakePlan(6, 1, (), {}), MakePlan(5, 1, (), {}), is_local=True) as bench:  # 5 took longer to fail
        bench.driver._planner = plan
        bench.begin()
        bench.driver.run()
        bench.now = bench.driver.wake_at
        bench.driver.run()
        assert bench.heard(PlanReady(6, {}, 0, "host:1"))
