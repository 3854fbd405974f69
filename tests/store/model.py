"""A store that could not be simpler, to hold a real one against: a diary of all events, and nothing else.

Every answer is found by reading the diary from its beginning, and every question goes through the same
few lines, so that there is next to nothing here that could be wrong in the way that a real store is.
It shares no code with the stores; time is a number that the test moves.
"""

from __future__ import annotations

from collections.abc import Sequence

from rendezvous.errors import Compacted, LeaseNotFound, StoreError
from rendezvous.stores.contract import (
    Batch,
    Compare,
    Delete,
    Get,
    GetResult,
    KeyEvent,
    KeyValue,
    Operation,
    Put,
    TxnResult,
)


class Model:
    def __init__(self, revision: int) -> None:
        """A model of a store that is at `revision` and holds none of the keys to come."""
        self.revision = revision
        self.compacted = 0
        self.diary: list[KeyEvent] = []
        self.leases: dict[int, tuple[float, float]] = {}  # id: granted seconds, last renewed

    # What the diary says

    def items(self, diary: Sequence[KeyEvent]) -> list[KeyValue]:
        live: dict[str, KeyValue] = {}
        for event in diary:
            live.pop(event.item.key, None)
            if event.kind == "put":
                live[event.item.key] = event.item
        return sorted(live.values(), key=lambda item: item.key.encode())

    def read(self, diary: Sequence[KeyEvent], key: str, prefix: bool) -> list[KeyValue]:
        return [item for item in self.items(diary) if item.key == key or (prefix and item.key.startswith(key))]

    def watched(self, key: str, prefix: bool, start_revision: int) -> list[Batch]:
        """All that a watch over this key from this revision must have been told by now."""
        mine = [event for event in self.diary if event.item.key == key or (prefix and event.item.key.startswith(key))]
        revisions = sorted({event.item.mod_revision for event in mine if event.item.mod_revision >= start_revision})
        return [
            Batch(revision, tuple(event for event in mine if event.item.mod_revision == revision))
            for revision in revisions
        ]

    # What a client may ask

    def get(self, key: str, prefix: bool) -> GetResult:
        return GetResult(self.revision, tuple(self.read(self.diary, key, prefix)))

    def put(self, key: str, value: bytes, lease: int) -> int:
        return self.txn([], [Put(key, value, lease)], []).revision

    def delete(self, key: str, prefix: bool) -> int:
        gone = self.read(self.diary, key, prefix)
        self.txn([], [Delete(key, prefix)], [])
        return len(gone)

    def txn(self, compares: Sequence[Compare], success: Sequence[Operation], failure: Sequence[Operation]) -> TxnResult:
        for branch in (success, failure):
            for index, put in enumerate(branch):
                for other, operation in enumerate(branch):
                    if isinstance(put, Put) and other != index and not isinstance(operation, Get):
                        is_prefix = isinstance(operation, Delete) and operation.prefix
                        if put.key == operation.key or (is_prefix and put.key.startswith(operation.key)):
                            raise StoreError("twice")
        succeeded = all(self.holds(compare) for compare in compares)
        branch = success if succeeded else failure
        if any(isinstance(each, Put) and each.lease != 0 and each.lease not in self.leases for each in branch):
            raise LeaseNotFound("unknown lease")
        diary = list(self.diary)
        found: list[GetResult] = []
        for operation in branch:
            if isinstance(operation, Put):
                diary.append(KeyEvent("put", self.written(diary, operation)))
            elif isinstance(operation, Delete):
                gone = self.read(diary, operation.key, operation.prefix)
                diary += [KeyEvent("delete", KeyValue(item.key, b"", 0, self.revision + 1, 0, 0)) for item in gone]
            else:
                revision = self.revision + (len(diary) > len(self.diary))
                found.append(GetResult(revision, tuple(self.read(diary, operation.key, operation.prefix))))
        self.revision += len(diary) > len(self.diary)
        self.diary = diary
        return TxnResult(succeeded, self.revision, tuple(found))

    def holds(self, compare: Compare) -> bool:
        items = self.read(self.diary, compare.key, prefix=False)
        if compare.target == "value" and not items:
            return False
        item = items[0] if items else KeyValue(compare.key, b"", 0, 0, 0, 0)
        actual = {
            "create": item.create_revision,
            "mod": item.mod_revision,
            "version": item.version,
            "value": item.value,
        }[compare.target]
        ordered = sorted([actual, compare.operand])  # type: ignore[type-var]
        if actual == compare.operand:
            return compare.relation == "="
        return compare.relation == "!=" or compare.relation == ("<" if ordered[0] == actual else ">")

    def written(self, diary: Sequence[KeyEvent], put: Put) -> KeyValue:
        writes: list[int] = []  # of this key, since it was last created
        for event in diary:
            if event.item.key == put.key:
                writes = [*writes, event.item.mod_revision] if event.kind == "put" else []
        writes.append(self.revision + 1)
        return KeyValue(put.key, put.value, writes[0], writes[-1], len(writes), put.lease)

    # Leases

    def grant(self, lease: int, ttl_s: float, now: float) -> None:
        self.leases[lease] = (ttl_s, now)

    def keep_alive(self, lease: int, now: float) -> float:
        if lease not in self.leases:
            raise LeaseNotFound("unknown lease")
        ttl_s, _ = self.leases[lease]
        self.leases[lease] = (ttl_s, now)
        return ttl_s

    def revoke(self, lease: int) -> None:
        if lease not in self.leases:
            raise LeaseNotFound("unknown lease")
        self.txn([], [Delete(item.key) for item in self.items(self.diary) if item.lease == lease], [])
        del self.leases[lease]

    def expire(self, now: float) -> None:
        for deadline, lease in sorted((sum(times), lease) for lease, times in self.leases.items()):
            if deadline <= now:
                self.revoke(lease)

    def compact(self, revision: int) -> None:
        if revision > self.revision:
            raise StoreError("to come")
        if revision <= self.compacted:
            raise Compacted(self.compacted)
        self.compacted = revision
