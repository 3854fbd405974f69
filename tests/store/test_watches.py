"""Watches: every event from a revision on, in order, once, all of one revision together."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from rendezvous.errors import Compacted, StoreError
from rendezvous.stores.contract import Batch, Store, Watch
from tests.store.under_test import StoreUnderTest

Key = Callable[[str], str]


def ignore(_: object) -> None:
    pass


def test_a_watch_from_the_revision_after_a_list_misses_no_write(store_under_test: StoreUnderTest, key: Key) -> None:
    writers, each = 4, 50
    first = store_under_test.new_client().put(key("w/first"), b"0")

    def write(index: int) -> None:
        store = store_under_test.new_client()
        for number in range(each):
            store.put(key(f"w/{index}"), b"%d" % number)

    threads = [threading.Thread(target=write, args=(index,)) for index in range(writers)]
    reader = store_under_test.new_client()
    for thread in threads:
        thread.start()
    listed = reader.get(key("w/"), prefix=True)
    watched = store_under_test.watch(reader, key("w/"), prefix=True, start_revision=listed.revision + 1)
    for thread in threads:
        thread.join(60)
    final = first + writers * each
    if listed.revision < final:
        told = watched.wait_for_revision(final)
        assert [batch.revision for batch in told] == list(range(listed.revision + 1, final + 1))
    state = {item.key: item for item in listed.items}
    state.update((event.item.key, event.item) for batch in watched.batches for event in batch.events)
    assert tuple(state[name] for name in sorted(state)) == reader.get(key("w/"), prefix=True).items


# The end of a watch


def test_a_cancelled_watch_is_told_nothing_more_while_others_are(store_under_test: StoreUnderTest, key: Key) -> None:
    store = store_under_test.new_client()
    first = store.put(key("a"), b"1")
    ended = store_under_test.watch(store, key("a"), start_revision=first)
    other = store_under_test.watch(store, key("a"), start_revision=first)
    ended.wait_for_revision(first)
    ended.watch.cancel()
    ended.watch.cancel()  # a second time is no matter
    last = store.put(key("a"), b"2")
    assert len(other.wait_for_revision(last)) == 2
    assert (len(ended.batches), ended.losses, other.losses) == (1, [], [])


def test_a_callback_may_use_the_store_and_cancel_its_own_watch(store_under_test: StoreUnderTest, key: Key) -> None:
    store = store_under_test.new_client()
    before = store.put(key("b"), b"0")
    told: list[Batch] = []
    inner: list[Batch] = []
    watches: list[Watch] = []
    is_ready = threading.Event()  # the first callback may come before watch() has returned

    def on_batch(batch: Batch) -> None:
        assert is_ready.wait(10)
        told.append(batch)
        store.put(key("b"), b"1", lease=store.lease_grant(10).id)
        start_revision = store.get(key("b")).revision
        watches.append(store.watch(key("b"), start_revision=start_revision, on_batch=inner.append, on_lost=ignore))
        watches[0].cancel()

    watches.append(store.watch(key("a"), start_revision=before, on_batch=on_batch, on_lost=ignore))
    is_ready.set()
    store.put(key("a"), b"1")
    store.put(key("a"), b"2")
    store_under_test.wait_until(lambda: inner, "the watch that the callback made")
    last = store.put(key("b"), b"2")
    store_under_test.wait_until(lambda: inner[-1].revision == last, "the last event")
    assert [batch.revision for batch in told] == [before + 1]


def test_a_callback_that_raises_is_shown_and_loses_its_own_watch_only(
    store_under_test: StoreUnderTest, key: Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not store_under_test.has_thread:
        pytest.skip("it has no thread: the exception is raised in the caller")
    shown: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", shown.append)
    store = store_under_test.new_client()
    first = store.put(key("a"), b"1")
    other = store_under_test.watch(store, key("a"), start_revision=first)
    lost: list[StoreError] = []

    def fail(batch: Batch) -> None:
        raise ValueError(f"a bug {batch.revision - first}")

    def fail_again(error: StoreError) -> None:
        lost.append(error)
        raise ValueError("another bug")

    store.watch(key("a"), start_revision=first, on_batch=fail, on_lost=fail_again)
    store_under_test.wait_until(lambda: len(shown) == 2, "both bugs to be shown")
    other.wait_for_revision(store.put(key("a"), b"2"))
    assert [str(each.exc_value) for each in shown] == ["a bug 0", "another bug"]
    assert [str(error) for error in lost] == ["a callback of the watch raised ValueError('a bug 0')"]
    assert (len(other.batches), other.losses) == (2, [])


def test_a_closed_client_is_told_nothing_and_refuses_every_call(store_under_test: StoreUnderTest, key: Key) -> None:
    store = store_under_test.new_client()
    first = store.put(key("a"), b"1")
    watched = store_under_test.watch(store, key("a"), start_revision=first)
    watched.wait_for_revision(first)
    store.close()
    store.close()  # a second time is no matter
    store_under_test.settle()
    assert (len(watched.batches), watched.losses) == (1, [])
    watched.watch.cancel()
    for call in (
        lambda: store.get(key("a")),
        lambda: store.put(key("a"), b"2"),
        lambda: store.lease_grant(10),
        lambda: store.watch(key("a"), start_revision=1, on_batch=ignore, on_lost=ignore),
    ):
        with pytest.raises(StoreError):
            call()


# Compaction


def test_a_watch_from_before_a_compaction_is_lost_with_its_revision(store_under_test: StoreUnderTest, key: Key) -> None:
    store = store_under_test.new_client()
    first = store.put(key("a"), b"1")
    for number in (2, 3, 4):
        store.put(key("a"), b"%d" % number)
    store_under_test.compact(first + 2)
    for start_revision in (first, first + 1):
        gone = store_under_test.watch(store, key("a"), start_revision=start_revision)
        error = gone.wait_for_loss()
        assert isinstance(error, Compacted)
        assert error.revision == first + 2
        readable = store_under_test.watch(store, key("a"), start_revision=error.revision)
        told = [batch.revision for batch in readable.wait_for_revision(first + 3)]
        assert told == [first + 2, first + 3]
    last = store.put(key("a"), b"5")
    readable.wait_for_revision(last)
    assert (gone.batches, len(gone.losses), readable.losses) == ([], 1, [])


def test_a_running_watch_and_the_keys_survive_a_compaction(store_under_test: StoreUnderTest, key: Key) -> None:
    store = store_under_test.new_client()
    first = store.put(key("a"), b"1")
    watched = store_under_test.watch(store, key(""), prefix=True, start_revision=first)
    second = store.put(key("b"), b"1")
    watched.wait_for_revision(second)
    store_under_test.compact(second)
    assert [item.mod_revision for item in store.get(key(""), prefix=True).items] == [first, second]
    last = store.put(key("a"), b"2")
    assert [batch.revision for batch in watched.wait_for_revision(last)] == [first, second, last]
    assert watched.losses == []


def test_a_watch_that_starts_before_the_first_revision_is_refused(store: Store, key: Key) -> None:
    for start_revision in (0, -1):
        with pytest.raises(StoreError):
            store.watch(key("a"), start_revision=start_revision, on_batch=ignore, on_lost=ignore)
