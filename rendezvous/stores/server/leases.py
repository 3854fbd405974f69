"""etcd's Lease service on the memory store. TTLs are whole seconds."""

from __future__ import annotations

import math
from collections.abc import Callable

from rendezvous.errors import LeaseNotFound
from rendezvous.stores import wire
from rendezvous.stores.memory.keyspace import ENTRY_BYTES
from rendezvous.stores.memory.store import MemoryStore
from rendezvous.stores.server import errors
from rendezvous.stores.server.errors import ServedFailure

_TTL_MAX = 9_000_000_000  # etcd's


class LeaseService:
    """`header()` makes the header of a response; a store of `quota_bytes` grants no further lease."""

    def __init__(self, store: MemoryStore, header: Callable[[], wire.Header], quota_bytes: int) -> None:
        self._store = store
        self._quota_bytes = quota_bytes
        self._header = header

    def grant(self, request: wire.LeaseGrantRequest) -> wire.LeaseGrantResponse:
        if request.ttl > _TTL_MAX:
            raise ServedFailure(errors.TTL_TOO_LARGE)
        if self._exists(request.id):
            raise ServedFailure(errors.LEASE_EXISTS)
        if self._store.measure_size() + ENTRY_BYTES > self._quota_bytes:
            raise ServedFailure(errors.NO_SPACE)
        lease = self._store.lease_grant(request.ttl, id=request.id)
        return wire.LeaseGrantResponse(self._header(), lease.id, math.ceil(lease.ttl_s))

    def revoke(self, request: wire.LeaseRevokeRequest) -> wire.LeaseRevokeResponse:
        self._store.lease_revoke(request.id)
        return wire.LeaseRevokeResponse(self._header())

    def keep_alive(self, request: wire.LeaseKeepAliveRequest) -> wire.LeaseKeepAliveResponse:
        try:
            ttl_s = self._store.lease_keep_alive(request.id)
        except LeaseNotFound:
            ttl_s = 0
        return wire.LeaseKeepAliveResponse(self._header(), request.id, math.ceil(ttl_s))

    def time_to_live(self, request: wire.LeaseTimeToLiveRequest) -> wire.LeaseTimeToLiveResponse:
        try:
            remaining_s = self._store.lease_remaining(request.id)
            granted_s, keys = self._store.list_lease_keys(request.id)
        except LeaseNotFound:
            return wire.LeaseTimeToLiveResponse(self._header(), request.id, -1)
        listed = tuple(key.encode() for key in keys) if request.keys else ()
        return wire.LeaseTimeToLiveResponse(self._header(), request.id, int(remaining_s), math.ceil(granted_s), listed)

    def leases(self, request: wire.LeaseLeasesRequest) -> wire.LeaseLeasesResponse:
        return wire.LeaseLeasesResponse(self._header(), tuple(map(wire.LeaseStatus, self._store.list_leases())))

    def _exists(self, lease_id: int) -> bool:
        try:
            self._store.lease_remaining(lease_id)
        except LeaseNotFound:
            return False
        return True
