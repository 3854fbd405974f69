"""The simulated agents of `scale.py`: all of an agent's part in agreement, and workers that start and stop at once.

Protocol, driver, planner, records and presence are production's, on a real etcd; devices, supervisor and workers are
not there. A process of this module is one of two kinds:

- own: each agent has what a real one has, its own client, connection and threads (`members.py` does the same);
- shared: agents share what `shared.py` names, and THREADS threads take turns at being any of them.

Words come in on stdin, a line each: `prepare NUMBER...` (make agents, before the time begins), `begin NUMBER...` and
`kill NUMBER...` (as by SIGKILL: its kernel closes what it held). A line goes out on stdout for what happened, with the
time on CLOCK_MONOTONIC, one clock for all processes of a machine: `ready`, also after having prepared, `joined NUMBER
TIME`, `started NUMBER TIME ROUND RANKS`, `ended NUMBER TIME REASON`.
"""

from __future__ import annotations

import argparse
import heapq
import os
import random
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import cast

from benchmarks.shared import Crowd, CrowdPresence, SharedStore, boot_time
from launcher.model.mesh import Axis, Mesh
from launcher.placement.adapter import planner_adapter
from launcher.placement.adapter.description import Description, decode_assignment, encode_description
from launcher.placement.limits import Costs, Limits
from rendezvous.driver.driver import Driver
from rendezvous.events import Event, Exit, RoundStopped, Start, StartRound, StopRound
from rendezvous.machine import MemberMachine
from rendezvous.peers.connections import PeerConnections, bind
from rendezvous.records import Spec
from rendezvous.settings import Settings
from rendezvous.stores.contract import Store
from rendezvous.stores.etcd.store import EtcdStore

THREADS = 24  # of a shared process: enough to wait for a busy store with, few enough not to fight for the interpreter
SLOTS = 8
PREFIX = "meshrun"
HOST = "127.0.0.1"
MESH = Mesh(axes=(Axis(name="dp", size=None),))
SPEC = Spec(mesh=str(MESH), limits="", digest="")


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def moment() -> str:
    return f"{time.clock_gettime(time.CLOCK_MONOTONIC):.6f}"


def description(number: int, leaves: int) -> Description:
    """A node of a cluster of leaves in spines, as sources of hints would tell it; one after the other in other leaves.

    Its address is only spoken of: nobody dials it.
    """
    leaf = number % leaves
    locality = (("zone", "z0"), ("spine", f"spine-{leaf // 8}"), ("leaf", f"leaf-{leaf}"))
    return Description(
        slot_count=SLOTS,
        address=f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}",
        role="default",
        name=f"node-{number:05}",
        machine=f"{number:08x}-0000-4000-8000-000000000000",
        locality=locality,
    )


