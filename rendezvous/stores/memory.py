"""A store in this process: what a run on one machine uses, what a simulation runs on, and later what is served.

It behaves as etcd does, down to what etcd refuses, so that a protocol proven here holds there. Picture a
sorted drawer of keys and a diary: every writing transaction adds one page to the diary, numbered by its
revision, and a watch is a reader of the diary from some page on. Old pages are torn out; a reader who
asks for one of those is told so (`Compacted`).

With `threaded=True` one daemon thread hands out the pages and ends leases when they are due; it starts
with the first watch or lease that needs it and sleeps until something happens. With `threaded=False`
nothing happens by itself: a simulation moves its clock and calls `expire` and `deliver`.

Deliberately absent: persistence, reads of old revisions, and anybody else's access. The store is lost with its process.
"""

from __future__ import annotations

import bisect
import itertools
import math
import operator
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from rendezvous.errors import Compacted, LeaseNotFound, OutcomeUnknown, StoreError
from rendezvous.store import (
    REQUEST_BYTES_MAX,
    TXN_OPERATIONS_MAX,
    Batch,
    Compare,
    Delete,
    Event,
    Found,
    Get,
    KeyValue,
    Lease,
    Operation,
    Put,
    Store,
    TxnResult,
    Watch,
)

LEASE_TTL_MIN_S = 2.0  # what etcd grants at least with its default elections
HISTORY_REVISIONS = 10_000  # a reader may fall this far behind: minutes of a large job, some 10 MB of its small records
CALLBACK_LIMIT_S = 10.0  # how long cancel() and close() wait for a callback that is running

_RELATIONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
}
_LAST_CHARACTER = "\U0010ffff"

Answer = TypeVar("Answer")


class Faults:
    """Switches that make a healthy store fail, for tests and simulations. Leases and watches go on meanwhile."""

    __slots__ = ("lose_answers", "lose_requests", "refuse")

    def __init__(self) -> None:
        self.refuse: str | None = None
        """While set, every call raises StoreError with this sentence and does nothing."""
        self.lose_requests = 0
        """The next so many writing calls do nothing and raise OutcomeUnknown."""
        self.lose_answers = 0
        """The next so many writing calls that would succeed are applied and raise OutcomeUnknown."""


class _Range(NamedTuple):
    """The keys from `start` up to, not including, `end` (None: to the last). Text sorts as its UTF-8 bytes do."""

    start: str
    end: str | None

    def covers(self, key: str) -> bool:
        return self.start <= key and (self.end is None or key < self.end)

    def keys_in(self, keys: list[str]) -> list[str]:
        first = bisect.bisect_left(keys, self.start)
        return keys[first : len(keys) if self.end is None else bisect.bisect_left(keys, self.end, first)]


def _range(key: str, prefix: bool) -> _Range:
    if not prefix:
        return _Range(key, key + "\0")
    stem = key.rstrip(_LAST_CHARACTER)  # nothing sorts after this character: "a" followed by it ends where "a" ends
    return _Range(key, stem[:-1] + chr(ord(stem[-1]) + 1) if stem else None)


class _Lease:
    __slots__ = ("deadline", "id", "keys", "ttl_s")

    def __init__(self, lease: int, ttl_s: float, now: float) -> None:
        self.id = lease
        self.ttl_s = ttl_s
        self.deadline = now + ttl_s
        self.keys: set[str] = set()


class _MemoryWatch(Watch):
    def __init__(
        self,
        store: MemoryStore,
        keys: _Range,
        start_revision: int,
        on_batch: Callable[[Batch], None],
        on_lost: Callable[[StoreError], None],
    ) -> None:
        self.store = store
        self.keys = keys
        self.start_revision = start_revision
        self.on_batch = on_batch
        self.on_lost = on_lost
        self.is_cancelled = False

    def cancel(self) -> None:
        """Stop; waits for a callback of this watch that is running on another thread, so hold no lock that it needs.

        Raises StoreError when that callback has not ended in CALLBACK_LIMIT_S; no further one starts even then.
        """
        self.store._cancel(self)


