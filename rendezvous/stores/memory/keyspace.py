"""The memory store's keys and their history.

Keys are kept sorted. The history is a log of pages: every writing transaction appends one page with its changes,
numbered by its revision. Old pages are dropped; a reader that asks for one gets Compacted. The caller holds the store's
lock, and validates before its first write: an open page cannot be rolled back.
"""

from __future__ import annotations

import bisect
import itertools
import operator
from collections import deque
from collections.abc import Callable, Iterator

from rendezvous.errors import Compacted, StoreError
from rendezvous.stores.contract import Batch, Compare, KeyEvent, KeyValue
from rendezvous.stores.memory.leases import LeaseTable
from rendezvous.values import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_RELATIONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
}
_LAST_CHARACTER = "\U0010ffff"
ENTRY_BYTES = 256
"""What a key or a lease counts beyond its text, as in etcd; about the size of its Python objects."""
HISTORY_BYTES_MAX = 32 * 1024 * 1024  # large values shorten the history; those of a large job need a third of it


class Range(NamedTuple):
    """The keys from `start` up to, not including, `end` (None: to the last). Text sorts as its UTF-8 bytes do."""

    start: str
    end: str | None

    @classmethod
    def one(cls, key: str) -> Range:
        return cls(key, key + "\0")

    @classmethod
    def prefix(cls, prefix: str) -> Range:
        return cls(prefix, find_prefix_end(prefix))

    def covers(self, key: str) -> bool:
        return self.start <= key and (self.end is None or key < self.end)

    def select_keys(self, keys: list[str]) -> list[str]:
        first = bisect.bisect_left(keys, self.start)
        return keys[first : len(keys) if self.end is None else bisect.bisect_left(keys, self.end, first)]


def find_prefix_end(prefix: str) -> str | None:
    """Return the end of the range of all texts that begin with `prefix`; None if no text sorts after them."""
    stem = prefix.rstrip(_LAST_CHARACTER)  # nothing sorts after it: "a" followed by it ends where "a" ends
    return stem[:-1] + chr(ord(stem[-1]) + 1) if stem else None


def make_range(key: str, prefix: bool) -> Range:
    return Range.prefix(key) if prefix else Range.one(key)


def measure(item: KeyValue | None) -> int:
    """Return the size of a key and its value, in bytes."""
    return 0 if item is None else len(item.key) + len(item.value) + ENTRY_BYTES


class Change(NamedTuple):
    """An event and the item that it replaced; None if the key was absent."""

    event: KeyEvent
    previous: KeyValue | None


class Page:
    """The changes of one revision: all of them, or those that concern one watch."""

    __slots__ = ("_batch", "bytes", "changes", "revision")

    def __init__(self, revision: int, changes: tuple[Change, ...]) -> None:
        self.revision = revision
        self.changes = changes
        self.bytes = 0  # set when the page is added to the history
        self._batch: Batch | None = None

    @property
    def batch(self) -> Batch:
        """The events of the page, without the replaced items; made once for all watches."""
        if self._batch is None:
            self._batch = Batch(self.revision, tuple(change.event for change in self.changes))
        return self._batch

    def filter_keys(self, keys: Range) -> Page | None:
        changes = tuple(change for change in self.changes if keys.covers(change.event.item.key))
        if len(changes) == len(self.changes):
            return self
        return Page(self.revision, changes) if changes else None


