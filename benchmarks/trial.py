"""One job on several nodes, one event, and how long until the next round: what failover.py repeats.

    crash      one worker is killed
    kill       all processes of a node are killed at once; its kernel lives and refuses connections
    leave      an agent is told to leave with SIGTERM
    join       an agent is started beside those that run
    freeze     an agent is stopped (SIGSTOP); its supervisor and its workers run on
    pause      all processes of a node are stopped, as on a machine that is paused
    partition  every packet to and from a node is dropped, as if it had lost its power (network namespaces)

The nodes are loopback addresses or network namespaces of one machine, the store is a real etcd. In the last three
events nothing tells that the node is gone but its silence, and its workers might live on: they write down that they do.
After the next round has begun a node that was stopped goes on, and is watched for a moment.
"""

from __future__ import annotations

import contextlib
import random
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks import figures, pairs, stamped
from benchmarks.agents import BEGAN, GLOO, IDLE, NEVER, STEPPED, Agents, free_port
from tests.support.jobs.multi_node import Cluster, Etcd, HostEtcd
from tests.support.network.namespaces import Host, Network, loopback_hosts
from tests.support.stores.etcd import EtcdServer

RUN_ID = "failover"
LAST_CALL_S = 5  # how long torchrun waits for more agents than the least; by default 30
LEADER, FOLLOWER, ANY = figures.LEADERS_NODE, figures.OTHER_NODE, ""
SILENT = ("freeze", "pause", "partition")
PRELOADED = "torch,torch._dynamo"  # the second is what the first optimizer imports, and takes as long as the first
WATCH_S = 0.5  # a worker that was stopped and not killed writes every 4 ms
STAMPED = [sys.executable, str(Path(stamped.__file__))]


class Case(NamedTuple):
    """What is measured. `agents`: how many there are before the event. `job`: "idle", "gloo", or "warm" gloo."""

    event: str
    agents: int
    victim: str = ANY
    job: str = "idle"

    @property
    def after(self) -> int:
        """How many nodes the next round has."""
        return self.agents + {"crash": 0, "join": 1}.get(self.event, -1)

    @property
    def figure(self) -> str:
        """The name of the time it takes."""
        what = {"idle": "", "gloo": figures.GLOO, "warm": figures.GLOO + figures.WARM}[self.job]
        return f"{self.event}{self.victim}, {self.agents} agents{what}"

    @property
    def overlap(self) -> str:
        """The name of how long the old workers of a silent node outlived the first of the next round; or ""."""
        is_of_interest = self.event in SILENT and self.job == "idle"
        return f"{self.event}{self.victim}, {self.agents} agents{figures.OVERLAP}" if is_of_interest else ""


class Outcome(NamedTuple):
    """Seconds from just before the event; NEVER for what did not come in time. `steps`: see stamped.py."""

    took_s: float
    overlap_s: float | None
    steps: Mapping[str, float]


