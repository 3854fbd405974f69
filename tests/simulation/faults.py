"""Random faults against a simulated cluster, in bursts, until a given time; then everything is healed.

Faults of one node, faults of the cluster and requests of an operator are drawn from tables, so a fault is one line
here. Agents that exit are started again, as a container would be.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import NamedTuple

from tests.simulation.cluster import SimulatedCluster
from tests.simulation.network import ANYBODY, STORE
from tests.simulation.node import SimulatedNode
from tests.simulation.work import SimulatedWork


class Theme(NamedTuple):
    """Which faults are drawn, all if none is named; and the share of bursts that contain each sort."""

    node_faults: tuple[str, ...]
    cluster_faults: tuple[str, ...]
    node_fault_share: float
    cluster_fault_share: float


THEMES = {
    "all": Theme((), (), 1.0, 0.3),
    "outages": Theme(
        ("short pair cut", "short pause", "store cut", "crash", "stall", "leave"), ("outage", "rack cut"), 0.3, 0.8
    ),
    "failures": Theme(
        ("crash", "power off", "crash loop", "leave", "hang", "short pause", "store cut"),
        ("poison", "drain", "undrain", "takeover", "slow writes", "blackout"),
        1.0,
        0.4,
    ),
}


class FaultInjector:
    """Injects faults until the time `until`.

    `theme`: which faults occur together, from THEMES: rules that answer several faults in a row are met more often.
    """

    def __init__(
        self, cluster: SimulatedCluster, work: SimulatedWork, random: Random, *, until: float, theme: str
    ) -> None:
        self._random, self._work, self._until, self._cluster = random, work, until, cluster
        self._timeline, self._nodes, self._network = cluster.timeline, cluster.nodes, cluster.network
        self._storage, self._presence, self._operator = cluster.storage, cluster.presence, cluster.operator
        self._outage_limit_s = cluster.config.settings.outage_limit_s
        self._drained: set[str] = set()
        self._dark_until: dict[str, float] = {}  # nodes that stay without power
        self.is_reviving = True
        uniform = random.uniform

        def make_paths(node: SimulatedNode) -> list[tuple[str, str]]:
            return _list_both_ways(node.name, ANYBODY)

        self._node_faults: list[tuple[str, Callable[[SimulatedNode], None]]] = [
            ("crash", lambda node: self._end_agent(node, node.crash)),
            ("crash", lambda node: self._end_agent(node, node.crash)),
            ("power off", lambda node: self._end_agent(node, node.power_off)),
            ("crash loop", lambda node: self._crash_repeatedly(node, random.randint(2, 6))),
            ("short pause", lambda node: node.pause(uniform(0.1, 4.0))),
            ("long pause", lambda node: node.pause(uniform(4.0, 30.0))),
            ("store cut", lambda node: self._cut([(node.name, STORE)], uniform(0.5, 20.0))),
            ("peers cut", lambda node: self._cut(make_paths(node), uniform(0.5, 30.0))),
            ("cut off", lambda node: self._cut([(node.name, STORE), *make_paths(node)], uniform(0.5, 30.0))),
            ("one-way cut", lambda node: self._cut([random.choice(make_paths(node))], uniform(0.5, 30.0))),
            ("pair cut", self._cut_pair),
            ("short pair cut", lambda node: self._cut_pair(node, (0.3, 3.0))),
            ("leave", lambda node: node.leave()),
            ("hang", lambda node: node.processes.hang(uniform(5.0, 60.0))),
            ("deaf", self._deafen),
            ("stall", lambda node: node.stall(uniform(0.5, 15.0))),
            ("lease ended early", self._end_lease),
            ("only renewals pass", lambda node: node.pass_renewals_only(uniform(10.0, 60.0))),
            ("stale leader", self._meet_stale_leader),
            ("lagging watch", self._lag),
            ("lagging watch", self._lag),
        ]
        self._cluster_faults: list[tuple[str, Callable[[], None]]] = [
            ("compaction", cluster.storage.compact),
            ("compaction", cluster.storage.compact),
            ("outage", self._start_outage),
            ("outage", self._start_outage),
            ("outage", self._start_outage),
            ("rack cut", self._cut_rack),
            ("rack cut", self._cut_rack),
            ("forged resets", cluster.presence.reset),
            ("slow writes", self._write_slowly),
            ("leases ended early", self._end_leases),
            ("all leave", self._make_all_leave),
            ("blackout", self._black_out),
            ("drain", self._drain),
            ("undrain", self._undrain),
            ("takeover", self._take_over),
            ("poison", self._work.poison),
        ]
        self._theme = chosen = THEMES[theme]
        if chosen.node_faults:
            self._node_faults = [each for each in self._node_faults if each[0] in chosen.node_faults]
        if chosen.cluster_faults:
            self._cluster_faults = [each for each in self._cluster_faults if each[0] in chosen.cluster_faults]

    @property
    def is_over(self) -> bool:
        return self._timeline.now >= self._until

    def inject(self) -> None:
        """Inject one burst of faults, and schedule the next."""
        if self.is_over:
            return
        nodes = list(self._nodes.values())
        count = min(len(nodes), self._random.choice([1, 1, 2]))
        victims, chance = self._random.sample(nodes, count), self._random.random()
        if chance < 0.2:
            victims = [node for node in nodes if node.is_leader] or victims
        elif chance < 0.25:
            victims = nodes
        if self._random.random() >= self._theme.node_fault_share:
            victims = []
        shared = self._random.choice(self._node_faults)
        for node in victims:
            name, inject = shared if len(victims) > 2 else self._random.choice(self._node_faults)
            if node.is_up:
                self._timeline.count(name)
                inject(node)
        if self._random.random() < self._theme.cluster_fault_share:
            name, inject_everywhere = self._random.choice(self._cluster_faults)
            self._timeline.count(name)
            inject_everywhere()
        self._timeline.call_later(self._random.expovariate(1 / 8.0), self.inject)

    def revive(self) -> None:
        """Start agents that are down, until the job has ended."""
        if not self.is_reviving:
            return
        for node in self._nodes.values():
            is_dark = self._timeline.now < self._dark_until.get(node.name, 0.0)
            if self._random.random() < 0.5 and not is_dark:
                node.start_if_down()
        self._timeline.call_later(self._random.uniform(0.2, 3.0), self.revive)

    def restore(self) -> None:
        """Stop the store and bring it back as a snapshot had it; half the time others have written there meanwhile."""
        self._timeline.count("restore")
        others = self._random.choice([0, self._random.randint(1, 100)])
        if not self._storage.is_away:
            self._storage.go_away(self._random.uniform(0.0, 15.0), "renewed", self._random.random() < 0.5)
        self._storage.restore(others)
        if not self.is_reviving:  # the verdict may be lost
            self.is_reviving = True
            self.revive()

    def requeue(self) -> None:
        """Begin a later attempt, as a scheduler does that believes the one before to be over.

        It runs on new nodes, and on those whose agents have ended since. Some of the earlier agents were told to leave
        or killed, most of them know nothing; and one of them may be started again as if nothing had happened.
        """
        self._timeline.count("requeue")
        config, earlier = self._cluster.config, list(self._nodes.values())
        before, config.attempt = config.attempt, (config.attempt or 0) + self._random.randint(1, 3)
        for node in earlier:
            chance = self._random.random()
            if node.is_up and chance < 0.3:
                node.leave() if chance < 0.15 else self._end_agent(node, node.crash)
            if not node.is_up and node.running is None and self._random.random() < 0.3:
                node.start(before or 0)
        for number in range(self._random.randint(0, len(earlier))):
            node = self._cluster.add(f"node{len(earlier) + number}", float(self._random.randrange(1 << 16)))
            self._timeline.call_later(self._random.uniform(0.0, 3.0), node.start_if_down)

    def clear(self) -> None:
        """End every fault, and let the work come to an end."""
        self._network.heal()
        self._storage.heal()
        for node in self._nodes.values():
            node.heal()
        self._presence.review()
        for name in sorted(self._drained):
            self._operator.ask("undrain", name)
        self._work.finish()

    # --- nodes ---

    def _end_agent(self, node: SimulatedNode, end: Callable[[], None]) -> None:
        running = node.running
        end()
        if running is not None:
            self._work.break_peers(running)

    def _crash_repeatedly(self, node: SimulatedNode, times: int) -> None:
        """Crash and start again in turn, each time as another member."""
        if node.is_up:
            self._end_agent(node, node.crash)
        else:
            node.start_if_down()
        if times and not self.is_over:
            self._timeline.call_later(self._random.uniform(0.5, 4.0), self._crash_repeatedly, node, times - 1)

    def _deafen(self, node: SimulatedNode) -> None:
        """End all watches with their connection, which takes a while to come back."""
        node.deafen()
        self._network.cut(node.name, STORE, self._random.choice([0.0, self._random.uniform(0.0, 3.0)]))

    def _lag(self, node: SimulatedNode) -> None:
        """Delay one watch for long, or silence it; the others and all answers are current."""
        if node.watched:
            key = self._random.choice(sorted(node.watched))
            node.lag(key, self._random.choice([self._random.uniform(0.5, 8.0), 60.0]), self._random.uniform(5.0, 60.0))

    def _write_slowly(self) -> None:
        low_s = self._random.uniform(0.2, 3.0)
        self._storage.write_slowly((low_s, low_s + 2.0), self._random.uniform(5.0, 30.0))

    def _meet_stale_leader(self, node: SimulatedNode) -> None:
        """Have a replaced leader answer renewals; half of these leaders also end the lease early."""
        node.meet_stale_leader(self._random.uniform(2.0, 30.0), self._random.random() < 0.7)
        if self._random.random() < 0.5:
            self._timeline.call_later(self._random.uniform(0.1, 6.0), self._storage.end_lease_early, node)

    def _black_out(self) -> None:
        """Cut the power of all nodes; most come back soon, some later."""
        for node in self._nodes.values():
            if node.is_up:
                node.power_off()
            if self._random.random() < 0.4:
                self._dark_until[node.name] = self._timeline.now + self._random.uniform(10.0, 40.0)
        self._timeline.call_later(self._random.uniform(2.0, 12.0), self._take_over)

    def _end_lease(self, node: SimulatedNode) -> None:
        """End the lease early; half the time the watches that would report it are late, too."""
        for key in node.watched if self._random.random() < 0.5 else ():
            node.lag(key, self._random.uniform(0.5, 8.0), 10.0)
        self._storage.end_lease_early(node)

    def _end_leases(self) -> None:
        """End most leases early, as a leader of the store does when its stalled disk recovers."""
        for node in self._nodes.values():
            if self._random.random() < 0.7:
                self._end_lease(node)

    def _make_all_leave(self) -> None:
        for node in self._nodes.values():
            self._timeline.call_later(self._random.uniform(0.0, 0.1), node.leave)

    # --- networks ---

    def _cut(self, ways: list[tuple[str, str]], duration_s: float) -> None:
        self._timeline.trace(f"cut for {duration_s:g} s: {ways}")
        for source, target in ways:
            self._network.cut(source, target, duration_s)

    def _cut_pair(self, node: SimulatedNode, duration_s: tuple[float, float] = (0.5, 30.0)) -> None:
        """Cut this node from another, mostly from the leader."""
        leaders = [each.name for each in self._nodes.values() if each.is_leader and each is not node]
        other = self._random.choice(leaders * len(self._nodes) + list(self._nodes))
        self._cut(_list_both_ways(node.name, other), self._random.uniform(*duration_s))

    def _start_outage(self) -> None:
        """Take the store away; at times cut a node from its peers too, or bring the store back node by node."""
        if self._storage.is_away:
            return
        survivable_s = 0.9 * self._outage_limit_s
        duration_s = self._random.choice([self._random.uniform(0.5, 10.0), self._random.uniform(5.0, 60.0)])
        duration_s = min(duration_s, survivable_s) if self._random.random() < 0.7 else duration_s
        leases = self._random.choice(["frozen", "renewed", "running"])
        self._storage.go_away(duration_s, leases, self._random.random() < 0.5)
        if self._random.random() < 0.3:
            for node in self._nodes.values():
                self._network.cut(node.name, STORE, duration_s + self._random.uniform(0.0, 8.0))
        if self._random.random() < 0.2:
            name = self._random.choice(list(self._nodes))
            self._cut(_list_both_ways(name, ANYBODY), duration_s)

    def _cut_rack(self) -> None:
        """Cut all nodes from a store that works, and let one after the other reach it again."""
        duration_s = self._random.uniform(5.0, 25.0)
        for node in self._nodes.values():
            if node.is_up:
                self._cut([(node.name, STORE)], duration_s + self._random.uniform(0.0, 5.0))

    # --- the operator ---

    def _take_over(self) -> None:
        """Request a takeover if it is safe: no process of a round is left. A leader, if there is one, refuses."""
        if not any(node.running for node in self._nodes.values()):
            self._operator.ask("takeover")

    def _drain(self) -> None:
        name = self._random.choice(list(self._nodes))
        self._drained.add(name)
        self._operator.ask("drain", name)

    def _undrain(self) -> None:
        if self._drained:
            self._operator.ask("undrain", self._random.choice(sorted(self._drained)))


def _list_both_ways(one: str, other: str) -> list[tuple[str, str]]:
    return [(one, other), (other, one)]
