"""A cluster on one virtual clock: the production protocol and memory store, with a network between them.

Nothing here waits and nothing is random but the generator that is given, so a seed replays exactly. Each
node has an agent (the protocol) and at most one set of worker processes; the network delays requests and
watched events, loses requests or answers, and applies some writes long after their sender gave up.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from rendezvous import messages
from rendezvous.decide import MemberView, Size
from rendezvous.driver import answer
from rendezvous.errors import Compacted, StoreError
from rendezvous.messages import (
    Action,
    Ask,
    Begin,
    End,
    Event,
    ExtendLeash,
    Follow,
    LeashEnded,
    Leave,
    MakePlan,
    Planned,
    PlanRefused,
    RoundFailed,
    RoundStopped,
    RoundSucceeded,
    Say,
    StartRound,
    StopRound,
    Tick,
    Unfollow,
    WatchLost,
)
from rendezvous.protocol import Protocol
from rendezvous.records import Spec
from rendezvous.settings import Settings
from rendezvous.store import Batch, Watch
from rendezvous.stores.memory import MemoryStore

PREFIX, RUN_ID = "meshrun", "simulated"


@dataclass(frozen=True, kw_only=True)
class Network:
    """How the network treats a request: delays in seconds, and the share of requests that meet each fault."""

    delay_s: tuple[float, float] = (0.001, 0.001)
    lose_request: float = 0.0
    lose_answer: float = 0.0
    apply_late: float = 0.0
    refuse: float = 0.0
    late_s: tuple[float, float] = (1.0, 8.0)


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Which worlds are possible: between `nodes_min` and `nodes_max` nodes, in whole groups of `group`."""

    nodes_min: int = 1
    nodes_max: int = 1
    group: int = 1

    def usable(self, present: int) -> int:
        count = min(present, self.nodes_max) // self.group * self.group
        return count if count >= self.nodes_min else 0

    def size(self, members: Sequence[MemberView]) -> Size:
        usable = self.usable(len(members))
        need = f"{len(members)} of at least {self.nodes_min} nodes are here"
        return Size(usable, usable == self.usable(self.nodes_max), f"{usable} nodes make a world" if usable else need)

    def plan(self, order: MakePlan) -> Planned | PlanRefused:
        """Nobody moves who need not: those of the last round first, then by age."""
        usable = self.usable(len(order.roster))
        if not usable:
            return PlanRefused(order.id, f"{len(order.roster)} nodes make no world")
        ranked = sorted(order.roster, key=lambda c: (c.member_id not in order.previous, c.order))[:usable]
        contents = {c.member_id: json.dumps({"rank": rank}) for rank, c in enumerate(ranked)}
        return Planned(order.id, contents, usable, f"{ranked[0].member_id}:{ranked[0].worker_port}")


class Running(NamedTuple):
    """The processes of one node: what they were told."""

    round: int
    rank: int
    world_size: int
    coordinator: str
    restart_count: int


