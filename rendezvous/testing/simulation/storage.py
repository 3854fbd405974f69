"""The production memory store behind the simulated network.

Requests take time, get lost on either way, or are applied long after their sender gave up. Watched events come
late, and in one go after a stall; one watch may be behind for long while the others are current. The store as a
whole can be away: its clock may stand still meanwhile (no quorum: no lease ends), leases may be renewed in full when it
is back (a restart, another leader), or run on unseen (all nodes are cut off, the store is well).

Servers whose disk stalls do worse. A leader that has been replaced answers renewals that renew nothing. And it may end
a lease before its time, which breaks the store's promise: nobody can keep two rounds apart then at once, so whoever
lived on such a lease is excused for one TTL after its end (`is_excused`), and no longer. Writes may take longer than
their callers wait.
"""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from rendezvous import events
from rendezvous.driver.driver import execute_request
from rendezvous.errors import Compacted, StoreError
from rendezvous.events import Event, StoreRequest, WatchLost, get_request_kind
from rendezvous.stores.contract import Batch, Renewal, Watch
from rendezvous.stores.memory.leases import StoredLease
from rendezvous.stores.memory.store import MemoryStore

if TYPE_CHECKING:
    from rendezvous.testing.simulation.cluster import SimulatedCluster
    from rendezvous.testing.simulation.node import SimulatedNode
    from rendezvous.testing.simulation.processes import Running

Send = Callable[[int, Event], None]
SLOW_S = 0.9  # less than any limit of a call


class _Store(MemoryStore):
    """Tells of every lease that ends, however it does."""

    on_end: Callable[[int], None]

    def _end_lease(self, lease: StoredLease) -> None:
        self.on_end(lease.id)
        super()._end_lease(lease)


