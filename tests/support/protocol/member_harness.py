"""One protocol, a store and a clock: a harness in which a member of the agreement is stepped by hand.

Nothing is answered until the test says so: `settle` answers everything, and single events can be stepped in before.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from rendezvous import events, records
from rendezvous.errors import StoreError
from rendezvous.events import (
    Action,
    Event,
    MakePlan,
    PlanReady,
    Start,
    StartRound,
    StartWatch,
    StopWatch,
    StoreRequest,
    Tick,
    WatchLost,
    execute_request,
)
from rendezvous.machine import MemberMachine
from rendezvous.policy.view import MemberView, Size
from rendezvous.reasons import Reason
from rendezvous.records import Member, Spec
from rendezvous.settings import Settings
from rendezvous.state.state import MemberState, Setup
from rendezvous.stores.contract import Batch, Watch
from rendezvous.stores.memory.store import MemoryStore
from tests.support.protocol.state import get_state

Kind = TypeVar("Kind")
LOOK_S = 0.001  # a leader looks at what comes close together at once


def _everybody(members: Sequence[MemberView]) -> Size:
    return Size(len(members), True, Reason.of("enough"))


class Bench:
    """One member, its store and its clock."""

    def __init__(
        self,
        store: MemoryStore | None = None,
        digest: str = "train.py",
        now: float = 100.0,
        chance_from: int = 1,
        options: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        self.now = now
        self.store = store or MemoryStore(clock=lambda: self.now)
        self.asks: deque[StoreRequest] = deque()
        self.made: list[Action] = []
        self.is_away = False  # the store refuses everything, and its watches are silent
        self.away_error = StoreError("nobody listens there")
        self._watches: dict[str, Watch] = {}
        self._events: deque[Event] = deque()
        chance = itertools.count(chance_from)
        spec = Spec(mesh="dp=*", options={"--nnodes": "1:1"}, digest=digest)
        given = {"description": "{}", "presence_address": "", "secret": b"", "spec": spec, "sizer": _everybody}
        given.update(options or {})
        named = {name: given.pop(name) for name in ("description", "presence_address")}
        node = Member(member_id="", node_name="node", boot_id="boot", **named)
        secret = given.pop("secret")
        setup = Setup(settings=Settings(**settings), node=node, prefix="p", run_id="r", **given)
        self.protocol = MemberMachine(setup, 4000, lambda: next(chance) / 1000, secret)

    @property
    def state(self) -> MemberState:
        return get_state(self.protocol)

    @property
    def job(self) -> records.Keys:
        current = self.store.get(records.make_current_key("p", "r")).first
        assert current is not None
        return records.make_job_keys("p", "r", current.value.decode())

    def step(self, event: Event) -> list[Action]:
        """One event, and nothing is answered. Watches follow the member's wishes at once."""
        actions = self.protocol.steps((event,), self.now)
        self.made += actions
        for action in actions:
            match action:
                case StoreRequest():
                    self.asks.append(action)
                case StartWatch(key, start_revision):
                    self._watch(key, start_revision)
                case StopWatch(key):
                    if key in self._watches:  # else it has ended by itself
                        self._watches.pop(key).cancel()
                case MakePlan():
                    contents = {candidate.member_id: "ranks" for candidate in action.roster}
                    self._events.append(PlanReady(action.id, contents, len(contents), "node:4000"))
        return actions

    def _watch(self, key: str, start_revision: int) -> None:
        def on_batch(batch: Batch) -> None:
            self._events.append(events.WatchUpdate(key, batch))

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

    def silence(self, key: str) -> None:
        """Let a watch bring nothing any more, without a sign that it does not."""
        self._watches[key].cancel()

    def answer(self, ask: StoreRequest) -> list[Action]:
        self.asks.remove(ask)
        return self.step(self._outcome(ask))

    def _outcome(self, ask: StoreRequest) -> Event:
        if self.is_away:
            return events.StoreRejected(ask.id, self.away_error)
        try:
            return events.StoreReply(ask.id, self.serve(ask.request))
        except StoreError as error:
            return events.StoreRejected(ask.id, error)

    def serve(self, request: events.Request) -> events.Answer:
        return execute_request(self.store, request)

    def settle_one(self) -> bool:
        """Answer one thing, or deliver one event, or let a leader look again; False if nothing is under way."""
        if not self._events and not self.asks and not self.is_away:
            self.store.expire()
            self.store.deliver()
        if self._events:
            self.step(self._events.popleft())
        elif self.asks:
            self.answer(self.asks[0])
        elif self.protocol.wake_at - self.now < LOOK_S:
            self.now = max(self.now, self.protocol.wake_at)
            self.step(Tick())
        else:
            return False
        return True

    def deliver(self) -> None:
        """Let the watches bring what they have; nothing is answered."""
        self.store.deliver()
        while self._events:
            self.step(self._events.popleft())

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
    assert only(bench.tell(Start()), StartRound).round == 1
    return bench
