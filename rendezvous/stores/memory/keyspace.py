"""The memory store's content: its keys, the leases that hold some of them, and the history of changes.

Keys are kept sorted. The history is a log of batches, one for each revision; old ones are dropped, and a reader that
asks for one gets Compacted. The caller passes the time, and checks before its first write: an open revision cannot be
rolled back.
"""

from __future__ import annotations

import bisect
import itertools
import math
import operator
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from msgspec import Struct, field

from rendezvous.errors import LeaseExists, LeaseNotFound, StoreError, StoreFull
from rendezvous.stores.contract import Batch, Compare, Delete, GetResult, KeyEvent, KeyValue, Operation, Put

_RELATIONS: dict[str, Callable[[Any, Any], bool]]
_RELATIONS = {"=": operator.eq, "!=": operator.ne, "<": operator.lt, ">": operator.gt}
ENTRY_BYTES = 256
"""What a key or a lease counts beyond its text, as in etcd; about the size of its Python objects."""
HISTORY_REVISIONS = 10_000  # how far a reader may fall behind: minutes of a large job, some 10 MB of its small records
HISTORY_BYTES_MAX = 32 * 1024 * 1024  # large values shorten the history; those of a large job need a third of it
LEASE_TTL_MIN_S = 2.0  # what etcd grants at least with its default elections
LEASE_ID_MAX = 2**63 - 1


def measure(key: str, value: bytes) -> int:
    """Return the size that a key and its value count, in bytes."""
    return len(key) + len(value) + ENTRY_BYTES


class StoredLease(Struct):
    """A lease and its keys."""

    id: int
    ttl_s: float
    deadline: float
    keys: set[str] = field(default_factory=set)


class LeaseTable:
    """All leases of one store."""

    def __init__(self, first_id: int) -> None:
        self._leases: dict[int, StoredLease] = {}
        self._next_id = first_id

    def __len__(self) -> int:
        return len(self._leases)

    def __iter__(self) -> Iterator[StoredLease]:
        return iter(self._leases.values())

    def grant(self, ttl_s: float, now: float, lease_id: int = 0) -> StoredLease:
        """Grant a lease, under `lease_id` if not 0. Raises LeaseExists for one in use, StoreError for a bad one."""
        if math.isnan(ttl_s):
            raise StoreError("a lease needs a time in seconds, not nan")
        if lease_id in self._leases:
            raise LeaseExists(f"lease {lease_id} exists already")
        if not 0 <= lease_id <= LEASE_ID_MAX:
            raise StoreError(f"a lease has a number between 1 and {LEASE_ID_MAX}, not {lease_id}")
        while not lease_id:
            lease_id = self._next_id if self._next_id not in self._leases else 0
            self._next_id = self._next_id % LEASE_ID_MAX + 1
        ttl_s = max(float(ttl_s), LEASE_TTL_MIN_S)
        lease = self._leases[lease_id] = StoredLease(lease_id, ttl_s, now + ttl_s)
        return lease

    def get(self, lease_id: int) -> StoredLease:
        """Return the lease. Raises LeaseNotFound."""
        lease = self._leases.get(lease_id)
        if lease is None:
            raise LeaseNotFound(f"lease {lease_id} has expired or was revoked")
        return lease

    def renew(self, lease_id: int, now: float) -> StoredLease:
        """Restart its TTL. Raises LeaseNotFound when it is gone or due."""
        lease = self.get(lease_id)
        if lease.deadline <= now:  # its end may already be in progress: as in etcd, it cannot be undone
            raise LeaseNotFound(f"lease {lease_id} has expired")
        lease.deadline = now + lease.ttl_s
        return lease

    def remove(self, lease: StoredLease) -> None:
        del self._leases[lease.id]

    def list_due(self, now: float) -> list[StoredLease]:
        """List the leases due by now, oldest deadline first."""
        return sorted((lease for lease in self if lease.deadline <= now), key=lambda lease: (lease.deadline, lease.id))