class Keyspace:
    """Keys, their values, and the last `history_revisions` pages of changes to them."""

    def __init__(self, leases: LeaseTable, history_revisions: int, first_revision: int) -> None:
        self.revision = first_revision  # of the last page; the first one is empty
        self.compacted_revision = 0 if first_revision == 1 else first_revision  # a watch may start here, not before
        self.leases = leases
        self._history_revisions = history_revisions
        self._keys: list[str] = []  # sorted
        self._items: dict[str, KeyValue] = {}
        self._history: deque[Page] = deque()  # one page per revision, the last one's is self.revision
        self._open_changes: list[Change] = []  # of the page being written
        self._item_bytes = 0
        self._history_bytes = 0

    def measure_size(self) -> int:
        """Return the size of the keys, their values and the leases, in bytes. The history has its own limit."""
        return self._item_bytes + ENTRY_BYTES * len(self.leases)

    @property
    def reading_revision(self) -> int:
        """The revision that a read sees: that of the open page, once it has a change."""
        return self.revision + bool(self._open_changes)

    def get(self, key: str) -> KeyValue | None:
        return self._items.get(key)

    def find(self, keys: Range) -> list[KeyValue]:
        """List the items of a range in byte order."""
        return [self._items[key] for key in keys.select_keys(self._keys)]

    def find_at(self, keys: Range, revision: int) -> list[KeyValue]:
        """List the items of a range as of a past revision. Raises Compacted; StoreError for a future revision."""
        if revision > self.revision:
            raise StoreError(f"revision {revision} is still to come: the store is at {self.revision}")
        if revision < self.compacted_revision:
            raise Compacted(self.compacted_revision)
        items = {item.key: item for item in self.find(keys)}
        for page in itertools.takewhile(lambda page: page.revision > revision, reversed(self._history)):
            for change in reversed(page.changes):
                key = change.event.item.key
                if change.previous is None:
                    items.pop(key, None)
                elif keys.covers(key):
                    items[key] = change.previous
        return [items[key] for key in sorted(items)]

    def count(self, keys: Range) -> int:
        return len(keys.select_keys(self._keys))

    def holds(self, compare: Compare) -> bool:
        item = self._items.get(compare.key)
        if compare.target == "value":
            return item is not None and _RELATIONS[compare.relation](item.value, compare.operand)
        actual = 0
        if item is not None:
            actual = item.version if compare.target == "version" else getattr(item, compare.target + "_revision")
        return _RELATIONS[compare.relation](actual, compare.operand)

    def put(self, key: str, value: bytes, lease: int) -> KeyValue | None:
        """Write on the open page; return the item that it replaced. The lease must exist."""
        revision = self.revision + 1
        old = self._items.get(key)
        if old is None:
            bisect.insort(self._keys, key)
            item = KeyValue(key, value, revision, revision, 1, lease)
        else:
            self._detach(old)
            self._item_bytes -= measure(old)
            item = KeyValue(key, value, old.create_revision, revision, old.version + 1, lease)
        if lease:
            self.leases.get(lease).keys.add(key)
        self._items[key] = item
        self._item_bytes += measure(item)
        self._open_changes.append(Change(KeyEvent("put", item), old))
        return old

    def delete(self, keys: Range) -> list[KeyValue]:
        """Delete on the open page; return the deleted items."""
        deleted = self.find(keys)
        for item in deleted:
            self._detach(item)
            self._item_bytes -= measure(item)
            del self._items[item.key]
            tombstone = KeyValue(item.key, b"", 0, self.revision + 1, 0, 0)
            self._open_changes.append(Change(KeyEvent("delete", tombstone), item))
        if deleted:
            first = bisect.bisect_left(self._keys, deleted[0].key)
            del self._keys[first : first + len(deleted)]
        return deleted

    def _detach(self, item: KeyValue) -> None:
        if item.lease:
            self.leases.get(item.lease).keys.discard(item.key)

    def close_page(self) -> Page | None:
        """Close the open page and return it; None if it has no change."""
        if not self._open_changes:
            return None
        self.revision += 1
        page = Page(self.revision, tuple(self._open_changes))
        self._open_changes.clear()
        page.bytes = sum(measure(change.event.item) + measure(change.previous) for change in page.changes)
        self._history.append(page)
        self._history_bytes += page.bytes
        if len(self._history) > self._history_revisions:
            self._forget(self.revision - self._history_revisions + 1)
        while self._history_bytes > HISTORY_BYTES_MAX and len(self._history) > 1:
            self._forget(self._history[1].revision)
        return page

    def list_pages_from(self, revision: int) -> Iterator[Page]:
        oldest = self.revision - len(self._history) + 1
        return itertools.islice(self._history, max(0, revision - oldest), None)

    def compact(self, revision: int) -> None:
        """Drop the history before `revision`. Raises Compacted if that is gone already, StoreError for a future one."""
        if revision > self.revision:
            raise StoreError(f"cannot compact up to revision {revision}: the store is at {self.revision}")
        if revision <= self.compacted_revision:
            raise Compacted(self.compacted_revision)
        self._forget(revision)

    def _forget(self, revision: int) -> None:
        while self._history and self.revision - len(self._history) + 1 < revision:
            self._history_bytes -= self._history.popleft().bytes
        self.compacted_revision = revision
