"""What people read when the store does not answer, word for word, and whether anything may have been written."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rendezvous.errors import LeaseNotFound, StoreError
from rendezvous.stores import wire
from rendezvous.stores.etcd.client import LOG_INS_MAX, EtcdClient, EtcdSession
from rendezvous.stores.etcd.errors import CallFailed, ErrorKind, EtcdError, classify

CONNECT = "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: "


UNAVAILABLE, INVALID, EXHAUSTED = "UNAVAILABLE", "INVALID_ARGUMENT", "RESOURCE_EXHAUSTED"
TIMED_OUT = "etcdserver: request timed out"
DENIED_WATCH = "rpc error: code = PermissionDenied desc = etcdserver: permission denied"
STATUSES = {
    ErrorKind.ELSEWHERE: [
        (UNAVAILABLE, CONNECT + "Failed to connect to remote host: Connection refused", "refused"),
        (UNAVAILABLE, "errors resolving x:1: [field:hostname ...]", "its name is not known"),
        (UNAVAILABLE, CONNECT + "connection attempt timed out before receiving SETTINGS frame", "does not answer"),
        (UNAVAILABLE, CONNECT + "something new", "closes every connection immediately"),
        (UNAVAILABLE, "etcdserver: no leader", "has no leader"),
        (EXHAUSTED, "etcdserver: too many requests", "is overloaded"),
    ],
    ErrorKind.UNKNOWN: [
        (UNAVAILABLE, "Socket closed", "broke off before it answered: Socket closed"),
        (UNAVAILABLE, "recvmsg:Connection refused", "broke off before it answered"),
        (UNAVAILABLE, "etcdserver: leader changed", "broke off"),
        (UNAVAILABLE, TIMED_OUT, "no majority of its cluster"),
        (UNAVAILABLE, TIMED_OUT + ", possibly due to connection lost", "no majority"),
        ("DEADLINE_EXCEEDED", "Deadline Exceeded", "did not answer within 1.5 s"),
        ("CANCELLED", "Channel closed!", "broke off"),
        ("INTERNAL", "Received RST_STREAM with error code 2", "broke off"),
        ("UNKNOWN", "", "broke off before it answered: UNKNOWN"),
    ],
    ErrorKind.FULL: [(EXHAUSTED, "etcdserver: mvcc: database space exceeded", "no space left")],
    ErrorKind.REFUSED: [
        (EXHAUSTED, "grpc: received message larger than max", "a request of this size"),
        (INVALID, "etcdserver: request is too large", "a request of this size"),
        (INVALID, "etcdserver: duplicate key given in txn request", "refused a request: dup"),
        ("PERMISSION_DENIED", "etcdserver: permission denied", "denies this user"),
        ("", DENIED_WATCH, "denies this user"),
        ("NOT_FOUND", "etcdserver: requested lease not found", "does not know the lease"),
        ("UNIMPLEMENTED", "unknown service etcdserverpb.KV", "is not etcd, or older than its version 3"),
        ("UNIMPLEMENTED", "Received http2 header with status: 404", "is a web server, not etcd"),
    ],
    ErrorKind.NO_USERS: [("FAILED_PRECONDITION", "etcdserver: authentication is not enabled", "has no users")],
    ErrorKind.LOG_IN: [
        (INVALID, "etcdserver: user name is empty", "wants a user and a password"),
        (INVALID, "etcdserver: revision of auth store is old", "does not accept the token"),
        ("UNAUTHENTICATED", "etcdserver: invalid auth token", "does not accept the token"),
        ("UNAUTHENTICATED", "who are you", "wants a user and a password (who are you)"),
    ],
}


@pytest.mark.parametrize(
    ("kind", "code", "text", "phrase"), [(kind, *row) for kind, rows in STATUSES.items() for row in rows]
)
def test_a_status_is_read_as_what_it_proves_and_no_more(kind: ErrorKind, code: str, text: str, phrase: str) -> None:
    refusal = classify(code, text, 1.5)
    assert refusal.kind is kind
    assert phrase in refusal.phrase


def test_a_lease_that_is_gone_and_a_permission_that_lacks_are_marked() -> None:
    assert classify("NOT_FOUND", "etcdserver: requested lease not found", 1).error is LeaseNotFound
    denied = classify("PERMISSION_DENIED", "etcdserver: permission denied", 1)
    assert (denied.error, denied.is_permission) == (StoreError, True)


class Forgetful:
    """An endpoint whose tokens have expired by the time they come back, so many times."""

    def __init__(self, refusals: int, refusal: EtcdError) -> None:
        self.address, self.heard_at = "h:1", 0.0
        self.refusals = refusals
        self.refusal = refusal
        self.log_ins = 0

    def begin(self, *_: Any) -> Any:
        self.log_ins += 1
        return SimpleNamespace(done=lambda: True, cancel=lambda: None)

    def finish(self, *_: Any) -> wire.AuthenticateResponse:
        return wire.AuthenticateResponse(token=f"token {self.log_ins}")

    def call(self, *_: Any, **__: Any) -> wire.RangeResponse:
        self.refusals -= 1
        if self.refusals >= 0:
            raise CallFailed(self.refusal)
        return wire.RangeResponse()


EXPIRED = classify("UNAUTHENTICATED", "etcdserver: invalid auth token", 1.5)
DENIED = classify("PERMISSION_DENIED", "etcdserver: permission denied", 1.5)


@pytest.mark.parametrize(("refusal", "most"), [(EXPIRED, LOG_INS_MAX), (DENIED, 1)])
def test_a_new_token_that_has_expired_too_is_requested_a_few_times_more(refusal: EtcdError, most: int) -> None:
    def asked(refusals: int) -> int:
        endpoint: Any = Forgetful(refusals, refusal)
        endpoints: Any = SimpleNamespace(iterate=lambda: (endpoint,))
        calls = EtcdClient(endpoints, EtcdSession("ann", "secret", 10), 10, 10)
        calls.on_silent = lambda _: None
        calls.call(wire.RANGE, wire.RangeRequest(b"a"), about="the key a", effect="read")
        return int(endpoint.log_ins)

    assert asked(most) == most + 1
    with pytest.raises(StoreError):
        asked(most + 1)
