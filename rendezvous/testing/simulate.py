"""Random faults against a simulated cluster.

`run(seed)` makes a cluster, throws bursts of faults at it for some virtual time, heals everything, and then
demands a verdict within a bound. What must hold meanwhile is in `checker`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from rendezvous.settings import Settings
from rendezvous.testing.checker import Checker, Violation
from rendezvous.testing.cluster import Cluster, Network, Node, Running, Shape

FAULTS_S = 60.0  # virtual time during which faults happen
HEAL_S = 600.0  # and within which, once healed, the job must have ended
STEPS_MAX = 400_000

__all__ = ["Result", "Violation", "replay_command", "run"]


@dataclass(frozen=True, kw_only=True)
class Result:
    """What one seed did, for statistics: the verdict, rounds sealed, and faults by kind."""

    seed: int
    members: int
    verdict: str
    rounds: int
    faults: dict[str, int]


class _Storm:
    """Faults in bursts until FAULTS_S, then none. Agents that exit are started again, as a container would be."""

    def __init__(self, cluster: Cluster, random: Random, checker: Checker, work_s: float, failing: float) -> None:
        self._cluster, self._random, self._checker = cluster, random, checker
        self._work_s, self._failing = work_s, failing
        self.counts: Counter[str] = Counter()
        self._kinds: list[tuple[str, Callable[[Node], None]]] = [
            ("crash", lambda node: node.crash()),
            ("short pause", lambda node: node.pause(random.uniform(0.1, 4.0))),
            ("long pause", lambda node: node.pause(random.uniform(4.0, 30.0))),
            ("cut", lambda node: node.cut(random.uniform(0.5, 20.0))),
            ("leave", lambda node: node.leave()),
            ("hang", self._hang),
            ("deafen", self._deafen),
        ]
        cluster.on_start = self._run_processes

    @property
    def is_over(self) -> bool:
        return self._cluster.now >= FAULTS_S

    def blow(self) -> None:
        """One burst, and the next."""
        if self.is_over:
            return
        nodes = list(self._cluster.nodes.values())
        victims, chance = (
            self._random.sample(nodes, min(len(nodes), self._random.choice([1, 1, 2]))),
            self._random.random(),
        )
        if chance < 0.2:
            victims = [node for node in nodes if node.is_leader] or victims
        elif chance < 0.25:
            victims = nodes
        shared = self._random.choice(self._kinds)
        for node in victims:
            name, strike = shared if len(victims) > 2 else self._random.choice(self._kinds)
            if node.is_up:
                self.counts[name] += 1
                strike(node)
        if self._random.random() < 0.1:
            self.counts["compaction"] += 1
            self._cluster.compact()
        self._cluster.later(self._random.expovariate(1 / 8.0), self.blow)

    def revive(self) -> None:
        """Start what is down, while the job goes on."""
        if self._checker.verdict is None:
            for node in self._cluster.nodes.values():
                if not node.is_up and node.running is None and self._random.random() < 0.5:
                    node.start()
            self._cluster.later(self._random.uniform(0.2, 3.0), self.revive)

    def _hang(self, node: Node) -> None:
        node.hangs_until = max(node.hangs_until, self._cluster.now + self._random.uniform(5.0, 60.0))

    def _deafen(self, node: Node) -> None:
        """Watches end with the connection, which takes a while to come back."""
        node.deafen()
        node.cut(self._random.choice([0.0, self._random.uniform(0.0, 3.0)]))

    def _run_processes(self, node: Node) -> None:
        """What the processes do: work and succeed, or fail, and break when a peer of theirs is gone."""
        running = node.running
        work_s = self._work_s * self._random.uniform(0.8, 1.2)
        if self._random.random() < self._failing and not self.is_over:
            self._cluster.later(self._random.uniform(0.1, work_s), self._fail, node, running, False)
        else:
            self._cluster.later(work_s, self._succeed, node, running)

    def _fail(self, node: Node, running: Running, is_peer_loss: bool) -> None:
        if node.running is running and not node.has_finished:
            self.counts["peer loss" if is_peer_loss else "failure"] += 1
            node.fail(self._random.randint(1, 120), is_peer_loss)
            self._break_peers(running)

    def _break_peers(self, running: Running) -> None:
        for peer in self._cluster.nodes.values():
            if peer.running is not None and peer.running.round == running.round and self._random.random() < 0.5:
                self._cluster.later(self._random.uniform(0.01, 2.0), self._fail, peer, peer.running, True)

    def _succeed(self, node: Node, running: Running) -> None:
        if node.running is not running:
            return
        present = [n for n in self._cluster.nodes.values() if n.running and n.running.round == running.round]
        if len(present) < running.world_size and not any(running.round in n.finished_as for n in present):
            self._cluster.later(1.0, self._fail, node, running, True)  # a collective with a missing peer
        else:
            node.succeed()


def run(seed: int, trace: Callable[[str], None] = lambda line: None) -> Result:
    """Play one seed. Raises Violation; the same seed does the same on every machine and Python."""
    random = Random(seed)
    members = random.randint(1, 12)
    group = random.choice([1, 1, 2, 3]) if members >= 3 else 1
    nodes_min = min(members // group * group, group * random.randint(1, 3))
    shape = Shape(nodes_min=nodes_min, nodes_max=random.randint(nodes_min, members), group=group)
    settings = Settings(
        max_restarts=random.choice([0, 1, 3, 10]),
        join_grace_s=2.0,
        start_timeout_s=400.0,
        rejoin_timeout_s=400.0,
        grow_delay_s=random.choice([5.0, 300.0]),
        settle_s=random.choice([1.0, 5.0]),
        shutdown_timeout_s=3.0,
        restart_grace_s=1.0,
        stop_limit_s=random.choice([1.0, 5.0]),
        min_round_time_s=2.0,
        backoff_max_s=10.0,
        no_progress_rounds=20,
        opens_next_job=False,
    )
    is_calm = random.random() < 0.2
    network = Network(
        delay_s=(0.001, random.choice([0.002, 0.05, 0.4])),
        lose_request=0.0 if is_calm else 0.01,
        lose_answer=0.0 if is_calm else 0.02,
        apply_late=0.0 if is_calm else 0.01,
        refuse=0.0 if is_calm else 0.01,
    )
    cluster = Cluster(random=random, settings=settings, shape=shape, network=network, trace=trace)
    checker = Checker(cluster, settings, seed)
    storm = _Storm(cluster, random, checker, random.uniform(1.0, 60.0), random.choice([0.0, 0.05, 0.3]))
    for index in range(members):
        cluster.later(random.uniform(0.0, 3.0), cluster.add(f"node{index}").start)
    cluster.later(random.uniform(1.0, 5.0), storm.blow)
    cluster.later(4.0, storm.revive)
    _play(cluster, checker)
    verdict = checker.verdict.kind if checker.verdict else ""
    return Result(seed=seed, members=members, verdict=verdict, rounds=len(checker.rounds), faults=dict(storm.counts))


def _play(cluster: Cluster, checker: Checker) -> None:
    is_healed = False
    for _ in range(STEPS_MAX):
        if not cluster.step():
            break
        if not is_healed and cluster.now >= FAULTS_S:
            is_healed = True
            cluster.network = Network(delay_s=cluster.network.delay_s)
            for node in cluster.nodes.values():
                node.cut_until = node.paused_until = cluster.now
                node.resume()
        if checker.verdict is not None and not any(node.is_up for node in cluster.nodes.values()):
            break
        if cluster.now > FAULTS_S + HEAL_S:
            up = {node.name: node.said for node in cluster.nodes.values() if node.is_up}
            checker.fail("L1", f"no end {HEAL_S:g} s after the heal; verdict {checker.verdict}; {json.dumps(up)}")
    else:
        checker.fail("L1", f"{STEPS_MAX} steps without an end")


def replay_command(seed: int) -> str:
    """How to see a seed again, for a failure message."""
    return f"python -m rendezvous.testing --seeds {seed} --trace"
