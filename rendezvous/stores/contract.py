"""What the agreement needs from a store: the part of etcd v3 that it uses, in etcd's terms.

One writing transaction makes one revision, shared by all events it causes; a transaction that changes nothing makes
none. An absent key has create and mod revision 0 and version 0, and fails every comparison of its value. The end of a
lease deletes all of its keys in one revision. A watch delivers every event from a revision on, in order, with all of
one revision in one batch.

Every call blocks for a bounded time and raises `StoreError` when nothing was written, `OutcomeUnknown` when that cannot
be known, `StoreReplaced` when another store answers than before. Any implementation passes the conformance suite in
tests/store.

Reads, transactions and renewals with their read are linearizable: the revision of a result is never below one that was
known when the request was made. So a lower one shows that the store has lost writes, as one restored from a snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol

from msgspec import Struct

from rendezvous.errors import StoreError

TXN_OPERATIONS_MAX = 128  # etcd's --max-txn-ops; compares are counted separately against the same number
REQUEST_BYTES_MAX = 1_572_864  # etcd's --max-request-bytes, 1.5 MiB
CALLBACK_LIMIT_S = 10.0  # how long the end of a watch waits for a callback that is running


class KeyValue(Struct, frozen=True):
    """One key as the store holds it. `version` counts its writes since it was created, from 1; `lease` 0 is none."""

    key: str
    value: bytes
    create_revision: int
    mod_revision: int
    version: int
    lease: int


class Compare(Struct, frozen=True):
    """One guard of a transaction: `target` of `key` stands in `relation` to `operand` (bytes for "value", else int)."""

    key: str
    target: Literal["create", "mod", "version", "value"]
    relation: Literal["=", "!=", "<", ">"]
    operand: int | bytes


class Put(Struct, frozen=True):
    key: str
    value: bytes
    lease: int = 0


class Delete(Struct, frozen=True):
    key: str
    prefix: bool = False


class Get(Struct, frozen=True):
    key: str
    prefix: bool = False


Operation = Put | Delete | Get
Compares = Sequence[Compare]
Operations = Sequence[Operation]


class GetResult(Struct, frozen=True):
    """The result of a read: the store's revision when it was served, and the keys in byte order."""

    revision: int
    items: tuple[KeyValue, ...]

    @property
    def first(self) -> KeyValue | None:
        return self.items[0] if self.items else None


class TxnResult(Struct, frozen=True):
    """The result of a transaction."""

    succeeded: bool
    """Whether every compare held."""
    revision: int
    """The store's after the transaction; keys written by it have it as their mod revision."""
    found: tuple[GetResult, ...]
    """One entry per Get of the branch that ran, in order."""


class Lease(Struct, frozen=True):
    """A granted lease; `ttl_s` is the TTL that the store granted, which may be more than was requested."""

    id: int
    ttl_s: float


class Renewal(Struct, frozen=True):
    """The result of a renewal, and of the read of a key after it."""

    ttl_s: float
    is_confirmed: bool
    """The server that renewed led the store until the key was read, so the lease lives for `ttl_s` from when the
    renewal was sent.
    """
    revision: int
    create_revision: int
    """That of the key, 0 if it was absent, as of `revision`."""


class KeyEvent(Struct, frozen=True):
    """One change. For a deletion `item` has only the key and the revision of the deletion as its mod revision."""

    kind: Literal["put", "delete"]
    item: KeyValue


class Batch(Struct, frozen=True):
    """All watched events of one revision."""

    revision: int
    events: tuple[KeyEvent, ...]


OnBatch = Callable[[Batch], None]
OnLost = Callable[[StoreError], None]


class Watch(Protocol):
    def cancel(self) -> None:
        """Stop. After it returns no further callback of this watch starts.

        Waits for a callback that runs on another thread, so hold no lock that it needs; raises StoreError when that has
        not ended in CALLBACK_LIMIT_S.
        """


