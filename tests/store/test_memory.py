"""What only the memory store has: a caller who runs its callbacks, a clock that can be given, endless leases."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from rendezvous.errors import Compacted, LeaseNotFound, StoreError
from rendezvous.stores import callbacks
from rendezvous.stores.contract import Batch, GetResult
from rendezvous.stores.memory import keyspace
from rendezvous.stores.memory.store import MemoryStore
from tests.store.under_test import FakeClock
from tests.support.stores.compaction import compact
from tests.support.waiting import wait_until

LIMIT_S = 20.0


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def still(clock: FakeClock) -> MemoryStore:
    """A store in which nothing happens by itself."""
    return MemoryStore(clock=clock)


def ignore(_: object) -> None:
    pass


def test_it_begins_empty_at_revision_1(still: MemoryStore) -> None:
    assert still.get("", prefix=True) == GetResult(1, ())
    assert still.put("a", b"1") == 2


# Callbacks


@contextmanager
def delivered(store: MemoryStore) -> Iterator[threading.Thread]:
    """The callbacks that are pending run in another thread, which has ended afterwards."""
    thread = threading.Thread(target=store.deliver)
    thread.start()
    yield thread
    thread.join(LIMIT_S)
    assert not thread.is_alive()


def test_cancel_waits_for_the_callback_that_runs_and_no_further_one_starts(still: MemoryStore) -> None:
    runs, may_end = threading.Event(), threading.Event()
    told: list[int] = []

    def on_batch(batch: Batch) -> None:
        told.append(batch.revision)
        runs.set()
        assert may_end.wait(LIMIT_S)

    watch = still.watch("a", start_revision=1, on_batch=on_batch, on_lost=ignore)
    still.put("a", b"1")
    still.put("a", b"2")  # its callback is pending when the watch is cancelled
    with delivered(still):
        assert runs.wait(LIMIT_S)
        canceller = threading.Thread(target=watch.cancel)
        canceller.start()
        wait_until(lambda: watch.has_ended)  # type: ignore[attr-defined]
        assert canceller.is_alive(), "cancel() returned while a callback ran"
        may_end.set()
        canceller.join(LIMIT_S)
        assert not canceller.is_alive()
    assert told == [2]


def test_cancel_says_so_when_a_callback_does_not_end(still: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callbacks, "CALLBACK_LIMIT_S", 0.05)
    runs, may_end = threading.Event(), threading.Event()

    def on_batch(batch: Batch) -> None:
        runs.set()
        assert may_end.wait(LIMIT_S)

    stuck = still.watch("a", start_revision=1, on_batch=on_batch, on_lost=ignore)
    other = still.watch("b", start_revision=1, on_batch=ignore, on_lost=ignore)
    still.put("a", b"1")
    with delivered(still):
        assert runs.wait(LIMIT_S)
        other.cancel()  # has no callback to wait for
        with pytest.raises(StoreError, match=r"has not ended in 0\.05 s"):
            stuck.cancel()
        may_end.set()


def test_a_callback_may_close_the_store(still: MemoryStore) -> None:
    still.watch("a", start_revision=1, on_batch=lambda _: still.close(), on_lost=ignore)
    still.put("a", b"1")
    still.put("a", b"2")
    assert still.deliver() == 1
    with pytest.raises(StoreError, match="closed"):
        still.get("a")


def test_nothing_happens_by_itself(still: MemoryStore, clock: FakeClock) -> None:
    told: list[Batch] = []
    still.watch("", prefix=True, start_revision=1, on_batch=told.append, on_lost=ignore)
    lease = still.lease_grant(2).id
    still.put("a", b"1", lease=lease)
    clock.now += 10
    assert (told, still.get("a").first is not None) == ([], True)
    with pytest.raises(LeaseNotFound):
        still.lease_keep_alive(lease)  # due to go, which a renewal cannot undo
    assert still.expire() == 1
    assert still.get("a").first is None
    assert told == []
    assert still.deliver() == 2
    assert [batch.revision for batch in told] == [2, 3]
    assert (still.expire(), still.deliver()) == (0, 0)


def test_the_next_deadline_is_that_of_the_lease_that_is_due_first(still: MemoryStore, clock: FakeClock) -> None:
    assert still.find_next_deadline() == math.inf
    still.lease_grant(math.inf)
    assert still.find_next_deadline() == math.inf
    still.lease_grant(9)
    first = still.lease_grant(5).id
    assert still.find_next_deadline() == clock.now + 5
    clock.now += 4
    still.lease_keep_alive(first)
    second_due = clock.now + 5
    assert still.find_next_deadline() == second_due  # the other one's, 9 s after the start, is the same
    clock.now += 4.5
    still.lease_keep_alive(first)
    assert still.find_next_deadline() == second_due
    still.lease_revoke(first)
    clock.now = second_due
    assert still.expire() == 1
    assert still.find_next_deadline() == math.inf


def test_leases_end_in_the_order_of_their_deadlines(still: MemoryStore, clock: FakeClock) -> None:
    told: list[Batch] = []
    for name, ttl_s in (("late", 4), ("early", 2), ("middle", 3)):
        still.put(name, b"1", lease=still.lease_grant(ttl_s).id)
    still.watch("", prefix=True, start_revision=5, on_batch=told.append, on_lost=ignore)
    clock.now += 60
    assert still.expire() == 3
    still.deliver()
    assert [batch.events[0].item.key for batch in told] == ["early", "middle", "late"]


def test_a_lease_lasts_2_seconds_at_least(still: MemoryStore, clock: FakeClock) -> None:
    assert [still.lease_grant(asked_s).ttl_s for asked_s in (-1, 0, 1.9, 2, 2.5)] == [2, 2, 2, 2, 2.5]
    assert still.find_next_deadline() == clock.now + 2


def test_a_lease_of_infinite_time_never_ends(still: MemoryStore, clock: FakeClock) -> None:
    lease = still.lease_grant(math.inf)
    assert lease.ttl_s == math.inf
    still.put("a", b"1", lease=lease.id)
    clock.now += 1e12
    assert still.expire() == 0
    assert still.lease_keep_alive(lease.id) == math.inf
    still.lease_revoke(lease.id)
    assert still.get("a").first is None
    with pytest.raises(StoreError, match="nan"):
        still.lease_grant(math.nan)


def test_deliver_leaves_what_callbacks_cause_to_the_next_call(still: MemoryStore) -> None:
    told: list[int] = []

    def on_batch(batch: Batch) -> None:
        told.append(batch.revision)
        still.put("a", b"again")

    still.watch("a", start_revision=1, on_batch=on_batch, on_lost=ignore)
    assert still.deliver() == 0
    still.put("a", b"1")
    assert [still.deliver(), still.deliver(), still.deliver()] == [1, 1, 1]
    assert told == [2, 3, 4]


def test_deliver_raises_what_a_callback_raises_and_keeps_the_rest(still: MemoryStore) -> None:
    told: list[int] = []

    def on_batch(batch: Batch) -> None:
        told.append(batch.revision)
        assert batch.revision != 2

    still.watch("a", start_revision=1, on_batch=on_batch, on_lost=ignore)
    still.put("a", b"1")
    still.put("a", b"2")
    with pytest.raises(AssertionError):
        still.deliver()
    assert still.deliver() == 1
    assert told == [2, 3]


# History


@pytest.mark.parametrize("written", range(6))
def test_the_store_keeps_a_limited_history_and_compacts_the_rest(written: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyspace, "HISTORY_REVISIONS", 3)
    store = MemoryStore()
    for _ in range(written):
        store.put("a", b"1")
    last = 1 + written
    oldest = last - 2 if written > 3 else 1  # as long as three revisions hold all that happened, nothing is gone
    told: list[int] = []
    lost: list[StoreError] = []
    for start_revision in range(1, last + 1):
        store.watch(
            "a", start_revision=start_revision, on_batch=lambda batch: told.append(batch.revision), on_lost=lost.append
        )
    store.deliver()
    assert [error.revision for error in lost if isinstance(error, Compacted)] == [oldest] * (oldest - 1)
    starts = range(oldest, last + 1)
    assert told == [revision for start in starts for revision in range(max(start, 2), last + 1)]


def test_a_deletion_at_the_very_revision_compacted_to_is_still_told(still: MemoryStore) -> None:
    told: list[Batch] = []
    still.put("a", b"1")
    still.delete("a")
    compact(still, 3)
    still.watch("a", start_revision=3, on_batch=told.append, on_lost=ignore)
    still.deliver()
    assert [(batch.revision, batch.events[0].kind) for batch in told] == [(3, "delete")]


def test_compaction_of_what_is_gone_or_still_to_come_is_refused(still: MemoryStore) -> None:
    for _ in range(4):
        still.put("a", b"1")
    with pytest.raises(StoreError, match="cannot compact up to revision 6: the store is at 5"):
        compact(still, 6)
    compact(still, 5)
    for revision in (1, 4, 5):
        with pytest.raises(Compacted) as caught:
            compact(still, revision)
        assert caught.value.revision == 5


def test_a_lease_that_is_granted_again_under_its_id_ends_once(still: MemoryStore, clock: FakeClock) -> None:
    still.lease_grant(5.0, id=7)
    clock.now += 2.0
    still.lease_revoke(7)
    still.lease_grant(5.0, id=7)
    still.put("k", b"", lease=7)
    clock.now += 6.0
    assert still.expire() == 1
    assert not still.get("k").items
