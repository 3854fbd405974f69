"""What the processes of a simulated job do: they work, save, succeed or fail, and break when a peer is gone."""

from __future__ import annotations

import math
from random import Random
from typing import TYPE_CHECKING

from rendezvous.testing.simulation.processes import Running

if TYPE_CHECKING:
    from rendezvous.testing.simulation.cluster import SimulatedCluster
    from rendezvous.testing.simulation.node import SimulatedNode

PEER_LOSS_S = (0.001, 2.0)  # how soon processes notice that a peer is gone
REST_S = 10.0  # the work that is left when nothing befalls anybody any more
SOON_S = 20.0  # processes that fail by themselves do so by then


class SimulatedWork:
    """`work_s`: what the job takes without faults. `failing`: the share of processes that fail by themselves."""

    def __init__(
        self, cluster: SimulatedCluster, random: Random, *, until: float, work_s: float, failing: float
    ) -> None:
        self._cluster, self._random, self._until = cluster, random, until
        self._work_s, self._failing = work_s, failing
        self._poisoned_rank = -1  # its processes fail wherever it is
        self._is_port_taken = random.random() < 0.05
        cluster.on_start = self._run

    def finish(self) -> None:
        """Let the work come to an end."""
        self._poisoned_rank, self._is_port_taken = -1, False
        for node in self._cluster.nodes.values():
            if node.running is not None:
                self._cluster.call_later(self._random.uniform(1.0, REST_S), self._succeed, node, node.running)

    @property
    def _is_over(self) -> bool:
        return self._cluster.now >= self._until

    def poison(self) -> None:
        """A batch kills this rank wherever it is, for a while."""
        self._poisoned_rank = self._random.randint(0, 2)
        self._cluster.call_later(self._random.uniform(3.0, 15.0), self._cure)
        for node in self._cluster.nodes.values():
            if node.running is not None and node.running.rank == self._poisoned_rank:
                self._fail(node, node.running, False)

    def _cure(self) -> None:
        self._poisoned_rank = -1

    def _run(self, node: SimulatedNode) -> None:
        """What the processes do: work and succeed, save now and then, or fail, and break when a peer is gone."""
        running, later = node.running, self._cluster.call_later
        work_s = min(self._work_s, REST_S if self._is_over else math.inf) * self._random.uniform(0.8, 1.2)
        if running is not None and running.rank == self._poisoned_rank:
            later(self._random.uniform(0.1, 1.0), self._fail, node, running, False)
        elif self._is_port_taken and running is not None and running.rank == 0 and self._random.random() < 0.5:
            later(self._random.uniform(0.01, 0.5), self._fail, node, running, False, True)
        elif self._random.random() < self._failing and not self._is_over:
            later(self._random.uniform(0.1, min(work_s, SOON_S)), self._fail, node, running, False)
        else:
            later(work_s, self._succeed, node, running)
            later(self._random.uniform(0.0, work_s), self._save, node, running)

    def _fail(self, node: SimulatedNode, running: Running, is_peer_loss: bool, is_port_taken: bool = False) -> None:
        if node.running is running and not node.processes.has_finished:
            self._cluster.count("peer loss" if is_peer_loss else "port taken" if is_port_taken else "failure")
            node.processes.fail(self._random.randint(1, 120), is_peer_loss, is_port_taken)
            self._cluster.call_later(self._random.uniform(0.0, 0.5), node.processes.fail_again)
            if not is_peer_loss and self._random.random() < 0.3:  # the same mistake elsewhere
                for peer in self._cluster.nodes.values():
                    later = self._random.uniform(0.0, 0.3)
                    if peer.running is not None and peer.running.round == running.round:
                        self._cluster.call_later(later, self._fail, peer, peer.running, False)
            self.break_peers(running)

    def break_peers(self, running: Running) -> None:
        """Connections between workers break at once, long before anybody knows of a lost node."""
        for peer in self._cluster.nodes.values():
            if peer.running is not None and peer.running.round == running.round and self._random.random() < 0.5:
                self._cluster.call_later(self._random.uniform(*PEER_LOSS_S), self._fail, peer, peer.running, True)

    def _save(self, node: SimulatedNode, running: Running) -> None:
        if node.running is running:
            node.processes.save()

    def _succeed(self, node: SimulatedNode, running: Running) -> None:
        if node.running is not running:
            return
        present = [n for n in self._cluster.nodes.values() if n.running and n.running.round == running.round]
        has_ended = any(running.round in n.processes.finished_as for n in present)
        if len(present) < running.world_size and not has_ended:
            self._cluster.call_later(1.0, self._fail, node, running, True)  # a collective with a missing peer
        else:
            node.processes.succeed()
