"""The memory store's leases: which there are, when each is due, and which keys go with it.

Due times lie in a heap, so that looking whether anything is due costs nothing, however many members there are. A
renewal leaves the heap alone: the entry there is then too early, and is put right when its turn comes.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator

from rendezvous.errors import LeaseExists, LeaseNotFound, StoreError

LEASE_TTL_MIN_S = 2.0  # what etcd grants at least with its default elections
LEASE_ID_MAX = 2**63 - 1


class StoredLease:
    """A lease and the keys that go with it."""

    __slots__ = ("deadline", "id", "keys", "ttl_s")

    def __init__(self, id: int, ttl_s: float, deadline: float) -> None:
        self.id = id
        self.ttl_s = ttl_s
        self.deadline = deadline
        self.keys: set[str] = set()


class LeaseTable:
    """All leases of one store. The caller holds the store's lock and says what time it is."""

    def __init__(self, first_id: int) -> None:
        self._held: dict[int, StoredLease] = {}
        self._next_id = first_id
        self._due: list[tuple[float, int]] = []  # a heap: one entry per lease that can expire, never later than it will

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[StoredLease]:
        return iter(self._held.values())

    @property
    def nothing_due_before(self) -> float:
        """At or before every deadline."""
        return self._due[0][0] if self._due else math.inf

    def grant(self, ttl_s: float, now: float, id: int = 0) -> StoredLease:
        """A new lease, under `id` if that is not 0. Raises LeaseExists for one in use, StoreError for none at all."""
        if math.isnan(ttl_s):
            raise StoreError("a lease needs a time in seconds, not nan")
        if id in self._held:
            raise LeaseExists(f"lease {id} exists already")
        if not 0 <= id <= LEASE_ID_MAX:
            raise StoreError(f"a lease has a number between 1 and {LEASE_ID_MAX}, not {id}")
        while not id:
            id = self._next_id if self._next_id not in self._held else 0
            self._next_id = self._next_id % LEASE_ID_MAX + 1
        ttl_s = max(float(ttl_s), LEASE_TTL_MIN_S)
        lease = self._held[id] = StoredLease(id, ttl_s, now + ttl_s)
        if lease.deadline < math.inf:
            heapq.heappush(self._due, (lease.deadline, id))
        return lease

    def get(self, id: int) -> StoredLease:
        """Raises LeaseNotFound."""
        held = self._held.get(id)
        if held is None:
            raise LeaseNotFound(f"lease {id} has expired or was revoked")
        return held

    def renew(self, id: int, now: float) -> StoredLease:
        """Begin its time anew. Raises LeaseNotFound when it is gone or due to go."""
        held = self.get(id)
        if held.deadline <= now:  # its end may already have been acted on: as in etcd, it cannot be called back
            raise LeaseNotFound(f"lease {id} has expired")
        held.deadline = now + held.ttl_s
        return held

    def renew_all(self, now: float) -> None:
        """Begin every lease's time anew, also that of one that is due."""
        for lease in self._held.values():
            lease.deadline = now + lease.ttl_s

    def remove(self, lease: StoredLease) -> None:
        del self._held[lease.id]

    def find_next_deadline(self) -> float:
        """When the first lease is due; infinity if none ever is."""
        while self._due:
            deadline, id = self._due[0]
            held = self._held.get(id)
            if held is not None and held.deadline == deadline:
                return deadline
            if held is None:
                heapq.heappop(self._due)
            else:
                heapq.heapreplace(self._due, (held.deadline, id))
        return math.inf

    def list_due(self, now: float) -> list[StoredLease]:
        """Those due by now, oldest deadline first. They are not in the heap any more: remove them."""
        due: dict[int, StoredLease] = {}  # a lease that was granted again under its id may lie in the heap twice
        while self.find_next_deadline() <= now:
            id = heapq.heappop(self._due)[1]
            due[id] = self._held[id]
        return list(due.values())
