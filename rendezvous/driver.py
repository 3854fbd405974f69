"""The hands of the protocol: store, clock and planner.

Events from anywhere (the store's watches, answers, the agent) land in one inbox; `run` feeds them to the
protocol one by one in the caller's thread and carries out what comes out. Requests to a store over a network
run on a thread of their own, keep-alives on another, so that neither a slow request nor the caller holds up a
renewal. A store within the process answers at once and needs no thread. What concerns the agent (start, stop,
leash, end) is returned to it.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable

from rendezvous import messages
from rendezvous.errors import OutcomeUnknown, StoreError
from rendezvous.messages import (
    Action,
    Answer,
    Answered,
    Ask,
    Event,
    Follow,
    MakePlan,
    Planned,
    PlanRefused,
    Refused,
    Request,
    Tick,
    Unfollow,
    Unknown,
    Watched,
    WatchLost,
)
from rendezvous.protocol import Protocol
from rendezvous.store import Batch, Store, Watch

Planner = Callable[[MakePlan], Planned | PlanRefused]


class Driver:
    """`clock` is seconds on CLOCK_BOOTTIME; `wake` is called from any thread when `run` has something to do.

    `is_local`: the store is in this process, so requests are made at once and in the caller's thread.
    """

    def __init__(
        self,
        *,
        protocol: Protocol,
        store: Store,
        planner: Planner,
        clock: Callable[[], float],
        wake: Callable[[], None],
        is_local: bool,
    ) -> None:
        self._protocol = protocol
        self._store = store
        self._planner = planner
        self._clock = clock
        self._wake = wake
        self._inbox: deque[Event] = deque()
        self._watches: dict[str, Watch] = {}
        self._lanes: dict[str, queue.SimpleQueue[Ask | None]] = {}
        self._threads: list[threading.Thread] = []
        self._is_local = is_local

    @property
    def wake_at(self) -> float:
        """When `run` must be called at the latest, on `clock`."""
        return self._protocol.wake_at

    def submit(self, event: Event) -> None:
        """Hand in an event, from any thread."""
        self._inbox.append(event)
        self._wake()

    def run(self) -> list[Action]:
        """Take in everything that has happened; what is left for the agent to do."""
        for_agent: list[Action] = []
        while True:
            now = self._clock()
            if self._inbox:
                event = self._inbox.popleft()
            elif now >= self._protocol.wake_at:
                event = Tick()
            else:
                return for_agent
            actions = self._protocol.step(event, now)
            for_agent += [action for action in actions if not self._carry_out(action)]

    def close(self, limit_s: float) -> None:
        """Stop watching, and give the requests under way `limit_s` to end: the last of them gives the lease back."""
        for watch in self._watches.values():
            watch.cancel()
        self._watches.clear()
        for lane in self._lanes.values():
            lane.put(None)
        deadline = self._clock() + limit_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - self._clock()))
        self._store.close()

    def _carry_out(self, action: Action) -> bool:
        match action:
            case Ask():
                self._ask(action)
            case Follow(key, start_revision):
                self._follow(key, start_revision)
            case Unfollow(key):
                watch = self._watches.pop(key, None)
                if watch is not None:
                    watch.cancel()
            case MakePlan():
                self._inbox.append(self._planner(action))
            case _:
                return False
        return True

    def _follow(self, key: str, start_revision: int) -> None:
        def on_batch(batch: Batch) -> None:
            self.submit(Watched(key, batch))

        def on_lost(error: StoreError) -> None:
            self.submit(WatchLost(key, error))

        old = self._watches.pop(key, None)
        if old is not None:
            old.cancel()
        try:
            self._watches[key] = self._store.watch(
                key, prefix=key.endswith("/"), start_revision=start_revision, on_batch=on_batch, on_lost=on_lost
            )
        except StoreError as error:
            on_lost(error)

    def _ask(self, ask: Ask) -> None:
        if self._is_local:
            self._inbox.append(self._event_of(ask))
            return
        name = "keep-alive" if isinstance(ask.request, messages.KeepAlive) else "requests"
        lane = self._lanes.get(name)
        if lane is None:
            lane = self._lanes[name] = queue.SimpleQueue()
            thread = threading.Thread(target=self._serve, args=(lane,), name=f"store {name}", daemon=True)
            self._threads.append(thread)
            thread.start()
        lane.put(ask)

    def _serve(self, lane: queue.SimpleQueue[Ask | None]) -> None:
        while (ask := lane.get()) is not None:
            self.submit(self._event_of(ask))

    def _event_of(self, ask: Ask) -> Event:
        try:
            return Answered(ask.id, answer(self._store, ask.request))
        except OutcomeUnknown:
            return Unknown(ask.id)
        except StoreError as error:
            return Refused(ask.id, error)


def answer(store: Store, request: Request) -> Answer:
    """Put a request to the store. Raises StoreError as the store does."""
    match request:
        case messages.Grant(ttl_s):
            return store.lease_grant(ttl_s)
        case messages.KeepAlive(lease):
            return store.lease_keep_alive(lease)
        case messages.Revoke(lease):
            store.lease_revoke(lease)
            return None
        case messages.Txn(compares, success, failure):
            return store.txn(compares, success, failure)