class Storage:
    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self._stood_still_s = 0.0  # how far the store's clock is behind
        self._still_since = math.inf
        store = _Store(clock=self._clock, threaded=False)
        store.on_end = self._note_end
        self.store: MemoryStore = store
        self.fates: dict[str, str] = {}  # what shall happen to the next request of this purpose
        self.away_since, self.away_until = math.inf, -math.inf
        self._running_before: list[tuple[SimulatedNode, Running | None]] = []
        self._leases = "frozen"  # what leases do while the store is away
        self._is_refusing = False
        self._due: dict[int, float] = {}  # lease -> when it ends, on the store's clock
        self._ended_at: dict[int, float] = {}
        self._broken: set[int] = set()  # leases that ended early
        self._expiry_at = math.inf
        self.write_s = (0.0, 0.0)  # how long the store takes to write
        self.slow_until = -math.inf

    def _clock(self) -> float:
        return min(self._cluster.now, self._still_since) - self._stood_still_s

    # --- the store as a whole ---

    @property
    def is_away(self) -> bool:
        return self._cluster.now < self.away_until

    def go_away(self, duration_s: float, leases: str = "renewed", is_refusing: bool = True) -> None:
        """Answer nobody for so long. `leases`: "frozen", "renewed" or "running"; `is_refusing`: calls fail at once."""
        cluster = self._cluster
        cluster.trace(f"the store goes away for {duration_s:g} s, its leases {leases}")
        if not self.is_away:
            self.away_since = cluster.now
            self._running_before = [(node, node.running) for node in cluster.nodes.values() if node.running]
        self.away_until = max(self.away_until, cluster.now + duration_s)
        self._leases, self._is_refusing = leases, is_refusing
        if leases != "running" and self._still_since == math.inf:
            self._still_since = cluster.now
        cluster.call_later(duration_s, self.come_back)

    def come_back(self) -> None:
        if self.is_away or self.away_since == math.inf:
            return
        self._cluster.trace("the store is back")
        outlasted = [node for node, running in self._running_before if node.running is running]
        if outlasted and self._cluster.now - self.away_since > self._cluster.settings.lease_ttl_s:
            self._cluster.count("round survived an outage")
        self.away_since = math.inf
        if self._still_since < math.inf:
            self._stood_still_s += self._cluster.now - self._still_since
            self._still_since = math.inf
        if self._leases == "renewed":
            for lease in self._due:
                with contextlib.suppress(StoreError):  # it is gone
                    self._due[lease] = self._clock() + self.store.lease_keep_alive(lease)
        self._leases = "frozen"
        self._expiry_at = math.inf
        self.deliver()

    # --- leases ---

    def get_lease_end(self, lease: int) -> float:
        """When this lease ended, or will if nobody renews it, on the cluster's clock; minus infinity for none."""
        due = self._due.get(lease, -math.inf) + self._cluster.now - self._clock()
        return min(due, self._ended_at.get(lease, math.inf))

    def is_broken(self, lease: int) -> bool:
        """Whether the store has ended this lease before its time."""
        return lease in self._broken

    def is_excused(self, lease: int) -> bool:
        """Whether whoever lived on this lease may not know yet that it has ended: the store's fault."""
        ended_at = self._ended_at.get(lease, math.inf)
        return lease in self._broken and self._cluster.now < ended_at + self._cluster.settings.lease_ttl_s

    def has_ended(self, lease: int) -> bool:
        return lease in self._ended_at

    def end_early(self, lease: int) -> None:
        """End a lease that is renewed in time, as a leader does that has been replaced and does not know it."""
        with contextlib.suppress(StoreError):  # it is gone
            self._broken.add(lease)
            self.store.lease_revoke(lease)
        self.deliver()

    def write_slowly(self, write_s: tuple[float, float], duration_s: float) -> None:
        """Take this long for every write, but for renewals, which write nothing."""
        self._cluster.trace(f"writes take {write_s[0]:g} to {write_s[1]:g} s")
        self.write_s, self.slow_until = write_s, max(self.slow_until, self._cluster.now + duration_s)

    def _note_end(self, lease: int) -> None:
        self._ended_at[lease] = min(self.get_lease_end(lease), self._cluster.now)

    def compact(self) -> None:
        """Forget the history: a watch from an earlier revision is lost."""
        self._cluster.trace("the store forgets its history")
        with contextlib.suppress(Compacted):  # nothing was written since the last time
            self.store.compact(self.store.get("nothing").revision)

    # --- requests ---

    def request(self, node: SimulatedNode, incarnation: int, store_request: StoreRequest, send: Send) -> None:
        """Carry a request to the store and its answer back, or lose either."""
        cluster = self._cluster
        network, settings = cluster.network, cluster.settings
        is_write = get_request_kind(store_request.request) == "write"
        limit_s = settings.write_limit_s if is_write else settings.call_limit_s
        there, back = cluster.draw_delay(), cluster.draw_delay()
        if cluster.now < self.slow_until and is_write:
            there += cluster.random.uniform(*self.write_s)
        shares = {
            "lost": network.lose_request,
            "unanswered": network.lose_answer,
            "slow answer": network.slow_answer,
            "slow request": network.slow_request,
            "late": network.apply_late,
            "refused": network.refuse,
        }
        shares["answered"] = 1.0 - sum(shares.values())
        fate = cluster.random.choices(list(shares), list(shares.values()))[0]
        fate = self.fates.pop(f"{node.name}: {store_request.why}", self.fates.pop(store_request.why, fate))
        if fate == "slow request":
            fate, there = "answered", SLOW_S
        elif fate == "slow answer":
            fate, back = "answered", SLOW_S
        late_s = cluster.random.uniform(*network.late_s) if fate == "late" else there
        is_at_stale = cluster.now < node.stale_until
        is_renewal = isinstance(store_request.request, events.KeepAlive)
        is_lost = cluster.now < node.renews_only_until and not is_renewal
        if node.is_cut_from_store or is_lost or (is_at_stale and not node.is_served_elsewhere):
            fate = "lost"
        elif is_at_stale and is_renewal:
            fate = "unconfirmed"
        elif self.is_away:
            fate = self._choose_fate_while_away(fate)
            late_s += self.away_until - cluster.now
        if fate == "refused":
            refusal = events.StoreRejected(store_request.id, StoreError("the store said no"))
            cluster.call_later(there + back, send, incarnation, refusal)
        elif fate == "unconfirmed":
            assert isinstance(store_request.request, events.KeepAlive)
            cluster.call_later(
                there, self._renew_nothing, store_request.id, store_request.request, back, send, incarnation
            )
        elif fate == "answered" and there + back < limit_s:
            gave_up_at = cluster.now + limit_s
            cluster.call_later(there, self._serve, node, incarnation, store_request, send, back, gave_up_at)
        else:
            if fate != "lost":
                cluster.call_later(late_s, self._apply, store_request)
            cluster.call_later(limit_s, send, incarnation, events.StoreOutcomeUnknown(store_request.id))

    def _choose_fate_while_away(self, fate: str) -> str:
        """Without a quorum a write may be applied once it is healed, though it was answered with an error."""
        if self._is_refusing:
            return "refused"
        return "late" if fate in ("late", "unanswered") else "lost"

    def _serve(
        self,
        node: SimulatedNode,
        incarnation: int,
        store_request: StoreRequest,
        send: Send,
        back: float,
        gave_up_at: float,
    ) -> None:
        if self.is_away:  # it went while the request was under way
            self._cluster.call_at(gave_up_at, send, incarnation, events.StoreOutcomeUnknown(store_request.id))
            return
        event = self._apply(store_request)
        self._cluster.call_later(back, self._bring_back, node, incarnation, send, event, gave_up_at)

    def _bring_back(self, node: SimulatedNode, incarnation: int, send: Send, event: Event, gave_up_at: float) -> None:
        if node.is_cut_from_store and isinstance(event, events.StoreReply | events.StoreRejected):
            self._cluster.call_at(gave_up_at, send, incarnation, events.StoreOutcomeUnknown(event.id))
        else:
            send(incarnation, event)

    def _renew_nothing(self, id: int, request: events.KeepAlive, back: float, send: Send, incarnation: int) -> None:
        """What a leader answers that is none any more, and a majority after it."""
        found = self.store.get(request.key)
        revision = found.first.create_revision if found.first is not None else 0
        renewal = Renewal(self._cluster.settings.lease_ttl_s, False, found.revision, revision)
        self._cluster.call_later(back, send, incarnation, events.StoreReply(id, renewal))

    def _apply(self, store_request: StoreRequest) -> Event:
        if self._cluster.network.expiry_late_s[1] == 0.0:
            self.store.expire()
        event: Event
        try:
            given = execute_request(self.store, store_request.request)
            event = events.StoreReply(store_request.id, given)
            match store_request.request:
                case events.Grant(ttl_s, id) if id not in self._due or id in self._ended_at:
                    self._due[id] = self._clock() + ttl_s
                    self._ended_at.pop(id, None)
                case events.KeepAlive(lease):
                    self._due[lease] = self._clock() + cast("Renewal", given).ttl_s
        except StoreError as error:
            event = events.StoreRejected(store_request.id, error)
        self.deliver()
        return event

    # --- watches ---

    def follow(self, node: SimulatedNode, key: str, start_revision: int, incarnation: int, send: Send) -> Watch:
        """Watch for a node; events come in order, as late as the network is, and after a stall all at once."""
        cluster = self._cluster
        last, waiting = cluster.now, deque[Batch]()

        def on_batch(batch: Batch) -> None:
            nonlocal last
            last = max(last, find_held_until() + cluster.draw_delay() + node.lags.get_lag_s(key, cluster.now))
            waiting.append(batch)
            cluster.call_at(last, arrive)

        def find_held_until() -> float:
            silent_until = max(node.watches_stalled_until, node.stale_until, node.renews_only_until)
            return max(cluster.now, node.store_cut_until, silent_until, self.away_until)

        def arrive() -> None:
            if find_held_until() > cluster.now:  # cut while it was under way
                cluster.call_at(find_held_until() + cluster.draw_delay(), arrive)
            else:
                send(incarnation, events.WatchUpdate(key, waiting.popleft()))

        def on_lost(error: StoreError) -> None:
            cluster.call_later(cluster.draw_delay(), send, incarnation, WatchLost(key, error))

        watch = self.store.watch(
            key, prefix=key.endswith("/"), start_revision=start_revision, on_batch=on_batch, on_lost=on_lost
        )
        self.deliver()  # what has happened since that revision
        return watch

    # --- time ---

    def deliver(self) -> None:
        self.store.deliver()
        deadline = self.store.find_next_deadline()
        if deadline is None or self._still_since < math.inf:
            return
        due_at = deadline + self._stood_still_s + self._cluster.random.uniform(*self._cluster.network.expiry_late_s)
        if due_at < self._expiry_at:
            self._expiry_at = due_at
            self._cluster.call_at(due_at, self._expire)

    def _expire(self) -> None:
        self._expiry_at = math.inf
        if self._still_since == math.inf:
            self.store.expire()
        self.deliver()