class Agent:
    """One simulated agent. `wake` has `live` called soon, in any one thread; `driver` is set by whoever makes it."""

    driver: Driver

    def __init__(self, number: int, options: argparse.Namespace, settings: Settings, wake: Callable[[], None]) -> None:
        self.number = number
        self.wake = wake
        self.is_dead = False
        self._has_joined = False
        limits = Limits(nodes_min=1, nodes_max=options.members)
        self.planner = planner_adapter.PlannerAdapter(MESH, limits, Costs())
        self.listener = bind(HOST, (0,))
        self.address = f"{HOST}:{self.listener.getsockname()[1]}"
        node = description(number, max(2, options.members // 32))
        self.protocol = MemberMachine(
            settings=settings,
            spec=SPEC,
            node_name=node.name,
            boot_id=node.machine,
            description=encode_description(node),
            worker_port=20_000 + number % 10_000,
            prefix=PREFIX,
            run_id=options.run_id,
            sizer=self.planner.compute_size,
            rng=random.Random(f"{options.run_id} {number}").random,
            presence_address=self.address,
        )

    def submit(self, event: Event) -> None:
        self.driver.submit(event)

    def live(self) -> float:
        """Do what there is to do; when to call again at the latest."""
        if self.is_dead:
            return float("inf")
        for action in self.driver.run():
            match action:
                case StartRound(round, _, world_size, _, assignment):
                    ranks = len(decode_assignment(assignment).ranks)
                    say("started", self.number, moment(), round, world_size if ranks == SLOTS else -1)
                case StopRound(round, _, _):
                    self.driver.submit(RoundStopped(round, 20_000 + self.number % 10_000))
                case Exit(_, reason, _):
                    self.is_dead = True
                    say("ended", self.number, moment(), reason)
        if not self._has_joined and self.protocol.state.is_member:
            self._has_joined = True
            say("joined", self.number, moment())
        return self.driver.wake_at


class Own:
    """Agents that have everything of their own, and a thread each."""

    def __init__(self, options: argparse.Namespace, settings: Settings) -> None:
        self._options = options
        self._settings = settings

    def prepare(self, number: int) -> None:
        """An agent is made when it begins: within the time, as a real one is."""

    def begin(self, number: int) -> None:
        threading.Thread(target=self._live, args=(number,), daemon=True).start()

    def kill(self, number: int) -> None:
        raise SystemExit("an agent of its own is killed with its process")

    def _live(self, number: int) -> None:
        wakeup = threading.Event()
        agent = Agent(number, self._options, self._settings, wakeup.set)
        presence = PeerConnections(
            listener=agent.listener,
            address=agent.address,
            secret=b"",
            submit=agent.submit,
            clock=boot_time,
            silence_s=self._settings.silence_s,
        )
        agent.driver = Driver(
            machine=agent.protocol,
            store=EtcdStore([self._options.endpoint], call_limit_s=self._settings.call_limit_s),
            planner=agent.planner.plan,
            clock=boot_time,
            wake=wakeup.set,
            is_local=False,
            presence=presence,
        )
        agent.submit(Start())
        while not agent.is_dead:
            wakeup.clear()
            wake_at = agent.live()
            wakeup.wait(max(0.0, min(wake_at - boot_time(), 60.0)))


class Shared:
    """Agents that share a process: whoever has something to do gets the next free thread."""

    def __init__(self, options: argparse.Namespace, settings: Settings) -> None:
        self._options = options
        self._settings = settings
        self._store: Store = SharedStore(options.endpoint, settings.call_limit_s)
        self._crowd = Crowd(boot_time, settings.silence_s)
        self._agents: dict[int, tuple[Agent, CrowdPresence]] = {}
        self._changed = threading.Condition()
        self._ready: deque[int] = deque()
        self._waiting: set[int] = set()  # who is in _ready
        self._running: set[int] = set()
        self._again: set[int] = set()  # woken while they were running
        self._alarms: list[tuple[float, int]] = []
        self._alarm_of: dict[int, float] = {}
        for _ in range(THREADS):
            threading.Thread(target=self._work, daemon=True).start()

    def prepare(self, number: int) -> None:
        agent = Agent(number, self._options, self._settings, lambda: self._wake(number))
        presence = CrowdPresence(self._crowd, agent.listener, agent.address, agent.submit)
        agent.driver = Driver(
            machine=agent.protocol,
            store=self._store,
            planner=agent.planner.plan,
            clock=boot_time,
            wake=agent.wake,
            is_local=True,  # requests are made at once, in whatever thread is this agent now
            presence=cast(PeerConnections, presence),
        )
        self._agents[number] = (agent, presence)

    def begin(self, number: int) -> None:
        if number not in self._agents:
            self.prepare(number)
        self._agents[number][0].submit(Start())

    def kill(self, number: int) -> None:
        agent, presence = self._agents[number]
        agent.is_dead = True
        presence.close()

    def _wake(self, number: int) -> None:
        with self._changed:
            if number in self._running:
                self._again.add(number)
            elif number not in self._waiting:
                self._waiting.add(number)
                self._ready.append(number)
                self._changed.notify()

    def _work(self) -> None:
        while True:
            number = self._next()
            agent, presence = self._agents[number]
            wake_at = agent.live()
            if agent.protocol.is_leader:
                presence.lead()
            with self._changed:
                self._running.remove(number)
                if number in self._again:
                    self._again.remove(number)
                    self._waiting.add(number)
                    self._ready.append(number)
                    self._changed.notify()
                elif wake_at < float("inf") and not agent.is_dead:
                    self._alarm_of[number] = wake_at
                    heapq.heappush(self._alarms, (wake_at, number))
                    if self._alarms[0][1] == number:
                        self._changed.notify()

    def _next(self) -> int:
        """Wait for an agent that has something to do, by a word or by the clock."""
        with self._changed:
            while True:
                now = boot_time()
                while self._alarms and self._alarms[0][0] <= now:
                    at, number = heapq.heappop(self._alarms)
                    is_busy = number in self._waiting or number in self._running
                    if self._alarm_of.get(number) == at and not is_busy:
                        self._waiting.add(number)
                        self._ready.append(number)
                if self._ready:
                    number = self._ready.popleft()
                    self._waiting.remove(number)
                    self._running.add(number)
                    return number
                self._changed.wait(self._alarms[0][0] - now if self._alarms else None)


def import_what_comes_late() -> None:
    """What an agent imports when it first needs it: once per process, so outside the time."""
    import importlib

    names = (
        "grpc",
        "grpc._channel",
        "grpc.experimental",
        "encodings.idna",
        "fractions",
        "launcher.placement.adapter.topology",
    )
    for name in (*names, "launcher.placement.explain"):
        importlib.import_module(name)


def main() -> None:
    parser = argparse.ArgumentParser(description="Simulated agents; `scale.py` starts this.")
    parser.add_argument("kind", choices=["own", "shared"])
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--run-id", required=True)
    parser.add_argument("--members", type=int, required=True, help="how many nodes a world may have")
    parser.add_argument("--lease-ttl-s", type=float, required=True)
    options = parser.parse_args()
    settings = Settings(
        lease_ttl_s=options.lease_ttl_s,
        grow_delay_s=0.0,
        min_round_time_s=0.0,  # the rounds here are short on purpose
    )
    import_what_comes_late()
    agents = Own(options, settings) if options.kind == "own" else Shared(options, settings)
    say("ready", 0, moment())
    for line in sys.stdin:
        word, *numbers = line.split()
        for number in map(int, numbers):
            getattr(agents, word)(number)
        if word == "prepare":
            say("ready", 0, moment())
    os._exit(0)


if __name__ == "__main__":
    main()
