"""The production memory store, and the simulated network between it and the nodes.

Requests take time, get lost on either way, or are applied long after their sender gave up. Watched events arrive late,
and all at once after a stall; one watch may be far behind while the others are current. The store as a whole can be
away. Its clock may stand still meanwhile (no quorum: no lease expires), leases may be renewed in full when it is back
(a restart, another leader), or run on (all nodes are cut off, the store works).

Servers with a stalled disk are worse. A leader that has been replaced answers renewals that renew nothing. It may also
end a lease before its time, which breaks the store's promise: no rule can keep two rounds apart at that moment, so the
member of such a lease is excused for one TTL after its end (`LeaseTimes.is_excused`), and no longer. Writes may take
longer than their callers wait.

An operator may restore the store to a snapshot, with other writes before the agents reach it again.
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections import deque
from collections.abc import Callable, Mapping
from typing import cast

from rendezvous import events, records
from rendezvous.errors import Compacted, StoreError
from rendezvous.events import Event, StoreRequest, WatchLost, execute_request, get_request_kind
from rendezvous.settings import Settings
from rendezvous.stores.contract import Batch, Renewal, Watch
from rendezvous.stores.memory.keyspace import Keyspace, LeaseTable, StoredLease
from rendezvous.stores.memory.store import MemoryStore
from tests.simulation.config import PREFIX, RUN_ID
from tests.simulation.host import Host, Send
from tests.simulation.network import Network, Timeline
from tests.simulation.processes import Running
from tests.support.stores.compaction import compact

SLOW_S = 0.9  # less than any limit of a call


class StoreClock:
    """It stands still while the store is away, unless leases run on."""

    def __init__(self, timeline: Timeline) -> None:
        self.stood_still_s = 0.0  # how far it is behind the timeline
        self._still_since = math.inf
        self._timeline = timeline

    @property
    def is_still(self) -> bool:
        return self._still_since < math.inf

    def read(self) -> float:
        return min(self._timeline.now, self._still_since) - self.stood_still_s

    def stop(self) -> None:
        if not self.is_still:
            self._still_since = self._timeline.now

    def resume(self) -> None:
        if self.is_still:
            self.stood_still_s += self._timeline.now - self._still_since
            self._still_since = math.inf


class LeaseTimes:
    """When leases end or have ended. Times are given and returned on the timeline, not on the store's clock."""

    def __init__(self, timeline: Timeline, clock: StoreClock, ttl_s: float) -> None:
        self._timeline, self._clock, self._ttl_s = timeline, clock, ttl_s
        self.due: dict[int, float] = {}  # lease -> when it ends, on the store's clock
        self.ended_at: dict[int, float] = {}
        self.broken: set[int] = set()  # leases that the store has ended before their time

    def note_grant(self, lease: int, ttl_s: float) -> None:
        """The store has granted this lease; it may be the answer to a grant that was repeated."""
        if lease not in self.due or lease in self.ended_at:
            self.due[lease] = self._clock.read() + ttl_s
            self.ended_at.pop(lease, None)

    def note_renewal(self, lease: int, ttl_s: float) -> None:
        self.due[lease] = self._clock.read() + ttl_s

    def note_restore(self, ttls_s: Mapping[int, float]) -> None:
        """The store has these leases again, as if granted now, and has lost all others, which breaks its promise."""
        for lease, ttl_s in ttls_s.items():
            self.note_renewal(lease, ttl_s)
            self.ended_at.pop(lease, None)
        for lease in self.due.keys() - ttls_s.keys() - self.ended_at.keys():
            self.broken.add(lease)
            self.note_end(lease)

    def note_end(self, lease: int) -> None:
        self.ended_at[lease] = min(self.get_end(lease), self._timeline.now)

    def get_end(self, lease: int) -> float:
        """When this lease ended, or will end unless it is renewed; minus infinity for a lease that never was."""
        due = self.due.get(lease, -math.inf) + self._timeline.now - self._clock.read()
        return min(due, self.ended_at.get(lease, math.inf))

    def is_excused(self, lease: int) -> bool:
        """Whether the member may still not know that its lease has ended, because the store ended it early."""
        ended_at = self.ended_at.get(lease, math.inf)
        return lease in self.broken and self._timeline.now < ended_at + self._ttl_s


Content = tuple[Keyspace, LeaseTable]


