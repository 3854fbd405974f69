"""A cluster on one virtual clock: the production protocol and memory store, with networks between them.

Nothing here waits, and all random numbers come from the generator that is given, so a seed replays exactly. `node` has
the agents, `storage` the store and the network before it, `peers` the connections between agents. This module builds
them and gives each what it needs.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from rendezvous.settings import Settings
from rendezvous.testing.simulation.config import ClusterConfig, Shape
from rendezvous.testing.simulation.contract import Observers
from rendezvous.testing.simulation.host import Host
from rendezvous.testing.simulation.network import Network, NetworkModel
from rendezvous.testing.simulation.node import SimulatedNode
from rendezvous.testing.simulation.operator import Operator
from rendezvous.testing.simulation.peers import PresenceNetwork
from rendezvous.testing.simulation.storage import Storage, StoreNetwork
from rendezvous.testing.simulation.timeline import CallQueue, Timeline


class SimulatedCluster:
    def __init__(
        self,
        *,
        random: Random,
        settings: Settings,
        shape: Shape,
        network: NetworkModel | None = None,
        trace: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.config = ClusterConfig(settings=settings, shape=shape)
        self.nodes: dict[str, SimulatedNode] = {}
        self.hosts: dict[str, Host] = {}
        self._queue = CallQueue()
        self.timeline = Timeline(random=random, trace=trace, schedule=self._queue.push)
        self.network = Network(self.timeline, network or NetworkModel())
        self.observers = Observers()
        self.storage = Storage(
            self.timeline, self.network, settings, lambda: [host.running for host in self.hosts.values()]
        )
        self.store_network = StoreNetwork(self.timeline, self.network, settings, self.storage)
        self.presence = PresenceNetwork(self.timeline, self.network, self.hosts)
        self.network.on_change = self.presence.review
        self.operator = Operator(self.timeline, self.config, self.storage)
        self.drained = self.operator.drained

    def add(self, name: str, clock_offset_s: float = 0.0) -> SimulatedNode:
        node = self.nodes[name] = SimulatedNode(
            name,
            timeline=self.timeline,
            network=self.network,
            config=self.config,
            observers=self.observers,
            presence_network=self.presence,
            store=self.store_network,
            read_current_job=self.storage.read_current_job,
            rng=self.timeline.random.random,
            clock_offset_s=clock_offset_s,
        )
        self.hosts[name] = node.host
        return node

    @property
    def now(self) -> float:
        return self.timeline.now

    def step(self) -> bool:
        """Make the next scheduled call; False when none is left."""
        due = self._queue.pop()
        if due is None:
            return False
        time, call, arguments = due
        self.timeline.now = max(self.timeline.now, time)
        call(*arguments)
        return True

    def run(self, until: float) -> None:
        while self._queue.next_at <= until:
            self.step()
        self.timeline.now = max(self.timeline.now, until)
