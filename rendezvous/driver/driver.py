"""The driver carries out the machine's actions with a store, a clock, a planner and peers.

Events from all sources (the store's watches and replies, other members, the agent) go into one inbox. `run` feeds all
of them to the machine at once, in the caller's thread, and carries out the actions. Nothing slow is done in that thread
when the store is on a network: keep-alives have a thread of their own; other requests, the ends of watches and plans
share a few (worker_pool.py). So a stuck call delays neither a renewal nor a stop nor the caller. A store within the
process replies at once and needs no thread. Actions for the agent (start, stop, watchdog, exit) are returned to it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from rendezvous import events
from rendezvous.driver.store_health import StoreHealthLog
from rendezvous.errors import OutcomeUnknown, StoreError, is_shortage
from rendezvous.events import Action, Event, MakePlan, PlanReady, PlanRefused, StoreRequest
from rendezvous.machine import MemberMachine
from rendezvous.reasons import Reason
from rendezvous.stores.contract import Store, Watch

if TYPE_CHECKING:
    from rendezvous.driver.worker_pool import WorkerPool
    from rendezvous.peers.connections import PeerConnections
    from rendezvous.stores.memory.store import MemoryStore

Planner = Callable[[MakePlan], PlanReady | PlanRefused]

POOL_THREADS = 4
"""Threads for requests. The machine has one request per purpose in progress, and seldom more than three: a slow one
then delays none of the others."""
PLAN_PAUSE_S = 0.5
"""Until a plan is tried again that could not be made for lack of descriptors or memory."""


class Driver:
    """Runs one machine. `clock`: seconds on CLOCK_BOOTTIME; `wake` is called from any thread when `run` has work.

    `memory`: the store, if it is in this process and has no thread: its leases are ended, its watches delivered and
    requests made in the caller's.
    """

    def __init__(
        self,
        *,
        machine: MemberMachine,
        store: Store,
        planner: Planner,
        clock: Callable[[], float],
        wake: Callable[[], None],
        memory: MemoryStore | None = None,
        presence: PeerConnections | None = None,
    ) -> None:
        self.machine = machine
        """The member, for whoever looks at its state; it is changed by `run` alone."""
        self.store = store
        """In the network: for any thread."""
        self._planner = planner
        self._clock = clock
        self._wake = wake
        self._presence = presence
        self._inbox: deque[tuple[Event, _Subscription | None]] = deque()
        self._watches: dict[str, _Subscription] = {}
        self._memory = memory
        if memory is None:
            from rendezvous.driver.worker_pool import WorkerPool  # a local store needs only the caller's thread

            self._renewal_pool = WorkerPool("keep-alive", 1)
            self._request_pool = WorkerPool("request", POOL_THREADS)
            self._closing_pool = WorkerPool("farewell", 1)
        self._store_health = StoreHealthLog(machine.settings)
        self._outcomes: deque[tuple[str, StoreError | None, float]] = deque()  # of requests, with their duration
        self.store_latency_s = -1.0
        """Of the last request that a store in the network has answered; -1 before any."""
        self._put_off: tuple[float, MakePlan] | None = None  # when to try a plan again, and which
        self._lacks = False  # what it takes to plan
        self._reasons: deque[Reason] = deque()  # why it waits, for the agent to log
        self._plans: deque[MakePlan] = deque()  # for the caller's thread
        self._failure: Exception | None = None  # a bug that showed in another thread, for the caller's to raise

    @property
    def wake_at(self) -> float:
        """When `run` must be called at the latest, on `clock`."""
        if self._plans:
            return -math.inf
        return self.machine.wake_at if self._put_off is None else min(self.machine.wake_at, self._put_off[0])

    def submit(self, event: Event) -> None:
        """Add an event to the inbox, from any thread."""
        self._inbox.append((event, None))
        self._wake()

    def run(self) -> list[Action]:
        """Handle everything that has happened; return the actions that are left for the agent.

        Raises any exception of the driver's threads that is not an error of the store: a bug.
        """
        for_agent: list[Action] = []
        while True:
            if self._failure is not None:
                raise self._failure
            if self._memory is not None:
                self._memory.expire()
                self._memory.deliver()
            if self._put_off is not None and self._clock() >= self._put_off[0]:
                (_, order), self._put_off = self._put_off, None
                self._plan(order)
            inbox = self._take_inbox()
            now = self._clock()  # after the events: none is handled with a time before a freeze that it followed
            for_agent += self._report_store_health(now)
            for_agent += [events.Log(self._reasons.popleft()) for _ in range(len(self._reasons))]
            if not inbox and now < self.machine.wake_at:
                if for_agent or not self._plans:
                    return for_agent
                self._make_plan(self._plans.popleft())  # while workers stop, not before they are told to
                continue
            if not inbox:
                inbox.append(events.Tick())
            actions = self.machine.steps(inbox, now)
            for_agent += [action for action in actions if not self._carry_out(action)]

    def close(self, limit_s: float) -> None:
        """End presence and watches, and give requests in progress `limit_s` to end: the last one revokes the lease.

        Calls that do not end by then are left behind in threads that do not keep the process from exiting.
        """
        if self._presence is not None:
            self._presence.close()
        subscriptions = list(self._watches.values())
        self._watches.clear()
        if self._memory is not None:
            _cancel(subscriptions)
            self.store.close()
            return
        deadline = self._clock() + limit_s
        remaining_s = limit_s
        for pool in (self._request_pool, self._renewal_pool):
            pool.join(remaining_s)
            remaining_s = max(0.0, deadline - self._clock())
        with suppress(RuntimeError):  # no thread is to be had: the end of the process closes them, too
            self._closing_pool.submit(lambda: _cancel(subscriptions))
            self._closing_pool.submit(self.store.close)
        self._closing_pool.join(max(remaining_s, limit_s / 2))

    def _report_store_health(self, now: float) -> list[Action]:
        outcomes = [self._outcomes.popleft() for _ in range(len(self._outcomes))]
        if outcomes and self._memory is None:
            self.store_latency_s = outcomes[-1][2]
        reasons = [self._store_health.note(purpose, error, now, took_s) for purpose, error, took_s in outcomes]
        return [events.Log(reason, is_remark=True) for reason in reasons if reason is not None]

    def _take_inbox(self) -> list[Event]:
        """Return the events in the inbox, without late events of watches that were cancelled."""
        entries = [self._inbox.popleft() for _ in range(len(self._inbox))]
        return [event for event, subscription in entries if subscription is None or not subscription.is_cancelled]

    def _carry_out(self, action: Action) -> bool:
        match action:
            case StoreRequest():
                self._request(action)
            case events.StartWatch(key, start_revision):
                self._start_watch(key, start_revision)
            case events.StopWatch(key):
                self._stop_watch(key)
            case MakePlan():
                self._plan(action)
            case events.SetIdentity() | events.ConnectTo() | events.SendToPeer():
                if self._presence is not None:
                    self._presence.carry_out(action)
            case _:
                return False
        return True

    # --- slow operations ---

    def _start_watch(self, key: str, start_revision: int) -> None:
        self._stop_watch(key)
        subscription = self._watches[key] = _Subscription()
        try:
            subscription.watch = self.store.watch(
                key,
                prefix=key.endswith("/"),
                start_revision=start_revision,
                on_batch=lambda batch: self._deliver(events.WatchUpdate(key, batch), subscription),
                on_lost=lambda error: self._deliver(events.WatchLost(key, error), subscription),
            )
        except StoreError as error:
            self._deliver(events.WatchLost(key, error), subscription)

    def _stop_watch(self, key: str) -> None:
        subscription = self._watches.pop(key, None)
        if subscription is not None:
            subscription.is_cancelled = True
            if self._memory is not None:
                subscription.cancel()
            else:
                self._run_in_pool(self._request_pool, subscription.cancel)

    def _deliver(self, event: Event, subscription: _Subscription) -> None:
        if not subscription.is_cancelled:
            self._inbox.append((event, subscription))
            if self._memory is None:
                self._wake()

    def _plan(self, request: MakePlan) -> None:
        if self._memory is not None:
            self._plans.append(request)
        else:  # a large plan may take longer than a lease
            self._run_in_pool(self._request_pool, lambda: self._make_plan(request))

    def _make_plan(self, request: MakePlan) -> None:
        try:
            self.submit(self._planner(request))
        except Exception as error:
            if not is_shortage(error):  # no descriptor or memory is left to import it with
                raise
            if not self._lacks:
                why = getattr(error, "strerror", "") or str(error.__cause__ or error) or "out of memory"
                self._reasons.append(Reason.of("plan-put-off", error=why))
            self._lacks = True
            if self._put_off is None or self._put_off[1].id < request.id:  # only the last one asked for is wanted
                self._put_off = self._clock() + PLAN_PAUSE_S, request
            self._wake()
        else:
            self._lacks = False

    def _request(self, store_request: StoreRequest) -> None:
        if self._memory is not None:
            self._inbox.append((self._execute(store_request), None))
            return
        pool = self._renewal_pool if isinstance(store_request.request, events.KeepAlive) else self._request_pool
        self._run_in_pool(pool, lambda: self.submit(self._execute(store_request)))

    def _run_in_pool(self, pool: WorkerPool, work: Callable[[], object]) -> None:
        def attempt() -> None:
            try:
                work()
            except Exception as error:
                self._failure = error
                self._wake()

        pool.submit(attempt)

    def _execute(self, store_request: StoreRequest) -> Event:
        failure: StoreError | None = None
        since = self._clock()
        try:
            return events.StoreReply(store_request.id, events.execute_request(self.store, store_request.request))
        except OutcomeUnknown as error:
            failure = error
            return events.StoreOutcomeUnknown(store_request.id)
        except StoreError as error:
            failure = error
            return events.StoreRejected(store_request.id, error)
        finally:
            took_s = self.store.measure_last() if failure is None else None
            took_s = self._clock() - since if took_s is None else took_s
            self._outcomes.append((events.get_request_kind(store_request.request), failure, took_s))


class _Subscription:
    """One watch, from its StartWatch on."""

    watch: Watch | None = None
    is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True
        if self.watch is not None:
            self.watch.cancel()


def _cancel(subscriptions: list[_Subscription]) -> None:
    for subscription in subscriptions:
        subscription.cancel()
