"""A cluster on one virtual clock: the production protocol and memory store, with networks between them.

Nothing here waits, and all random numbers come from the generator that is given, so a seed replays exactly. `node` has
the agents, `storage` the store and the network before it, `peers` the connections between agents. This module builds
them and gives each what it needs.
"""

from __future__ import annotations

import heapq
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from random import Random

from rendezvous import records
from rendezvous.events import Event
from rendezvous.records import Command
from rendezvous.settings import Settings
from tests.simulation.config import PREFIX, RUN_ID, ClusterConfig, Shape
from tests.simulation.host import Observers, StoreAccess
from tests.simulation.network import GRID, Call, Network, NetworkModel, Timeline
from tests.simulation.node import SimulatedNode
from tests.simulation.peers import PresenceNetwork, SimulatedPeers
from tests.simulation.storage import Storage, StoreNetwork


class Cluster(ABC):
    """What every simulated cluster consists of. `begin`: when its time begins.

    A subclass provides the way to the store, and decides when a scheduled call is made and an event of the presence
    network reaches its agent.
    """

    store_access: StoreAccess

    def __init__(
        self,
        config: ClusterConfig,
        model: NetworkModel,
        *,
        random: Random,
        trace: Callable[[str], None],
        begin: float = 0.0,
    ) -> None:
        self.config = config
        self.nodes: dict[str, SimulatedNode] = {}
        self.timeline = Timeline(random=random, trace=trace, schedule=self.schedule, begin=begin)
        self.network = Network(self.timeline, model)
        self.observers = Observers()
        self.storage = Storage(self.network, config.settings, self.nodes)
        self.presence = PresenceNetwork(self.network, self.nodes, self.deliver_peer_event)
        self.network.on_change = self.presence.review
        self.operator = Operator(self.timeline, config, self.storage)

    @abstractmethod
    def schedule(self, time: float, call: Call, arguments: tuple[object, ...]) -> None:
        """Have the call made at this time."""

    def deliver_peer_event(self, peers: SimulatedPeers, event: Event) -> None:
        peers.hear(event)

    def add_node(
        self, name: str, rng: Callable[[], float], *, clock_offset_s: float = 0.0, first_request: int = 0
    ) -> SimulatedNode:
        node = self.nodes[name] = SimulatedNode(
            name,
            network=self.network,
            config=self.config,
            observers=self.observers,
            presence_network=self.presence,
            storage=self.storage,
            store=self.store_access,
            rng=rng,
            clock_offset_s=clock_offset_s,
            first_request=first_request,
        )
        return node


class SimulatedCluster(Cluster):
    """A cluster in which scheduled calls are made in the order of their times."""

    def __init__(
        self,
        *,
        random: Random,
        settings: Settings,
        shape: Shape,
        network: NetworkModel | None = None,
        trace: Callable[[str], None] = lambda line: None,
    ) -> None:
        config = ClusterConfig(settings=settings, shape=shape)
        super().__init__(config, network or NetworkModel(), random=random, trace=trace)
        self.store_access = self.store_network = StoreNetwork(self.network, settings, self.storage)
        self._calls: list[tuple[float, int, Call, tuple[object, ...]]] = []  # a heap, earliest first
        self._order = itertools.count()  # of calls that are due at the same time

    def add(self, name: str, clock_offset_s: float = 0.0) -> SimulatedNode:
        return self.add_node(name, self.timeline.random.random, clock_offset_s=clock_offset_s)

    @property
    def now(self) -> float:
        return self.timeline.now

    def schedule(self, time: float, call: Call, arguments: tuple[object, ...]) -> None:
        heapq.heappush(self._calls, (math.ceil(time * GRID) / GRID, next(self._order), call, arguments))

    def step(self) -> bool:
        """Make the next scheduled call; False when none is left."""
        if not self._calls:
            return False
        time, _, call, arguments = heapq.heappop(self._calls)
        self.timeline.now = max(self.timeline.now, time)
        call(*arguments)
        return True

    def run(self, until: float) -> None:
        while self._calls and self._calls[0][0] <= until:
            self.step()
        self.timeline.now = max(self.timeline.now, until)


class Operator:
    """The person who operates a job: requests as `meshctl` leaves them in the store, and deleted keys."""

    def __init__(self, timeline: Timeline, config: ClusterConfig, storage: Storage) -> None:
        self.drained: set[str] = set()  # nodes of which a drain was requested, ever
        self._timeline, self._config, self._storage = timeline, config, storage

    def ask(self, kind: str, target: str = "") -> None:
        """Leave a request for the leader, and retry while the store is away."""
        timeline = self._timeline
        job_name = self._storage.read_current_job()
        if self._storage.is_away or not job_name:
            timeline.call_later(1.0, self.ask, kind, target)
            return
        timeline.trace(f"somebody asks: {kind} {target}".rstrip())
        timeline.count(f"asked to {kind}")
        if kind == "drain":
            self.drained.add(target)
        keys = records.make_job_keys(PREFIX, RUN_ID, job_name)
        key = keys.make_command_key(f"{timeline.random.getrandbits(64):016x}")
        command = Command(kind=kind, target=target, by="somebody")
        self._storage.store.put(key, records.encode(command, key, self._config.secret))
        self._storage.deliver()

    def remove(self, what: str) -> None:
        """Delete the keys with this last component, or everything."""
        for item in self._storage.store.get(f"/{PREFIX}/", prefix=True).items:
            if what in ("everything", item.key.rpartition("/")[2]):
                self._storage.store.delete(item.key)
        self._storage.deliver()