class Trial:
    """`limit_s`: how long to wait for the next round. `has_steps`: note where the time goes (meshrun alone)."""

    def __init__(
        self, side: str, case: Case, chance: random.Random, *, workers: int, limit_s: float, has_steps: bool = False
    ) -> None:
        self._side, self._case, self._chance = side, case, chance
        self._workers, self._limit_s = workers, limit_s
        self._is_ours = side == pairs.OURS
        self._has_steps = has_steps and self._is_ours

    def run(self) -> Outcome:
        case = self._case
        with contextlib.ExitStack() as stack:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="benchmark-")))
            network = stack.enter_context(Network()) if case.event == "partition" else None
            count = max(case.agents, case.after)
            hosts = [network.host(f"n{i + 1}") for i in range(count)] if network else loopback_hosts(count)
            etcd: Etcd | None = None
            if self._is_ours and network is not None:
                etcd = stack.enter_context(HostEtcd(network, directory, "3.4"))
            elif self._is_ours:
                etcd = stack.enter_context(EtcdServer("3.4", directory / "etcd"))
            agents = self._agents(directory, hosts, etcd, "eth0" if network else "lo")
            stack.callback(agents.close)
            what = BEGAN if case.job == "idle" else STEPPED
            since_s = time.monotonic()
            for index, host in enumerate(hosts[: case.agents]):
                agents.start(host, self._own_options(index))
            agents.begin(since_s, case.agents * self._workers, what)
            # At any point of the period of whoever polls; a round that has just begun is not at rest yet.
            time.sleep(self._chance.uniform(1.5, 2.5))
            victim = self._victim(hosts, etcd, directory)
            event_s = time.monotonic()
            if case.event == "join":
                agents.start(hosts[-1], self._own_options(case.agents))
            elif network is not None:
                network.cut(victim)
            else:
                self._strike(agents, victim)
            next_s = agents.next_s(event_s, case.after * self._workers, self._limit_s, what)
            steps = stamped.steps(self._stamps(directory), event_s, next_s, victim if case.after < case.agents else "")
            return Outcome(next_s - event_s, self._outlived_s(agents, victim, event_s, next_s), steps)

    def _strike(self, agents: Agents, victim: str) -> None:
        strike = {
            "crash": agents.kill_worker,
            "kill": agents.kill,
            "leave": agents.leave,
            "freeze": agents.freeze,
            "pause": agents.pause,
        }[self._case.event]
        strike(victim)

    def _outlived_s(self, agents: Agents, victim: str, event_s: float, next_s: float) -> float | None:
        if not self._case.overlap or next_s == NEVER:
            return None
        if self._case.event != "partition":
            agents.go_on(victim)
        time.sleep(WATCH_S)
        size = self._case.after * self._workers
        began_s = min(mark.at_s for mark in agents.marks() if mark.at_s > event_s and mark.world_size == size)
        return agents.outlived_s(victim, event_s, began_s)

    def _stamps(self, directory: Path) -> list[stamped.Stamp]:
        return stamped.read((directory / "stamps").read_text()) if self._has_steps else []

    def _victim(self, hosts: Sequence[Host], etcd: Etcd | None, directory: Path) -> str:
        """n1 serves torchrun's store, without which nobody goes on; so it is never the victim there."""
        names = [host.name for host in hosts[: self._case.agents]]
        if etcd is None:
            return names[-1]
        leader = Cluster(directory, etcd=etcd, run_id=RUN_ID).leader()
        others = [name for name in names if name != leader] or names
        return leader if self._case.victim == LEADER else self._chance.choice(others)

    # --- the command lines ---

    def _agents(self, directory: Path, hosts: Sequence[Host], etcd: Etcd | None, interface: str) -> Agents:
        env = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": interface, stamped.FILE: str(directory / "stamps")}
        return Agents(
            self._side,
            directory,
            self._options(hosts, etcd),
            script=IDLE if self._case.job == "idle" else GLOO,
            command=STAMPED if self._has_steps else None,
            env=env,
            notes_lives=bool(self._case.overlap),
        )

    def _options(self, hosts: Sequence[Host], etcd: Etcd | None) -> list[str]:
        least = self._case.agents if self._case.event == "crash" else 1
        most = max(self._case.agents, self._case.after)
        shared = ["--nnodes", f"{least}:{most}", "--nproc-per-node", str(self._workers), "--max-restarts", "9"]
        if etcd is None:
            where = f"{hosts[0].address}:{free_port(hosts[0].address)}"
            return [*shared, "--rdzv-backend", "c10d", "--rdzv-endpoint", where, "--rdzv-id", RUN_ID]
        shared += ["--rdzv-backend", "etcd", "--rdzv-endpoint", etcd.endpoint, "--rdzv-id", RUN_ID]
        shared += ["--preload", PRELOADED] if self._case.job == "warm" else []
        return [*shared, "--grow-delay", "0", "--target-nodes", str(self._case.agents)]

    def _own_options(self, index: int) -> list[str]:
        if self._is_ours:
            return []
        return ["--rdzv-conf", f"is_host={int(index == 0)},last_call_timeout={LAST_CALL_S}"]
