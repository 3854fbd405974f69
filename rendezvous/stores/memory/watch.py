"""The memory store's watches: which watches a change concerns, and their callbacks.

A thousand members watch a few keys each, so a write must find the watches that it concerns without checking all.
Watches are grouped by what they watch, and a changed key is looked up by itself and by each of its prefixes of a length
that is watched.

Callbacks run one after the other, in the order of changes, and for one change in that of the watches.
"""

from __future__ import annotations

import itertools
from collections import Counter, deque

from rendezvous.errors import StoreError
from rendezvous.stores.callbacks import CallbackWatch
from rendezvous.stores.contract import Batch, KeyEvent, OnBatch, OnLost

_Group = tuple[str, bool]  # a key, and whether it is a prefix


class MemoryWatch(CallbackWatch):
    """One watch of the memory store; `number` gives the order of watches."""

    def __init__(self, hub: WatchHub, group: _Group, start_revision: int, on_batch: OnBatch, on_lost: OnLost) -> None:
        super().__init__(on_batch, on_lost, hub.drop)
        self.group = group
        self.start_revision = start_revision
        self.number = next(hub.numbers)


class WatchHub:
    """All watches of one store and their pending callbacks."""

    def __init__(self) -> None:
        self.numbers = itertools.count()
        self._groups: dict[_Group, dict[MemoryWatch, None]] = {}
        self._prefix_lengths: Counter[int] = Counter()  # of the groups of a prefix
        self._callbacks: deque[tuple[MemoryWatch, Batch | StoreError]] = deque()  # callbacks to make, in order

    def add(self, watch: MemoryWatch) -> None:
        key, prefix = watch.group
        if watch.group not in self._groups:
            self._groups[watch.group] = {}
            self._prefix_lengths.update([len(key)] if prefix else ())
        self._groups[watch.group][watch] = None

    def notify(self, watch: MemoryWatch, message: Batch | StoreError) -> None:
        self._callbacks.append((watch, message))

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

    def clear(self) -> list[MemoryWatch]:
        """End all watches; return them."""
        watches = [*itertools.chain(*self._groups.values()), *(watch for watch, _ in self._callbacks)]
        for watch in watches:
            watch.has_ended = True
        self._groups.clear()
        self._prefix_lengths.clear()
        self._callbacks.clear()
        return watches

    def drop(self, watch: CallbackWatch) -> None:
        """Remove a watch, if it is there."""
        assert isinstance(watch, MemoryWatch)
        key, prefix = watch.group
        watches = self._groups.get(watch.group, {})
        if watches.pop(watch, ...) is None and not watches:
            del self._groups[watch.group]
            self._prefix_lengths -= Counter([len(key)] if prefix else ())  # drops what is zero

    def deliver(self) -> int:
        """Run the callbacks that are pending now; return how many ran."""
        count = 0
        for _ in range(len(self._callbacks)):
            if not self._callbacks:  # closed or delivered by the callback before
                break
            watch, message = self._callbacks.popleft()
            if not watch.has_ended:
                watch.notify(message)
                count += 1
        return count
