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
    TxnResult,
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


def test_an_absent_key_is_found_empty_at_the_current_revision(store: Store, key: Key) -> None:
    revision = store.put(key("other"), b"1")
    assert store.get(key("absent")) == GetResult(revision, ())
    assert store.get(key("absent")).first is None


def test_a_put_makes_one_revision_and_a_key_of_version_1(store: Store, key: Key) -> None:
    before = revision_of(store)
    revision = store.put(key("a"), b"1")
    assert revision == before + 1
    assert store.get(key("a")) == GetResult(revision, (KeyValue(key("a"), b"1", revision, revision, 1, 0),))


def test_a_second_put_keeps_the_create_revision_and_counts_the_version(store: Store, key: Key) -> None:
    created = store.put(key("a"), b"1")
    written = store.put(key("a"), b"1")
    assert written == created + 1, "writing the same value is a write"
    assert store.get(key("a")).first == KeyValue(key("a"), b"1", created, written, 2, 0)


def test_a_key_that_returns_after_its_deletion_begins_anew(store: Store, key: Key) -> None:
    store.put(key("a"), b"1")
    deleted = store.put(key("a"), b"2") + 1
    assert store.delete(key("a")) == 1
    assert revision_of(store) == deleted
    created = store.put(key("a"), b"3")
    assert store.get(key("a")).first == KeyValue(key("a"), b"3", created, created, 1, 0)


def test_deleting_nothing_makes_no_revision(store: Store, key: Key) -> None:
    before = store.put(key("other"), b"1")
    assert store.delete(key("a")) == 0
    assert store.delete(key("a"), prefix=True) == 0
    assert revision_of(store) == before


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


def test_without_prefix_only_the_very_key_is_meant(store: Store, key: Key) -> None:
    for name in ("a", "a\0", "a/", "aa"):
        store.put(key(name), b"1")
    assert [item.key for item in store.get(key("a")).items] == [key("a")]
    assert store.delete(key("a")) == 1
    assert [item.key for item in store.get(key("a"), prefix=True).items] == [key("a\0"), key("a/"), key("aa")]


def test_an_empty_prefix_is_every_key(store: Store, key: Key) -> None:
    for name in ("a", "\U0001f600"):
        store.put(key(name), b"1")
    items = store.get("", prefix=True).items
    assert [item.key for item in items if item.key.startswith(key(""))] == [key("a"), key("\U0001f600")]


def test_a_prefix_is_deleted_in_one_revision_and_counted(store: Store, key: Key) -> None:
    for name in ("p/1", "p/2", "p/3"):
        store.put(key(name), b"1")
    kept = store.put(key("q"), b"1")
    assert store.delete(key("p/"), prefix=True) == 3
    assert revision_of(store) == kept + 1
    assert [item.key for item in store.get(key(""), prefix=True).items] == [key("q")]


# Compares


@pytest.mark.parametrize("relation", ["=", "!=", "<", ">"])
@pytest.mark.parametrize("target", ["create", "mod", "version"])
def test_revisions_and_versions_compare_as_numbers(store: Store, key: Key, target: str, relation: str) -> None:
    created = store.put(key("a"), b"1")
    written = store.put(key("a"), b"2")
    actual = {"create": created, "mod": written, "version": 2}[target]
    for operand in (actual - 1, actual, actual + 1, 10 * actual):
        expected = {"=": actual == operand, "!=": actual != operand, "<": actual < operand, ">": actual > operand}
        compare = Compare(key("a"), target, relation, operand)  # type: ignore[arg-type]
        assert store.txn([compare], []).succeeded is expected[relation], compare


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


@pytest.mark.parametrize("target", ["create", "mod", "version"])
def test_an_absent_key_compares_as_0(store: Store, key: Key, target: str) -> None:
    store.put(key("a"), b"1")
    store.delete(key("a"))
    for name in ("a", "never"):
        for relation, operand, expected in (("=", 0, True), ("!=", 0, False), ("<", 1, True), (">", 0, False)):
            compare = Compare(key(name), target, relation, operand)  # type: ignore[arg-type]
            assert store.txn([compare], []).succeeded is expected, compare


