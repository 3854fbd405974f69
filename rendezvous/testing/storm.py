"""Random faults against a simulated cluster, in bursts, until a given time; then all is healed.

What befalls one machine, what befalls the networks, and what people ask for are drawn from tables, so that a fault
is one line here. Agents that exit are started again, as a container would be.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from rendezvous.testing.cluster import Cluster
from rendezvous.testing.network import Cuts
from rendezvous.testing.node import Node
from rendezvous.testing.processes import Running

ECHO_S = (0.001, 2.0)  # how soon processes notice that a peer is gone


class Storm:
    """`work_s`: what the job takes without faults. `failing`: the share of processes that fail by themselves."""

    def __init__(self, cluster: Cluster, random: Random, *, until: float, work_s: float, failing: float) -> None:
        self._cluster, self._random, self._until = cluster, random, until
        self._work_s, self._failing = work_s, failing
        self._poisoned_rank = -1  # its processes fail wherever it is
        self._is_port_taken = random.random() < 0.05
        self._drained: set[str] = set()
        self.is_reviving = True
        uniform = random.uniform
        self._strokes: list[tuple[str, Callable[[Node], None]]] = [
            ("crash", self._crash),
            ("crash", self._crash),
            ("power off", self._power_off),
            ("crash loop", lambda node: self._flap(node, random.randint(2, 6))),
            ("short pause", lambda node: node.pause(uniform(0.1, 4.0))),
            ("long pause", lambda node: node.pause(uniform(4.0, 30.0))),
            ("store cut", lambda node: self._cut([(node.name, Cuts.STORE)], uniform(0.5, 20.0))),
            ("peers cut", lambda node: self._cut(_both(node.name, Cuts.ANYBODY), uniform(0.5, 30.0))),
            ("cut off", self._cut_off),
            ("one-way cut", self._cut_one_way),
            ("pair cut", self._cut_pair),
            ("leave", lambda node: node.leave()),
            ("hang", lambda node: node.processes.hang(uniform(5.0, 60.0))),
            ("deaf", self._deafen),
            ("stall", lambda node: node.stall(uniform(0.5, 15.0))),
        ]
        self._gusts: list[tuple[str, Callable[[], None]]] = [
            ("compaction", cluster.storage.compact),
            ("compaction", cluster.storage.compact),
            ("outage", self._outage),
            ("outage", self._outage),
            ("outage", self._outage),
            ("rack cut", self._cut_rack),
            ("rack cut", self._cut_rack),
            ("forged resets", cluster.presence.reset),
            ("all leave", self._all_leave),
            ("drain", self._drain),
            ("undrain", self._undrain),
            ("takeover", self._take_over),
            ("poison", self._poison),
        ]
        cluster.on_start = self._run_processes

    @property
    def is_over(self) -> bool:
        return self._cluster.now >= self._until

    def blow(self) -> None:
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
        shared = self._random.choice(self._strokes)
        for node in victims:
            name, strike = shared if len(victims) > 2 else self._random.choice(self._strokes)
            if node.is_up:
                self._cluster.count(name)
                strike(node)
        if self._random.random() < 0.3:
            name, blow = self._random.choice(self._gusts)
            self._cluster.count(name)
            blow()
        self._cluster.later(self._random.expovariate(1 / 8.0), self.blow)

    def revive(self) -> None:
        """Start what is down, until the job has ended."""
        if not self.is_reviving:
            return
        for node in self._cluster.nodes.values():
            if self._random.random() < 0.5:
                node.start_if_down()
        self._cluster.later(self._random.uniform(0.2, 3.0), self.revive)

    def clear(self) -> None:
        """Heal everything that does not heal by itself."""
        self._cluster.heal()
        self._poisoned_rank, self._is_port_taken = -1, False
        for name in sorted(self._drained):
            self._cluster.ask("undrain", name)

    # --- machines ---

    def _crash(self, node: Node) -> None:
        running = node.running
        node.crash()
        if running is not None:
            self._break_peers(running)

    def _power_off(self, node: Node) -> None:
        running = node.running
        node.power_off()
        if running is not None:
            self._break_peers(running)

    def _flap(self, node: Node, times: int) -> None:
        """Crash, be started again, and crash again, each time as another member."""
        if node.is_up:
            self._crash(node)
        else:
            node.start_if_down()
        if times and not self.is_over:
            self._cluster.later(self._random.uniform(0.5, 4.0), self._flap, node, times - 1)

    def _deafen(self, node: Node) -> None:
        """Watches end with the connection, which takes a while to come back."""
        node.deafen()
        self._cluster.cut(node.name, Cuts.STORE, self._random.choice([0.0, self._random.uniform(0.0, 3.0)]))

    def _all_leave(self) -> None:
        for node in self._cluster.nodes.values():
            self._cluster.later(self._random.uniform(0.0, 0.1), node.leave)

    # --- networks ---

    def _cut(self, ways: list[tuple[str, str]], duration_s: float) -> None:
        self._cluster.trace(f"cut for {duration_s:g} s: {ways}")
        for source, target in ways:
            self._cluster.cut(source, target, duration_s)

    def _cut_off(self, node: Node) -> None:
        self._cut([(node.name, Cuts.STORE), *_both(node.name, Cuts.ANYBODY)], self._random.uniform(0.5, 30.0))

    def _cut_one_way(self, node: Node) -> None:
        ways = _both(node.name, Cuts.ANYBODY)
        self._cut([self._random.choice(ways)], self._random.uniform(0.5, 30.0))

    def _cut_pair(self, node: Node) -> None:
        other = self._random.choice(list(self._cluster.nodes))
        self._cut(_both(node.name, other), self._random.uniform(0.5, 30.0))

    def _outage(self) -> None:
        """The store is away; now and then some nodes cannot reach their peers either, or see it back before others."""
        duration_s = self._random.choice([self._random.uniform(0.5, 10.0), self._random.uniform(5.0, 60.0)])
        leases = self._random.choice(["frozen", "renewed", "running"])
        self._cluster.storage.go_away(duration_s, leases, self._random.random() < 0.5)
        if self._random.random() < 0.3:
            for node in self._cluster.nodes.values():
                self._cluster.cut(node.name, Cuts.STORE, duration_s + self._random.uniform(0.0, 8.0))
        if self._random.random() < 0.2:
            name = self._random.choice(list(self._cluster.nodes))
            self._cut(_both(name, Cuts.ANYBODY), duration_s)

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

    # --- processes ---

    def _poison(self) -> None:
        """A batch kills this rank wherever it is, for a while."""
        self._poisoned_rank = self._random.randint(0, 2)
        self._cluster.later(self._random.uniform(3.0, 15.0), self._cure)
        for node in self._cluster.nodes.values():
            if node.running is not None and node.running.rank == self._poisoned_rank:
                self._fail(node, node.running, False)

    def _cure(self) -> None:
        self._poisoned_rank = -1

    def _run_processes(self, node: Node) -> None:
        """What the processes do: work and succeed, save now and then, or fail, and break when a peer is gone."""
        running, later = node.running, self._cluster.later
        work_s = self._work_s * self._random.uniform(0.8, 1.2)
        if running is not None and running.rank == self._poisoned_rank:
            later(self._random.uniform(0.1, 1.0), self._fail, node, running, False)
        elif self._is_port_taken and running is not None and running.rank == 0 and self._random.random() < 0.5:
            later(self._random.uniform(0.01, 0.5), self._fail, node, running, False, True)
        elif self._random.random() < self._failing and not self.is_over:
            later(self._random.uniform(0.1, work_s), self._fail, node, running, False)
        else:
            later(work_s, self._succeed, node, running)
            later(self._random.uniform(0.0, work_s), self._save, node, running)

    def _fail(self, node: Node, running: Running, is_peer_loss: bool, is_port_taken: bool = False) -> None:
        if node.running is running and not node.processes.has_finished:
            self._cluster.count("peer loss" if is_peer_loss else "port taken" if is_port_taken else "failure")
            node.processes.fail(self._random.randint(1, 120), is_peer_loss, is_port_taken)
            self._break_peers(running)

    def _break_peers(self, running: Running) -> None:
        """Connections between workers break at once, long before anybody knows of a lost node."""
        for peer in self._cluster.nodes.values():
            if peer.running is not None and peer.running.round == running.round and self._random.random() < 0.5:
                self._cluster.later(self._random.uniform(*ECHO_S), self._fail, peer, peer.running, True)

    def _save(self, node: Node, running: Running) -> None:
        if node.running is running:
            node.processes.save()

    def _succeed(self, node: Node, running: Running) -> None:
        if node.running is not running:
            return
        present = [n for n in self._cluster.nodes.values() if n.running and n.running.round == running.round]
        has_ended = any(running.round in n.processes.finished_as for n in present)
        if len(present) < running.world_size and not has_ended:
            self._cluster.later(1.0, self._fail, node, running, True)  # a collective with a missing peer
        else:
            node.processes.succeed()


def _both(one: str, other: str) -> list[tuple[str, str]]:
    return [(one, other), (other, one)]
