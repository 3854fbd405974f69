"""A client of etcd v3, or of a server with its protocol, as the served store is.

It implements the contract in `rendezvous/stores/contract.py` over gRPC: this file translates, `client.py` calls,
`watch.py` watches. Every call ends within its limit, whatever the servers do.

A lease is renewed by a stream of its own each time: one request, one response, a deadline. So no response can be taken
for another's, and no stuck stream delays the next renewal; a stream over HTTP/2 costs as little as a call.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from rendezvous.errors import LeaseNotFound, StoreError
from rendezvous.stores import wire
from rendezvous.stores.contract import (
    Compare,
    Compares,
    Delete,
    Get,
    GetResult,
    Lease,
    OnBatch,
    OnLost,
    Operation,
    Operations,
    Put,
    Renewal,
    Store,
    TxnResult,
    Watch,
    check_key,
    check_request,
    check_watch,
)
from rendezvous.stores.etcd.client import Endpoints, EtcdClient, EtcdSession, Tls, last_call
from rendezvous.stores.etcd.watch import EtcdWatch, WatchLoop, decode_item

__all__ = ["EtcdStore", "Tls"]

OLDEST_VERSION = (3, 4)
# The first release of each line whose leader confirms with a majority that it still leads before it renews leases or
# ends them (etcd's change logs: pull requests 17465 and 17425); later lines have always had it.
_LEASES_FIXED = {(3, 4): 31, (3, 5): 13}
CLOSE_LIMIT_S = 3.0  # for a thread whose stream is cancelled: milliseconds, unless a callback hangs


class EtcdStore(Store):
    """A `Store` in etcd; any number of threads may share one. The constructor contacts no server.

    `endpoints` are "HOST:PORT", the members of one cluster. `call_limit_s`: the longest a call may take;
    `write_limit_s`: a write, else the same. `connect_limit_s`: the longest that `connect` and a log-in may take. Raises
    OSError for files that cannot be read.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        user: str = "",
        password: str = "",
        tls: Tls | None = None,
        call_limit_s: float = 1.0,
        write_limit_s: float | None = None,
        connect_limit_s: float = 3.0,
    ) -> None:
        self._endpoints = Endpoints(endpoints, tls)
        session = EtcdSession(user, password, connect_limit_s)
        write_limit_s = call_limit_s if write_limit_s is None else write_limit_s
        self._client = EtcdClient(self._endpoints, session, call_limit_s, write_limit_s)
        self._watch_loop = WatchLoop(self._client)
        self._client.on_silent = self._watch_loop.abandon
        self._connect_limit_s = connect_limit_s

    def connect(self) -> str:
        """Contact an endpoint and log in; return the server's version. Raises StoreError with the cause of a failure.

        This is optional, since calls connect by themselves. It is for the start, when a mistake costs little.
        """
        status = self._read_first_status()
        if parse_version(status.version)[:2] < OLDEST_VERSION:
            oldest = ".".join(map(str, OLDEST_VERSION))
            at = self._endpoints.current.address
            raise StoreError(f"the store at {at} is etcd {status.version}, too old: {oldest} is needed")
        return status.version

    @staticmethod
    def may_end_leases_early(version: str) -> bool:
        """Return whether a leader of this version that was replaced while its disk hung ends leases that were renewed.

        A version that is not known, "", does not.
        """
        major, minor, patch = parse_version(version)
        return patch < _LEASES_FIXED.get((major, minor), 0)

    def _read_first_status(self) -> wire.StatusResponse:
        """Read the status of the first endpoint that answers. Each has its share of the time."""
        count = len(self._endpoints.all)

        def read_status() -> wire.StatusResponse:
            limit_s = self._connect_limit_s / count
            return self._client.call(wire.STATUS, wire.Empty(), "", "read", limit_s=limit_s)

        for _ in range(count - 1):
            with suppress(StoreError):
                return read_status()
        return read_status()

    # Keys

    def get(self, key: str, *, prefix: bool = False) -> GetResult:
        check_key(key, prefix)
        request = wire.RangeRequest(*wire.encode_range(key, prefix))
        return _decode_range(self._client.call(wire.RANGE, request, _describe([key], prefix), "read"))

    def put(self, key: str, value: bytes, *, lease: int = 0) -> int:
        check_request((), (Put(key, value, lease),), ())
        request = wire.PutRequest(key.encode(), value, lease)
        return self._client.call(wire.PUT_KEY, request, _describe([key])).header.revision

    def delete(self, key: str, *, prefix: bool = False) -> int:
        check_key(key, prefix)
        request = wire.DeleteRangeRequest(*wire.encode_range(key, prefix))
        return self._client.call(wire.DELETE_RANGE, request, _describe([key], prefix)).deleted

    def txn(self, compares: Compares, success: Operations, failure: Operations = ()) -> TxnResult:
        check_request(compares, success, failure)
        branches = [tuple(map(_encode_operation, branch)) for branch in (success, failure)]
        request = wire.TxnRequest(tuple(map(_encode_compare, compares)), *branches)
        keys = dict.fromkeys(item.key for items in (compares, success, failure) for item in items)
        is_read = all(isinstance(operation, Get) for branch in (success, failure) for operation in branch)
        response = self._client.call(wire.TXN, request, _describe(list(keys)), "read" if is_read else "write")
        found = [_decode_range(item.response_range) for item in response.responses if item.response_range is not None]
        return TxnResult(response.succeeded, response.header.revision, tuple(found))

    # Leases

    def lease_grant(self, ttl_s: float, *, id: int = 0) -> Lease:
        """Grant a lease of whole seconds, at least `ttl_s`. Raises LeaseExists for an `id` in use."""
        if not math.isfinite(ttl_s):
            raise StoreError(f"a lease needs a time in seconds, not {ttl_s}")
        request = wire.LeaseGrantRequest(max(1, math.ceil(ttl_s)), id)
        response = self._client.call(wire.LEASE_GRANT, request, "a new lease")
        return Lease(response.id, float(response.ttl))

    def lease_keep_alive(self, lease: int) -> float:
        return float(self._keep_alive(lease).ttl)

    def lease_renew(self, lease: int, key: str) -> Renewal:
        """Renew the lease, then read `key` with a majority.

        Renewals do not pass through Raft: a leader whose disk hangs answers them after it has been replaced. The read
        needs the leader, and a majority's confirmation that it leads. A response has the term of what its server had
        applied last: of a renewal before it was passed on to the leader, of a read once it was served. If both have the
        same term, one leader led from before the renewal until after it, and the lease is what that leader says.
        """
        check_key(key)
        renewal = self._keep_alive(lease)
        request = wire.RangeRequest(key.encode(), keys_only=True)
        range_response = self._client.call(wire.RANGE, request, _describe([key]), "read")
        is_confirmed = renewal.header.raft_term == range_response.header.raft_term
        if not is_confirmed:
            self._endpoints.switch_from(self._endpoints.current)  # a server that lags behind may do so for long
        create_revision = range_response.kvs[0].create_revision if range_response.kvs else 0
        return Renewal(float(renewal.ttl), is_confirmed, range_response.header.revision, create_revision)

    def _keep_alive(self, lease: int) -> wire.LeaseTtl:
        response = self._client.call(wire.LEASE_KEEP_ALIVE, wire.LeaseId(lease), f"lease {lease}", "renewal")
        if response.ttl <= 0:
            raise LeaseNotFound(f"lease {lease} has expired or was revoked")
        return response

    def measure_last(self) -> float | None:
        return time.monotonic() - getattr(last_call, "sent_at", 0.0)

    def lease_revoke(self, lease: int) -> None:
        self._client.call(wire.LEASE_REVOKE, wire.LeaseId(lease), f"lease {lease}")

    def lease_remaining(self, lease: int) -> float:
        response = self._client.call(
            wire.LEASE_TIME_TO_LIVE, wire.LeaseTimeToLiveRequest(lease), f"lease {lease}", "read"
        )
        if response.ttl < 0:
            raise LeaseNotFound(f"lease {lease} has expired or was revoked")
        return float(response.ttl)

    # Watches

    def watch(
        self, key: str, *, prefix: bool = False, start_revision: int, on_batch: OnBatch, on_lost: OnLost
    ) -> Watch:
        """Watch on one thread for all watches. A store that cannot be reached does not end a watch: it continues later.

        `on_lost` is called with Compacted if the revision is gone, or when the user may not read there.
        """
        check_watch(key, prefix, start_revision)
        self._client.require_open()
        start, end = wire.encode_range(key, prefix)
        request = wire.WatchCreateRequest(start, end, start_revision, progress_notify=True)
        watch = EtcdWatch(_describe([key], prefix), request, on_batch, on_lost, self._watch_loop.remove)
        self._watch_loop.add(watch)
        return watch

    def close(self) -> None:
        """Cancel the watches and close the connections; a call in progress ends with an error.

        Waits up to CLOSE_LIMIT_S for running callbacks.
        """
        self._client.is_closed = True
        thread = self._watch_loop.close()
        self._endpoints.close()
        if thread is not None and thread is not threading.current_thread():
            thread.join(CLOSE_LIMIT_S)