@pytest.mark.parametrize("relation", ["=", "!=", "<", ">"])
def test_an_absent_key_fails_every_comparison_of_its_value(store: Store, key: Key, relation: str) -> None:
    for operand in (b"", b"1"):
        compare = Compare(key("never"), "value", relation, operand)  # type: ignore[arg-type]
        assert not store.txn([compare], []).succeeded


def test_a_compare_with_the_wrong_kind_of_operand_is_refused(store: Store, key: Key) -> None:
    for compare in (Compare(key("a"), "value", "=", 0), Compare(key("a"), "mod", "=", b"0")):
        with pytest.raises(StoreError):
            store.txn([compare], [])


# Transactions


def test_the_success_branch_runs_if_every_compare_holds_else_the_other(store: Store, key: Key) -> None:
    first = store.put(key("a"), b"1")
    holds, fails = Compare(key("a"), "mod", "=", first), Compare(key("b"), "create", ">", 0)
    success, failure = [Put(key("won"), b"1")], [Put(key("lost"), b"1")]
    assert store.txn([holds, fails], success, failure) == TxnResult(False, first + 1, ())
    assert store.txn([holds], success, failure) == TxnResult(True, first + 2, ())
    assert store.txn([], success) == TxnResult(True, first + 3, ()), "no compare is no objection"
    lost, won = store.get(key("lost")).first, store.get(key("won")).first
    assert lost is not None
    assert won is not None
    assert (lost.version, won.version) == (1, 2)


def test_a_transaction_that_changes_nothing_makes_no_revision(store: Store, key: Key) -> None:
    before = store.put(key("a"), b"1")
    assert store.txn([], []).revision == before
    assert store.txn([], [Get(key("a"))]).revision == before
    assert store.txn([], [Delete(key("b")), Delete(key("c"), prefix=True)]).revision == before
    assert store.txn([Compare(key("a"), "mod", "=", 0)], [Put(key("a"), b"2")]).revision == before
    assert revision_of(store) == before


def test_all_writes_of_a_transaction_share_one_revision(store: Store, key: Key) -> None:
    for name in ("c", "d/1", "d/2"):
        before = store.put(key(name), b"1")
    result = store.txn([], [Put(key("a"), b"1"), Put(key("b"), b"1"), Delete(key("d/"), prefix=True), Delete(key("c"))])
    assert result.revision == before + 1
    assert [(item.key, item.mod_revision) for item in store.get(key(""), prefix=True).items] == [
        (key("a"), before + 1),
        (key("b"), before + 1),
    ]


def test_a_read_inside_a_transaction_sees_what_came_before_it_in_there(store: Store, key: Key) -> None:
    before = store.put(key("a"), b"old")
    read = Get(key(""), prefix=True)
    writes = [Put(key("a"), b"new"), Put(key("b"), b"1")]
    result = store.txn([], [read, Delete(key("absent")), read, *writes, read, Get(key("c"))])
    old = KeyValue(key("a"), b"old", before, before, 1, 0)
    new = KeyValue(key("a"), b"new", before, before + 1, 2, 0)
    b = KeyValue(key("b"), b"1", before + 1, before + 1, 1, 0)
    assert result.found == (
        GetResult(before, (old,)),
        GetResult(before, (old,)),
        GetResult(before + 1, (new, b)),
        GetResult(before + 1, ()),
    )


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


def test_a_key_may_be_deleted_twice_and_written_in_both_branches(store: Store, key: Key) -> None:
    store.put(key("k"), b"0")
    before = store.put(key("k/1"), b"0")
    twice = [Delete(key("k/1")), Delete(key("k"), prefix=True), Delete(key("k"))]
    assert store.txn([], twice, [Put(key("k"), b"1")]) == TxnResult(True, before + 1, ())
    assert store.get(key(""), prefix=True).items == ()


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


def test_of_16_that_create_a_key_one_wins_and_the_others_see_its_value(
    store_under_test: StoreUnderTest, key: Key
) -> None:
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
    each = 25
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
