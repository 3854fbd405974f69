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


@pytest.mark.parametrize(
    ("code", "text", "kind", "phrase"),
    [
        (
            "UNAVAILABLE",
            CONNECT + "Failed to connect to remote host: Connection refused",
            ErrorKind.ELSEWHERE,
            "refused",
        ),
        ("UNAVAILABLE", "errors resolving x:1: [field:hostname ...]", ErrorKind.ELSEWHERE, "its name is not known"),
        (
            "UNAVAILABLE",
            CONNECT + "connection attempt timed out before receiving SETTINGS frame",
            ErrorKind.ELSEWHERE,
            "not",
        ),
        ("UNAVAILABLE", CONNECT + "something new", ErrorKind.ELSEWHERE, "closes every connection at once"),
        ("UNAVAILABLE", "Socket closed", ErrorKind.UNKNOWN, "broke off before its answer came: Socket closed"),
        ("UNAVAILABLE", "recvmsg:Connection refused", ErrorKind.UNKNOWN, "broke off before its answer came"),
        ("UNAVAILABLE", "etcdserver: no leader", ErrorKind.ELSEWHERE, "has no leader"),
        ("UNAVAILABLE", "etcdserver: leader changed", ErrorKind.UNKNOWN, "broke off"),
        ("UNAVAILABLE", "etcdserver: request timed out", ErrorKind.UNKNOWN, "no majority of its cluster"),
        (
            "UNAVAILABLE",
            "etcdserver: request timed out, possibly due to connection lost",
            ErrorKind.UNKNOWN,
            "no majority",
        ),
        ("DEADLINE_EXCEEDED", "Deadline Exceeded", ErrorKind.UNKNOWN, "did not answer within 1.5 s"),
        ("CANCELLED", "Channel closed!", ErrorKind.UNKNOWN, "broke off"),
        ("INTERNAL", "Received RST_STREAM with error code 2", ErrorKind.UNKNOWN, "broke off"),
        ("UNKNOWN", "", ErrorKind.UNKNOWN, "broke off before its answer came: UNKNOWN"),
        ("RESOURCE_EXHAUSTED", "etcdserver: mvcc: database space exceeded", ErrorKind.FULL, "no space left"),
        ("RESOURCE_EXHAUSTED", "etcdserver: too many requests", ErrorKind.ELSEWHERE, "too much to do"),
        ("RESOURCE_EXHAUSTED", "grpc: received message larger than max", ErrorKind.REFUSED, "a request of this size"),
        ("INVALID_ARGUMENT", "etcdserver: request is too large", ErrorKind.REFUSED, "a request of this size"),
        (
            "INVALID_ARGUMENT",
            "etcdserver: duplicate key given in txn request",
            ErrorKind.REFUSED,
            "refused a request: dup",
        ),
        ("INVALID_ARGUMENT", "etcdserver: user name is empty", ErrorKind.LOG_IN, "wants a user and a password"),
        (
            "INVALID_ARGUMENT",
            "etcdserver: revision of auth store is old",
            ErrorKind.LOG_IN,
            "does not accept the token",
        ),
        ("UNAUTHENTICATED", "etcdserver: invalid auth token", ErrorKind.LOG_IN, "does not accept the token"),
        ("UNAUTHENTICATED", "who are you", ErrorKind.LOG_IN, "wants a user and a password (who are you)"),
        ("PERMISSION_DENIED", "etcdserver: permission denied", ErrorKind.REFUSED, "denies this user"),
        (
            "",
            "rpc error: code = PermissionDenied desc = etcdserver: permission denied",
            ErrorKind.REFUSED,
            "denies this user",
        ),
        ("NOT_FOUND", "etcdserver: requested lease not found", ErrorKind.REFUSED, "does not know the lease"),
        (
            "UNIMPLEMENTED",
            "unknown service etcdserverpb.KV",
            ErrorKind.REFUSED,
            "is not etcd, or older than its version 3",
        ),
        (
            "UNIMPLEMENTED",
            "Received http2 header with status: 404",
            ErrorKind.REFUSED,
            "is not etcd: it answers as a web",
        ),
    ],
)
def test_a_status_is_read_as_what_it_proves_and_no_more(code: str, text: str, kind: ErrorKind, phrase: str) -> None:
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
        calls = EtcdClient(endpoints, EtcdSession("ann", "secret", 10), 10, 10, lambda _: None)
        calls.call(wire.RANGE, wire.RangeRequest(b"a"), about="the key a", effect="read")
        return int(endpoint.log_ins)

    assert asked(most) == most + 1
    with pytest.raises(StoreError):
        asked(most + 1)
