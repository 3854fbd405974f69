"""A cluster on one virtual clock: the production protocol and memory store, with networks between them.

Nothing here waits and nothing is random but the generator that is given, so a seed replays exactly. `node` has the
machines, `storage` the store behind its network, `presence` the connections between agents; here is what binds
them: the heap of what happens when, and what is watched over by whoever checks.
"""

from __future__ import annotations

import heapq
import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random

from rendezvous import records
from rendezvous.events import Action, Event, StoreRequest
from rendezvous.records import Command
from rendezvous.settings import Settings
from rendezvous.testing.simulation.network import Cuts, NetworkModel
from rendezvous.testing.simulation.node import PREFIX, RUN_ID, SimulatedNode
from rendezvous.testing.simulation.peers import PresenceNetwork
from rendezvous.testing.simulation.processes import Running
from rendezvous.testing.simulation.shape import Shape
from rendezvous.testing.simulation.storage import Storage

GRID = 2.0**20  # per second: clocks that differ by whole seconds then agree to the last bit on what time it is


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
        self.now = 0.0
        self.random = random
        self.settings = settings
        self.shape = shape
        self.network = network or NetworkModel()
        self.cuts = Cuts()
        self.nodes: dict[str, SimulatedNode] = {}
        self.failed_rounds: set[int] = set()  # in which a process really failed
        self.on_start: Callable[[SimulatedNode], None] = lambda node: None
        self.check_start: Callable[[SimulatedNode, Running], None] = lambda node, running: None
        self.check_step: Callable[[SimulatedNode, Sequence[Event], Sequence[Action]], None] = (
            lambda node, events, actions: None
        )
        self.check_end: Callable[[SimulatedNode, Sequence[str]], None] = lambda node, watched: None
        self.check_request: Callable[[SimulatedNode, StoreRequest], None] = lambda node, ask: None
        self.asked_to_drain: set[str] = set()
        self.secret = b""  # what records are signed with
        self.command = "simulated"  # what agents that start are told to run
        self.stop_s: float | None = None  # how long processes take to stop, if always the same
        self.plan_s: tuple[float, float] | None = None  # how long the planner takes, if not just a message's time
        self.children_late_s = 0.0  # how much longer than workers that were killed those live that they have started
        self.counts: Counter[str] = Counter()  # how often each fault, and each rule that answers one, was met
        self._trace = trace
        self._heap: list[tuple[float, int, Callable[..., object], tuple[object, ...]]] = []
        self._order = itertools.count()
        self.storage = Storage(self)
        self.presence = PresenceNetwork(self)

    def add(self, name: str, clock_offset_s: float = 0.0) -> SimulatedNode:
        node = self.nodes[name] = SimulatedNode(self, name, clock_offset_s)
        return node

    def count(self, what: str) -> None:
        self.counts[what] += 1

    # --- time ---

    def call_at(self, time: float, call: Callable[..., object], *arguments: object) -> None:
        heapq.heappush(self._heap, (math.ceil(time * GRID) / GRID, next(self._order), call, arguments))

    def call_later(self, delay_s: float, call: Callable[..., object], *arguments: object) -> None:
        self.call_at(self.now + delay_s, call, *arguments)

    def step(self) -> bool:
        """Let the next thing happen; False when nothing is left."""
        if not self._heap:
            return False
        time, _, call, arguments = heapq.heappop(self._heap)
        self.now = max(self.now, time)
        call(*arguments)
        return True

    def run(self, until: float) -> None:
        while self._heap and self._heap[0][0] <= until:
            self.step()
        self.now = max(self.now, until)

    def trace(self, line: str) -> None:
        self._trace(f"{self.now:9.3f}  {line}")

    # --- chance ---

    def draw_delay(self) -> float:
        return self.random.uniform(*self.network.delay_s)

    def draw_stop_time_s(self, mode: str) -> float:
        """How long processes take to be gone. The agent kills at the end of the grace, so never much longer."""
        if self.stop_s is not None:
            return self.stop_s
        return 0.005 if mode == "fence" else self.random.uniform(0.01, self.settings.get_grace_s(mode))

    # --- faults between machines ---

    def cut(self, source: str, target: str, duration_s: float) -> None:
        """Lose what goes from one node to another, to any other ("*") or to the store ("*store"); heal by itself."""
        self.cuts.cut(source, target, self.now + duration_s)
        self._review()
        self.call_later(duration_s, self._review)

    def lag(self, node: SimulatedNode, key: str, lag_s: float, duration_s: float) -> None:
        """Let one watch of this node be so far behind for so long."""
        self.trace(f"{node.name} hears {lag_s:g} s late of {key.split('/', 4)[-1]}")
        node.lags.begin(key, lag_s, self.now + duration_s)

    def end_lease(self, node: SimulatedNode) -> None:
        """Have the store end this node's lease before its time."""
        if node.machine is not None and node.machine.state.lease.id is not None:
            self.trace(f"the store ends the lease of {node.name} early")
            self.storage.end_early(node.machine.state.lease.id)

    def heal(self) -> None:
        """End every fault of networks and machines."""
        self.network = NetworkModel(delay_s=self.network.delay_s)
        self.cuts.heal()
        self.presence.is_forging_refusals = False
        if self.storage.is_away:
            self.storage.away_until = self.now
            self.storage.come_back()
        for node in self.nodes.values():
            node.heal()
        self._review()

    def _review(self) -> None:
        for node in self.nodes.values():
            self.presence.notify_change(node)

    # --- a person ---

    def ask(self, kind: str, target: str = "") -> None:
        """What `meshctl` does: leave a request for whoever leads, and ask again while it cannot reach the store."""
        store = self.storage.store
        current = store.get(records.make_current_key(PREFIX, RUN_ID)).first
        if self.storage.is_away or current is None:
            self.call_later(1.0, self.ask, kind, target)
            return
        self.trace(f"somebody asks: {kind} {target}".rstrip())
        self.count(f"asked to {kind}")
        if kind == "drain":
            self.asked_to_drain.add(target)
        job = records.make_job_keys(PREFIX, RUN_ID, current.value.decode())
        key = job.make_command_key(f"{self.random.getrandbits(64):016x}")
        store.put(key, records.encode(Command(kind=kind, target=target, by="somebody"), key, self.secret))
        self.storage.deliver()

    def remove(self, what: str) -> None:
        """Delete the job's key of this name, or everything."""
        for item in self.storage.store.get(f"/{PREFIX}/", prefix=True).items:
            if what in ("everything", item.key.rpartition("/")[2]):
                self.storage.store.delete(item.key)
        self.storage.deliver()

    def describe_status(self) -> str:
        """What those who are up said last, for a failure message."""
        return json.dumps({node.name: node.last_status for node in self.nodes.values() if node.is_up})


__all__ = ["PREFIX", "RUN_ID", "NetworkModel", "Running", "Shape", "SimulatedCluster", "SimulatedNode"]
