"""Leases: what they hold, how long, and what goes with them."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from rendezvous.errors import LeaseExists, LeaseNotFound
from rendezvous.stores.contract import Compare, Put, Renewal, Store
from tests.store.under_test import StoreUnderTest, words

Key = Callable[[str], str]

UNKNOWN_LEASE = 987_654_321_987


def is_there(store: Store, key: str) -> bool:
    return store.get(key).first is not None


def test_a_lease_is_granted_for_at_least_the_time_asked(store: Store) -> None:
    for asked_s in (0.1, 1, 2, 2.5, 10):
        assert store.lease_grant(asked_s).ttl_s >= asked_s


def test_every_lease_has_an_id_of_its_own_that_is_not_0(store: Store) -> None:
    leases = [store.lease_grant(10).id for _ in range(10)]
    assert len({0, *leases}) == 11


def test_a_lease_has_the_id_that_was_chosen_and_is_granted_once(store: Store, key: Key) -> None:
    id = random.SystemRandom().getrandbits(62) + 2**62
    assert store.lease_grant(10, id=id).id == id
    store.put(key("a"), b"1", lease=id)
    with pytest.raises(LeaseExists):
        store.lease_grant(20, id=id)
    assert is_there(store, key("a")), "the first lease is as it was"
    assert store.lease_keep_alive(id) == 10
    store.lease_revoke(id)
    store.lease_grant(10, id=id)
    assert not is_there(store, key("a"))
    store.lease_revoke(id)


def test_a_renewal_tells_of_a_key_what_a_majority_knows(store: Store, key: Key) -> None:
    lease = store.lease_grant(10).id
    revision = store.put(key("a"), b"1", lease=lease)
    assert store.lease_renew(lease, key("a")) == Renewal(10.0, True, revision, revision)
    assert store.lease_renew(lease, key("b")) == Renewal(10.0, True, revision, 0)
    store.put(key("a"), b"2", lease=lease)
    assert store.lease_renew(lease, key("a")).create_revision == revision
    deleted = store.get(key("a")).revision + 1
    store.delete(key("a"))
    assert store.lease_renew(lease, key("a")) == Renewal(10.0, True, deleted, 0)
    store.lease_revoke(lease)
    with pytest.raises(LeaseNotFound):
        store.lease_renew(lease, key("a"))


def test_a_lease_makes_no_revision_until_its_keys_go(store: Store, key: Key) -> None:
    before = store.put(key("a"), b"1")
    lease = store.lease_grant(10)
    store.lease_keep_alive(lease.id)
    store.lease_revoke(lease.id)
    assert store.get(key("a")).revision == before


def test_a_key_shows_its_lease_and_stays_exactly_as_long_as_it(store_under_test: StoreUnderTest, key: Key) -> None:
    store = store_under_test.new_client()
    lease = store.lease_grant(3)
    store.put(key("a"), b"1", lease=lease.id)
    held = store.get(key("a")).first
    assert held is not None
    assert held.lease == lease.id
    store_under_test.advance(lease.ttl_s - store_under_test.margin_s)
    assert is_there(store, key("a")), "a lease never ends early"
    store_under_test.advance(store_under_test.margin_s)
    store_under_test.wait_until(lambda: not is_there(store, key("a")), "the key to go with its lease")


def test_keep_alive_renews_in_full_and_gives_the_granted_time(store_under_test: StoreUnderTest, key: Key) -> None:
    store = store_under_test.new_client()
    lease = store.lease_grant(2)
    store.put(key("a"), b"1", lease=lease.id)
    for _ in range(3):
        store_under_test.advance(lease.ttl_s - store_under_test.margin_s)
        assert store.lease_keep_alive(lease.id) == lease.ttl_s
    store_under_test.advance(lease.ttl_s - store_under_test.margin_s)
    assert is_there(store, key("a"))
    store_under_test.advance(store_under_test.margin_s)
    store_under_test.wait_until(lambda: not is_there(store, key("a")), "the key to go with its lease")


def test_a_lease_that_has_expired_is_not_found(store_under_test: StoreUnderTest, key: Key) -> None:
    store = store_under_test.new_client()
    lease = store.lease_grant(2)
    store.put(key("a"), b"1", lease=lease.id)
    store_under_test.advance(lease.ttl_s)
    store_under_test.wait_until(lambda: not is_there(store, key("a")), "the key to go with its lease")
    with pytest.raises(LeaseNotFound):
        store.lease_keep_alive(lease.id)
    with pytest.raises(LeaseNotFound):
        store.lease_revoke(lease.id)
    with pytest.raises(LeaseNotFound):
        store.put(key("a"), b"2", lease=lease.id)
    assert not is_there(store, key("a"))


def test_a_revoked_lease_is_not_found(store: Store, key: Key) -> None:
    lease = store.lease_grant(10).id
    store.lease_revoke(lease)
    with pytest.raises(LeaseNotFound):
        store.lease_keep_alive(lease)
    with pytest.raises(LeaseNotFound):
        store.lease_revoke(lease)
    with pytest.raises(LeaseNotFound):
        store.put(key("a"), b"1", lease=lease)


def test_an_unknown_lease_stops_a_whole_transaction(store: Store, key: Key) -> None:
    before = store.put(key("a"), b"1")
    with pytest.raises(LeaseNotFound):
        store.txn([], [Put(key("a"), b"2"), Put(key("b"), b"1", UNKNOWN_LEASE)])
    assert store.get(key(""), prefix=True).revision == before
    assert not is_there(store, key("b"))


def test_an_unknown_lease_in_the_branch_that_does_not_run_is_no_matter(store: Store, key: Key) -> None:
    absent = Compare(key("a"), "create", "=", 0)
    assert store.txn([absent], [Put(key("a"), b"1")], [Put(key("b"), b"1", UNKNOWN_LEASE)]).succeeded


def test_all_keys_of_a_revoked_lease_go_in_one_revision_in_byte_order(
    store_under_test: StoreUnderTest, key: Key
) -> None:
    store = store_under_test.new_client()
    lease = store.lease_grant(10).id
    for name in ("c", "a", "b"):
        store.put(key(name), b"1", lease=lease)
    before = store.put(key("z"), b"1")
    watched = store_under_test.watch(store, key(""), prefix=True, start_revision=before + 1)
    store.lease_revoke(lease)
    assert [item.key for item in store.get(key(""), prefix=True).items] == [key("z")]
    (batch,) = watched.wait_for_revision(before + 1)
    assert batch.revision == before + 1
    assert words(batch.events) == [f"delete {key(name)}" for name in "abc"]


def test_all_keys_of_an_expired_lease_go_in_one_revision(store_under_test: StoreUnderTest, key: Key) -> None:
    store = store_under_test.new_client()
    lease = store.lease_grant(2)
    before = store.txn([], [Put(key("b"), b"1", lease.id), Put(key("a"), b"1", lease.id)]).revision
    watched = store_under_test.watch(store, key(""), prefix=True, start_revision=before + 1)
    store_under_test.advance(lease.ttl_s)
    (batch,) = watched.wait_for_revision(before + 1)
    assert batch.revision == before + 1
    assert words(batch.events) == [f"delete {key('a')}", f"delete {key('b')}"]


def test_two_leases_that_end_together_make_a_revision_each(store_under_test: StoreUnderTest, key: Key) -> None:
    store = store_under_test.new_client()
    for name in ("b", "a"):
        lease = store.lease_grant(2)
        before = store.put(key(name), b"1", lease=lease.id)
    watched = store_under_test.watch(store, key(""), prefix=True, start_revision=before + 1)
    store_under_test.advance(lease.ttl_s)
    batches = watched.wait_for_revision(before + 2)
    assert [batch.revision for batch in batches] == [before + 1, before + 2]
    assert sorted(words([*batches[0].events, *batches[1].events])) == [f"delete {key('a')}", f"delete {key('b')}"]


def test_a_put_under_another_lease_moves_the_key_to_it(store: Store, key: Key) -> None:
    first, second = store.lease_grant(10).id, store.lease_grant(10).id
    store.put(key("a"), b"1", lease=first)
    store.put(key("a"), b"2", lease=second)
    store.lease_revoke(first)
    assert is_there(store, key("a"))
    store.lease_revoke(second)
    assert not is_there(store, key("a"))


def test_a_put_under_the_same_lease_keeps_the_key_with_it(store: Store, key: Key) -> None:
    lease = store.lease_grant(10).id
    store.put(key("a"), b"1", lease=lease)
    store.put(key("a"), b"2", lease=lease)
    store.lease_revoke(lease)
    assert not is_there(store, key("a"))


def test_a_put_without_a_lease_frees_the_key_of_its_lease(store: Store, key: Key) -> None:
    lease = store.lease_grant(10).id
    store.put(key("a"), b"1", lease=lease)
    revision = store.put(key("a"), b"2")
    store.lease_revoke(lease)
    found = store.get(key("a"))
    assert found.revision == revision, "a lease without keys goes without a revision"
    assert found.items[0].lease == 0


def test_a_deleted_key_that_returns_is_no_longer_its_former_lease_s(store: Store, key: Key) -> None:
    lease = store.lease_grant(10).id
    store.put(key("a"), b"1", lease=lease)
    store.delete(key("a"))
    store.put(key("a"), b"2")
    store.lease_revoke(lease)
    assert is_there(store, key("a"))
