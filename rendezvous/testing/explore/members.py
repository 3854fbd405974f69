"""The nodes and the store of a world that is explored: each of their steps waits until it is chosen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from rendezvous import events
from rendezvous.events import Event, Grant, Revoke, StoreReply, StoreRequest, WatchLost
from rendezvous.stores.contract import Batch, Watch
from rendezvous.stores.memory.store import MemoryStore
from rendezvous.testing.explore.offers import STORE, describe_event
from rendezvous.testing.explore.snapshot import IDS, IDS_PER_NODE, LEASES, REVISIONS
from rendezvous.testing.simulation.node import SimulatedNode
from rendezvous.testing.simulation.peers import SimulatedPeers
from rendezvous.testing.simulation.storage import Storage

if TYPE_CHECKING:
    from rendezvous.testing.explore.world import ExploredCluster


class DeterministicRandom:
    """Random numbers that depend only on how many the same node has drawn before, so that its tokens have names."""

    def __init__(self) -> None:
        self.owner = ""
        self.draw_counts: Counter[str] = Counter()

    def random(self) -> float:
        self.draw_counts[self.owner] += 1
        return ((sum(map(ord, self.owner)) << 16) + self.draw_counts[self.owner]) / 2.0**32

    def uniform(self, low: float, high: float) -> float:
        return low


class SteppedMember(SimulatedNode):
    """A node whose presence is heard when it is chosen, and whose chance is its own."""

    cluster: ExploredCluster

    def start(self) -> None:
        self.cluster.random.owner = self.name
        super().start()

    def send(self, *events: Event) -> None:
        self.cluster.random.owner = self.name
        if self.machine is not None and self.machine.state.requests.next_id < IDS:
            index = list(self.cluster.nodes).index(self.name)
            self.machine.state.requests.next_id += IDS + IDS_PER_NODE * index
        super().send(*events)

    def send_as(self, presence: SimulatedPeers, event: Event) -> None:
        peer = getattr(event, "member_id", "")
        label = f"{self.name} hears by presence: {describe_event(event)}"
        self.cluster.offer((self.name, "presence", peer), label, (self.name,), self.hear, presence, event)

    @property
    def has_watches(self) -> bool:
        return bool(self._watches)

    def hear(self, presence: SimulatedPeers, event: Event) -> None:
        super().send_as(presence, event)


class SteppedStorage(Storage):
    """The store behind the network, one step at a time."""

    def __init__(self, world: ExploredCluster) -> None:
        super().__init__(world)
        self._world = world
        self.store = MemoryStore(clock=self._clock, threaded=False, first_lease=LEASES)
        self.store._keyspace.revision = REVISIONS

    def request(
        self, node: SimulatedNode, incarnation: int, store_request: StoreRequest, send: Callable[[int, Event], None]
    ) -> None:
        if isinstance(store_request.request, Grant):  # nobody else's affair, and its answer tells of nothing else
            self.serve(node.name, incarnation, store_request, send)
        else:
            label = f"the store applies a request of {node.name}: {store_request.why}"
            self._world.offer(store_request, label, (STORE,), self.serve, node.name, incarnation, store_request, send)

    def serve(
        self, name: str, incarnation: int, store_request: StoreRequest, send: Callable[[int, Event], None]
    ) -> None:
        event = self._apply(store_request)
        if not isinstance(store_request.request, Revoke):
            how = "answered" if isinstance(event, StoreReply) else "refused"
            self._world.offer(event, f"{name} is {how}: {store_request.why}", (name,), send, incarnation, event)

    def follow(
        self, node: SimulatedNode, key: str, start_revision: int, incarnation: int, send: Callable[[int, Event], None]
    ) -> Watch:
        world, name = self._world, node.name
        line = (name, "watch", "" if world.scope.has_one_stream else key)

        def on_batch(batch: Batch) -> None:
            changes = ", ".join(f"{event.kind} {event.item.key.split('/', 4)[-1]}" for event in batch.events)
            world.offer(line, f"{name} sees {changes}", (name,), send, incarnation, events.WatchUpdate(key, batch))

        def on_lost(error: Exception) -> None:
            world.offer(line, f"{name} loses a watch", (name,), send, incarnation, WatchLost(key, error))  # type: ignore[arg-type]

        watch = self.store.watch(
            key, prefix=key.endswith("/"), start_revision=start_revision, on_batch=on_batch, on_lost=on_lost
        )
        self.deliver()
        return watch

    def apply_late(self, store_request: StoreRequest) -> None:
        self._world.trace(f"the store applies late: {store_request.why}")
        self._apply(store_request)

    def end_leases(self) -> None:
        self.store.expire()
        self.deliver()

    def end_lease(self, lease: int) -> None:
        self.store.lease_revoke(lease)
        self.deliver()