class Store(Protocol):
    def get(self, key: str, *, prefix: bool = False) -> GetResult:
        """Read a key, or all keys that start with it."""

    def put(self, key: str, value: bytes, *, lease: int = 0) -> int:
        """Write unconditionally; return the new revision. Raises LeaseNotFound for a lease that is gone."""

    def delete(self, key: str, *, prefix: bool = False) -> int:
        """Delete a key, or all keys that start with it, in one revision; return how many were deleted."""

    def txn(self, compares: Compares, success: Operations, failure: Operations = ()) -> TxnResult:
        """If every compare holds, apply `success`, else `failure`, atomically.

        Raises StoreError for a key that is written twice, or more operations or compares than TXN_OPERATIONS_MAX.
        """

    def lease_grant(self, ttl_s: float, *, id: int = 0) -> Lease:
        """Grant a lease of at least `ttl_s` seconds, under `id` if that is not 0. Raises LeaseExists for one in use."""

    def lease_keep_alive(self, lease: int) -> float:
        """Renew the lease; return the granted TTL in seconds. Raises LeaseNotFound when it is gone.

        The server that answers may have been replaced as leader without knowing: see `lease_renew`.
        """

    def lease_renew(self, lease: int, key: str) -> Renewal:
        """Renew the lease, then read `key` with a majority.

        Raises LeaseNotFound when the lease is gone, StoreError when either could not be done.
        """

    def lease_revoke(self, lease: int) -> None:
        """End the lease now, and delete its keys. Raises LeaseNotFound when it is gone."""

    def lease_remaining(self, lease: int) -> float:
        """Return the seconds until the lease would expire, for display. Raises LeaseNotFound when it is gone."""

    def watch(
        self, key: str, *, prefix: bool = False, start_revision: int, on_batch: OnBatch, on_lost: OnLost
    ) -> Watch:
        """Deliver every event at or after `start_revision` (from 1 up), in order, on a thread of the store's.

        Returns at once, whatever the store is doing. `on_lost` is called at most once, last: with Compacted if the
        revision is gone, or with the error that ended the watch.
        """

    def measure_last(self) -> float | None:
        """Return the seconds since this thread's last request was sent; None if it takes no time to leave.

        What precedes the send (a name look-up, a log-in, another server that was tried) says nothing about the store.
        """
        return None

    def close(self) -> None:
        """Cancel the watches and free the client's resources. Leases live on until they expire."""


# What every store refuses before it reads any key, as etcd does.


def check_key(key: str, prefix: bool = False) -> int:
    """Return the length of the key in bytes. Raises StoreError if it is empty (but as a prefix) or not text."""
    if not key and not prefix:
        raise StoreError("a key cannot be empty")
    try:
        return len(key.encode())
    except UnicodeEncodeError:
        raise StoreError(f"the key {key!r} is not valid text") from None


def check_watch(key: str, prefix: bool, start_revision: int) -> None:
    """Raise StoreError for a key or a revision at which no watch can start."""
    check_key(key, prefix)
    if start_revision < 1:
        raise StoreError(f"a watch starts at revision 1 or later, not {start_revision}")


def is_covered(name: str, key: str, prefix: bool) -> bool:
    """Return whether a request for `key` concerns the key `name`."""
    return name.startswith(key) if prefix else name == key


def check_request(compares: Compares, success: Operations, failure: Operations) -> None:
    """Raise StoreError for a transaction that etcd would refuse. Both branches count, whichever would run."""
    for name, items in (("compares", compares), ("operations", success), ("operations", failure)):
        if len(items) > TXN_OPERATIONS_MAX:
            raise StoreError(f"a transaction has {len(items)} {name}, at most {TXN_OPERATIONS_MAX} are allowed")
    size = 0
    for compare in compares:
        size += check_key(compare.key)
        if isinstance(compare.operand, bytes) != (compare.target == "value"):
            raise StoreError(f"the {compare.target} of {compare.key!r} cannot be compared with {compare.operand!r}")
        size += len(compare.operand) if isinstance(compare.operand, bytes) else 0
    for branch in (success, failure):
        size += sum(_measure(operation) for operation in branch)
        _check_written_once(branch)
    if size > REQUEST_BYTES_MAX:
        raise StoreError(f"a request has {size} bytes, at most {REQUEST_BYTES_MAX} are allowed")


def _measure(operation: Operation) -> int:
    if isinstance(operation, Put):
        return check_key(operation.key) + len(operation.value)
    return check_key(operation.key, operation.prefix)


def _check_written_once(branch: Operations) -> None:
    """Raise StoreError if the branch puts a key twice, or puts and deletes it. To delete it twice is allowed."""
    deletions = [operation for operation in branch if isinstance(operation, Delete)]
    written: set[str] = set()
    for operation in branch:
        if not isinstance(operation, Put):
            continue
        if operation.key in written or any(is_covered(operation.key, each.key, each.prefix) for each in deletions):
            raise StoreError(f"a transaction writes the key {operation.key!r} twice")
        written.add(operation.key)