class _Store(MemoryStore):
    """Reports every end of a lease, whatever its cause; its content can be replaced by an earlier one."""

    on_end: Callable[[int], None]

    def copy_content(self) -> Content:
        return copy.deepcopy((self._keyspace, self._leases))

    def restore(self, content: Content) -> dict[int, float]:
        """Replace the content, as restored servers of etcd do; return the leases with their TTLs.

        All leases begin anew. Clients ask for the events after the last that they have seen, however late these come.
        """
        first = self._keyspace.revision + 1
        self._keyspace, self._leases = copy.deepcopy(content)
        self.renew_leases()
        for watches in self._hub._groups.values():
            for watch in watches:
                watch.start_revision = max(watch.start_revision, first)
        return {lease.id: lease.ttl_s for lease in self._leases}

    def _end_lease(self, lease: StoredLease) -> None:
        self.on_end(lease.id)
        super()._end_lease(lease)


class Storage:
    """The store as its server runs it."""

    def __init__(self, network: Network, settings: Settings, hosts: Mapping[str, Host]) -> None:
        timeline = network.timeline
        self.clock = StoreClock(timeline)
        self.leases = LeaseTimes(timeline, self.clock, settings.lease_ttl_s)
        store = _Store(clock=self.clock.read)
        store.on_end = self.leases.note_end
        self.store: MemoryStore = store
        self._snapshot = store.copy_content()
        self.on_snapshot: Callable[[], None] = lambda: None
        self.on_restore: Callable[[int], None] = lambda revision: None
        self.away_since, self.away_until = math.inf, -math.inf
        self.is_refusing = False  # while it is away, calls fail at once
        self._timeline, self._network, self._settings, self._hosts = timeline, network, settings, hosts
        self._running_before: list[Running] = []
        self._lease_mode = "frozen"  # what leases do while the store is away
        self._expiry_at = math.inf
        self._write_s = (0.0, 0.0)
        self._slow_until = -math.inf

    # --- the store as a whole ---

    @property
    def is_away(self) -> bool:
        return self._timeline.now < self.away_until

    def go_away(self, duration_s: float, leases: str = "renewed", is_refusing: bool = True) -> None:
        """Answer no call for this long. `leases`: "frozen", "renewed" or "running"."""
        now = self._timeline.now
        self._timeline.trace(f"the store goes away for {duration_s:g} s, its leases {leases}")
        if not self.is_away:
            self.away_since = now
            self._running_before = self._list_running()
        self.away_until = max(self.away_until, now + duration_s)
        self._lease_mode, self.is_refusing = leases, is_refusing
        if leases != "running":
            self.clock.stop()
        self._timeline.call_later(duration_s, self.come_back)

    def come_back(self) -> None:
        if self.is_away or self.away_since == math.inf:
            return
        self._timeline.trace("the store is back")
        still_running = {id(running) for running in self._list_running()}
        has_outlasted = any(id(running) in still_running for running in self._running_before)
        if has_outlasted and self._timeline.now - self.away_since > self._settings.lease_ttl_s:
            self._timeline.count("round survived an outage")
        self.away_since = math.inf
        self.clock.resume()
        if self._lease_mode == "renewed":
            for lease in list(self.leases.due):
                with contextlib.suppress(StoreError):  # it has ended
                    self.leases.note_renewal(lease, self.store.lease_keep_alive(lease))
        self._lease_mode = "frozen"
        self._expiry_at = math.inf
        self.deliver()

    def _list_running(self) -> list[Running]:
        return [host.running for host in self._hosts.values() if host.running]

    def heal(self) -> None:
        """End an outage now."""
        if self.is_away:
            self.away_until = self._timeline.now
            self.come_back()

    def end_lease_early(self, host: Host) -> None:
        """End the lease of this host's agent though it is renewed in time, as a leader does that was replaced."""
        lease = host.state.lease.id if host.state is not None else None
        if lease is not None:
            self._timeline.trace(f"the store ends the lease of {host.name} early")
            self.leases.broken.add(lease)
            with contextlib.suppress(StoreError):  # it has ended
                self.store.lease_revoke(lease)
            self.deliver()

    def write_slowly(self, write_s: tuple[float, float], duration_s: float) -> None:
        """Take this long for every write except renewals, which write nothing."""
        self._timeline.trace(f"writes take {write_s[0]:g} to {write_s[1]:g} s")
        self._write_s, self._slow_until = write_s, max(self._slow_until, self._timeline.now + duration_s)

    def draw_write_s(self) -> float:
        """How long the store takes for the next write."""
        return self._timeline.random.uniform(*self._write_s) if self._timeline.now < self._slow_until else 0.0

    def compact(self) -> None:
        """Forget the history: a watch from an earlier revision is lost."""
        self._timeline.trace("the store forgets its history")
        with contextlib.suppress(Compacted):  # nothing was written since the last time
            compact(self.store, self.store.get("nothing").revision)

    def take_snapshot(self) -> None:
        """Keep what the store has now, for `restore`."""
        self._timeline.trace("somebody takes a snapshot of the store")
        self._snapshot = self._copy_content()
        self.on_snapshot()

    def restore(self, others: int = 0) -> None:
        """Go back to the last snapshot; afterwards other programs have made so many revisions."""
        self._timeline.trace(f"the store is restored, and others make {others} revisions")
        self.deliver()
        store = self.store
        assert isinstance(store, _Store)
        self.leases.note_restore(store.restore(self._snapshot))
        self._expiry_at = math.inf
        self.on_restore(store.revision)
        for _ in range(others):
            store.put("/others", b"")
        self.deliver()

    def _copy_content(self) -> Content:
        assert isinstance(self.store, _Store)
        return self.store.copy_content()

    # --- what it does ---

    def read_current_job(self) -> str:
        found = self.store.get(records.make_current_key(PREFIX, RUN_ID)).first
        return found.value.decode() if found is not None else ""

    def apply(self, store_request: StoreRequest) -> Event:
        """Execute a request; the event that answers it."""
        if self._network.model.expiry_late_s[1] == 0.0:
            self.store.expire()
        event: Event
        try:
            answer = execute_request(self.store, store_request.request)
            event = events.StoreReply(store_request.id, answer)
            match store_request.request:
                case events.Grant(ttl_s, id):
                    self.leases.note_grant(id, ttl_s)
                case events.KeepAlive(lease):
                    self.leases.note_renewal(lease, cast("Renewal", answer).ttl_s)
        except StoreError as error:
            event = events.StoreRejected(store_request.id, error)
        self.deliver()
        return event

    def deliver(self) -> None:
        self.store.deliver()
        deadline = self.store.find_next_deadline()
        if deadline == math.inf or self.clock.is_still:
            return
        late_s = self._timeline.random.uniform(*self._network.model.expiry_late_s)
        due_at = deadline + self.clock.stood_still_s + late_s
        if due_at < self._expiry_at:
            self._expiry_at = due_at
            self._timeline.call_at(due_at, self._expire)

    def _expire(self) -> None:
        self._expiry_at = math.inf
        if not self.clock.is_still:
            self.store.expire()
        self.deliver()


