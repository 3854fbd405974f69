"""Compaction of the memory store, which only drops its history by its length."""

from __future__ import annotations

from rendezvous.errors import Compacted, StoreError
from rendezvous.stores.memory.store import MemoryStore


def compact(store: MemoryStore, revision: int) -> None:
    """Drop the history before `revision`. Raises as etcd: Compacted if it is gone, StoreError for a future one."""
    keyspace = store._keyspace
    if revision > keyspace.revision:
        raise StoreError(f"cannot compact up to revision {revision}: the store is at {keyspace.revision}")
    if revision <= keyspace.compacted_revision:
        raise Compacted(keyspace.compacted_revision)
    keyspace.forget(revision)
