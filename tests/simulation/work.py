"""What the processes of a simulated job do: they work, save, succeed or fail, and fail when a peer is gone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from random import Random

from tests.simulation.host import Host
from tests.simulation.network import Timeline
from tests.simulation.processes import Running, SimulatedProcesses

PEER_LOSS_S = (0.001, 2.0)  # how soon processes notice that a peer is gone
REST_S = 10.0  # the work that is left after the last fault
SOON_S = 20.0  # processes that fail by themselves do so by then


class SimulatedWork:
    """`work_s`: what the job takes without faults. `failing`: the share of processes that fail by themselves.

    `begin` is to be called when the processes of a node have started.
    """

    def __init__(
        self,
        timeline: Timeline,
        hosts: Mapping[str, Host],
        random: Random,
        *,
        until: float,
        work_s: float,
        failing: float,
    ) -> None:
        self._timeline, self._hosts, self._random, self._until = timeline, hosts, random, until
        self._work_s, self._failing = work_s, failing
        self._poisoned_rank = -1  # its processes fail on whichever node
        self._is_port_taken = random.random() < 0.05

    def finish(self) -> None:
        """Let the work come to an end."""
        self._poisoned_rank, self._is_port_taken = -1, False
        for processes in self._list_processes():
            if processes.running is not None:
                self._timeline.call_later(
                    self._random.uniform(1.0, REST_S), self._succeed, processes, processes.running
                )

    @property
    def _is_over(self) -> bool:
        return self._timeline.now >= self._until

    def poison(self) -> None:
        """Bad input makes one rank fail on whichever node, for a while."""
        self._poisoned_rank = self._random.randint(0, 2)
        self._timeline.call_later(self._random.uniform(3.0, 15.0), self._cure)
        for processes in self._list_processes():
            if processes.running is not None and processes.running.rank == self._poisoned_rank:
                self._fail(processes, processes.running, False)

    def _cure(self) -> None:
        self._poisoned_rank = -1

    def begin(self, processes: SimulatedProcesses) -> None:
        """Draw what these processes do: work, save once and succeed, or fail."""
        running, later = processes.running, self._timeline.call_later
        work_s = min(self._work_s, REST_S if self._is_over else math.inf) * self._random.uniform(0.8, 1.2)
        if running is not None and running.rank == self._poisoned_rank:
            later(self._random.uniform(0.1, 1.0), self._fail, processes, running, False)
        elif self._is_port_taken and running is not None and running.rank == 0 and self._random.random() < 0.5:
            later(self._random.uniform(0.01, 0.5), self._fail, processes, running, False, True)
        elif self._random.random() < self._failing and not self._is_over:
            later(self._random.uniform(0.1, min(work_s, SOON_S)), self._fail, processes, running, False)
        else:
            later(work_s, self._succeed, processes, running)
            later(self._random.uniform(0.0, work_s), self._save, processes, running)

    def _list_processes(self) -> list[SimulatedProcesses]:
        return [host.processes for host in self._hosts.values()]

    def _fail(
        self, processes: SimulatedProcesses, running: Running, is_peer_loss: bool, is_port_taken: bool = False
    ) -> None:
        if processes.running is running and not processes.has_finished:
            self._timeline.count("peer loss" if is_peer_loss else "port taken" if is_port_taken else "failure")
            processes.fail(self._random.randint(1, 120), is_peer_loss, is_port_taken)
            self._timeline.call_later(self._random.uniform(0.0, 0.5), processes.fail_again)
            if not is_peer_loss and self._random.random() < 0.3:  # the same mistake elsewhere
                for peer in self._list_processes():
                    later = self._random.uniform(0.0, 0.3)
                    if peer.running is not None and peer.running.round == running.round:
                        self._timeline.call_later(later, self._fail, peer, peer.running, False)
            self.break_peers(running)

    def break_peers(self, running: Running) -> None:
        """Connections between workers break at once, long before a node is known to be lost."""
        for peer in self._list_processes():
            if peer.running is not None and peer.running.round == running.round and self._random.random() < 0.5:
                self._timeline.call_later(self._random.uniform(*PEER_LOSS_S), self._fail, peer, peer.running, True)

    def _save(self, processes: SimulatedProcesses, running: Running) -> None:
        if processes.running is running:
            processes.save()

    def _succeed(self, processes: SimulatedProcesses, running: Running) -> None:
        if processes.running is not running:
            return
        present = [each for each in self._list_processes() if each.running and each.running.round == running.round]
        has_ended = any(running.round in each.finished_as for each in present)
        if len(present) < running.world_size and not has_ended:
            self._timeline.call_later(1.0, self._fail, processes, running, True)  # a collective with a missing peer
        else:
            processes.succeed()