class Keyspace:
    """Keys, their values, and the last HISTORY_REVISIONS batches of changes to them. `quota_bytes`: see `check`."""

    def __init__(self, leases: LeaseTable, first_revision: int, quota_bytes: float) -> None:
        self.revision = first_revision  # of the last batch; the first one is empty
        self.compacted_revision = 0 if first_revision == 1 else first_revision  # a watch may start here, not before
        self.leases = leases
        self._quota_bytes = quota_bytes
        self._keys: list[str] = []  # sorted, which sorts them by their UTF-8 bytes, too
        self._items: dict[str, KeyValue] = {}
        self._history: deque[Batch] = deque()  # one batch per revision, the last one's is self.revision
        self._open_events: list[KeyEvent] = []  # of the revision being written
        self._item_bytes = 0
        self._history_bytes = 0

    def measure_size(self) -> int:
        """Return the size of the keys, their values and the leases, in bytes. The history has its own limit."""
        return self._item_bytes + ENTRY_BYTES * len(self.leases)

    @property
    def reading_revision(self) -> int:
        """The revision that a read sees: that of the open batch, once it has an event."""
        return self.revision + bool(self._open_events)

    def read(self, key: str, prefix: bool) -> GetResult:
        return GetResult(self.reading_revision, tuple(self._items[name] for name in self._list_keys(key, prefix)))

    def _list_keys(self, key: str, prefix: bool) -> list[str]:
        if not prefix:
            return [key] if key in self._items else []
        first = bisect.bisect_left(self._keys, key)
        end = bisect.bisect_left(self._keys, True, first, key=lambda name: not name.startswith(key))
        return self._keys[first:end]

    def holds(self, compare: Compare) -> bool:
        item = self._items.get(compare.key)
        if compare.target == "value":
            return item is not None and _RELATIONS[compare.relation](item.value, compare.operand)
        actual = 0
        if item is not None:
            actual = item.version if compare.target == "version" else getattr(item, compare.target + "_revision")
        return _RELATIONS[compare.relation](actual, compare.operand)

    # Writes. All of a revision's are checked first, then applied, then closed.

    def check(self, operations: Sequence[Operation]) -> None:
        """Raise LeaseNotFound for a lease that is gone, StoreFull if they would grow a store that is at its quota.

        At the quota all else is allowed, so that members can continue.
        """
        growth = 0
        for operation in operations:
            if isinstance(operation, Put):
                if operation.lease:
                    self.leases.get(operation.lease)
                growth += measure(operation.key, operation.value)
            if isinstance(operation, (Put, Delete)):
                keys = self._list_keys(operation.key, isinstance(operation, Delete) and operation.prefix)
                growth -= sum(measure(key, self._items[key].value) for key in keys)
        self.check_growth(growth)

    def check_growth(self, growth: int) -> None:
        if growth > 0 and self.measure_size() + growth > self._quota_bytes:
            raise StoreFull(f"the store has no space left: {self.measure_size()} of {self._quota_bytes} bytes are used")

    def apply(self, operation: Operation) -> GetResult | int:
        """Apply an operation in the open revision; return what it read, or how many keys it wrote or deleted."""
        if isinstance(operation, Put):
            self._put(operation)
            return 1
        if isinstance(operation, Delete):
            return self.delete(operation.key, operation.prefix)
        return self.read(operation.key, operation.prefix)

    def _put(self, put: Put) -> None:
        key, value, lease = put.key, put.value, put.lease
        revision = self.revision + 1
        old = self._items.get(key)
        if old is None:
            bisect.insort(self._keys, key)
            item = KeyValue(key, value, revision, revision, 1, lease)
        else:
            self._detach(old)
            item = KeyValue(key, value, old.create_revision, revision, old.version + 1, lease)
        if lease:
            self.leases.get(lease).keys.add(key)
        self._items[key] = item
        self._item_bytes += measure(key, value)
        self._open_events.append(KeyEvent("put", item))

    def delete(self, key: str, prefix: bool = False) -> int:
        """Delete in the open revision; return how many keys were deleted."""
        names = self._list_keys(key, prefix)
        for name in names:
            self._detach(self._items.pop(name))
            self._open_events.append(KeyEvent("delete", KeyValue(name, b"", 0, self.revision + 1, 0, 0)))
        if names:
            first = bisect.bisect_left(self._keys, names[0])
            del self._keys[first : first + len(names)]
        return len(names)

    def _detach(self, item: KeyValue) -> None:
        self._item_bytes -= measure(item.key, item.value)
        if item.lease:
            self.leases.get(item.lease).keys.discard(item.key)

    def close_batch(self) -> Batch | None:
        """Close the open revision and return its batch; None if it has no event."""
        if not self._open_events:
            return None
        self.revision += 1
        batch = Batch(self.revision, tuple(self._open_events))
        self._open_events.clear()
        self._history.append(batch)
        self._history_bytes += _measure_batch(batch)
        while len(self._history) > 1 and (
            len(self._history) > HISTORY_REVISIONS or self._history_bytes > HISTORY_BYTES_MAX
        ):
            self.forget(self._history[1].revision)
        return batch

    def list_batches_from(self, revision: int) -> Iterator[Batch]:
        oldest = self.revision - len(self._history) + 1
        return itertools.islice(self._history, max(0, revision - oldest), None)

    def forget(self, revision: int) -> None:
        """Drop the history before `revision`."""
        while self._history and self._history[0].revision < revision:
            self._history_bytes -= _measure_batch(self._history.popleft())
        self.compacted_revision = revision


def _measure_batch(batch: Batch) -> int:
    return sum(measure(event.item.key, event.item.value) for event in batch.events)
