"""Keys, revisions, ranges and transactions, as any store must have them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import pytest
from msgspec.structs import replace

from rendezvous.errors import StoreError
from rendezvous.stores.contract import (
    REQUEST_BYTES_MAX,
    TXN_OPERATIONS_MAX,
    Compare,
    Delete,
    Get,
    GetResult,
    KeyValue,
    Operation,
    Put,
    Store,
)
from tests.store.under_test import StoreUnderTest

Key = Callable[[str], str]

RACERS = 16


def revision_of(store: Store) -> int:
    return store.get("any key").revision


def together(work: Callable[[int], None]) -> None:
    """Run `work(0)` ... `work(15)` in as many threads, all starting at once; what one raises fails the test."""
    start = threading.Barrier(RACERS)
    errors: list[BaseException] = []

    def run(index: int) -> None:
        try:
            start.wait(10)
            work(index)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(RACERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert errors == []


# One key


@pytest.mark.parametrize("value", [b"", b"\0", b"\0\xff\xfe", bytes(range(256)), "grüße".encode(), b"\n" * 3])
def test_any_bytes_are_a_value_and_come_back_unchanged(store: Store, key: Key, value: bytes) -> None:
    store.put(key("a"), value)
    found = store.get(key("a")).first
    assert found is not None
    assert found.value == value


def test_a_key_that_is_empty_or_not_text_is_refused(store: Store) -> None:
    before = revision_of(store)
    for name in ("", "a\ud800"):
        for call in (
            lambda name=name: store.get(name),
            lambda name=name: store.put(name, b"1"),
            lambda name=name: store.delete(name),
            lambda name=name: store.txn([Compare(name, "mod", "=", 0)], []),
            lambda name=name: store.txn([], [Get(name)]),
        ):
            with pytest.raises(StoreError):
                call()
    assert revision_of(store) == before


# Ranges


def test_a_prefix_finds_the_keys_that_start_with_it_in_byte_order(store: Store, key: Key) -> None:
    inside = ["p", "p/", "p/1", "p/10", "p/2", "pa", "p\x7f", "p\u00e9", "p\ud7ff", "p\uffff", "p\U0001f600"]
    outside = ["o", "o\U0010ffff", "q", "q/1", "P"]
    for name in [*reversed(inside), *outside]:
        store.put(key(name), name.encode())
    found = store.get(key("p"), prefix=True).items
    assert [item.key for item in found] == sorted((key(name) for name in inside), key=str.encode)
    assert [item.value for item in found] == sorted(name.encode() for name in inside)


@pytest.mark.parametrize("last", ["\x7f", "\u00ff", "\ud7ff", "\uffff", "\U0010ffff", "\U0010ffff\U0010ffff"])
def test_a_prefix_ends_rightly_after_any_last_character(store: Store, key: Key, last: str) -> None:
    for name in ("a", "a" + last, "a" + last + "z", "a" + last + last, "b", "b" + last):
        store.put(key(name), b"1")
    found = store.get(key("a" + last), prefix=True).items
    assert [item.key for item in found] == sorted([key("a" + last), key("a" + last + "z"), key("a" + last + last)])


# Compares


@pytest.mark.parametrize("relation", ["=", "!=", "<", ">"])
def test_values_compare_as_bytes(store: Store, key: Key, relation: str) -> None:
    store.put(key("a"), b"b\x80")
    for operand in (b"", b"a\xff\xff", b"b", b"b\x7f", b"b\x80", b"b\x80\0", b"b\xff", b"c"):
        expected = {
            "=": operand == b"b\x80",
            "!=": operand != b"b\x80",
            "<": operand > b"b\x80",
            ">": operand < b"b\x80",
        }
        compare = Compare(key("a"), "value", relation, operand)  # type: ignore[arg-type]
        assert store.txn([compare], []).succeeded is expected[relation], compare


def test_a_compare_with_the_wrong_kind_of_operand_is_refused(store: Store, key: Key) -> None:
    for compare in (Compare(key("a"), "value", "=", 0), Compare(key("a"), "mod", "=", b"0")):
        with pytest.raises(StoreError):
            store.txn([compare], [])


# Transactions


@pytest.mark.parametrize(
    "operations",
    [
        [Put("k", b"1"), Put("k", b"2")],
        [Put("k", b"1"), Delete("k")],
        [Delete("k"), Put("k", b"1")],
        [Put("k/1", b"1"), Delete("k", prefix=True)],
        [Delete("", prefix=True), Put("k", b"1")],
    ],
)
def test_a_key_that_a_branch_writes_twice_is_refused(store: Store, key: Key, operations: Sequence[Operation]) -> None:
    before = store.put(key("k"), b"0")
    named = [replace(operation, key=key(operation.key)) for operation in operations]
    for success, failure in ((named, []), ([], named)):
        with pytest.raises(StoreError):
            store.txn([], success, failure)
    assert store.get(key(""), prefix=True) == GetResult(before, (KeyValue(key("k"), b"0", before, before, 1, 0),))


# Limits


def test_128_operations_or_compares_fit_into_a_transaction_and_129_do_not(store: Store, key: Key) -> None:
    compares = [Compare(key(f"c{index}"), "create", "=", 0) for index in range(TXN_OPERATIONS_MAX + 1)]
    puts = [Put(key(f"p{index}"), b"1") for index in range(TXN_OPERATIONS_MAX + 1)]
    revision = store.txn(compares[1:], puts[1:], puts[1:]).revision
    with pytest.raises(StoreError):
        store.txn(compares, [])
    with pytest.raises(StoreError):
        store.txn([], puts)
    with pytest.raises(StoreError):
        store.txn([], [], puts)
    found = store.get(key("p"), prefix=True)
    assert found.revision == revision
    assert len(found.items) == TXN_OPERATIONS_MAX


def test_a_request_of_one_and_a_half_mebibytes_is_the_most(store: Store, key: Key) -> None:
    envelope = 4096  # more than the key and what any encoding adds
    store.put(key("a"), b"x" * (REQUEST_BYTES_MAX - envelope))
    half = b"x" * (REQUEST_BYTES_MAX // 2)
    before = revision_of(store)
    with pytest.raises(StoreError):
        store.put(key("b"), b"x" * REQUEST_BYTES_MAX)
    with pytest.raises(StoreError):
        store.txn([], [Put(key("b"), half), Put(key("c"), half)])
    with pytest.raises(StoreError):
        store.txn([Compare(key("a"), "value", "=", half)], [Put(key("b"), half)])
    assert revision_of(store) == before


# Races


def test_of_16_that_create_a_key_one_wins_and_others_see_its_value(store_under_test: StoreUnderTest, key: Key) -> None:
    clients = [store_under_test.new_client() for _ in range(RACERS)]
    won: list[int] = []
    seen: list[bytes] = []

    def create(index: int) -> None:
        absent = Compare(key("leader"), "create", "=", 0)
        result = clients[index].txn([absent], [Put(key("leader"), b"%d" % index)], [Get(key("leader"))])
        if result.succeeded:
            won.append(index)
        else:
            seen.append(result.found[0].items[0].value)

    together(create)
    assert len(won) == 1
    assert seen == [b"%d" % won[0]] * (RACERS - 1)


def test_16_that_count_by_compare_and_swap_lose_no_count(store_under_test: StoreUnderTest, key: Key) -> None:
    clients = [store_under_test.new_client() for _ in range(RACERS)]
    each = 5
    first = clients[0].put(key("count"), b"0")

    def count(index: int) -> None:
        store, done = clients[index], 0
        while done < each:
            held = store.get(key("count")).items[0]
            unchanged = Compare(key("count"), "mod", "=", held.mod_revision)
            done += store.txn([unchanged], [Put(key("count"), b"%d" % (int(held.value) + 1))]).succeeded

    together(count)
    final = clients[0].get(key("count")).items[0]
    assert final.value == b"%d" % (RACERS * each)
    assert final.version == RACERS * each + 1
    assert final.mod_revision == first + RACERS * each


def test_an_empty_prefix_is_every_key(store: Store, key: Key) -> None:
    store.put(key("a"), b"1")
    assert key("a") in [item.key for item in store.get("", prefix=True).items]
