"""The production memory store behind the simulated network.

Requests take time, get lost on either way, or are applied long after their sender gave up. Watched events come
late, and in one go after a stall. The store as a whole can be away: its clock may stand still meanwhile (no quorum:
no lease ends), leases may be renewed in full when it is back (a restart, another leader), or run on unseen (all
nodes are cut off, the store is well).
"""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from rendezvous import messages
from rendezvous.driver import answer
from rendezvous.errors import Compacted, StoreError
from rendezvous.messages import Ask, Event, WatchLost
from rendezvous.store import Batch, Watch
from rendezvous.stores.memory import MemoryStore
from rendezvous.trouble import purpose

if TYPE_CHECKING:
    from rendezvous.testing.cluster import Cluster
    from rendezvous.testing.node import Node
    from rendezvous.testing.processes import Running

Send = Callable[[int, Event], None]


class Storage:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._stood_still_s = 0.0  # how far the store's clock is behind
        self._still_since = math.inf
        self.store = MemoryStore(clock=self._clock, threaded=False)
        self.fates: dict[str, str] = {}  # what shall happen to the next request of this purpose
        self.away_since, self.away_until = math.inf, -math.inf
        self._running_before: list[tuple[Node, Running | None]] = []
        self._leases = "frozen"  # what leases do while the store is away
        self._is_refusing = False
        self._granted: set[int] = set()
        self._expiry_at = math.inf

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
        cluster.later(duration_s, self.come_back)

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
            for lease in self._granted:
                with contextlib.suppress(StoreError):  # it is gone
                    self.store.lease_keep_alive(lease)
        self._leases = "frozen"
        self._expiry_at = math.inf
        self.deliver()

    def compact(self) -> None:
        """Forget the history: a watch from an earlier revision is lost."""
        self._cluster.trace("the store forgets its history")
        with contextlib.suppress(Compacted):  # nothing was written since the last time
            self.store.compact(self.store.get("nothing").revision)

    # --- requests ---

    def request(self, node: Node, incarnation: int, ask: Ask, send: Send) -> None:
        """Carry a request to the store and its answer back, or lose either."""
        cluster = self._cluster
        network, limit_s = cluster.network, cluster.settings.limit_s(purpose(ask.request))
        there, back = cluster.delay(), cluster.delay()
        shares = {
            "lost": network.lose_request,
            "unanswered": network.lose_answer,
            "late": network.apply_late,
            "refused": network.refuse,
        }
        shares["answered"] = 1.0 - sum(shares.values())
        fate = cluster.random.choices(list(shares), list(shares.values()))[0]
        fate = self.fates.pop(ask.why, fate)
        late_s = cluster.random.uniform(*network.late_s) if fate == "late" else there
        if node.is_cut_from_store:
            fate = "lost"
        elif self.is_away:
            fate = self._fate_while_away(fate)
            late_s += self.away_until - cluster.now
        if fate == "refused":
            refusal = messages.Refused(ask.id, StoreError("the store said no"))
            cluster.later(there + back, send, incarnation, refusal)
        elif fate == "answered" and there + back < limit_s:
            gave_up_at = cluster.now + limit_s
            cluster.later(there, self._serve, node, incarnation, ask, send, back, gave_up_at)
        else:
            if fate != "lost":
                cluster.later(late_s, self._apply, ask)
            cluster.later(limit_s, send, incarnation, messages.Unknown(ask.id))

    def _fate_while_away(self, fate: str) -> str:
        """Without a quorum a write may be applied once it is healed, though it was answered with an error."""
        if self._is_refusing:
            return "refused"
        return "late" if fate in ("late", "unanswered") else "lost"

    def _serve(self, node: Node, incarnation: int, ask: Ask, send: Send, back: float, gave_up_at: float) -> None:
        if self.is_away:  # it went while the request was under way
            self._cluster.at(gave_up_at, send, incarnation, messages.Unknown(ask.id))
            return
        event = self._apply(ask)
        self._cluster.later(back, self._bring_back, node, incarnation, send, event, gave_up_at)

    def _bring_back(self, node: Node, incarnation: int, send: Send, event: Event, gave_up_at: float) -> None:
        if node.is_cut_from_store and isinstance(event, messages.Answered | messages.Refused):
            self._cluster.at(gave_up_at, send, incarnation, messages.Unknown(event.id))
        else:
            send(incarnation, event)

    def _apply(self, ask: Ask) -> Event:
        if self._cluster.network.expiry_late_s[1] == 0.0:
            self.store.expire()
        event: Event
        try:
            given = answer(self.store, ask.request)
            event = messages.Answered(ask.id, given)
            if isinstance(ask.request, messages.Grant):
                self._granted.add(given.id)  # type: ignore[union-attr]
        except StoreError as error:
            event = messages.Refused(ask.id, error)
        self.deliver()
        return event

    # --- watches ---

    def follow(self, node: Node, key: str, start_revision: int, incarnation: int, send: Send) -> Watch:
        """Watch for a node; events come in order, as late as the network is, and after a stall all at once."""
        cluster = self._cluster
        last, waiting = cluster.now, deque[Batch]()

        def on_batch(batch: Batch) -> None:
            nonlocal last
            last = max(last, held_until() + cluster.delay())
            waiting.append(batch)
            cluster.at(last, arrive)

        def held_until() -> float:
            return max(cluster.now, node.store_cut_until, node.watches_stalled_until, self.away_until)

        def arrive() -> None:
            if held_until() > cluster.now:  # cut while it was under way
                cluster.at(held_until() + cluster.delay(), arrive)
            else:
                send(incarnation, messages.Watched(key, waiting.popleft()))

        def on_lost(error: StoreError) -> None:
            cluster.later(cluster.delay(), send, incarnation, WatchLost(key, error))

        watch = self.store.watch(
            key, prefix=key.endswith("/"), start_revision=start_revision, on_batch=on_batch, on_lost=on_lost
        )
        self.deliver()  # what has happened since that revision
        return watch

    # --- time ---

    def deliver(self) -> None:
        self.store.deliver()
        deadline = self.store.next_deadline()
        if deadline is None or self._still_since < math.inf:
            return
        due_at = deadline + self._stood_still_s + self._cluster.random.uniform(*self._cluster.network.expiry_late_s)
        if due_at < self._expiry_at:
            self._expiry_at = due_at
            self._cluster.at(due_at, self._expire)

    def _expire(self) -> None:
        self._expiry_at = math.inf
        if self._still_since == math.inf:
            self.store.expire()
        self.deliver()