class StoreNetwork:
    """Carries requests and watched events between the nodes and the store: the `StoreAccess` of the simulation."""

    def __init__(self, network: Network, settings: Settings, storage: Storage) -> None:
        self.fates: dict[str, str] = {}  # what happens to the next request of this kind
        self._timeline, self._network, self._settings, self._storage = network.timeline, network, settings, storage

    # --- requests ---

    def request(self, host: Host, incarnation: int, store_request: StoreRequest, send: Send) -> None:
        """Carry a request to the store and its answer back, or lose either."""
        timeline, storage, settings = self._timeline, self._storage, self._settings
        is_write = get_request_kind(store_request.request) == "write"
        limit_s = settings.write_limit_s if is_write else settings.call_limit_s
        there, back = self._network.draw_delay(), self._network.draw_delay()
        if is_write:
            there += storage.draw_write_s()
        fate = self._draw_fate(host, store_request)
        if fate == "slow request":
            fate, there = "answered", SLOW_S
        elif fate == "slow answer":
            fate, back = "answered", SLOW_S
        late_s = timeline.random.uniform(*self._network.model.late_s) if fate == "late" else there
        is_at_stale = timeline.now < host.stale_until
        is_renewal = isinstance(store_request.request, events.KeepAlive)
        is_lost = timeline.now < host.renews_only_until and not is_renewal
        if host.is_cut_from_store or is_lost or (is_at_stale and not host.is_served_elsewhere):
            fate = "lost"
        elif is_at_stale and is_renewal:
            fate = "unconfirmed"
        elif storage.is_away:
            fate = self._choose_fate_while_away(fate)
            late_s += storage.away_until - timeline.now
        if fate == "refused":
            refusal = events.StoreRejected(store_request.id, StoreError("the store said no"))
            timeline.call_later(there + back, send, incarnation, refusal)
        elif fate == "unconfirmed":
            timeline.call_later(there, self._renew_nothing, store_request, back, send, incarnation)
        elif fate == "answered" and there + back < limit_s:
            gave_up_at = timeline.now + limit_s
            timeline.call_later(there, self._serve, host, incarnation, store_request, send, back, gave_up_at)
        else:
            if fate != "lost":
                timeline.call_later(late_s, storage.apply, store_request)
            timeline.call_later(limit_s, send, incarnation, events.StoreOutcomeUnknown(store_request.id))

    def _draw_fate(self, host: Host, store_request: StoreRequest) -> str:
        """What happens to a request, unless it was determined in advance."""
        model = self._network.model
        shares = {
            "lost": model.lose_request,
            "unanswered": model.lose_answer,
            "slow answer": model.slow_answer,
            "slow request": model.slow_request,
            "late": model.apply_late,
            "refused": model.refuse,
        }
        shares["answered"] = 1.0 - sum(shares.values())
        fate = self._timeline.random.choices(list(shares), list(shares.values()))[0]
        return self.fates.pop(f"{host.name}: {store_request.kind}", self.fates.pop(store_request.kind, fate))

    def _choose_fate_while_away(self, fate: str) -> str:
        """Without a quorum a write may be applied after the outage, though it was answered with an error."""
        if self._storage.is_refusing:
            return "refused"
        return "late" if fate in ("late", "unanswered") else "lost"

    def _serve(
        self, host: Host, incarnation: int, store_request: StoreRequest, send: Send, back: float, gave_up_at: float
    ) -> None:
        if self._storage.is_away:  # the outage began while the request was under way
            self._timeline.call_at(gave_up_at, send, incarnation, events.StoreOutcomeUnknown(store_request.id))
            return
        event = self._storage.apply(store_request)
        self._timeline.call_later(back, self._bring_back, host, incarnation, send, event, gave_up_at)

    def _bring_back(self, host: Host, incarnation: int, send: Send, event: Event, gave_up_at: float) -> None:
        if host.is_cut_from_store and isinstance(event, events.StoreReply | events.StoreRejected):
            self._timeline.call_at(gave_up_at, send, incarnation, events.StoreOutcomeUnknown(event.id))
        else:
            send(incarnation, event)

    def _renew_nothing(self, store_request: StoreRequest, back: float, send: Send, incarnation: int) -> None:
        """Answer a renewal as a replaced leader does, with what a majority reads after it."""
        assert isinstance(store_request.request, events.KeepAlive)
        found = self._storage.store.get(store_request.request.key)
        revision = found.first.create_revision if found.first is not None else 0
        renewal = Renewal(self._settings.lease_ttl_s, False, found.revision, revision)
        self._timeline.call_later(back, send, incarnation, events.StoreReply(store_request.id, renewal))

    # --- watches ---

    def follow(self, host: Host, key: str, start_revision: int, incarnation: int, send: Send) -> Watch:
        """Watch for a node; events arrive in order, after the delay of the network, and after a stall all at once."""
        timeline, network, storage = self._timeline, self._network, self._storage
        last, waiting = timeline.now, deque[Batch]()

        def on_batch(batch: Batch) -> None:
            nonlocal last
            last = max(last, find_held_until() + network.draw_delay() + host.get_lag_s(key))
            waiting.append(batch)
            timeline.call_at(last, arrive)

        def find_held_until() -> float:
            silent_until = max(host.watches_stalled_until, host.stale_until, host.renews_only_until)
            return max(timeline.now, host.store_cut_until, silent_until, storage.away_until)

        def arrive() -> None:
            if find_held_until() > timeline.now:  # a fault began while it was under way
                timeline.call_at(find_held_until() + network.draw_delay(), arrive)
            else:
                send(incarnation, events.WatchUpdate(key, waiting.popleft()))

        def on_lost(error: StoreError) -> None:
            timeline.call_later(network.draw_delay(), send, incarnation, WatchLost(key, error))

        watch = storage.store.watch(
            key, prefix=key.endswith("/"), start_revision=start_revision, on_batch=on_batch, on_lost=on_lost
        )
        storage.deliver()  # what has happened since that revision
        return watch
