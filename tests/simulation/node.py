"""A simulated node: an agent, the processes of at most one round, and the faults of either."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable

from rendezvous import events, records
from rendezvous.errors import StoreError
from rendezvous.events import Action, Event
from rendezvous.machine import MemberMachine
from rendezvous.reasons import Reason
from rendezvous.records import Member, Spec
from rendezvous.state.state import Setup
from rendezvous.stores.contract import Put, Watch
from tests.simulation.config import PREFIX, RUN_ID, ClusterConfig
from tests.simulation.host import Host, Observers, StoreAccess
from tests.simulation.network import Network
from tests.simulation.peers import PresenceNetwork, SimulatedPeers
from tests.simulation.processes import SUPERVISOR_LATE_S, SimulatedProcesses
from tests.simulation.storage import Storage
from tests.support.protocol.state import get_state


class SimulatedNode(Host):
    """Drives the production machine, and carries out its actions.

    `rng` draws the agent's tokens, `first_request` is added to the ids of its requests; `storage` is asked for the
    present job alone, everything else goes by `store`.
    """

    def __init__(
        self,
        name: str,
        *,
        network: Network,
        config: ClusterConfig,
        observers: Observers,
        presence_network: PresenceNetwork,
        storage: Storage,
        store: StoreAccess,
        rng: Callable[[], float],
        clock_offset_s: float = 0.0,
        first_request: int = 0,
    ) -> None:
        timeline = network.timeline
        processes = SimulatedProcesses(
            name, timeline=timeline, config=config, send=self.send, on_exit=self._notify_change
        )
        super().__init__(name, network=network, processes=processes, clock_offset_s=clock_offset_s)
        self.machine: MemberMachine | None = None
        self.presence: SimulatedPeers | None = None
        self.last_status: Reason | None = None
        self._config, self._observers, self._presence_network = config, observers, presence_network
        self._storage, self._store = storage, store
        self._rng, self._first_request = rng, first_request
        self._incarnation = 0  # answers to an agent that was killed are dropped
        self._backlog: list[Event] = []
        self._armed_for = math.inf
        self._watches: dict[str, Watch] = {}

    @property
    def watched(self) -> list[str]:
        return list(self._watches)

    # --- faults, and orders from outside ---

    def start(self, attempt: int | None = None) -> None:
        """Start an agent. `attempt`: to which it belongs, if not to the present one."""
        config = self._config
        self._incarnation += 1
        address = f"{self.name}:{7000 + self._incarnation}"
        self._backlog, self._armed_for = [], math.inf
        self.begin_agent(address)
        self.presence = SimulatedPeers(self._presence_network, self, address, self.send)
        setup = Setup(
            settings=config.settings,
            spec=Spec(mesh="simulated", options={}, digest=config.command),
            node=Member(member_id="", node_name=self.name, boot_id=self.name, description="", presence_address=address),
            prefix=PREFIX,
            run_id=RUN_ID,
            attempt=config.attempt if attempt is None else attempt,
            sizer=config.shape.decide_size,
            hosts_store=self.hosts_store,
            store_owner=config.store_owner,
        )
        self.machine = MemberMachine(setup, next(self.processes.ports), self._rng, config.secret)
        self.state = get_state(self.machine)
        self.state.requests.next_id += self._first_request
        self._timeline.trace(f"{self.name} starts")
        self.send(events.Start())

    def start_if_down(self) -> None:
        if not self.is_up and self.running is None:
            self.start()

    def crash(self) -> None:
        """Kill the agent. The supervisor kills the processes within milliseconds; the store gets no notice."""
        self._timeline.trace(f"{self.name} is killed")
        self._lose_agent()
        late_s = max(SUPERVISOR_LATE_S, self._config.children_late_s)
        self.processes.kill_later(self._timeline.random.uniform(0.0, late_s))

    def power_off(self) -> None:
        """End everything at once, the kernel included, so that no peer is notified."""
        self._timeline.trace(f"{self.name} loses its power")
        self.is_powered_off = True
        self._lose_agent()
        self.processes.hangs_until = -math.inf
        self.processes.kill(self.running)

    def _lose_agent(self) -> None:
        self.machine = self.state = None
        self._cancel_watches()
        if self.presence is not None:
            self.presence.close()
        self._notify_change()

    def pause(self, duration_s: float) -> None:
        """Stop the agent as SIGSTOP does. Processes run on until the watchdog kills them."""
        self._timeline.trace(f"{self.name} is paused for {duration_s:g} s")
        self.paused_until = max(self.paused_until, self._timeline.now + duration_s)
        self._notify_change()
        self._timeline.call_later(duration_s, self.resume)

    def resume(self) -> None:
        """Let the agent run again, if its pause is over."""
        if not self.is_frozen:
            calls = self.take_deferred_calls()
            backlog, self._backlog = self._backlog, []
            self._notify_change()
            self.send(*(backlog or [events.Tick()]))
            for call, arguments in calls:
                call(*arguments)

    def deafen(self) -> None:
        """End every watch, as a reconnect does to a store that has forgotten the events since."""
        self._timeline.trace(f"{self.name} loses its watches")
        for key in self._watches:
            lost = events.WatchLost(key, StoreError("the watch has ended"))
            self._timeline.call_later(self._network.draw_delay(), self._send_to, self._incarnation, lost)
        self._cancel_watches()

    def leave(self, exit_code: int = 143) -> None:
        """Ask the agent to leave, as SIGTERM does."""
        self.is_told_to_leave = True
        self.send(events.LeaveRequest(Reason.of("sigterm"), exit_code))

    def heal(self) -> None:
        super().heal()
        self.resume()

    # --- the agent ---

    def send(self, *events: Event) -> None:
        """Give the agent events: now, or when it runs again."""
        if self.machine is None or self.ended is not None:
            return
        if self.is_frozen:
            self._backlog += events
            return
        actions = self.machine.steps(events, self.read_clock())
        self._observers.after_step(self, events, actions)
        for action in actions:
            self._carry_out(action)
        self._arm()

    def _send_to(self, incarnation: int, event: Event) -> None:
        if incarnation == self._incarnation:
            self.send(event)

    def _arm(self) -> None:
        """Schedule the next Tick; one that was scheduled for later becomes void."""
        if self.machine is not None and self.machine.wake_at < self._armed_for:
            self._armed_for = self.machine.wake_at
            at = max(self.to_timeline(self._armed_for), self._timeline.now)
            self._timeline.call_at(at, self._tick, self._incarnation, self._armed_for)

    def _tick(self, incarnation: int, armed_for: float) -> None:
        if incarnation != self._incarnation or armed_for != self._armed_for or not self.is_up:
            return
        self._armed_for = math.inf
        if self.machine is not None and self.read_clock() >= self.machine.wake_at:
            self.send(events.Tick())
        else:
            self._arm()

    def _carry_out(self, action: Action) -> None:
        match action:
            case events.StoreRequest():
                self._note_registration(action)
                self._observers.before_request(self, action)
                self._store.request(self, self._incarnation, action, self._send_to)
            case events.StartWatch(key, start_revision):
                watch = self._store.follow(self, key, start_revision, self._incarnation, self._send_to)
                self._watches[key] = watch
            case events.StopWatch(key):
                stopped = self._watches.pop(key, None)
                if stopped is not None:
                    stopped.cancel()
            case events.MakePlan():
                plan_s = self._config.plan_s
                late_s = self._timeline.random.uniform(*plan_s) if plan_s else self._network.draw_delay()
                plan = self._config.shape.plan(action)
                self._timeline.call_later(late_s, self._send_to, self._incarnation, plan)
            case events.SetIdentity(job, member_id) if self.presence is not None:
                self.presence.set_identity(job, member_id)
            case events.ConnectTo(member_id, address) if self.presence is not None:
                self.presence.connect_to(member_id, address)
            case events.SendToPeer(member_id, text) if self.presence is not None:
                self.presence.send(member_id, text)
            case events.StartRound():
                self._start_round(action)
            case events.StopRound():
                self.processes.stop(action)
            case events.ExtendWatchdog(until):
                self.processes.extend_watchdog(self.to_timeline(until))
            case events.Log(reason):
                self.last_status = reason
                self._timeline.trace(f"{self.name} says: {reason}")
            case events.Exit():
                self._end(action)

    def _start_round(self, action: events.StartRound) -> None:
        running = self.processes.prepare(action, self.state.job.name if self.state is not None else "")
        self._observers.before_start(self, running)
        self.processes.start(running, self.machine.member_id if self.machine is not None else "")
        self._observers.after_start(self.processes)

    def _note_registration(self, store_request: events.StoreRequest) -> None:
        """Note the member ids that agents of this machine have registered, or tried to."""
        for write in getattr(store_request.request, "success", ()):
            if isinstance(write, Put) and write.key.rpartition("/")[0].endswith("/members"):
                member = records.decode(Member, write.value, write.key)
                if member.member_id not in self.member_ids:
                    self.member_ids.append(member.member_id)

    def _end(self, end: events.Exit) -> None:
        self.ended = end
        self._observers.after_end(self, tuple(self._watches))
        self._cancel_watches()
        self._timeline.trace(f"{self.name} ends with {end.exit_code}: {end.reason}")
        self.processes.kill_later(0.01)
        if self.presence is not None:
            self.presence.close()
        self._notify_change()

    def _notify_change(self) -> None:
        self._presence_network.notify_change(self)

    def _cancel_watches(self) -> None:
        for watch in self._watches.values():
            watch.cancel()
        self._watches.clear()


def describe_status(nodes: Iterable[SimulatedNode]) -> str:
    """The last status of each agent that runs, for a failure message."""
    return json.dumps({node.name: str(node.last_status) for node in nodes if node.is_up})
