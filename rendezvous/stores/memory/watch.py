"""The memory store's watches: which watches a change concerns, and their callbacks.

A thousand members watch a few keys each, so a write must find the watches that it concerns without checking all.
Watches are grouped by what they watch, and a changed key is looked up by itself and by each of its prefixes of a length
that is watched.

Callbacks run one after the other, outside the lock, in the order of changes, and for one change in that of the watches.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter, deque
from collections.abc import Callable

from rendezvous.errors import StoreError
from rendezvous.stores.contract import CALLBACK_LIMIT_S, Batch, KeyEvent, Watch

_Group = tuple[str, bool]  # a key, and whether it is a prefix


class MemoryWatch(Watch):
    """One watch of the memory store."""

    def __init__(
        self,
        hub: WatchHub,
        key: str,
        prefix: bool,
        start_revision: int,
        on_batch: Callable[[Batch], None],
        on_lost: Callable[[StoreError], None],
    ) -> None:
        self._hub = hub
        self.group: _Group = (key, prefix)
        self.start_revision = start_revision
        self.on_batch = on_batch
        self.on_lost = on_lost
        self.number = next(hub.numbers)
        self.is_cancelled = False

    def cancel(self) -> None:
        self._hub.cancel(self)


class WatchHub:
    """All watches of one store and their pending callbacks. `changed` is the store's lock."""

    def __init__(self, changed: threading.Condition) -> None:
        self.numbers = itertools.count()
        self._changed = changed
        self._groups: dict[_Group, dict[MemoryWatch, None]] = {}
        self._prefix_lengths: Counter[int] = Counter()  # of the groups of a prefix
        self._callbacks: deque[tuple[MemoryWatch, Batch | StoreError]] = deque()  # callbacks to make, in order
        self._running: MemoryWatch | None = None  # the watch whose callback runs now, on thread _running_thread
        self._running_thread = 0

    # Under the lock

    @property
    def pending(self) -> int:
        return len(self._callbacks)

    def add(self, watch: MemoryWatch) -> None:
        key, prefix = watch.group
        if watch.group not in self._groups:
            self._groups[watch.group] = {}
            self._prefix_lengths.update([len(key)] if prefix else ())
        self._groups[watch.group][watch] = None

    def _remove(self, watch: MemoryWatch) -> None:
        """Remove a watch, if it is there."""
        key, prefix = watch.group
        watches = self._groups.get(watch.group, {})
        if watches.pop(watch, ...) is ... or watches:
            return
        del self._groups[watch.group]
        self._prefix_lengths -= Counter([len(key)] if prefix else ())  # drops what is zero

    def lose(self, watch: MemoryWatch, error: StoreError) -> None:
        """Remove a watch; its last callback reports the error."""
        self._remove(watch)
        self._callbacks.append((watch, error))

    def notify(self, watch: MemoryWatch, batch: Batch) -> None:
        self._callbacks.append((watch, batch))

    def announce(self, batch: Batch) -> None:
        """Notify each watch that the batch concerns of its part; watches of one group share the part."""
        events_by_group: dict[_Group, list[KeyEvent]] = {}
        for event in batch.events:
            key = event.item.key
            groups = [(key, False), *((key[:length], True) for length in self._prefix_lengths if length <= len(key))]
            for group in groups:
                if group in self._groups:
                    events_by_group.setdefault(group, []).append(event)
        notifications = []
        for group, events in events_by_group.items():
            part = batch if len(events) == len(batch.events) else Batch(batch.revision, tuple(events))
            notifications += [(watch, part) for watch in self._groups[group] if watch.start_revision <= batch.revision]
        if len(events_by_group) > 1:
            notifications.sort(key=lambda notification: notification[0].number)
        self._callbacks.extend(notifications)

    def close(self) -> None:
        """Drop everything, and wait for a running callback as `MemoryWatch.cancel` does."""
        self._groups.clear()
        self._prefix_lengths.clear()
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
            self._remove(watch)
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
                watch.on_batch(message)
        except Exception as error:
            if not report:
                raise
            thread = threading.current_thread()
            threading.excepthook(threading.ExceptHookArgs((type(error), error, error.__traceback__, thread)))
            with self._changed:
                self._remove(watch)
                self._callbacks.appendleft((watch, StoreError(f"a callback of the watch raised {error!r}")))
        finally:
            with self._changed:
                self._running = None
                self._changed.notify_all()
        return 1
