"""A store in this process: for a run on one machine, for the simulation, and for the served store.

It behaves as etcd does, down to what etcd refuses, so that a protocol that works here works there. The keys and their
history are in keyspace.py, the leases in leases.py, the watches in watch.py; here is the lock around all three, and the
calls of a client.

With `threaded=True` one daemon thread runs the callbacks of watches and ends leases when they are due; it starts with
the first watch or lease that needs it and sleeps until something happens. With `threaded=False` nothing happens by
itself: a simulation moves its clock and calls `expire` and `deliver`.

Deliberately absent: persistence, reads of old revisions, access control. The store is lost with its process.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence

from rendezvous.errors import Compacted, StoreError
from rendezvous.stores.contract import (
    Batch,
    Compare,
    Delete,
    Get,
    GetResult,
    Lease,
    Operation,
    Put,
    Renewal,
    Store,
    TxnResult,
    Watch,
)
from rendezvous.stores.memory.faults import StoreFaults
from rendezvous.stores.memory.keyspace import Keyspace, Page, Range, make_range
from rendezvous.stores.memory.leases import LeaseTable, StoredLease
from rendezvous.stores.memory.watch import CALLBACK_LIMIT_S, MemoryWatch, WatchHub
from rendezvous.stores.validation import check_key, check_request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeVar

    Answer = TypeVar("Answer")

HISTORY_REVISIONS = 10_000  # how far a reader may fall behind: minutes of a large job, some 10 MB of its small records


class MemoryStore(Store):
    """A `Store` in this process; any number of threads may share one.

    `clock` returns seconds that never run backwards; `history_revisions` is how many revisions a new watch may go back;
    leases and revisions are numbered from `first_lease` and `first_revision` on: a store that others reach over the
    network must not reuse the numbers of the one before it.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        threaded: bool = True,
        history_revisions: int = HISTORY_REVISIONS,
        first_lease: int = 1,
        first_revision: int = 1,
    ) -> None:
        self.faults = StoreFaults()
        self._clock = clock
        self._threaded = threaded

        self._changed = threading.Condition(threading.Lock())  # guards everything below
        self._leases = LeaseTable(first_lease)
        self._keyspace = Keyspace(self._leases, history_revisions, first_revision)
        self._hub = WatchHub(self._changed)
        self._thread: threading.Thread | None = None
        self._is_closed = False

    # Keys

    def get(self, key: str, *, prefix: bool = False) -> GetResult:
        """Read a key, or all keys that start with it."""
        check_key(key, prefix)
        with self._changed:
            self._admit(writes=False)
            return GetResult(self._keyspace.revision, tuple(self._keyspace.find(make_range(key, prefix))))

    def put(self, key: str, value: bytes, *, lease: int = 0) -> int:
        """Write unconditionally; return the new revision. Raises LeaseNotFound for a lease that is gone."""
        return self.txn((), (Put(key, value, lease),)).revision

    def delete(self, key: str, *, prefix: bool = False) -> int:
        """Delete a key, or all keys that start with it; return how many were deleted."""
        check_key(key, prefix)
        return self.transact(lambda keyspace: len(keyspace.delete(make_range(key, prefix))))

    def txn(
        self, compares: Sequence[Compare], success: Sequence[Operation], failure: Sequence[Operation] = ()
    ) -> TxnResult:
        """If every compare holds, apply `success`, else `failure`, atomically.

        Raises StoreError for a request that etcd would refuse, LeaseNotFound for a Put under a lease that is gone.
        """
        check_request(compares, success, failure)
        writes = any(not isinstance(operation, Get) for branch in (success, failure) for operation in branch)

        def apply(keyspace: Keyspace) -> TxnResult:
            succeeded = all(keyspace.holds(compare) for compare in compares)
            found = self._apply(success if succeeded else failure)
            return TxnResult(succeeded, keyspace.reading_revision, found)

        return self.transact(apply, writes=writes)

    def transact(self, work: Callable[[Keyspace], Answer], *, writes: bool = True) -> Answer:
        """Run `work` alone on the keys; its writes are one revision. It must validate everything before it writes."""
        with self._changed:
            self._admit(writes)
            answer = work(self._keyspace)
            self._close_page()
            return self.faults.answer(answer) if writes else answer

    @property
    def revision(self) -> int:
        """The revision of the last write."""
        with self._changed:
            return self._keyspace.revision

    def measure_size(self) -> int:
        """Return the approximate size of the keys and their values, in bytes."""
        return self.transact(lambda keyspace: keyspace.measure_size(), writes=False)

    def compact(self, revision: int) -> None:
        """Drop the history before `revision`. Raises Compacted if that is gone already, StoreError for a future one."""
        self.transact(lambda keyspace: keyspace.compact(revision))

    # Leases

    def lease_grant(self, ttl_s: float, *, id: int = 0) -> Lease:
        """Grant a lease of at least `ttl_s` seconds, and at least 2. A private store may grant `math.inf`: no end.

        Raises LeaseExists for an `id` (0 is any) that is in use.
        """
        with self._changed:
            self._admit(writes=True)
            due_before = self._leases.nothing_due_before
            lease = self._leases.grant(ttl_s, self._clock(), id)
            if self._leases.nothing_due_before < due_before:
                self._wake_thread()
            return self.faults.answer(Lease(lease.id, lease.ttl_s))

    def lease_keep_alive(self, lease: int) -> float:
        """Renew the lease; return the granted TTL in seconds. Raises LeaseNotFound when it is gone or due."""
        with self._changed:
            self._admit(writes=True)
            return self.faults.answer(self._leases.renew(lease, self._clock()).ttl_s)

    def lease_renew(self, lease: int, key: str) -> Renewal:
        """Renew the lease, then read `key`. Raises LeaseNotFound when the lease is gone or due."""
        ttl_s, found = self.lease_keep_alive(lease), self.get(key)
        return Renewal(ttl_s, True, found.revision, found.first.create_revision if found.first else 0)

    def lease_revoke(self, lease: int) -> None:
        """End the lease now, and delete its keys. Raises LeaseNotFound when it is gone."""
        with self._changed:
            self._admit(writes=True)
            self._end_lease(self._leases.get(lease))
            self.faults.answer(None)

    def lease_remaining(self, lease: int) -> float:
        """Return the seconds until the lease would expire. Raises LeaseNotFound when it is gone."""
        with self._changed:
            self._admit(writes=False)
            return max(0.0, self._leases.get(lease).deadline - self._clock())

    def list_lease_keys(self, lease: int) -> tuple[float, tuple[str, ...]]:
        """Return the granted TTL in seconds and the keys of a lease. Raises LeaseNotFound when it is gone."""
        with self._changed:
            self._admit(writes=False)
            stored_lease = self._leases.get(lease)
            return stored_lease.ttl_s, tuple(sorted(stored_lease.keys))

    def list_leases(self) -> list[int]:
        """List the ids of the leases that have not ended."""
        with self._changed:
            self._admit(writes=False)
            return sorted(lease.id for lease in self._leases)

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
        check_key(key, prefix)
        if start_revision < 1:
            raise StoreError(f"a watch starts at revision 1 or later, not {start_revision}")
        return self.watch_pages(make_range(key, prefix), start_revision, lambda page: on_batch(page.batch), on_lost)

    def watch_pages(
        self, keys: Range, start_revision: int, on_page: Callable[[Page], None], on_lost: Callable[[StoreError], None]
    ) -> MemoryWatch:
        """Watch as `watch` does, over any range, with the replaced items."""
        watch = MemoryWatch(self._hub, keys, start_revision, on_page, on_lost)
        with self._changed:
            self._admit(writes=False)
            if start_revision < self._keyspace.compacted_revision:
                self._hub.lose(watch, Compacted(self._keyspace.compacted_revision))
            else:
                self._hub.add(watch)
                for page in self._keyspace.list_pages_from(start_revision):
                    part = page.filter_keys(keys)
                    if part is not None:
                        self._hub.notify(watch, part)
            self._wake_thread()
        return watch

    def close(self) -> None:
        """Cancel the watches and end the thread; waits for a running callback as `Watch.cancel` does."""
        with self._changed:
            self._is_closed = True
            self._hub.close()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(CALLBACK_LIMIT_S)

    # Time, for the owner of the clock

    def find_next_deadline(self) -> float | None:
        """Return when, by the store's clock, the next lease is due; None if none ever is."""
        with self._changed:
            deadline = self._leases.find_next_deadline()
            return deadline if deadline < math.inf else None

    def expire(self) -> int:
        """End each lease that is due by the clock, oldest deadline first, in its own revision; return how many."""
        with self._changed:
            return self._expire()

    def renew_leases(self) -> None:
        """Restart the TTL of every lease: a store that was frozen cannot know which clients tried to renew."""
        with self._changed:
            self._leases.renew_all(self._clock())

    def deliver(self) -> int:
        """Run the callbacks that are pending now, in this thread; return how many ran. Only for `threaded=False`.

        Callbacks that they cause wait for the next call. An exception of a callback is raised; the rest stay pending.
        """
        assert not self._threaded, "the store's own thread delivers"
        with self._changed:
            pending = self._hub.pending
        return sum(self._hub.deliver_one(report=False) for _ in range(pending))

    # Under the lock

    def _admit(self, writes: bool) -> None:
        if self._is_closed:
            raise StoreError("the store is closed")
        self.faults.admit(writes)

    def _apply(self, operations: Sequence[Operation]) -> tuple[GetResult, ...]:
        for operation in operations:  # everything is validated before anything is written
            if isinstance(operation, Put) and operation.lease:
                self._leases.get(operation.lease)
        found: list[GetResult] = []
        for operation in operations:
            if isinstance(operation, Put):
                self._keyspace.put(operation.key, operation.value, operation.lease)
                continue
            keys = make_range(operation.key, operation.prefix)
            if isinstance(operation, Delete):
                self._keyspace.delete(keys)
            else:
                found.append(GetResult(self._keyspace.reading_revision, tuple(self._keyspace.find(keys))))
        return tuple(found)

    def _close_page(self) -> None:
        page = self._keyspace.close_page()
        if page is not None:
            self._hub.announce(page)
            if self._hub.pending:
                self._wake_thread()

    def _end_lease(self, lease: StoredLease) -> None:
        for key in sorted(lease.keys):
            self._keyspace.delete(Range.one(key))
        self._close_page()
        self._leases.remove(lease)

    def _expire(self) -> int:
        now = self._clock()
        if now < self._leases.nothing_due_before:
            return 0
        due = self._leases.list_due(now)
        for lease in due:
            self._end_lease(lease)
        return len(due)

    def _wake_thread(self) -> None:
        """Have the thread check again, starting it if needed."""
        if self._thread is not None:
            self._changed.notify_all()
        elif self._threaded:
            thread = threading.Thread(target=self._run, name="memory store", daemon=True)
            thread.start()  # raises where the machine has no more
            self._thread = thread

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._is_closed:
                    self._expire()
                    if self._hub.pending:
                        break
                    sleep_s = self._leases.nothing_due_before - self._clock()
                    self._changed.wait(min(sleep_s, threading.TIMEOUT_MAX) if sleep_s < math.inf else None)
                else:
                    return
            self._hub.deliver_one(report=True)
