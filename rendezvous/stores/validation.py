"""What a store refuses before it reads any key: an empty key, a request that is too large, a key written twice.

etcd refuses the same; the memory store and the served store use these checks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rendezvous.errors import StoreError
from rendezvous.stores.contract import REQUEST_BYTES_MAX, TXN_OPERATIONS_MAX, Compare, Delete, Operation, Put
from rendezvous.stores.memory.keyspace import Range, make_range


def check_key(key: str, prefix: bool = False) -> int:
    """Return the length of the key in bytes. Raises StoreError if it is empty (but as a prefix) or not text."""
    if not key and not prefix:
        raise StoreError("a key cannot be empty")
    try:
        return len(key.encode())
    except UnicodeEncodeError:
        raise StoreError(f"the key {key!r} is not valid text") from None


def find_duplicate_write(put: Iterable[str], deleted: Sequence[Range]) -> str | None:
    """Return a key that is put twice, or put and deleted; None if there is none."""
    written: set[str] = set()
    for key in put:
        if key in written or any(key_range.covers(key) for key_range in deleted):
            return key
        written.add(key)
    return None


def check_request(compares: Sequence[Compare], success: Sequence[Operation], failure: Sequence[Operation]) -> None:
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
        for operation in branch:
            if isinstance(operation, Put):
                size += check_key(operation.key) + len(operation.value)
            else:
                size += check_key(operation.key, operation.prefix)
        deleted = [make_range(operation.key, operation.prefix) for operation in branch if isinstance(operation, Delete)]
        duplicate = find_duplicate_write((operation.key for operation in branch if isinstance(operation, Put)), deleted)
        if duplicate is not None:
            raise StoreError(f"a transaction writes the key {duplicate!r} twice")
    if size > REQUEST_BYTES_MAX:
        raise StoreError(f"a request has {size} bytes, at most {REQUEST_BYTES_MAX} are allowed")