class MemoryStore(Store):
    """A `Store` in this process; any number of threads may share one.

    `clock` gives seconds that never run backwards; `history_revisions` is how many revisions a new watch may go back.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        threaded: bool = True,
        history_revisions: int = HISTORY_REVISIONS,
    ) -> None:
        self.faults = Faults()
        self._clock = clock
        self._threaded = threaded
        self._history_revisions = history_revisions

        self._changed = threading.Condition(threading.Lock())  # guards everything below
        self._keys: list[str] = []  # sorted
        self._items: dict[str, KeyValue] = {}
        self._leases: dict[int, _Lease] = {}
        self._leases_granted = 0
        self._nothing_due_before = math.inf  # at or before every deadline, so that most wake-ups need not look at all
        self._revision = 1
        self._history: deque[tuple[Event, ...]] = deque()  # one entry per revision, the last one's is self._revision
        self._compacted_revision = 0  # a watch may start here, not before
        self._watches: dict[_MemoryWatch, None] = {}  # a set that keeps its order
        self._calls: deque[tuple[_MemoryWatch, Batch | StoreError]] = deque()  # callbacks to make, in order
        self._calling: _MemoryWatch | None = None  # whose callback is running now, on thread _calling_thread
        self._calling_thread = 0
        self._thread: threading.Thread | None = None
        self._is_closed = False

    # Keys

    def get(self, key: str, *, prefix: bool = False) -> Found:
        """Read a key, or all keys that start with it."""
        _check_key(key, prefix)
        with self._changed:
            self._admit(writes=False)
            return self._find(_range(key, prefix), self._revision)

    def put(self, key: str, value: bytes, *, lease: int = 0) -> int:
        """Write unconditionally; the new revision. Raises LeaseNotFound for a lease that is gone."""
        return self.txn((), (Put(key, value, lease),)).revision

    def delete(self, key: str, *, prefix: bool = False) -> int:
        """Delete; how many keys went."""
        _check_key(key, prefix)
        with self._changed:
            self._admit(writes=True)
            events = [Event("delete", self._remove(each)) for each in _range(key, prefix).keys_in(self._keys)]
            self._commit(events)
            return self._answer(len(events))

    def txn(
        self, compares: Sequence[Compare], success: Sequence[Operation], failure: Sequence[Operation] = ()
    ) -> TxnResult:
        """If every compare holds, apply `success`, else `failure`, atomically.

        Raises StoreError for a request that etcd would refuse, LeaseNotFound for a Put under a lease that is gone.
        """
        _check_request(compares, success, failure)
        writes = any(not isinstance(operation, Get) for branch in (success, failure) for operation in branch)
        with self._changed:
            self._admit(writes)
            succeeded = all(self._holds(compare) for compare in compares)
            found = self._apply(success if succeeded else failure)
            result = TxnResult(succeeded, self._revision, found)
            return self._answer(result) if writes else result

    def compact(self, revision: int) -> None:
        """Forget the history before `revision`. Raises Compacted when that is gone already, StoreError when to come."""
        with self._changed:
            self._admit(writes=True)
            if revision > self._revision:
                raise StoreError(f"cannot compact up to revision {revision}: the store is at {self._revision}")
            if revision <= self._compacted_revision:
                raise Compacted(self._compacted_revision)
            self._forget(revision)
            self._answer(None)

    # Leases

    def lease_grant(self, ttl_s: float) -> Lease:
        """A new lease of at least `ttl_s` seconds, 2 at least. `math.inf` never expires; only a private store can."""
        if math.isnan(ttl_s):
            raise StoreError("a lease needs a time in seconds, not nan")
        with self._changed:
            self._admit(writes=True)
            self._leases_granted += 1
            lease = _Lease(self._leases_granted, max(float(ttl_s), LEASE_TTL_MIN_S), self._clock())
            self._leases[lease.id] = lease
            if lease.deadline < math.inf:
                self._nothing_due_before = min(self._nothing_due_before, lease.deadline)
                self._wake_thread()
            return self._answer(Lease(lease.id, lease.ttl_s))

    def lease_keep_alive(self, lease: int) -> float:
        """Renew in full; the granted TTL in seconds. Raises LeaseNotFound when it is gone or due to go."""
        with self._changed:
            self._admit(writes=True)
            held = self._lease(lease)
            now = self._clock()
            if held.deadline <= now:  # its end may already have been acted on: as in etcd, it cannot be called back
                raise LeaseNotFound(f"lease {lease} has expired")
            held.deadline = now + held.ttl_s
            return self._answer(held.ttl_s)

    def lease_revoke(self, lease: int) -> None:
        """End the lease now, and its keys with it. Raises LeaseNotFound when it is gone."""
        with self._changed:
            self._admit(writes=True)
            self._end_lease(self._lease(lease))
            self._answer(None)

    def lease_remaining(self, lease: int) -> float:
        """Seconds until the lease would expire. Raises LeaseNotFound when it is gone."""
        with self._changed:
            self._admit(writes=False)
            return max(0.0, self._lease(lease).deadline - self._clock())

    # Watches

    def watch(
        self,
        key: str,
        *,
        prefix: bool = False,
        start_revision: int,
        on_batch: Callable[[Batch], None],
        on_lost: Callable[[StoreError], None],
    ) -> Watch:
        """Deliver every event at or after `start_revision` (from 1 up), in order; callbacks may use the store freely.

        `on_lost` is called at most once, last: with Compacted if the revision is gone, or when a callback raised.
        """
        _check_key(key, prefix)
        if start_revision < 1:
            raise StoreError(f"a watch starts at revision 1 or later, not {start_revision}")
        watch = _MemoryWatch(self, _range(key, prefix), start_revision, on_batch, on_lost)
        with self._changed:
            self._admit(writes=False)
            if start_revision < self._compacted_revision:
                self._calls.append((watch, Compacted(self._compacted_revision)))
            else:
                self._watches[watch] = None
                oldest = self._revision - len(self._history) + 1
                skipped = max(0, start_revision - oldest)
                for revision, events in enumerate(itertools.islice(self._history, skipped, None), oldest + skipped):
                    self._announce(watch, revision, events)
            self._wake_thread()
        return watch

    def close(self) -> None:
        """Cancel the watches and end the thread; waits for a running callback as `Watch.cancel` does."""
        with self._changed:
            self._is_closed = True
            self._watches.clear()
            self._calls.clear()
            self._changed.notify_all()
            self._wait_for_callback(None)
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(CALLBACK_LIMIT_S)

    # Time, for whoever runs the clock

    def next_deadline(self) -> float | None:
        """When, by the store's clock, the next lease is due; None if none ever is."""
        with self._changed:
            deadline = min((lease.deadline for lease in self._leases.values()), default=math.inf)
            return deadline if deadline < math.inf else None

    def expire(self) -> int:
        """End every lease that is due by the clock, oldest deadline first, each in its own revision; how many went."""
        with self._changed:
            return self._expire()

    def deliver(self) -> int:
        """Run the callbacks that are pending now, in this thread; how many ran. Only for `threaded=False`.

        What they cause waits for the next call. What a callback raises comes out here, and the rest stays pending.
        """
        assert not self._threaded, "the store's own thread delivers"
        with self._changed:
            pending = len(self._calls)
        return sum(self._deliver_one() for _ in range(pending))

    # Under the lock: the state

    def _admit(self, writes: bool) -> None:
        if self._is_closed:
            raise StoreError("the store is closed")
        if self.faults.refuse is not None:
            raise StoreError(self.faults.refuse)
        if writes and self.faults.lose_requests > 0:
            self.faults.lose_requests -= 1
            raise OutcomeUnknown("the store did not answer (a fault that a test set)")

    def _answer(self, answer: Answer) -> Answer:
        if self.faults.lose_answers > 0:
            self.faults.lose_answers -= 1
            raise OutcomeUnknown("the store did not answer (a fault that a test set)")
        return answer

    def _find(self, keys: _Range, revision: int) -> Found:
        return Found(revision, tuple(self._items[key] for key in keys.keys_in(self._keys)))

    def _holds(self, compare: Compare) -> bool:
        item = self._items.get(compare.key)
        if compare.target == "value":
            return item is not None and _RELATIONS[compare.relation](item.value, compare.operand)
        actual = 0
        if item is not None:
            actual = item.version if compare.target == "version" else getattr(item, compare.target + "_revision")
        return _RELATIONS[compare.relation](actual, compare.operand)

    def _apply(self, operations: Sequence[Operation]) -> tuple[Found, ...]:
        for operation in operations:  # all that can be refused is, before anything is written
            if isinstance(operation, Put) and operation.lease:
                self._lease(operation.lease)
        found: list[Found] = []
        events: list[Event] = []
        for operation in operations:
            if isinstance(operation, Put):
                events.append(Event("put", self._write(operation)))
                continue
            keys = _range(operation.key, operation.prefix)
            if isinstance(operation, Get):
                found.append(self._find(keys, self._revision + bool(events)))
            else:
                events += [Event("delete", self._remove(key)) for key in keys.keys_in(self._keys)]
        self._commit(events)
        return tuple(found)

    def _write(self, put: Put) -> KeyValue:
        revision = self._revision + 1
        old = self._items.get(put.key)
        if old is None:
            bisect.insort(self._keys, put.key)
            item = KeyValue(put.key, put.value, revision, revision, 1, put.lease)
        else:
            self._detach(old)
            item = KeyValue(put.key, put.value, old.create_revision, revision, old.version + 1, put.lease)
        if put.lease:
            self._leases[put.lease].keys.add(put.key)
        self._items[put.key] = item
        return item

    def _remove(self, key: str) -> KeyValue:
        self._detach(self._items.pop(key))
        del self._keys[bisect.bisect_left(self._keys, key)]
        return KeyValue(key, b"", 0, self._revision + 1, 0, 0)

    def _detach(self, item: KeyValue) -> None:
        if item.lease:
            self._leases[item.lease].keys.discard(item.key)

    def _commit(self, events: Sequence[Event]) -> None:
        if not events:
            return
        self._revision += 1
        self._history.append(tuple(events))
        if len(self._history) > self._history_revisions:
            self._forget(self._revision - self._history_revisions + 1)
        for watch in self._watches:
            self._announce(watch, self._revision, events)
        if self._calls:
            self._wake_thread()

    def _forget(self, revision: int) -> None:
        while self._history and self._revision - len(self._history) + 1 < revision:
            self._history.popleft()
        self._compacted_revision = revision

    def _announce(self, watch: _MemoryWatch, revision: int, events: Sequence[Event]) -> None:
        if revision >= watch.start_revision:
            watched = [event for event in events if watch.keys.covers(event.item.key)]
            if watched:
                self._calls.append((watch, Batch(revision, tuple(watched))))

    def _lease(self, lease: int) -> _Lease:
        held = self._leases.get(lease)
        if held is None:
            raise LeaseNotFound(f"lease {lease} has expired or was revoked")
        return held

    def _end_lease(self, lease: _Lease) -> None:
        self._commit([Event("delete", self._remove(key)) for key in sorted(lease.keys)])
        del self._leases[lease.id]

    def _expire(self) -> int:
        now = self._clock()
        if now < self._nothing_due_before:
            return 0
        due = sorted((lease.deadline, lease.id) for lease in self._leases.values() if lease.deadline <= now)
        for _, lease in due:
            self._end_lease(self._leases[lease])
        self._nothing_due_before = min((lease.deadline for lease in self._leases.values()), default=math.inf)
        return len(due)

    # Callbacks and the thread

    def _wake_thread(self) -> None:
        """Have the thread look again, starting it if need be. Under the lock."""
        if self._thread is not None:
            self._changed.notify_all()
        elif self._threaded:
            self._thread = threading.Thread(target=self._run, name="memory store", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._is_closed:
                    self._expire()
                    if self._calls:
                        break
                    sleep_s = self._nothing_due_before - self._clock()
                    self._changed.wait(min(sleep_s, threading.TIMEOUT_MAX) if sleep_s < math.inf else None)
                else:
                    return
            self._deliver_one()

    def _deliver_one(self) -> int:
        """Make the first pending callback, outside the lock; 1, or 0 if its watch is cancelled."""
        with self._changed:
            if not self._calls:  # closed or delivered by the callback before
                return 0
            watch, message = self._calls.popleft()
            if watch.is_cancelled:
                return 0
            if isinstance(message, StoreError):
                watch.is_cancelled = True
            self._calling, self._calling_thread = watch, threading.get_ident()
        try:
            if isinstance(message, StoreError):
                watch.on_lost(message)
            else:
                watch.on_batch(message)
        except Exception as error:
            if not self._threaded:
                raise
            self._report(watch, error)
        finally:
            with self._changed:
                self._calling = None
                self._changed.notify_all()
        return 1

    def _report(self, watch: _MemoryWatch, error: Exception) -> None:
        """A callback raised, which is a bug: show it as any thread's end is shown, but lose only this watch."""
        threading.excepthook(threading.ExceptHookArgs((type(error), error, error.__traceback__, self._thread)))
        with self._changed:
            self._watches.pop(watch, None)
            self._calls.appendleft((watch, StoreError(f"a callback of the watch raised {error!r}")))

    def _cancel(self, watch: _MemoryWatch) -> None:
        with self._changed:
            watch.is_cancelled = True
            self._watches.pop(watch, None)
            self._wait_for_callback(watch)

    def _wait_for_callback(self, watch: _MemoryWatch | None) -> None:
        """Wait until no callback (of `watch`, if one is given) runs on another thread. Under the lock."""

        def has_ended() -> bool:
            return self._calling is None or (watch is not None and self._calling is not watch)

        if self._calling_thread != threading.get_ident() and not self._changed.wait_for(has_ended, CALLBACK_LIMIT_S):
            raise StoreError(f"a callback of a watch has not ended in {CALLBACK_LIMIT_S:g} s")


def _check_key(key: str, prefix: bool = False) -> int:
    """The bytes of the key, once it is known to be one. An empty prefix is every key."""
    if not key and not prefix:
        raise StoreError("a key cannot be empty")
    try:
        return len(key.encode())
    except UnicodeEncodeError:
        raise StoreError(f"the key {key!r} is not valid text") from None


def _check_request(compares: Sequence[Compare], success: Sequence[Operation], failure: Sequence[Operation]) -> None:
    """Refuse what etcd refuses before it looks at any key. Both branches count, whichever would run."""
    for name, part in (("compares", compares), ("operations", success), ("operations", failure)):
        if len(part) > TXN_OPERATIONS_MAX:
            raise StoreError(f"a transaction has {len(part)} {name}, at most {TXN_OPERATIONS_MAX} are allowed")
    size = 0
    for compare in compares:
        size += _check_key(compare.key)
        if isinstance(compare.operand, bytes) != (compare.target == "value"):
            raise StoreError(f"the {compare.target} of {compare.key!r} cannot be compared with {compare.operand!r}")
        size += len(compare.operand) if isinstance(compare.operand, bytes) else 0
    for branch in (success, failure):
        written: set[str] = set()
        deleted = [_range(operation.key, operation.prefix) for operation in branch if isinstance(operation, Delete)]
        for operation in branch:
            if not isinstance(operation, Put):
                size += _check_key(operation.key, operation.prefix)
                continue
            size += _check_key(operation.key) + len(operation.value)
            if operation.key in written or any(keys.covers(operation.key) for keys in deleted):
                raise StoreError(f"a transaction writes the key {operation.key!r} twice")
            written.add(operation.key)
    if size > REQUEST_BYTES_MAX:
        raise StoreError(f"a request has {size} bytes, at most {REQUEST_BYTES_MAX} are allowed")
