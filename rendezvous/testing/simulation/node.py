"""A simulated machine: an agent, the processes of at most one round, and the faults that befall them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from rendezvous import records
from rendezvous.errors import StoreError
from rendezvous.events import (
    Action,
    ConnectTo,
    Event,
    Exit,
    ExtendWatchdog,
    LeaveRequest,
    Log,
    MakePlan,
    SendToPeer,
    SetIdentity,
    Start,
    StartRound,
    StartWatch,
    StopRound,
    StopWatch,
    StoreRequest,
    Tick,
    WatchLost,
)
from rendezvous.machine import MemberMachine
from rendezvous.records import Member, Spec
from rendezvous.stores.contract import Put, Watch
from rendezvous.testing.simulation.network import Lags
from rendezvous.testing.simulation.peers import SimulatedPeers
from rendezvous.testing.simulation.processes import SUPERVISOR_LATE_S, Running, SimulatedProcesses

if TYPE_CHECKING:
    from rendezvous.testing.simulation.cluster import SimulatedCluster

PREFIX, RUN_ID = "meshrun", "simulated"


class SimulatedNode:
    def __init__(self, cluster: SimulatedCluster, name: str, clock_offset_s: float = 0.0) -> None:
        self.name = name
        self.machine: MemberMachine | None = None
        self.presence: SimulatedPeers | None = None
        self.cluster = cluster
        self.processes = SimulatedProcesses(self)
        self.ended: Exit | None = None
        self.is_told_to_leave = False
        self.last_status = ""
        self.paused_until = -math.inf
        self.watches_stalled_until = -math.inf
        self.stale_until = -math.inf  # till then a leader of the store answers renewals that is none any more
        self.is_served_elsewhere = False  # what it does not answer
        self.renews_only_until = -math.inf  # till then all but renewals is lost, and nothing is heard of watches
        self.is_powered_off = False
        self.is_walled = False  # a firewall lets no presence connection through
        self.hosts_store = False  # it goes last, since the others' store goes with it
        self.is_masked = False  # it is seen under another address than it advertises
        self.stops: list[StopRound] = []
        self.member_ids: list[str] = []  # all that its agents ever registered as
        self._clock_offset_s = clock_offset_s  # two machines' clocks have nothing in common
        self._incarnation = 0  # answers to an agent that was killed go nowhere
        self._backlog: list[Event] = []
        self._frozen_calls: list[tuple[Callable[..., None], tuple[object, ...]]] = []
        self._armed_for = math.inf
        self._watches: dict[str, Watch] = {}
        self.lags = Lags()

    # --- what it looks like from outside ---

    @property
    def running(self) -> Running | None:
        """The processes of a round, as far as they are not gone."""
        return self.processes.running

    @property
    def is_frozen(self) -> bool:
        return self.cluster.now < self.paused_until

    @property
    def is_leader(self) -> bool:
        return self.machine is not None and self.machine.is_leader

    @property
    def is_up(self) -> bool:
        return self.machine is not None and self.ended is None

    @property
    def store_cut_until(self) -> float:
        return self.cluster.cuts.get_store_cut_until(self.name)

    @property
    def is_cut_from_store(self) -> bool:
        return self.cluster.now < self.store_cut_until

    def read_clock(self) -> float:
        """What this machine's clock shows."""
        return self.cluster.now + self._clock_offset_s

    def to_cluster_time(self, time: float) -> float:
        """A time of this machine's clock as the cluster counts."""
        return time - self._clock_offset_s

    # --- what befalls it ---

    def start(self) -> None:
        """Start an agent."""
        cluster = self.cluster
        self._incarnation += 1
        self.ended, self.paused_until, self.processes.watchdog_until = None, -math.inf, math.inf
        self.is_told_to_leave = self.is_powered_off = False
        self._backlog, self._frozen_calls, self._armed_for = [], [], math.inf
        address = f"{self.name}:{7000 + self._incarnation}"
        self.presence = SimulatedPeers(cluster.presence, self, address)
        self.machine = MemberMachine(
            settings=cluster.settings,
            spec=Spec(mesh="simulated", limits="", digest=cluster.command),
            node_name=self.name,
            boot_id=self.name,
            description="",
            worker_port=next(self.processes.ports),
            prefix=PREFIX,
            run_id=RUN_ID,
            sizer=cluster.shape.decide_size,
            rng=cluster.random.random,
            presence_address=address,
            secret=cluster.secret,
            hosts_store=self.hosts_store,
        )
        cluster.trace(f"{self.name} starts")
        self.send(Start())

    def start_if_down(self) -> None:
        if not self.is_up and self.running is None:
            self.start()

    def crash(self) -> None:
        """Kill the agent. The supervisor kills the processes within milliseconds; nobody tells the store."""
        self.cluster.trace(f"{self.name} is killed")
        self._lose_agent()
        late_s = max(SUPERVISOR_LATE_S, self.cluster.children_late_s)
        self.processes.kill_later(self.cluster.random.uniform(0.0, late_s))

    def power_off(self) -> None:
        """All is gone at once, and no kernel is left that could tell anybody."""
        self.cluster.trace(f"{self.name} loses its power")
        self.is_powered_off = True
        self._lose_agent()
        self.processes.hangs_until = -math.inf
        self.processes.kill(self.running)

    def _lose_agent(self) -> None:
        self.machine = None
        self._forget_watches()
        if self.presence is not None:
            self.presence.close()
        self.cluster.presence.notify_change(self)

    def pause(self, duration_s: float) -> None:
        """Stop the agent as SIGSTOP does. Processes run on until the watchdog ends."""
        self.cluster.trace(f"{self.name} is paused for {duration_s:g} s")
        self.paused_until = max(self.paused_until, self.cluster.now + duration_s)
        self.cluster.presence.notify_change(self)
        self.cluster.call_later(duration_s, self.resume)

    def deafen(self) -> None:
        """End every watch, as a reconnect to a store does that has forgotten what came meanwhile."""
        self.cluster.trace(f"{self.name} loses its watches")
        for key in self._watches:
            lost = WatchLost(key, StoreError("the watch has ended"))
            self.cluster.call_later(self.cluster.draw_delay(), self._send_to, self._incarnation, lost)
        self._forget_watches()

    def stall(self, duration_s: float) -> None:
        """Hold back all watched events, while requests are answered."""
        self.cluster.trace(f"{self.name} hears nothing of its watches for {duration_s:g} s")
        self.watches_stalled_until = max(self.watches_stalled_until, self.cluster.now + duration_s)

    @property
    def watched(self) -> list[str]:
        return list(self._watches)

    def meet_stale_leader(self, duration_s: float, is_served_elsewhere: bool) -> None:
        """Let renewals be answered that renew nothing, and watches be silent; other calls fail, or are served."""
        other = "other calls are served" if is_served_elsewhere else "all else fails"
        self.cluster.trace(f"{self.name} renews at a stale leader for {duration_s:g} s, {other}")
        self.stale_until = max(self.stale_until, self.cluster.now + duration_s)
        self.is_served_elsewhere = is_served_elsewhere

    def heal(self) -> None:
        """End every fault of this machine's."""
        self.is_walled = False
        self.paused_until = self.watches_stalled_until = self.stale_until = self.renews_only_until = self.cluster.now
        self.lags.heal()
        self.resume()

    def leave(self, exit_code: int = 143) -> None:
        self.is_told_to_leave = True
        self.send(LeaveRequest("SIGTERM", exit_code))

    # --- the agent ---

    def send(self, *events: Event) -> None:
        """Give the agent events: now, or when it runs again."""
        if self.machine is None or self.ended is not None:
            return
        if self.is_frozen:
            self._backlog += events
            return
        actions = self.machine.steps(events, self.read_clock())
        self.cluster.check_step(self, events, actions)
        for action in actions:
            self._carry_out(action)
        self._arm()

    def send_as(self, presence: SimulatedPeers, event: Event) -> None:
        if presence is self.presence:
            self.send(event)

    def _send_to(self, incarnation: int, event: Event) -> None:
        if incarnation == self._incarnation:
            self.send(event)

    def defer_if_frozen(self, call: Callable[..., None], *arguments: object) -> bool:
        """Whether the agent is frozen, and this call kept until it is not."""
        if self.is_frozen:
            self._frozen_calls.append((call, arguments))
        return self.is_frozen

    def resume(self) -> None:
        """Let the agent run again, if its pause is over."""
        if not self.is_frozen:
            calls, self._frozen_calls = self._frozen_calls, []
            backlog, self._backlog = self._backlog, []
            self.cluster.presence.notify_change(self)
            self.send(*(backlog or [Tick()]))
            for call, arguments in calls:
                call(*arguments)

    def _arm(self) -> None:
        """Have a Tick come when it is wanted; one that was wanted for later finds out by itself."""
        if self.machine is not None and self.machine.wake_at < self._armed_for:
            self._armed_for = self.machine.wake_at
            at = max(self._armed_for - self._clock_offset_s, self.cluster.now)
            self.cluster.call_at(at, self._tick, self._incarnation, self._armed_for)

    def _tick(self, incarnation: int, armed_for: float) -> None:
        if incarnation != self._incarnation or armed_for != self._armed_for or not self.is_up:
            return
        self._armed_for = math.inf
        if self.machine is not None and self.read_clock() >= self.machine.wake_at:
            self.send(Tick())
        else:
            self._arm()

    def _carry_out(self, action: Action) -> None:
        cluster = self.cluster
        match action:
            case StoreRequest():
                self._notice_registration(action)
                cluster.check_request(self, action)
                cluster.storage.request(self, self._incarnation, action, self._send_to)
            case StartWatch(key, start_revision):
                incarnation = self._incarnation
                self._watches[key] = cluster.storage.follow(self, key, start_revision, incarnation, self._send_to)
            case StopWatch(key):
                watch = self._watches.pop(key, None)
                if watch is not None:
                    watch.cancel()
            case MakePlan():
                plan_s = cluster.random.uniform(*cluster.plan_s) if cluster.plan_s else cluster.draw_delay()
                cluster.call_later(plan_s, self._send_to, self._incarnation, cluster.shape.plan(action))
            case SetIdentity(job, member_id) if self.presence is not None:
                self.presence.set_identity(job, member_id)
            case ConnectTo(member_id, address) if self.presence is not None:
                self.presence.connect_to(member_id, address)
            case SendToPeer(member_id, text) if self.presence is not None:
                self.presence.send(member_id, text)
            case StartRound():
                found = cluster.storage.store.get(records.make_current_key(PREFIX, RUN_ID)).first
                job = found.value.decode() if found else ""
                self.processes.start(action, job, self.machine.member_id if self.machine else "")
            case StopRound():
                self.stops.append(action)
                self.processes.stop(action)
            case ExtendWatchdog(until):
                self.processes.extend_watchdog(until - self._clock_offset_s)
            case Log(sentence):
                self.last_status = sentence
                cluster.trace(f"{self.name} says: {sentence}")
            case Exit():
                self._end(action)

    def _notice_registration(self, store_request: StoreRequest) -> None:
        """Remember under which ids this machine's agents have asked to be members."""
        for write in getattr(store_request.request, "success", ()):
            if isinstance(write, Put) and write.key.rpartition("/")[0].endswith("/members"):
                member = records.decode(Member, write.value, write.key)
                if member.member_id not in self.member_ids:
                    self.member_ids.append(member.member_id)

    def _end(self, end: Exit) -> None:
        cluster = self.cluster
        self.ended = end
        cluster.check_end(self, tuple(self._watches))
        self._forget_watches()
        cluster.trace(f"{self.name} ends with {end.exit_code}: {end.reason}")
        self.processes.kill_later(0.01)
        if self.presence is not None:
            self.presence.close()
        cluster.presence.notify_change(self)

    def _forget_watches(self) -> None:
        for watch in self._watches.values():
            watch.cancel()
        self._watches.clear()
