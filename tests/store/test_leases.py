"""Leases: what they hold, how long, and what goes with them."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from rendezvous.errors import LeaseExists, LeaseNotFound
from rendezvous.stores.contract import Put, Renewal, Store
from tests.store.under_test import StoreUnderTest, words

Key = Callable[[str], str]


def is_there(store: Store, key: str) -> bool:
    return store.get(key).first is not None


def test_a_lease_is_granted_for_at_least_the_time_asked(store: Store) -> None:
    for asked_s in (0.1, 1, 2, 2.5, 10):
        assert store.lease_grant(asked_s).ttl_s >= asked_s


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


def test_keys_stay_as_long_as_their_lease_and_go_in_one_revision(store_under_test: StoreUnderTest, key: Key) -> None:
    """One course of time for all of it: a real server takes as long as its leases do."""
    store, early_s = store_under_test.new_client(), store_under_test.margin_s
    renewed = store.lease_grant(2)
    store.put(key("r"), b"1", lease=renewed.id)
    for _ in range(3):
        store_under_test.advance(renewed.ttl_s - early_s)
        assert store.lease_keep_alive(renewed.id) == renewed.ttl_s
    one, other = store.lease_grant(2), store.lease_grant(2)
    store.txn([], [Put(key("b"), b"1", one.id), Put(key("a"), b"1", one.id)])
    before = store.put(key("c"), b"1", lease=other.id)
    assert [item.lease for item in store.get(key(""), prefix=True).items] == [one.id, one.id, other.id, renewed.id]
    watched = store_under_test.watch(store, key(""), prefix=True, start_revision=before + 1)
    store_under_test.advance(one.ttl_s - early_s)
    assert len(store.get(key(""), prefix=True).items) == 4, "a lease never ends early"
    store_under_test.advance(early_s)
    batches = watched.wait_for_revision(before + 3)
    assert [batch.revision for batch in batches] == [before + 1, before + 2, before + 3]
    gone = [[f"delete {key(name)}" for name in names] for names in ("ab", "c", "r")]
    assert sorted(words(batch.events) for batch in batches) == gone
    for use in (store.lease_keep_alive, store.lease_revoke, lambda lease: store.put(key("a"), b"2", lease=lease)):
        with pytest.raises(LeaseNotFound):
            use(one.id)
    assert store.get(key(""), prefix=True).items == ()
