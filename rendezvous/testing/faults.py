"""Random faults against a simulated cluster, in bursts, until a given time; then all is healed.

What befalls one machine, what befalls the networks, and what people ask for are drawn from tables, so that a fault
is one line here. Agents that exit are started again, as a container would be.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from rendezvous.testing.simulation.cluster import SimulatedCluster
from rendezvous.testing.simulation.network import Cuts
from rendezvous.testing.simulation.node import SimulatedNode
from rendezvous.testing.simulation.work import SimulatedWork
from rendezvous.testing.themes import THEMES


class FaultInjector:
    """`work_s`: what the job takes without faults. `failing`: the share of processes that fail by themselves.

    `theme`: which faults come together, from THEMES: rules that answer several in a row are met more often so.
    """

    def __init__(
        self, cluster: SimulatedCluster, random: Random, *, until: float, work_s: float, failing: float, theme: str
    ) -> None:
        self._cluster, self._random, self._until = cluster, random, until
        self._work = SimulatedWork(cluster, random, until=until, work_s=work_s, failing=failing)
        self._drained: set[str] = set()
        self._dark_until: dict[str, float] = {}  # machines that stay without power
        self.is_reviving = True
        uniform = random.uniform
        self._node_faults: list[tuple[str, Callable[[SimulatedNode], None]]] = [
            ("crash", self._crash),
            ("crash", self._crash),
            ("power off", self._power_off),
            ("crash loop", lambda node: self._flap(node, random.randint(2, 6))),
            ("short pause", lambda node: node.pause(uniform(0.1, 4.0))),
            ("long pause", lambda node: node.pause(uniform(4.0, 30.0))),
            ("store cut", lambda node: self._cut([(node.name, Cuts.STORE)], uniform(0.5, 20.0))),
            ("peers cut", lambda node: self._cut(_list_both_ways(node.name, Cuts.ANYBODY), uniform(0.5, 30.0))),
            ("cut off", self._cut_off),
            ("one-way cut", self._cut_one_way),
            ("pair cut", self._cut_pair),
            ("short pair cut", lambda node: self._cut_pair(node, (0.3, 3.0))),
            ("leave", lambda node: node.leave()),
            ("hang", lambda node: node.processes.hang(uniform(5.0, 60.0))),
            ("deaf", self._deafen),
            ("stall", lambda node: node.stall(uniform(0.5, 15.0))),
            ("lease ended early", self._end_lease),
            ("only renewals pass", self._starve),
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
        strokes, gusts, self._node_fault_share, self._cluster_fault_share = THEMES[theme]
        self._node_faults = [each for each in self._node_faults if not strokes or each[0] in strokes.split(", ")]
        self._cluster_faults = [each for each in self._cluster_faults if not gusts or each[0] in gusts.split(", ")]

    @property
    def is_over(self) -> bool:
        return self._cluster.now >= self._until

    def inject(self) -> None:
        """One burst, and the next."""
        if self.is_over:
            return
        nodes = list(self._cluster.nodes.values())
        count = min(len(nodes), self._random.choice([1, 1, 2]))
        victims, chance = self._random.sample(nodes, count), self._random.random()
        if chance < 0.2:
            victims = [node for node in nodes if node.is_leader] or victims
        elif chance < 0.25:
            victims = nodes
        if self._random.random() >= self._node_fault_share:
            victims = []
        shared = self._random.choice(self._node_faults)
        for node in victims:
            name, strike = shared if len(victims) > 2 else self._random.choice(self._node_faults)
            if node.is_up:
                self._cluster.count(name)
                strike(node)
        if self._random.random() < self._cluster_fault_share:
            name, blow = self._random.choice(self._cluster_faults)
            self._cluster.count(name)
            blow()
        self._cluster.call_later(self._random.expovariate(1 / 8.0), self.inject)

    def revive(self) -> None:
        """Start what is down, until the job has ended."""
        if not self.is_reviving:
            return
        for node in self._cluster.nodes.values():
            is_dark = self._cluster.now < self._dark_until.get(node.name, 0.0)
            if self._random.random() < 0.5 and not is_dark:
                node.start_if_down()
        self._cluster.call_later(self._random.uniform(0.2, 3.0), self.revive)

    def clear(self) -> None:
        """Heal what does not heal by itself, and let the work come to an end."""
        self._cluster.heal()
        for name in sorted(self._drained):
            self._cluster.ask("undrain", name)
        self._work.finish()

    # --- machines ---

    def _crash(self, node: SimulatedNode) -> None:
        running = node.running
        node.crash()
        if running is not None:
            self._work.break_peers(running)

    def _power_off(self, node: SimulatedNode) -> None:
        running = node.running
        node.power_off()
        if running is not None:
            self._work.break_peers(running)

    def _flap(self, node: SimulatedNode, times: int) -> None:
        """Crash, be started again, and crash again, each time as another member."""
        if node.is_up:
            self._crash(node)
        else:
            node.start_if_down()
        if times and not self.is_over:
            self._cluster.call_later(self._random.uniform(0.5, 4.0), self._flap, node, times - 1)

    def _deafen(self, node: SimulatedNode) -> None:
        """Watches end with the connection, which takes a while to come back."""
        node.deafen()
        self._cluster.cut(node.name, Cuts.STORE, self._random.choice([0.0, self._random.uniform(0.0, 3.0)]))

    def _lag(self, node: SimulatedNode) -> None:
        """One watch is behind, or silent, for long; the others and all answers are current."""
        if node.watched:
            key = self._random.choice(sorted(node.watched))
            self._cluster.lag(
                node, key, self._random.choice([self._random.uniform(0.5, 8.0), 60.0]), self._random.uniform(5.0, 60.0)
            )

    def _write_slowly(self) -> None:
        low_s = self._random.uniform(0.2, 3.0)
        self._cluster.storage.write_slowly((low_s, low_s + 2.0), self._random.uniform(5.0, 30.0))

    def _meet_stale_leader(self, node: SimulatedNode) -> None:
        """Half of those that come back end the lease that they believe to be over."""
        node.meet_stale_leader(self._random.uniform(2.0, 30.0), self._random.random() < 0.7)
        if self._random.random() < 0.5:
            self._cluster.call_later(self._random.uniform(0.1, 6.0), self._cluster.end_lease, node)

    def _black_out(self) -> None:
        """All machines lose their power; most come back soon, some do not."""
        for node in self._cluster.nodes.values():
            if node.is_up:
                node.power_off()
            if self._random.random() < 0.4:
                self._dark_until[node.name] = self._cluster.now + self._random.uniform(10.0, 40.0)
        self._cluster.call_later(self._random.uniform(2.0, 12.0), self._take_over)

    def _end_lease(self, node: SimulatedNode) -> None:
        """Now and then the watch of the own key is behind, which would tell of it."""
        for key in node.watched if self._random.random() < 0.5 else ():
            self._cluster.lag(node, key, self._random.uniform(0.5, 8.0), 10.0)
        self._cluster.end_lease(node)

    def _end_leases(self) -> None:
        """A leader whose disk has stalled comes back, and ends what it believes to be over."""
        for node in self._cluster.nodes.values():
            if self._random.random() < 0.7:
                self._end_lease(node)

    def _starve(self, node: SimulatedNode) -> None:
        """What takes longer than a renewal is lost: a bad line, a store that serves only the smallest requests."""
        duration_s = self._random.uniform(10.0, 60.0)
        self._cluster.trace(f"of {node.name} only renewals pass for {duration_s:g} s")
        node.renews_only_until = self._cluster.now + duration_s

    def _make_all_leave(self) -> None:
        for node in self._cluster.nodes.values():
            self._cluster.call_later(self._random.uniform(0.0, 0.1), node.leave)

    # --- networks ---

    def _cut(self, ways: list[tuple[str, str]], duration_s: float) -> None:
        self._cluster.trace(f"cut for {duration_s:g} s: {ways}")
        for source, target in ways:
            self._cluster.cut(source, target, duration_s)

    def _cut_off(self, node: SimulatedNode) -> None:
        self._cut([(node.name, Cuts.STORE), *_list_both_ways(node.name, Cuts.ANYBODY)], self._random.uniform(0.5, 30.0))

    def _cut_one_way(self, node: SimulatedNode) -> None:
        ways = _list_both_ways(node.name, Cuts.ANYBODY)
        self._cut([self._random.choice(ways)], self._random.uniform(0.5, 30.0))

    def _cut_pair(self, node: SimulatedNode, duration_s: tuple[float, float] = (0.5, 30.0)) -> None:
        """Between this node and another, mostly that which leads."""
        leaders = [each.name for each in self._cluster.nodes.values() if each.is_leader and each is not node]
        other = self._random.choice(leaders * len(self._cluster.nodes) + list(self._cluster.nodes))
        self._cut(_list_both_ways(node.name, other), self._random.uniform(*duration_s))

    def _start_outage(self) -> None:
        """The store is away; now and then some nodes cannot reach their peers either, or see it back before others."""
        if self._cluster.storage.is_away:
            return
        endured_s = 0.9 * self._cluster.settings.outage_limit_s  # mostly what a round can survive
        duration_s = self._random.choice([self._random.uniform(0.5, 10.0), self._random.uniform(5.0, 60.0)])
        duration_s = min(duration_s, endured_s) if self._random.random() < 0.7 else duration_s
        leases = self._random.choice(["frozen", "renewed", "running"])
        self._cluster.storage.go_away(duration_s, leases, self._random.random() < 0.5)
        if self._random.random() < 0.3:
            for node in self._cluster.nodes.values():
                self._cluster.cut(node.name, Cuts.STORE, duration_s + self._random.uniform(0.0, 8.0))
        if self._random.random() < 0.2:
            name = self._random.choice(list(self._cluster.nodes))
            self._cut(_list_both_ways(name, Cuts.ANYBODY), duration_s)

    def _cut_rack(self) -> None:
        """Nobody who is up reaches the store, though it is well; one after the other they do again."""
        duration_s = self._random.uniform(5.0, 25.0)
        for node in self._cluster.nodes.values():
            if node.is_up:
                self._cut([(node.name, Cuts.STORE)], duration_s + self._random.uniform(0.0, 5.0))

    # --- people ---

    def _take_over(self) -> None:
        """Who asks for it says that nothing of the round is left, so it is; a leader, if there is one, refuses."""
        if not any(node.running for node in self._cluster.nodes.values()):
            self._cluster.ask("takeover")

    def _drain(self) -> None:
        name = self._random.choice(list(self._cluster.nodes))
        self._drained.add(name)
        self._cluster.ask("drain", name)

    def _undrain(self) -> None:
        if self._drained:
            self._cluster.ask("undrain", self._random.choice(sorted(self._drained)))


def _list_both_ways(one: str, other: str) -> list[tuple[str, str]]:
    return [(one, other), (other, one)]