class Node:
    """One machine: an agent, and the processes of at most one round."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.name = name
        self.protocol: Protocol | None = None
        self.running: Running | None = None
        self.running_as = ""  # the member id that started them
        self.has_finished = False  # the processes have all exited with success, or one has failed
        self.finished_as: dict[int, str] = {}  # rounds whose processes did so -> the member id they ran under
        self.hangs_until = -math.inf  # processes cannot be killed before
        self.ended: End | None = None
        self.is_told_to_leave = False
        self.said = ""
        self.paused_until = -math.inf
        self.cut_until = -math.inf
        self.leash_until = math.inf
        self.stops: list[StopRound] = []
        self._cluster = cluster
        self._incarnation = 0  # answers to an agent that was killed go nowhere
        self._backlog: list[Event] = []
        self._armed_for = math.inf
        self._watches: dict[str, tuple[Watch, list[float]]] = {}
        self._ports = itertools.count(20_000)

    @property
    def may_still_act(self) -> bool:
        """Whether what runs here counts as alive: not when SIGKILL is pending and the kernel holds the process."""
        return self._cluster.now >= self.hangs_until

    @property
    def is_leader(self) -> bool:
        return self.protocol is not None and self.protocol.is_leader

    @property
    def is_up(self) -> bool:
        return self.protocol is not None and self.ended is None

    def start(self) -> None:
        """Start an agent."""
        cluster = self._cluster
        self._incarnation += 1
        self.ended, self.paused_until, self.leash_until = None, -math.inf, math.inf
        self.is_told_to_leave = False
        self._backlog, self._armed_for = [], math.inf
        self.protocol = Protocol(
            settings=cluster.settings,
            spec=Spec(mesh="simulated", limits="", digest=cluster.command),
            node_name=self.name,
            boot_id=self.name,
            description="",
            worker_port=next(self._ports),
            prefix=PREFIX,
            run_id=RUN_ID,
            sizer=cluster.shape.size,
            chance=cluster.random.random,
        )
        cluster.trace(f"{self.name} starts")
        self.send(Begin())

    def crash(self) -> None:
        """Kill the agent. The warden kills the processes within milliseconds; nobody tells the store."""
        self._cluster.trace(f"{self.name} is killed")
        self.protocol = None
        self._forget_watches()
        self._cluster.later(self._cluster.random.uniform(0.0, 0.05), self._kill_processes, self.running)

    def pause(self, duration_s: float) -> None:
        """Stop the agent as SIGSTOP does. Processes run on until the leash ends."""
        self._cluster.trace(f"{self.name} is paused for {duration_s:g} s")
        self.paused_until = max(self.paused_until, self._cluster.now + duration_s)
        self._cluster.later(duration_s, self.resume)

    def cut(self, duration_s: float) -> None:
        """Lose everything between this node and the store."""
        self._cluster.trace(f"{self.name} is cut off for {duration_s:g} s")
        self.cut_until = max(self.cut_until, self._cluster.now + duration_s)

    def deafen(self) -> None:
        """End every watch, as a reconnect to a store does that has forgotten what came meanwhile."""
        self._cluster.trace(f"{self.name} loses its watches")
        for key in self._watches:
            lost = WatchLost(key, StoreError("the watch has ended"))
            self._cluster.later(self._cluster.delay(), self._send_to, self._incarnation, lost)
        self._forget_watches()

    def leave(self, exit_code: int = 143) -> None:
        self.is_told_to_leave = True
        self.send(Leave("SIGTERM", exit_code))

    def succeed(self) -> None:
        """All processes of this node exit with success."""
        if self.running is not None and not self.has_finished:
            self.has_finished = True
            self.finished_as[self.running.round] = self.running_as
            self.send(RoundSucceeded(self.running.round))

    def fail(self, exit_code: int = 1, is_peer_loss: bool = False) -> None:
        """A process of this node fails."""
        if self.running is not None and not self.has_finished:
            self.has_finished = True
            self._cluster.failed_rounds.add(self.running.round)
            self.send(RoundFailed(self.running.round, exit_code, is_peer_loss, f"exit {exit_code} on {self.name}"))

    # --- the inside ---

    def send(self, event: Event) -> None:
        """Give the agent an event: now, or when it runs again."""
        if self.protocol is None or self.ended is not None:
            return
        if self._cluster.now < self.paused_until:
            self._backlog.append(event)
            return
        actions = self.protocol.step(event, self._cluster.now)
        self._cluster.check_step(self, actions)
        for action in actions:
            self._carry_out(action)
        self._arm()

    def _send_to(self, incarnation: int, event: Event) -> None:
        if incarnation == self._incarnation:
            self.send(event)

    def resume(self) -> None:
        """Let the agent run again, if its pause is over."""
        if self._cluster.now >= self.paused_until:
            backlog, self._backlog = self._backlog, []
            for event in backlog or [Tick()]:
                self.send(event)

    def _arm(self) -> None:
        if self.protocol is not None and self.protocol.wake_at not in (math.inf, self._armed_for):
            self._armed_for = self.protocol.wake_at
            self._cluster.at(max(self._armed_for, self._cluster.now), self._tick, self._incarnation)

    def _tick(self, incarnation: int) -> None:
        is_current = incarnation == self._incarnation and self.is_up and self.protocol is not None
        self._armed_for = math.inf
        if is_current and self.protocol is not None and self._cluster.now >= self.protocol.wake_at:
            self.send(Tick())
        elif is_current:
            self._arm()

    def _carry_out(self, action: Action) -> None:
        cluster = self._cluster
        match action:
            case Ask():
                cluster.request(self, self._incarnation, action, self._send_to)
            case Follow(key, start_revision):
                self._follow(key, start_revision)
            case Unfollow(key):
                watch = self._watches.pop(key, None)
                if watch is not None:
                    watch[0].cancel()
            case MakePlan():
                cluster.later(cluster.delay(), self._send_to, self._incarnation, cluster.shape.plan(action))
            case StartRound():
                self._start_processes(action)
            case StopRound():
                self.stops.append(action)
                cluster.trace(f"{self.name} stops round {action.round} ({action.mode}): {action.reason}")
                cluster.later(cluster.stop_time_s(action.mode), self._kill_processes, self.running)
            case ExtendLeash(until):
                self.leash_until = until
                cluster.at(until, self._check_leash)
            case Say(sentence):
                self.said = sentence
                cluster.trace(f"{self.name} says: {sentence}")
            case End(exit_code, reason, _):
                self.ended = action
                cluster.check_end(self, tuple(self._watches))
                self._forget_watches()
                cluster.trace(f"{self.name} ends with {exit_code}: {reason}")
                cluster.later(0.01, self._kill_processes, self.running)

    def _follow(self, key: str, start_revision: int) -> None:
        incarnation, last = self._incarnation, [self._cluster.now]

        def on_batch(batch: Batch) -> None:
            held = self.cut_until + self._cluster.delay() if self._cluster.now < self.cut_until else 0.0
            last[0] = max(last[0], self._cluster.now + self._cluster.delay(), held)
            self._cluster.at(last[0], self._send_to, incarnation, messages.Watched(key, batch))

        def on_lost(error: StoreError) -> None:
            self._cluster.later(self._cluster.delay(), self._send_to, incarnation, WatchLost(key, error))

        watch = self._cluster.store.watch(
            key, prefix=key.endswith("/"), start_revision=start_revision, on_batch=on_batch, on_lost=on_lost
        )
        self._watches[key] = (watch, last)

    def _forget_watches(self) -> None:
        for watch, _ in self._watches.values():
            watch.cancel()
        self._watches.clear()

    def _start_processes(self, start: StartRound) -> None:
        rank = json.loads(start.assignment)["rank"]
        started = Running(start.round, rank, start.world_size, start.coordinator, start.restart_count)
        restarts = f" after {start.restart_count} restarts" if start.restart_count else ""
        self._cluster.trace(f"{self.name} starts rank {rank} of {start.world_size} in round {start.round}{restarts}")
        self._cluster.check_start(self, started)
        self.running, self.has_finished = started, False
        self.running_as = self.protocol.member_id if self.protocol else ""
        self._cluster.on_start(self)

    def _kill_processes(self, which: Running | None) -> None:
        """The processes that ran as `which` are gone now, if they are not already."""
        if which is not None and self.running is which:
            if self._cluster.now < self.hangs_until:
                self._cluster.at(self.hangs_until, self._kill_processes, which)
                return
            self.running = None
            self.send(RoundStopped(which.round, next(self._ports)))

    def _check_leash(self) -> None:
        if self.running is not None and self._cluster.now >= self.leash_until:
            self._cluster.trace(f"{self.name} reaches the end of its leash")
            self.send(LeashEnded())
            self._kill_processes(self.running)


class Cluster:
    """Nodes, a store, the network between them, and a heap of what happens when."""

    def __init__(
        self,
        *,
        random: Random,
        settings: Settings,
        shape: Shape,
        network: Network | None = None,
        trace: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.now = 0.0
        self.random = random
        self.settings = settings
        self.shape = shape
        self.network = network or Network()
        self.store = MemoryStore(clock=lambda: self.now, threaded=False)
        self.nodes: dict[str, Node] = {}
        self.failed_rounds: set[int] = set()  # in which a process really failed
        self.on_start: Callable[[Node], None] = lambda node: None
        self.check_start: Callable[[Node, Running], None] = lambda node, running: None
        self.check_step: Callable[[Node, Sequence[Action]], None] = lambda node, actions: None
        self.check_end: Callable[[Node, Sequence[str]], None] = lambda node, watched: None
        self.check_request: Callable[[Node, Ask], None] = lambda node, ask: None
        self.command = "simulated"  # what agents that start are told to run
        self.stop_s: float | None = None  # how long processes take to stop, if always the same
        self.fates: dict[str, str] = {}  # what shall happen to the next request of this purpose
        self._trace = trace
        self._heap: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._order = itertools.count()
        self._expiry_at = math.inf

    def add(self, name: str) -> Node:
        node = self.nodes[name] = Node(self, name)
        return node

    # --- time ---

    def at(self, time: float, call: Callable[..., None], *arguments: object) -> None:
        heapq.heappush(self._heap, (time, next(self._order), call, arguments))

    def later(self, delay_s: float, call: Callable[..., None], *arguments: object) -> None:
        self.at(self.now + delay_s, call, *arguments)

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

    def compact(self) -> None:
        """Have the store forget its history: a watch from an earlier revision is lost."""
        self.trace("the store forgets its history")
        with contextlib.suppress(Compacted):  # nothing was written since the last time
            self.store.compact(self.store.get("nothing").revision)

    # --- chance ---

    def delay(self) -> float:
        return self.random.uniform(*self.network.delay_s)

    def stop_time_s(self, mode: str) -> float:
        """How long processes take to be gone. The agent kills at the end of the grace, so never much longer."""
        if self.stop_s is not None:
            return self.stop_s
        return 0.005 if mode == "fence" else self.random.uniform(0.01, self.settings.grace_s(mode))

    # --- the store behind the network ---

    def request(self, node: Node, incarnation: int, ask: Ask, send: Callable[[int, Event], None]) -> None:
        """Carry a request to the store and its answer back, or lose either."""
        self.check_request(node, ask)
        network, limit_s = self.network, self.settings.call_limit_s
        there, back = self.delay(), self.delay()
        shares = {
            "lost": network.lose_request,
            "unanswered": network.lose_answer,
            "late": network.apply_late,
            "refused": network.refuse,
        }
        shares["answered"] = 1.0 - sum(shares.values())
        fate = self.random.choices(list(shares), list(shares.values()))[0]
        fate = self.fates.pop(ask.why, fate)
        if self.now < node.cut_until:
            fate = "lost"
        if fate == "refused":
            self.later(there + back, send, incarnation, messages.Refused(ask.id, StoreError("the store said no")))
        elif fate == "answered" and there + back < limit_s:
            self.later(there, self._serve, ask, incarnation, send, back)
        else:
            if fate != "lost":
                late = self.random.uniform(*network.late_s) if fate == "late" else there
                self.later(late, self._serve, ask, incarnation, None, 0.0)
            self.later(limit_s, send, incarnation, messages.Unknown(ask.id))

    def _serve(self, ask: Ask, incarnation: int, send: Callable[[int, Event], None] | None, back: float) -> None:
        self.store.expire()
        event: Event
        try:
            event = messages.Answered(ask.id, answer(self.store, ask.request))
        except StoreError as error:
            event = messages.Refused(ask.id, error)
        if send is not None:
            self.later(back, send, incarnation, event)
        self.deliver()

    def deliver(self) -> None:
        self.store.deliver()
        deadline = self.store.next_deadline()
        if deadline is not None and deadline < self._expiry_at:
            self._expiry_at = deadline
            self.at(deadline, self._expire)

    def _expire(self) -> None:
        self._expiry_at = math.inf
        self.store.expire()
        self.deliver()


__all__ = ["PREFIX", "RUN_ID", "Cluster", "Network", "Node", "Running", "Shape"]
