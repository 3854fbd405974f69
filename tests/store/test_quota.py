"""A store without space: what it refuses, in etcd's words, what goes on, and that its memory has a bound."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from rendezvous.errors import Compacted, OutcomeUnknown, StoreError
from rendezvous.stores import wire
from rendezvous.stores.contract import Compare, Put
from rendezvous.stores.etcd.store import EtcdStore
from rendezvous.stores.memory import keyspace as keyspace_module
from rendezvous.stores.memory.store import MemoryStore
from tests.store.served import serve
from tests.support.stores.etcd import EtcdServer
from tests.support.stores.raw_etcd import RawClient
from tests.support.waiting import wait_until

pytestmark = pytest.mark.server

QUOTA_BYTES = 1 << 20
NO_SPACE = ("RESOURCE_EXHAUSTED", "etcdserver: mvcc: database space exceeded")
VALUE = b"x" * 100_000


@pytest.fixture(params=["served", "3.4", "3.5"])
def full(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The endpoint of a store of one mebibyte."""
    if request.param == "served":
        with serve(quota_bytes=QUOTA_BYTES) as server:
            yield f"127.0.0.1:{server.port}"
    else:
        with EtcdServer(request.param, tmp_path, quota_bytes=QUOTA_BYTES) as etcd:
            yield etcd.endpoint


def test_a_full_store_refuses_to_grow_as_etcd_does_and_renews_and_deletes(full: str) -> None:
    store = EtcdStore([full], call_limit_s=10)
    lease = store.lease_grant(60)
    numbers = itertools.count()
    errors: list[StoreError] = []

    def is_refused() -> bool:
        number = next(numbers)
        try:
            store.put(f"a{number}", VALUE)
        except OutcomeUnknown as error:
            errors.append(error)  # the write that took the last space: etcd may have applied it
        except StoreError as error:
            errors.append(error)
            assert store.get(f"a{number}").first is None
            return True
        return False

    wait_until(is_refused, 30, "a refusal")
    hint = "delete unused keys; for etcd also compact, defragment, then `etcdctl alarm disarm`"
    assert {(str(error), error.hint) for error in errors} == {
        (f"the store at {full} has no space left in its database", hint)
    }
    with RawClient(full) as client:
        put = wire.PutRequest(b"b", VALUE)
        assert client.refusal(wire.PUT_KEY, put) == NO_SPACE
        assert client.refusal(wire.TXN, wire.TxnRequest((), (wire.RequestOp(request_put=put),))) == NO_SPACE
    assert store.lease_keep_alive(lease.id) == 60, "who holds a lease keeps it"
    assert store.get("a0").first is not None
    assert store.delete("a", prefix=True) >= 5
    store.close()


@pytest.fixture
def store() -> Iterator[EtcdStore]:
    with serve(quota_bytes=QUOTA_BYTES) as server:
        client = EtcdStore([f"127.0.0.1:{server.port}"], call_limit_s=20)
        yield client
        client.close()


def fill(store: EtcdStore, prefix: str, value: bytes) -> None:
    """Write keys with this value until the store has no space for another."""
    try:
        for number in itertools.count():
            store.put(f"{prefix}{number}", value)
    except StoreError as error:
        assert "has no space left in its database" in str(error)  # noqa: PT017 - some go well before


def test_who_is_in_goes_on_writing_what_makes_the_store_no_larger(store: EtcdStore) -> None:
    lease = store.lease_grant(60).id
    store.put("mine", b"1234", lease=lease)
    fill(store, "large/", VALUE)
    fill(store, "small/", b"")
    for _ in range(3):
        store.put("mine", b"5678", lease=lease)
    with pytest.raises(StoreError, match="no space"):
        store.put("mine", bytes(1000), lease=lease)
    with pytest.raises(StoreError, match="no space"):
        store.lease_grant(60)
    swapped = store.txn([Compare("mine", "version", "=", 4)], [Put("mine", b"90", lease)])
    assert swapped.succeeded
    item = store.get("mine").first
    assert item is not None
    assert item.value == b"90"


def test_deletions_make_room_at_once(store: EtcdStore) -> None:
    fill(store, "fill/", VALUE)
    assert store.delete("fill/", prefix=True) > 5
    store.put("new", VALUE)
    lease = store.lease_grant(60).id
    store.put("leased", VALUE[:50_000], lease=lease)
    store.lease_revoke(lease)
    for number in range(8):
        store.put(f"more/{number}", VALUE)


def test_what_is_counted_is_what_is_there() -> None:
    store = MemoryStore()
    lease = store.lease_grant(60).id
    empty = store.measure_size()
    store.put("a", bytes(100), lease=lease)
    store.put("a", bytes(300), lease=lease)
    store.put("b", bytes(50))
    assert store.measure_size() == empty + 352 + 2 * keyspace_module.ENTRY_BYTES
    store.delete("b")
    store.lease_revoke(lease)
    assert store.measure_size() == 0


def test_large_values_shorten_the_history(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyspace_module, "HISTORY_BYTES_MAX", 1_000_000)
    store = MemoryStore()
    first = store.put("a", b"")
    for _ in range(100):
        last = store.put("a", VALUE)
    lost: list[StoreError] = []
    told: list[int] = []
    store.watch("a", start_revision=first, on_batch=lambda _: None, on_lost=lost.append)
    store.watch("a", start_revision=last - 3, on_batch=lambda batch: told.append(batch.revision), on_lost=lost.append)
    while store.deliver():
        pass
    assert isinstance(lost[0], Compacted)
    assert told == [last - 3, last - 2, last - 1, last]
    keyspace = store._keyspace
    kept = [event.item for batch in keyspace._history for event in batch.events]
    assert keyspace._history_bytes == sum(keyspace_module.measure(item.key, item.value) for item in kept) <= 1_000_000
    store.put("a", bytes(1_100_000))  # alone it is more than there is room for
    assert len(keyspace._history) == 1
