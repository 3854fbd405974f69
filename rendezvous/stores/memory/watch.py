"""The memory store's watches: which watches a change concerns, and their callbacks.

A thousand members watch a few keys each, so a write must find the watches that it concerns without checking all.
Watches of one key are grouped by that key, watches of a prefix by the prefix, and a changed key is looked up by itself
and by each of its prefixes of a length that is watched. The rare other ranges are checked one by one.

Callbacks run one after the other, outside the lock, in the order of changes, and for one change in that of the watches.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator

from rendezvous.errors import StoreError
from rendezvous.stores.contract import Watch
from rendezvous.stores.memory.keyspace import Change, Page, Range
from rendezvous.values import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

CALLBACK_LIMIT_S = 10.0  # how long cancel() and close() wait for a callback that is running


class MemoryWatch(Watch):
    """One watch of the memory store."""

    def __init__(
        self,
        hub: WatchHub,
        keys: Range,
        start_revision: int,
        on_page: Callable[[Page], None],
        on_lost: Callable[[StoreError], None],
    ) -> None:
        self.hub = hub
        self.keys = keys
        self.start_revision = start_revision
        self.on_page = on_page
        self.on_lost = on_lost
        self.number = next(hub.numbers)
        self.is_cancelled = False

    def cancel(self) -> None:
        """Stop; waits for a callback of this watch that runs on another thread, so hold no lock that it needs.

        Raises StoreError when that callback has not ended in CALLBACK_LIMIT_S; no further one starts even then.
        """
        self.hub.cancel(self)


class _GroupName(NamedTuple):
    """The key of a group of watches. `end` is used by "range" alone."""

    kind: Literal["key", "prefix", "range"]
    start: str
    end: str | None = None


_Group = dict[MemoryWatch, None]  # a set that keeps its order


def _find_name(keys: Range) -> _GroupName:
    if keys == Range.one(keys.start):
        return _GroupName("key", keys.start)
    if keys == Range.prefix(keys.start):
        return _GroupName("prefix", keys.start)
    return _GroupName("range", *keys)


class WatchIndex:
    """Watches by the range that they watch."""

    def __init__(self) -> None:
        self._groups: dict[_GroupName, _Group] = {}
        self._prefix_lengths: Counter[int] = Counter()  # of the groups of a prefix
        self._ranges: dict[_GroupName, Range] = {}  # of the groups that are neither a key nor a prefix

    def add(self, watch: MemoryWatch) -> None:
        name = _find_name(watch.keys)
        if name not in self._groups:
            self._groups[name] = {}
            if name.kind == "prefix":
                self._prefix_lengths[len(name.start)] += 1
            elif name.kind == "range":
                self._ranges[name] = watch.keys
        self._groups[name][watch] = None

    def remove(self, watch: MemoryWatch) -> None:
        """Remove a watch, if it is there."""
        name = _find_name(watch.keys)
        group = self._groups.get(name, {})
        if group.pop(watch, ...) is ... or group:
            return
        del self._groups[name]
        self._ranges.pop(name, None)
        if name.kind == "prefix":
            self._prefix_lengths[len(name.start)] -= 1
            self._prefix_lengths += Counter()  # drops what is zero

    def clear(self) -> None:
        self._groups.clear()
        self._prefix_lengths.clear()
        self._ranges.clear()

    def _list_groups(self, key: str) -> Iterator[_Group]:
        names = [_GroupName("key", key)]
        names += [_GroupName("prefix", key[:length]) for length in self._prefix_lengths if length <= len(key)]
        names += [name for name, keys in self._ranges.items() if keys.covers(key)]
        return (self._groups[name] for name in names if name in self._groups)

    def find_watches(self, page: Page) -> list[tuple[MemoryWatch, Page]]:
        """List each watch that the page concerns, with its part of the page; watches of one group share the part."""
        found: dict[int, tuple[_Group, list[Change]]] = {}
        for change in page.changes:
            for group in self._list_groups(change.event.item.key):
                found.setdefault(id(group), (group, []))[1].append(change)
        notifications = []
        for group, changes in found.values():
            part = page if len(changes) == len(page.changes) else Page(page.revision, tuple(changes))
            notifications += [(watch, part) for watch in group if watch.start_revision <= page.revision]
        if len(found) > 1:
            notifications.sort(key=lambda item: item[0].number)
        return notifications


class WatchHub:
    """All watches of one store and their pending callbacks. `changed` is the store's lock."""

    def __init__(self, changed: threading.Condition) -> None:
        self.numbers = itertools.count()
        self._changed = changed
        self._index = WatchIndex()
        self._callbacks: deque[tuple[MemoryWatch, Page | StoreError]] = deque()  # callbacks to make, in order
        self._running: MemoryWatch | None = None  # the watch whose callback runs now, on thread _running_thread
        self._running_thread = 0

    # Under the lock

    @property
    def pending(self) -> int:
        return len(self._callbacks)

    def add(self, watch: MemoryWatch) -> None:
        self._index.add(watch)

    def lose(self, watch: MemoryWatch, error: StoreError) -> None:
        """Remove a watch; its last callback reports the error."""
        self._index.remove(watch)
        self._callbacks.append((watch, error))

    def notify(self, watch: MemoryWatch, page: Page) -> None:
        self._callbacks.append((watch, page))

    def announce(self, page: Page) -> None:
        self._callbacks.extend(self._index.find_watches(page))

    def close(self) -> None:
        """Drop everything, and wait for a running callback as `MemoryWatch.cancel` does."""
        self._index.clear()
        self._callbacks.clear()
        self._changed.notify_all()
        self._wait_for_callback(None)

    def _wait_for_callback(self, watch: MemoryWatch | None) -> None:
        """Wait until no callback (of `watch`, if one is given) runs on another thread."""

        def has_ended() -> bool:
            return self._running is None or (watch is not None and self._running is not watch)

        if self._running_thread != threading.get_ident() and not self._changed.wait_for(has_ended, CALLBACK_LIMIT_S):
            raise StoreError(f"a callback of a watch has not ended in {CALLBACK_LIMIT_S:g} s")

    # Outside the lock

    def cancel(self, watch: MemoryWatch) -> None:
        with self._changed:
            watch.is_cancelled = True
            self._index.remove(watch)
            self._wait_for_callback(watch)

    def deliver_one(self, report: bool) -> int:
        """Run the first pending callback; return 1, or 0 if there is none or its watch is cancelled.

        Its exception is raised; with `report` it is printed as of any thread, and ends only this watch.
        """
        with self._changed:
            if not self._callbacks:  # closed or delivered by the callback before
                return 0
            watch, message = self._callbacks.popleft()
            if watch.is_cancelled:
                return 0
            if isinstance(message, StoreError):
                watch.is_cancelled = True
            self._running, self._running_thread = watch, threading.get_ident()
        try:
            if isinstance(message, StoreError):
                watch.on_lost(message)
            else:
                watch.on_page(message)
        except Exception as error:
            if not report:
                raise
            thread = threading.current_thread()
            threading.excepthook(threading.ExceptHookArgs((type(error), error, error.__traceback__, thread)))
            with self._changed:
                self._index.remove(watch)
                self._callbacks.appendleft((watch, StoreError(f"a callback of the watch raised {error!r}")))
        finally:
            with self._changed:
                self._running = None
                self._changed.notify_all()
        return 1
