"""How etcd says no: a gRPC status code and a sentence, which clients compare letter by letter."""

from __future__ import annotations

from rendezvous.errors import Compacted, LeaseExists, LeaseNotFound, StoreError
from rendezvous.values import NamedTuple


class Refusal(NamedTuple):
    """`code` is the name of a gRPC status code."""

    code: str
    words: str


class Refused(Exception):
    """The question has no other answer than this refusal."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.words)
        self.refusal = refusal


EMPTY_KEY = Refusal("INVALID_ARGUMENT", "etcdserver: key is not provided")
KEY_NOT_FOUND = Refusal("INVALID_ARGUMENT", "etcdserver: key not found")
VALUE_PROVIDED = Refusal("INVALID_ARGUMENT", "etcdserver: value is provided")
LEASE_PROVIDED = Refusal("INVALID_ARGUMENT", "etcdserver: lease is provided")
TOO_MANY_OPERATIONS = Refusal("INVALID_ARGUMENT", "etcdserver: too many operations in txn request")
KEY_TWICE = Refusal("INVALID_ARGUMENT", "etcdserver: duplicate key given in txn request")
BAD_SORT = Refusal("INVALID_ARGUMENT", "etcdserver: invalid sort option")
TOO_LARGE = Refusal("INVALID_ARGUMENT", "etcdserver: request is too large")
COMPACTED = Refusal("OUT_OF_RANGE", "etcdserver: mvcc: required revision has been compacted")
TO_COME = Refusal("OUT_OF_RANGE", "etcdserver: mvcc: required revision is a future revision")
LEASE_NOT_FOUND = Refusal("NOT_FOUND", "etcdserver: requested lease not found")
LEASE_EXISTS = Refusal("FAILED_PRECONDITION", "etcdserver: lease already exists")
TTL_TOO_LARGE = Refusal("OUT_OF_RANGE", "etcdserver: too large lease TTL")
AUTH_FAILED = Refusal("INVALID_ARGUMENT", "etcdserver: authentication failed, invalid user ID or password")
AUTH_NOT_ENABLED = Refusal("FAILED_PRECONDITION", "etcdserver: authentication is not enabled")
USER_EMPTY = Refusal("INVALID_ARGUMENT", "etcdserver: user name is empty")
BAD_TOKEN = Refusal("UNAUTHENTICATED", "etcdserver: invalid auth token")
NO_SPACE = Refusal("RESOURCE_EXHAUSTED", "etcdserver: mvcc: database space exceeded")
STOPPED = Refusal("UNAVAILABLE", "etcdserver: server stopped")

# etcd takes these; here nobody has needed them.
NOT_TEXT = Refusal("INVALID_ARGUMENT", "meshrun: a key in the served store is UTF-8 text")
NO_INNER_TXN = Refusal("INVALID_ARGUMENT", "meshrun: the served store takes no transaction within a transaction")
TOO_SLOW = Refusal("UNAVAILABLE", "meshrun: the watch did not take its events in time; watch on from the last one")


def refusal_of(error: StoreError) -> Refusal:
    """The memory store's errors in etcd's words."""
    if isinstance(error, LeaseNotFound):
        return LEASE_NOT_FOUND
    if isinstance(error, LeaseExists):
        return LEASE_EXISTS
    return COMPACTED if isinstance(error, Compacted) else Refusal("UNAVAILABLE", f"meshrun: {error}")
