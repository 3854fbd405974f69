"""The memory store's leases: which exist, when each is due, and which keys belong to it.

Due times are in a heap, so checking whether anything is due costs nothing, however many members there are. A renewal
leaves the heap alone: its entry is then too early, and is corrected when it comes up.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator

from rendezvous.errors import LeaseExists, LeaseNotFound, StoreError

LEASE_TTL_MIN_S = 2.0  # what etcd grants at least with its default elections
LEASE_ID_MAX = 2**63 - 1


class StoredLease:
    """A lease and its keys."""

    __slots__ = ("deadline", "id", "keys", "ttl_s")

    def __init__(self, lease_id: int, ttl_s: float, deadline: float) -> None:
        self.id = lease_id
        self.ttl_s = ttl_s
        self.deadline = deadline
        self.keys: set[str] = set()


class LeaseTable:
    """All leases of one store. The caller holds the store's lock and passes the time."""

    def __init__(self, first_id: int) -> None:
        self._leases: dict[int, StoredLease] = {}
        self._next_id = first_id
        self._due: list[tuple[float, int]] = []  # a heap: one entry per lease that can expire, not after its deadline

    def __len__(self) -> int:
        return len(self._leases)

    def __iter__(self) -> Iterator[StoredLease]:
        return iter(self._leases.values())

    @property
    def nothing_due_before(self) -> float:
        """A time at or before every deadline."""
        return self._due[0][0] if self._due else math.inf

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
        if lease.deadline < math.inf:
            heapq.heappush(self._due, (lease.deadline, lease_id))
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

    def renew_all(self, now: float) -> None:
        """Restart the TTL of every lease, even if it is due."""
        for lease in self._leases.values():
            lease.deadline = now + lease.ttl_s

    def remove(self, lease: StoredLease) -> None:
        del self._leases[lease.id]

    def find_next_deadline(self) -> float:
        """Return when the first lease is due; infinity if none ever is."""
        while self._due:
            deadline, lease_id = self._due[0]
            lease = self._leases.get(lease_id)
            if lease is not None and lease.deadline == deadline:
                return deadline
            if lease is None:
                heapq.heappop(self._due)
            else:
                heapq.heapreplace(self._due, (lease.deadline, lease_id))
        return math.inf

    def list_due(self, now: float) -> list[StoredLease]:
        """List the leases due by now, oldest deadline first. They are no longer in the heap: remove them."""
        due: dict[int, StoredLease] = {}  # a lease that was granted again under its id may be in the heap twice
        while self.find_next_deadline() <= now:
            lease_id = heapq.heappop(self._due)[1]
            due[lease_id] = self._leases[lease_id]
        return list(due.values())
