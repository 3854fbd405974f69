"""etcd's KV service on the memory store: Range, Put, DeleteRange, Txn, Compact.

A transaction is validated in two steps before anything is written: first what any store would refuse, then what this
one must refuse in its current state (a lease that is gone). So nothing is half applied. There are no nested
transactions.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rendezvous.errors import LeaseNotFound, StoreError
from rendezvous.stores import wire
from rendezvous.stores.contract import TXN_OPERATIONS_MAX, KeyValue
from rendezvous.stores.memory.keyspace import ENTRY_BYTES, Keyspace, Range, measure
from rendezvous.stores.memory.store import MemoryStore
from rendezvous.stores.server import errors
from rendezvous.stores.server.encoding import decode_key, decode_range, encode_item
from rendezvous.stores.server.errors import ServedFailure
from rendezvous.stores.validation import find_duplicate_write

_RELATIONS: dict[int, Callable[[Any, Any], bool]] = {
    wire.EQUAL: operator.eq,
    wire.GREATER: operator.gt,
    wire.LESS: operator.lt,
    wire.NOT_EQUAL: operator.ne,
}
_ABSENT = KeyValue("", b"", 0, 0, 0, 0)
_ASCENDING, _DESCENDING = 1, 2  # RangeRequest.sort_order; 0 is any order
_SORT_BY: tuple[Callable[[KeyValue], Any], ...] = (  # by RangeRequest.sort_target
    operator.attrgetter("key"),
    operator.attrgetter("version"),
    operator.attrgetter("create_revision"),
    operator.attrgetter("mod_revision"),
    operator.attrgetter("value"),
)


class KeyService:
    """`header(revision)` makes the header of a response; a store of `quota_bytes` does not grow any more."""

    def __init__(self, store: MemoryStore, header: Callable[[int], wire.Header], quota_bytes: int) -> None:
        self._store = store
        self._quota_bytes = quota_bytes
        self._header = header

    def range(self, request: wire.RangeRequest) -> wire.RangeResponse:
        _check_range(request)
        return self._store.transact(lambda keyspace: self._apply_range(keyspace, request), writes=False)

    def put(self, request: wire.PutRequest) -> wire.PutResponse:
        _check_put(request)

        def apply(keyspace: Keyspace) -> wire.PutResponse:
            _admit_put(keyspace, request)
            self._admit_growth(keyspace, (wire.RequestOp(request_put=request),))
            return self._apply_put(keyspace, request)

        return self._store.transact(apply)

    def delete_range(self, request: wire.DeleteRangeRequest) -> wire.DeleteRangeResponse:
        decode_range(request.key, request.range_end)
        return self._store.transact(lambda keyspace: self._apply_delete_range(keyspace, request))

    def txn(self, request: wire.TxnRequest) -> wire.TxnResponse:
        _check_txn(request)
        branches = (request.success, request.failure)
        writes = any(op.request_range is None for branch in branches for op in branch)

        def apply(keyspace: Keyspace) -> wire.TxnResponse:
            succeeded = all(_holds(keyspace, compare) for compare in request.compare)
            branch = request.success if succeeded else request.failure
            for op in branch:
                if op.request_put is not None:
                    _admit_put(keyspace, op.request_put)
                if op.request_range is not None:
                    self._apply_range(keyspace, op.request_range)  # its revision may be gone
            self._admit_growth(keyspace, branch)
            responses = tuple(self._apply(keyspace, op) for op in branch)
            return wire.TxnResponse(self._header(keyspace.reading_revision), succeeded, responses)

        return self._store.transact(apply, writes=writes)

    def compact(self, request: wire.CompactionRequest) -> wire.CompactionResponse:
        def apply(keyspace: Keyspace) -> wire.CompactionResponse:
            if request.revision > keyspace.revision:
                raise ServedFailure(errors.TO_COME)
            keyspace.compact(request.revision)
            return wire.CompactionResponse(self._header(keyspace.revision))

        return self._store.transact(apply)

    # On the keys

    def _admit_growth(self, keyspace: Keyspace, branch: Sequence[wire.RequestOp]) -> None:
        """Raise ServedFailure if a full store would grow. Other writes are allowed, so that members can continue."""
        growth = 0
        for op in branch:
            if op.request_put is not None:
                previous = keyspace.get(decode_key(op.request_put.key))
                if previous is None or not op.request_put.ignore_value:
                    growth += len(op.request_put.key) + len(op.request_put.value) + ENTRY_BYTES - measure(previous)
            elif op.request_delete_range is not None:
                keys = decode_range(op.request_delete_range.key, op.request_delete_range.range_end)
                growth -= sum(map(measure, keyspace.find(keys)))
        if growth > 0 and keyspace.measure_size() + growth > self._quota_bytes:
            raise ServedFailure(errors.NO_SPACE)

    def _apply(self, keyspace: Keyspace, request: wire.RequestOp) -> wire.ResponseOp:
        if request.request_put is not None:
            return wire.ResponseOp(response_put=self._apply_put(keyspace, request.request_put))
        if request.request_delete_range is not None:
            return wire.ResponseOp(
                response_delete_range=self._apply_delete_range(keyspace, request.request_delete_range)
            )
        assert request.request_range is not None
        return wire.ResponseOp(response_range=self._apply_range(keyspace, request.request_range))

    def _apply_range(self, keyspace: Keyspace, request: wire.RangeRequest) -> wire.RangeResponse:
        keys = decode_range(request.key, request.range_end)
        header = self._header(keyspace.reading_revision)
        if request.count_only and request.revision <= 0:
            return wire.RangeResponse(header, count=keyspace.count(keys))
        items = keyspace.find(keys) if request.revision <= 0 else _find_past(keyspace, keys, request.revision)
        count = len(items)
        if request.count_only:
            return wire.RangeResponse(header, count=count)
        items = [item for item in items if _is_within(item, request)]
        if request.sort_order or request.sort_target:
            items.sort(key=_SORT_BY[request.sort_target], reverse=request.sort_order == _DESCENDING)
        more = 0 < request.limit < len(items)
        selected = items[: request.limit] if more else items
        return wire.RangeResponse(
            header, tuple(encode_item(item, keys_only=request.keys_only) for item in selected), more, count
        )

    def _apply_put(self, keyspace: Keyspace, request: wire.PutRequest) -> wire.PutResponse:
        key = decode_key(request.key)
        current = keyspace.get(key) or _ABSENT
        value = current.value if request.ignore_value else request.value
        previous = keyspace.put(key, value, current.lease if request.ignore_lease else request.lease)
        previous_item = encode_item(previous) if request.prev_kv and previous is not None else None
        return wire.PutResponse(self._header(keyspace.reading_revision), previous_item)

    def _apply_delete_range(self, keyspace: Keyspace, request: wire.DeleteRangeRequest) -> wire.DeleteRangeResponse:
        deleted = keyspace.delete(decode_range(request.key, request.range_end))
        deleted_items = tuple(map(encode_item, deleted)) if request.prev_kv else ()
        return wire.DeleteRangeResponse(self._header(keyspace.reading_revision), len(deleted), deleted_items)


# Checks that do not depend on the store's content


def _check_range(request: wire.RangeRequest) -> None:
    decode_range(request.key, request.range_end)
    if not (0 <= request.sort_order <= _DESCENDING and 0 <= request.sort_target < len(_SORT_BY)):
        raise ServedFailure(errors.BAD_SORT)


def _check_put(request: wire.PutRequest) -> None:
    decode_key(request.key)
    if request.ignore_value and request.value:
        raise ServedFailure(errors.VALUE_PROVIDED)
    if request.ignore_lease and request.lease:
        raise ServedFailure(errors.LEASE_PROVIDED)


def _check_txn(request: wire.TxnRequest) -> None:
    if max(map(len, request)) > TXN_OPERATIONS_MAX:
        raise ServedFailure(errors.TOO_MANY_OPERATIONS)
    for compare in request.compare:
        decode_range(compare.key, compare.range_end)
    for branch in (request.success, request.failure):
        _check_branch(branch)


def _check_branch(branch: Sequence[wire.RequestOp]) -> None:
    deleted: list[Range] = []
    for op in branch:
        if op.request_range is not None:
            _check_range(op.request_range)
        elif op.request_put is not None:
            _check_put(op.request_put)
        elif op.request_delete_range is not None:
            deleted.append(decode_range(op.request_delete_range.key, op.request_delete_range.range_end))
        else:
            raise ServedFailure(errors.NO_INNER_TXN)
    if find_duplicate_write(_list_put_keys(branch), deleted) is not None:
        raise ServedFailure(errors.KEY_TWICE)


def _list_put_keys(branch: Sequence[wire.RequestOp]) -> Iterator[str]:
    return (decode_key(op.request_put.key) for op in branch if op.request_put is not None)


# Checks that depend on the store's content


def _admit_put(keyspace: Keyspace, request: wire.PutRequest) -> None:
    if (request.ignore_value or request.ignore_lease) and keyspace.get(decode_key(request.key)) is None:
        raise ServedFailure(errors.KEY_NOT_FOUND)
    if request.lease:
        try:
            keyspace.leases.get(request.lease)
        except LeaseNotFound:
            raise ServedFailure(errors.LEASE_NOT_FOUND) from None


def _holds(keyspace: Keyspace, compare: wire.WireCompare) -> bool:
    """Return whether every key of the range holds. No keys compare as one absent key: zeros, and no value."""
    items = keyspace.find(decode_range(compare.key, compare.range_end))
    if not items and compare.target == wire.VALUE:
        return False
    return all(_matches(item, compare) for item in items or [_ABSENT])


def _matches(item: KeyValue, compare: wire.WireCompare) -> bool:
    actual, operand = {
        wire.VERSION: (item.version, compare.version or 0),
        wire.CREATE: (item.create_revision, compare.create_revision or 0),
        wire.MOD: (item.mod_revision, compare.mod_revision or 0),
        wire.VALUE: (item.value, compare.value or b""),
        wire.LEASE: (item.lease, compare.lease or 0),
    }.get(compare.target, (0, 0))
    return compare.result in _RELATIONS and _RELATIONS[compare.result](actual, operand)


def _find_past(keyspace: Keyspace, keys: Range, revision: int) -> list[KeyValue]:
    try:
        return keyspace.find_at(keys, revision)
    except StoreError as error:
        to_come = revision > keyspace.revision
        raise ServedFailure(errors.TO_COME if to_come else errors.make_error(error)) from None


def _is_within(item: KeyValue, request: wire.RangeRequest) -> bool:
    bounds = (
        (item.mod_revision, request.min_mod_revision, request.max_mod_revision),
        (item.create_revision, request.min_create_revision, request.max_create_revision),
    )
    return all((not low or low <= value) and (not high or value <= high) for value, low, high in bounds)