def parse_version(version: str) -> tuple[int, ...]:
    """Return three numbers of "3.4.23" or "3.5.0-rc.1"; a part that is not a number is 0."""
    parts = [*version.partition("-")[0].split("."), "", "", ""][:3]
    return tuple(int(part) if part.isdigit() else 0 for part in parts)


def _describe(keys: Sequence[str], prefix: bool = False) -> str:
    """Describe the keys of a request. A transaction is refused as a whole, and etcd does not name the key."""
    if len(keys) == 1:
        return f"the {'keys below' if prefix else 'key'} {keys[0]!r}"
    return f"one of the keys {', '.join(map(repr, keys[:3]))}{', ...' if len(keys) > 3 else ''}"


def _encode_compare(compare: Compare) -> wire.WireCompare:
    result, target = wire.RELATIONS.index(compare.relation), wire.TARGETS.index(compare.target)
    operand: dict[str, Any] = {wire.OPERANDS[target]: compare.operand}
    return wire.WireCompare(result, target, compare.key.encode(), **operand)


def _encode_operation(operation: Operation) -> wire.RequestOp:
    match operation:
        case Put(key, value, lease):
            return wire.RequestOp(request_put=wire.PutRequest(key.encode(), value, lease))
        case Delete(key, prefix):
            return wire.RequestOp(request_delete_range=wire.DeleteRangeRequest(*wire.encode_range(key, prefix)))
        case Get(key, prefix):
            return wire.RequestOp(request_range=wire.RangeRequest(*wire.encode_range(key, prefix)))


def _decode_range(response: wire.RangeResponse) -> GetResult:
    return GetResult(response.header.revision, tuple(decode_item(item) for item in response.kvs))
