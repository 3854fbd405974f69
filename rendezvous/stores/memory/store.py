"""A store in this process: for a run on one machine, for the simulation, and for the served store.

It behaves as etcd does, down to what etcd refuses, so that a protocol that works here works there. Its content is in
keyspace.py, the watches in watch.py; here are the calls of a client.

Nothing happens by itself: its owner calls `expire`, which ends leases that are due by the clock, and `deliver`, which
runs the callbacks of watches.

Deliberately absent: persistence, reads of old revisions, access control. The store is lost with its process.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from rendezvous.errors import Compacted, StoreError
from rendezvous.stores.contract import (
    Batch,
    Compares,
    Delete,
    GetResult,
    Lease,
    OnBatch,
    OnLost,
    Operations,
    Put,
    Renewal,
    Store,
    TxnResult,
    Watch,
    check_key,
    check_request,
    check_watch,
    is_covered,
)
from rendezvous.stores.memory.keyspace import ENTRY_BYTES, Keyspace, LeaseTable, StoredLease
from rendezvous.stores.memory.watch import MemoryWatch, WatchHub


class MemoryStore(Store):
    """A `Store` in this process, for one thread.

    `clock` returns seconds that never run backwards; leases and revisions are numbered from `first_lease` and
    `first_revision` on: a store that others reach over the network must not reuse the numbers of the one before it. At
    `quota_bytes` it refuses to grow (StoreFull).
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        first_lease: int = 1,
        first_revision: int = 1,
        quota_bytes: float = math.inf,
    ) -> None:
        self._clock = clock
        self._leases = LeaseTable(first_lease)
        self._keyspace = Keyspace(self._leases, first_revision, quota_bytes)
        self._hub = WatchHub()
        self._is_closed = False

    # Keys

    def get(self, key: str, *, prefix: bool = False) -> GetResult:
        check_key(key, prefix)
        self._require_open()
        return self._keyspace.read(key, prefix)

    def put(self, key: str, value: bytes, *, lease: int = 0) -> int:
        return self.txn((), (Put(key, value, lease),)).revision

    def delete(self, key: str, *, prefix: bool = False) -> int:
        _, _, (deleted,) = self.apply((), (Delete(key, prefix),))
        assert isinstance(deleted, int)
        return deleted

    def txn(self, compares: Compares, success: Operations, failure: Operations = ()) -> TxnResult:
        succeeded, revision, results = self.apply(compares, success, failure)
        return TxnResult(succeeded, revision, tuple(result for result in results if isinstance(result, GetResult)))

    def apply(
        self, compares: Compares, success: Operations, failure: Operations = ()
    ) -> tuple[bool, int, tuple[GetResult | int, ...]]:
        """As `txn`, but the last value has an entry for every operation: of a write, how many keys it concerned."""
        check_request(compares, success, failure)
        self._require_open()
        succeeded = all(self._keyspace.holds(compare) for compare in compares)
        branch = success if succeeded else failure
        self._keyspace.check(branch)  # everything, before anything is written
        results = tuple(self._keyspace.apply(operation) for operation in branch)
        self._close_batch()
        return succeeded, self._keyspace.revision, results

    @property
    def revision(self) -> int:
        """The revision of the last write."""
        return self._keyspace.revision

    def measure_size(self) -> int:
        """Return the approximate size of the keys and their values, in bytes."""
        return self._keyspace.measure_size()

    # Leases

    def lease_grant(self, ttl_s: float, *, id: int = 0) -> Lease:
        """Grant a lease of at least `ttl_s` seconds, and at least 2. A private store may grant `math.inf`: no end."""
        self._require_open()
        self._keyspace.check_growth(ENTRY_BYTES)
        lease = self._leases.grant(ttl_s, self._clock(), id)
        return Lease(lease.id, lease.ttl_s)

    def lease_keep_alive(self, lease: int) -> float:
        """Renew the lease; return the granted TTL in seconds. Raises LeaseNotFound when it is gone or due."""
        self._require_open()
        return self._leases.renew(lease, self._clock()).ttl_s

    def lease_renew(self, lease: int, key: str) -> Renewal:
        ttl_s, found = self.lease_keep_alive(lease), self.get(key)
        return Renewal(ttl_s, True, found.revision, found.first.create_revision if found.first else 0)

    def lease_revoke(self, lease: int) -> None:
        self._require_open()
        self._end_lease(self._leases.get(lease))

    def lease_remaining(self, lease: int) -> float:
        return self.describe_lease(lease)[0]

    def describe_lease(self, lease: int) -> tuple[float, float, tuple[str, ...]]:
        """Return the remaining and the granted seconds of a lease, and its keys. Raises LeaseNotFound if it is gone."""
        self._require_open()
        found = self._leases.get(lease)
        return max(0.0, found.deadline - self._clock()), found.ttl_s, tuple(sorted(found.keys))

    def list_leases(self) -> list[int]:
        """List the ids of the leases that have not ended."""
        self._require_open()
        return sorted(lease.id for lease in self._leases)

    # Watches

    def watch(
        self, key: str, *, prefix: bool = False, start_revision: int, on_batch: OnBatch, on_lost: OnLost
    ) -> Watch:
        """Watch as the contract says, but callbacks run in `deliver`; they may use the store freely."""
        check_watch(key, prefix, start_revision)
        watch = MemoryWatch(self._hub, (key, prefix), start_revision, on_batch, on_lost)
        self._require_open()
        if start_revision < self._keyspace.compacted_revision:
            self._hub.notify(watch, Compacted(self._keyspace.compacted_revision))
        else:
            self._hub.add(watch)
            for batch in self._keyspace.list_batches_from(start_revision):
                events = tuple(event for event in batch.events if is_covered(event.item.key, key, prefix))
                if events:
                    self._hub.notify(watch, Batch(batch.revision, events))
        return watch

    def close(self) -> None:
        """Cancel the watches."""
        self._is_closed = True
        watches = self._hub.clear()
        for watch in watches:
            watch.cancel()

    # Time, for the owner of the clock

    def find_next_deadline(self) -> float:
        """Return when, by the store's clock, the next lease is due; infinity if none ever is."""
        return min((lease.deadline for lease in self._leases), default=math.inf)

    def expire(self) -> int:
        """End each lease that is due by the clock, oldest deadline first, in its own revision; return how many."""
        due = self._leases.list_due(self._clock())
        for lease in due:
            self._end_lease(lease)
        return len(due)

    def renew_leases(self) -> None:
        """Restart the TTL of all leases: a store that was frozen cannot know which clients tried to renew."""
        for lease in self._leases:
            lease.deadline = self._clock() + lease.ttl_s

    def deliver(self) -> int:
        """Run the callbacks that are pending now, in this thread; return how many ran.

        Callbacks that they cause wait for the next call. An exception of a callback is raised; the rest stay pending.
        """
        return self._hub.deliver()

    def _require_open(self) -> None:
        """Raise StoreError if the store is closed."""
        if self._is_closed:
            raise StoreError("the store is closed")

    def _close_batch(self) -> None:
        batch = self._keyspace.close_batch()
        if batch is not None:
            self._hub.announce(batch)

    def _end_lease(self, lease: StoredLease) -> None:
        for key in sorted(lease.keys):
            self._keyspace.delete(key)
        self._close_batch()
        self._leases.remove(lease)
