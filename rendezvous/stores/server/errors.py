"""etcd's errors: a gRPC status code and a message, which clients compare verbatim."""

from __future__ import annotations

from rendezvous.errors import Compacted, LeaseExists, LeaseNotFound, StoreError
from rendezvous.values import NamedTuple


class ServedError(NamedTuple):
    """`code` is the name of a gRPC status code."""

    code: str
    message: str


class ServedFailure(Exception):
    """The only response to the request is this error."""

    def __init__(self, error: ServedError) -> None:
        super().__init__(error.message)
        self.error = error


EMPTY_KEY = ServedError("INVALID_ARGUMENT", "etcdserver: key is not provided")
KEY_NOT_FOUND = ServedError("INVALID_ARGUMENT", "etcdserver: key not found")
VALUE_PROVIDED = ServedError("INVALID_ARGUMENT", "etcdserver: value is provided")
LEASE_PROVIDED = ServedError("INVALID_ARGUMENT", "etcdserver: lease is provided")
TOO_MANY_OPERATIONS = ServedError("INVALID_ARGUMENT", "etcdserver: too many operations in txn request")
KEY_TWICE = ServedError("INVALID_ARGUMENT", "etcdserver: duplicate key given in txn request")
BAD_SORT = ServedError("INVALID_ARGUMENT", "etcdserver: invalid sort option")
TOO_LARGE = ServedError("INVALID_ARGUMENT", "etcdserver: request is too large")
COMPACTED = ServedError("OUT_OF_RANGE", "etcdserver: mvcc: required revision has been compacted")
TO_COME = ServedError("OUT_OF_RANGE", "etcdserver: mvcc: required revision is a future revision")
LEASE_NOT_FOUND = ServedError("NOT_FOUND", "etcdserver: requested lease not found")
LEASE_EXISTS = ServedError("FAILED_PRECONDITION", "etcdserver: lease already exists")
TTL_TOO_LARGE = ServedError("OUT_OF_RANGE", "etcdserver: too large lease TTL")
AUTH_FAILED = ServedError("INVALID_ARGUMENT", "etcdserver: authentication failed, invalid user ID or password")
AUTH_NOT_ENABLED = ServedError("FAILED_PRECONDITION", "etcdserver: authentication is not enabled")
USER_EMPTY = ServedError("INVALID_ARGUMENT", "etcdserver: user name is empty")
BAD_TOKEN = ServedError("UNAUTHENTICATED", "etcdserver: invalid auth token")
NO_SPACE = ServedError("RESOURCE_EXHAUSTED", "etcdserver: mvcc: database space exceeded")
STOPPED = ServedError("UNAVAILABLE", "etcdserver: server stopped")

# etcd allows these; the served store does not.
NOT_TEXT = ServedError("INVALID_ARGUMENT", "meshrun: a key in the served store is UTF-8 text")
NO_INNER_TXN = ServedError("INVALID_ARGUMENT", "meshrun: the served store takes no transaction within a transaction")
TOO_SLOW = ServedError("UNAVAILABLE", "meshrun: the watch did not take its events in time; watch on from the last one")


def make_error(error: StoreError) -> ServedError:
    """Return the error of etcd for an error of the memory store."""
    if isinstance(error, LeaseNotFound):
        return LEASE_NOT_FOUND
    if isinstance(error, LeaseExists):
        return LEASE_EXISTS
    return COMPACTED if isinstance(error, Compacted) else ServedError("UNAVAILABLE", f"meshrun: {error}")
