"""What the conformance suite asks of a store that wants to be tested, and the recorder of its watches.

A new store joins by a subclass of `StoreUnderTest` and one entry in KINDS of conftest.py. Tests write only
below `key(...)`, and count revisions from where they find them, so a server may be shared by many tests.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import cast

from rendezvous.errors import StoreError
from rendezvous.stores.contract import Batch, KeyEvent, Store
from rendezvous.stores.memory.store import MemoryStore
from tests.support.stores.compaction import compact
from tests.support.waiting import wait_until


class StoreUnderTest:
    """One store for one test, and how a test makes time pass in it."""

    margin_s = 0.001
    """How much earlier than its deadline a lease is looked at to see that it is still there."""

    advances_at_once = True
    """Whether `advance` costs no real time; if it does, the random steps leave time out."""

    has_thread = True
    """Whether callbacks run by themselves."""

    limit_s = 20.0
    """How long a test waits for what must come."""

    root = "t/"
    """All keys of the test begin with this; a shared server gives each test another."""

    def key(self, name: str) -> str:
        return self.root + name

    def new_client(self) -> Store:
        raise NotImplementedError

    def advance(self, seconds: float) -> None:
        """Let this much time pass for the store: by its clock, or by waiting."""
        raise NotImplementedError

    def settle(self) -> None:
        """Have callbacks run that nobody else runs. Stores with a thread need nothing."""

    def compact(self, revision: int) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def wait_until(self, condition: Callable[[], object], what: str) -> None:
        def settled() -> object:
            self.settle()
            return condition()

        wait_until(settled, self.limit_s, what)

    def watch(self, store: Store, key: str, *, prefix: bool = False, start_revision: int) -> Recorder:
        return Recorder(self, store, key, prefix, start_revision)


class Recorder:
    """A watch that writes down what it is told."""

    def __init__(self, under_test: StoreUnderTest, store: Store, key: str, prefix: bool, start_revision: int) -> None:
        self.under_test = under_test
        self.batches: list[Batch] = []
        self.losses: list[StoreError] = []
        self.told = threading.Condition()
        self.watch = store.watch(
            key, prefix=prefix, start_revision=start_revision, on_batch=self.on_batch, on_lost=self.on_lost
        )

    def on_batch(self, batch: Batch) -> None:
        with self.told:
            self.batches.append(batch)
            self.told.notify_all()

    def on_lost(self, error: StoreError) -> None:
        with self.told:
            self.losses.append(error)
            self.told.notify_all()

    def wait_for_revision(self, revision: int) -> list[Batch]:
        """All batches so far, once the one of `revision` (or a later one) is among them."""
        self.wait_for(lambda: bool(self.batches) and self.batches[-1].revision >= revision)
        return self.batches

    def wait_for_loss(self) -> StoreError:
        self.wait_for(lambda: bool(self.losses))
        return self.losses[0]

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """As `StoreUnderTest.wait_until`, but without its ten milliseconds between looks: random steps wait often."""
        self.under_test.settle()
        with self.told:
            if not self.told.wait_for(condition, self.under_test.limit_s):
                # while hypothesis looks for the smallest example, a store that is broken is waited for less long
                self.under_test.limit_s = min(self.under_test.limit_s, 0.5)
                raise AssertionError(f"the watch was told {self.batches} {self.losses}")


def watch(store: Store, key: str, start_revision: int) -> Recorder:
    """A recorder of this key, or of all below it if it ends with a slash."""
    return Recorder(StoreUnderTest(), store, key, key.endswith("/"), start_revision)


def words(events: Sequence[KeyEvent]) -> list[str]:
    """Events as one reads them: "put t/a=1", "delete t/a"."""
    return [
        f"put {event.item.key}={event.item.value.decode()}" if event.kind == "put" else f"delete {event.item.key}"
        for event in events
    ]


class FakeClock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class OneAtATime:
    """A store for one thread, as several may call it: one after another."""

    _lock = threading.Lock()

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Callable[..., object]:
        method = getattr(self._store, name)

        def call(*arguments: object, **named: object) -> object:
            with self._lock:
                return method(*arguments, **named)

        return call


class MemoryUnderTest(StoreUnderTest):
    """The memory store on a clock that only the test moves."""

    has_thread = False
    limit_s = 0.0  # what the test does not make happen never will

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.store = MemoryStore(clock=self.clock)

    def new_client(self) -> Store:
        return cast("Store", OneAtATime(self.store))

    def advance(self, seconds: float) -> None:
        self.clock.now += seconds
        self.store.expire()

    def settle(self) -> None:
        while self.store.deliver():
            pass

    def compact(self, revision: int) -> None:
        compact(self.store, revision)

    def close(self) -> None:
        self.store.close()
