"""A simulated cluster in which nothing happens by itself: an explorer chooses what happens next.

The simulation draws delays. Here everything that is under way (a request, an answer, a watched event, a plan, a peer
message, the end of processes) is in a pool, and any of it may be next; only messages of one connection stay in order.
Time stands still while something is under way, and then advances to what is due next. So messages are faster than
timers, unless a fault delays one: that keeps the number of schedules within bounds.

Steps that commute with all others are taken at once: a grant touches no key, and what happens inside the presence
network (dials, closes) matters only through the events that agents get from it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, NamedTuple, cast

from msgspec import Struct

from rendezvous import events
from rendezvous.errors import StoreError
from rendezvous.events import Event, Grant, Revoke, StoreOutcomeUnknown, StoreReply, StoreRequest, WatchLost
from rendezvous.stores.contract import Batch, Watch
from rendezvous.stores.memory.store import MemoryStore
from tests.simulation.cluster import Cluster
from tests.simulation.config import ClusterConfig
from tests.simulation.explore.scopes import ANY, Scope
from tests.simulation.explore.snapshot import ERA, GRID, IDS, IDS_PER_NODE, LEASES, REVISIONS
from tests.simulation.host import Host, Send
from tests.simulation.network import NetworkModel
from tests.simulation.node import SimulatedNode
from tests.simulation.peers import SimulatedPeers
from tests.simulation.processes import SimulatedProcesses
from tests.simulation.storage import Storage

ALL: tuple[str, ...] = ("all",)
STORE = "the store"
SUCCEED = "success of the workers of"
SOON_S = 0.1  # shorter delays of the presence network count as none
LATE_S = 3.0  # how much later a delayed request is applied
PAUSE_S = 12.0  # longer than every lease


class ScheduleChoice(NamedTuple):
    """Something that may happen next. `touched`: the nodes, or the store, whose state it reads or changes."""

    label: str
    touched: tuple[str, ...]
    call: Callable[..., object]
    arguments: tuple[Any, ...] = ()
    is_fault: bool = False


class Offer(Struct, eq=False):
    """Something that is under way. Of those with the same `line` only the first may happen."""

    line: object
    label: str
    touched: tuple[str, ...]
    call: Callable[..., object]
    arguments: tuple[Any, ...]
    delayed: int = 0
    """How often it was put behind all other offers."""

    def make_sort_key(self, late: Mapping[object, int]) -> tuple[int, str]:
        """Its place in the pool; messages of one connection stay together. `late`: lines that were delayed."""
        if type(self.line) is tuple:
            return late.get(self.line, 0), "/".join(self.line)
        return self.delayed, self.label


class NodeRandom:
    """Random numbers that depend only on the node and how many it has drawn, so that its tokens are always the same."""

    def __init__(self, name: str) -> None:
        self._seed = sum(map(ord, name)) << 16
        self._draw_count = 0

    def random(self) -> float:
        self._draw_count += 1
        return (self._seed + self._draw_count) / 2.0**32


class LowestRandom:
    """Draws the lower bound of every delay."""

    def uniform(self, low: float, high: float) -> float:
        return low


class ExploredCluster(Cluster):
    def __init__(self, scope: Scope, trace: Callable[[str], None]) -> None:
        config = ClusterConfig(settings=scope.settings, shape=scope.shape, stop_s=0.0)
        model, random = NetworkModel(delay_s=(0.0, 0.0), expiry_late_s=(0.0, 1.0)), cast("Random", LowestRandom())
        super().__init__(config, model, random=random, trace=trace, begin=ERA)
        self.scope = scope
        self.checker: object = None  # it belongs to the state of the cluster
        self.pool: list[Offer] = []
        self.timers: list[tuple[float, Callable[..., object], tuple[Any, ...]]] = []
        self.faults_left_by_kind = dict(scope.faults)  # of each fault, how often it may happen yet
        self.faults_left = scope.faults_max
        self.jumps_left = scope.jumps_max
        self.detours_left = ANY
        self.slow: list[str] = []  # nodes whose offers come after those of all others
        self._inner: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self.storage.store = MemoryStore(clock=self.storage.clock.read, first_lease=LEASES)
        self.storage.store._keyspace.revision = REVISIONS
        self.store_access = SteppedStore(self.storage, self.offer, has_one_stream=scope.has_one_stream)
        for index, name in enumerate("abcdefg"[: scope.members]):
            self.add_node(name, NodeRandom(name).random, first_request=IDS + IDS_PER_NODE * index)

    def begin(self) -> None:
        names = list(self.nodes)
        for name in names if self.scope.starts_together else names[:1]:
            self.nodes[name].start()
        self._settle()
        while self.scope.begins_running and not self.is_running:
            self.take(
                next(choice for choice in self._list_choices() if not choice.is_fault and SUCCEED not in choice.label)
            )
        self.jumps_left, self.detours_left = self.scope.jumps_max, self.scope.detours_max

    # --- what the simulation asks for ---

    def offer(
        self, line: object, label: str, touched: tuple[str, ...], call: Callable[..., object], *arguments: Any
    ) -> None:
        self.pool.append(Offer(line, label, touched, call, arguments))

    def deliver_peer_event(self, peers: SimulatedPeers, event: Event) -> None:
        name, peer = peers.host.name, getattr(event, "member_id", "")
        label = f"{name} hears by presence: {describe_event(event)}"
        self.offer((name, "presence", peer), label, (name,), peers.hear, event)

    def schedule(self, time: float, call: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        time = math.ceil(time * GRID) / GRID
        is_inner = call.__module__.endswith(".peers")
        if call.__qualname__ == "Storage._expire":
            return  # `_find_due_at` looks at the leases themselves
        if is_inner and time <= self.timeline.now + SOON_S:
            self._inner.append((call, arguments))
        elif time <= self.timeline.now:
            self._arise(call, arguments)
        else:
            self.timers.append((time, call, arguments))

    def _arise(self, call: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        """Put into the pool what is due now. The end of a pause comes before everything else."""
        if call.__module__.endswith(".peers") or call.__name__ == "resume":
            self._inner.append((call, arguments))
        else:
            name = find_owner(call)
            touched = (name,) if name and call.__name__ in ("_tick", "_send_to") else ALL
            self.offer(None, make_label(call, arguments), touched, call, *arguments)

    def _settle(self) -> None:
        """Make the calls that are not chosen, and sort the rest, so that its order does not depend on the past."""
        while self._inner:
            call, arguments = self._inner.popleft()
            call(*arguments)
        self.pool = [offer for offer in self.pool if not is_void(offer.call, offer.arguments, self.timeline.now)]
        self._drop_known()
        if not self.pool:
            self.slow.clear()
        late: dict[object, int] = {
            offer.line: offer.delayed for offer in self.pool if type(offer.line) is tuple and offer.delayed
        }
        self.pool.sort(key=lambda offer: (any(name in self.slow for name in offer.touched), *offer.make_sort_key(late)))
        self.timers = [timer for timer in self.timers if not is_void(timer[1], timer[2], timer[0])]
        self.timers.sort(key=lambda timer: (timer[0], timer[1].__qualname__, find_owner(timer[1])))

    def _drop_known(self) -> None:
        """Drop watched events that their member already knows: they would change nothing, now or later."""
        first: set[object] = set()
        for offer in list(self.pool):
            if type(offer.line) is not tuple or offer.line in first:
                continue
            if is_known(offer.arguments[-1], getattr(offer.call, "__self__", None)):
                self.pool.remove(offer)
            else:
                first.add(offer.line)

    # --- choosing ---

    def list_choices(self) -> list[ScheduleChoice]:
        """What may happen next: all, or, if detours are counted, the usual choice, faults, and detours."""
        found = self._list_choices()
        if self.scope.detours_max == ANY:
            return found
        usual = self.find_usual_choice(found)
        chosen = [choice for choice in found if choice.is_fault or choice is usual]
        if self.detours_left and usual is not None:
            chosen += self._list_detours(usual, found)
        return chosen

    def _list_detours(self, usual: ScheduleChoice, found: Sequence[ScheduleChoice]) -> list[ScheduleChoice]:
        """Delay the usual choice, or one node, behind all others; with nothing under way, take another choice."""
        if not self.pool:
            others = [choice for choice in found if not choice.is_fault and choice is not usual]
            return [ScheduleChoice(each.label, ALL, self._detour, (each.call, *each.arguments)) for each in others]
        slow = [name for name in self.nodes if name not in self.slow and any(name in o.touched for o in self.pool)]
        return [
            ScheduleChoice(f"late: {usual.label}", ALL, self._detour, (self._delay, self.pool[0])),
            *(ScheduleChoice(f"{name} is slow", ALL, self._detour, (self.slow.append, name)) for name in slow),
        ]

    def _detour(self, call: Callable[..., object], *arguments: Any) -> None:
        self.detours_left -= 1
        call(*arguments)

    def _delay(self, late: Offer) -> None:
        late.delayed = 1 + max(offer.delayed for offer in self.pool)

    def find_usual_choice(self, choices: Sequence[ScheduleChoice] | None = None) -> ScheduleChoice | None:
        """What happens next without faults or detours: the first of what is under way, else the success of workers."""
        return next((choice for choice in choices or self._list_choices() if not choice.is_fault), None)

    def _list_choices(self) -> list[ScheduleChoice]:
        found: list[ScheduleChoice] = []
        if self.is_over:
            return [choice for node in self.nodes.values() for choice in self._list_starts(node)]
        lines = []
        for index, offer in enumerate(self.pool):
            if offer.line is None or offer.line not in lines:
                lines.append(offer.line)
                found.append(ScheduleChoice(offer.label, offer.touched, self._take, (index,)))
                if self.faults_left and isinstance(offer.line, (StoreRequest, StoreReply)):
                    found += self._list_fates(index, offer)
        for node in self.nodes.values():
            found += self._list_starts(node) or self._list_node_choices(node)
        due_at = self._find_due_at()
        is_due = due_at <= self.timeline.now
        if is_due:
            found.append(ScheduleChoice("the store ends the leases that are due", ALL, self._end_due_leases))
        if not self.pool and not is_due and due_at < math.inf and self.jumps_left:
            found.append(ScheduleChoice(f"{due_at - self.timeline.now:.3f} s pass", ALL, self._jump))
        return found

    def _list_starts(self, node: SimulatedNode) -> list[ScheduleChoice]:
        """Its first start, after the nodes before it: the nodes are symmetric, so no state is lost."""
        is_next = node.presence is None and all(
            other.presence is not None for other in self.nodes.values() if other.name < node.name
        )
        return [ScheduleChoice(f"{node.name} starts", ALL, node.start)] if is_next else []

    def _list_node_choices(self, node: SimulatedNode) -> list[ScheduleChoice]:
        found: list[ScheduleChoice] = []
        name, running = node.name, node.running
        if running is not None and not node.processes.has_finished:
            # The checker reads the processes at each write.
            if not self.pool or self.scope.ends_any_time:
                found.append(ScheduleChoice(f"{SUCCEED} {name}", (name, STORE), node.processes.succeed))
            found += self._list_fault("fail", f"a worker of {name} fails", node.processes.fail)
        if node.is_up and not node.is_frozen:
            lease = node.state.lease.id if node.state is not None else None
            found += self._list_fault("crash", f"the agent of {name} is killed", node.crash)
            found += self._list_fault("power", f"{name} loses its power", node.power_off)
            found += self._list_fault("pause", f"{name} is paused", node.pause, PAUSE_S)
            if not node.is_told_to_leave:
                found += self._list_fault("leave", f"{name} is told to leave", node.leave)
            if node.watched:
                found += self._list_fault("deafen", f"{name} loses its watches", node.deafen)
            if lease is not None and lease in self.storage.store.list_leases():
                found += self._list_fault("lease", f"the store ends the lease of {name}", self._end_lease, lease)
        elif not node.is_up and running is None and node.ended is None:
            found += self._list_fault("restart", f"{name} starts again", node.start)
        return found

    def _list_fault(
        self, kind: str, label: str, inject: Callable[..., object], *arguments: object
    ) -> list[ScheduleChoice]:
        """This fault, if it is left."""

        def apply_fault() -> None:
            self.faults_left_by_kind[kind] -= 1
            self.faults_left -= kind != "restart"
            inject(*arguments)

        may_be = self.faults_left_by_kind.get(kind) and (self.faults_left or kind == "restart")
        return [ScheduleChoice(label, ALL, apply_fault, (), True)] if may_be else []

    def _list_fates(self, index: int, offer: Offer) -> list[ScheduleChoice]:
        """The faults of a request that is not applied yet, or of an answer that is not delivered yet."""
        is_request = isinstance(offer.line, StoreRequest)
        if is_request:
            _, incarnation, ask, send = offer.arguments
        else:
            send, (incarnation, ask) = offer.call, offer.arguments

        def lose() -> None:
            del self.pool[index]
            self.timeline.call_later(self.scope.settings.call_limit_s, send, incarnation, StoreOutcomeUnknown(ask.id))

        def delay() -> None:
            lose()
            self.timeline.call_later(LATE_S, self._apply_late, ask)

        what = offer.label.removeprefix("the store applies ")
        if not is_request:
            return self._list_fault("lost answer", f"lost: {what}", lose)
        lost = self._list_fault("lost request", f"lost: {what}", lose)
        return lost + self._list_fault("late request", f"late by {LATE_S:g} s: {what}", delay)

    def _apply_late(self, store_request: StoreRequest) -> None:
        self.timeline.trace(f"the store applies late: {store_request.kind}")
        self.storage.apply(store_request)

    def stop_faults(self, jumps: int) -> None:
        """End all faults, and allow this many more advances of time."""
        self.timeline.trace("--- nothing goes wrong any more")
        self.faults_left, self.faults_left_by_kind, self.jumps_left = 0, {}, jumps

    def take(self, choice: ScheduleChoice) -> bool:
        """Make this choice. Whether it concerned only what the choice touches."""
        self.timeline.trace(f"--- {choice.label}")
        running = [node.running for node in self.nodes.values()]
        is_up = [node.is_up for node in self.nodes.values()]
        choice.call(*choice.arguments)
        is_local = choice.touched is not ALL and not self._inner
        self._settle()
        return (
            is_local
            and all(node.running is before for node, before in zip(self.nodes.values(), running, strict=True))
            and is_up == [node.is_up for node in self.nodes.values()]
        )

    def _take(self, index: int) -> None:
        offer = self.pool.pop(index)
        offer.call(*offer.arguments)

    def _find_due_at(self) -> float:
        """When the next timer or lease is due."""
        return min(self.timers[0][0] if self.timers else math.inf, self.storage.store.find_next_deadline())

    def _jump(self) -> None:
        self.timeline.now = math.ceil(self._find_due_at() * GRID) / GRID
        self.jumps_left -= 1
        due = [timer for timer in self.timers if timer[0] <= self.timeline.now]
        self.timers = [timer for timer in self.timers if timer[0] > self.timeline.now]
        for _, call, arguments in due:
            self._arise(call, arguments)

    def _end_due_leases(self) -> None:
        self.storage.store.expire()
        self.storage.deliver()

    def _end_lease(self, lease: int) -> None:
        """End a lease before its time."""
        self.storage.store.lease_revoke(lease)
        self.storage.deliver()

    # --- what it looks like ---

    @property
    def is_running(self) -> bool:
        """Whether the processes of all nodes run, and nothing is under way."""
        return not self.pool and all(node.running is not None for node in self.nodes.values())

    @property
    def is_over(self) -> bool:
        """Whether all agents that have started have ended, and their processes."""
        started = [node for node in self.nodes.values() if node.presence is not None]
        return all(not node.is_up and node.running is None for node in started)


class SteppedStore:
    """The `StoreAccess` of an explored cluster. `has_one_stream`: all watches of a node share one order of events."""

    def __init__(self, storage: Storage, offer: Callable[..., None], *, has_one_stream: bool) -> None:
        self._storage = storage
        self._offer = offer
        self._has_one_stream = has_one_stream

    def request(self, host: Host, incarnation: int, store_request: StoreRequest, send: Send) -> None:
        if isinstance(store_request.request, Grant):  # it commutes with all other requests
            self.serve(host.name, incarnation, store_request, send)
        else:
            label = f"the store applies a request of {host.name}: {store_request.kind}"
            self._offer(store_request, label, (STORE,), self.serve, host.name, incarnation, store_request, send)

    def serve(self, name: str, incarnation: int, store_request: StoreRequest, send: Send) -> None:
        event = self._storage.apply(store_request)
        if not isinstance(store_request.request, Revoke):
            how = "answered" if isinstance(event, StoreReply) else "refused"
            self._offer(event, f"{name} is {how}: {store_request.kind}", (name,), send, incarnation, event)

    def follow(self, host: Host, key: str, start_revision: int, incarnation: int, send: Send) -> Watch:
        offer, name = self._offer, host.name
        line = (name, "watch", "" if self._has_one_stream else key)

        def on_batch(batch: Batch) -> None:
            changes = ", ".join(f"{event.kind} {event.item.key.split('/', 4)[-1]}" for event in batch.events)
            offer(line, f"{name} sees {changes}", (name,), send, incarnation, events.WatchUpdate(key, batch))

        def on_lost(error: StoreError) -> None:
            offer(line, f"{name} loses a watch", (name,), send, incarnation, WatchLost(key, error))

        watch = self._storage.store.watch(
            key, prefix=key.endswith("/"), start_revision=start_revision, on_batch=on_batch, on_lost=on_lost
        )
        self._storage.deliver()
        return watch


def is_void(call: Any, arguments: Sequence[Any], at: float) -> bool:
    """Whether this call would have no effect any more."""
    name = call.__name__
    owner: Any = getattr(call, "__self__", None)
    if name == "_send_to":
        return arguments[0] != owner._incarnation or not owner.is_up
    if name == "_tick":
        return arguments[0] != owner._incarnation or arguments[1] != owner._armed_for or not owner.is_up
    if name == "check_watchdog":
        return bool(at < owner.watchdog_until)
    if name == "kill" and isinstance(owner, SimulatedProcesses):
        return owner.running is None or owner.running is not arguments[0]
    if name == "hear":
        return not owner.is_open
    if name == "once":
        return any(cell.cell_contents is True for cell in call.__closure__)
    return False


def is_known(event: Event, node: Any) -> bool:
    """Whether the watch cache of this member already has what the event contains."""
    if not isinstance(event, events.WatchUpdate):
        return False
    cache = node.state.cache
    items = [change.item for change in event.batch.events]
    is_news = any(item.mod_revision > cache.keys.find_newest(item.key) for item in items)
    return event.key not in cache.watched or not is_news


def find_owner(call: Any) -> str:
    """The name of the node whose method this is, or whose processes'; else empty."""
    name = getattr(getattr(call, "__self__", None), "name", "")
    assert isinstance(name, str)
    return name


def make_label(call: Any, arguments: tuple[Any, ...]) -> str:
    if call.__name__ == "_send_to":
        return f"{find_owner(call)} takes in {describe_event(arguments[1])}"
    words = {"_tick": "wakes", "kill": "has no processes left", "check_watchdog": "is at the end of its watchdog"}
    return f"{find_owner(call)} {words.get(call.__name__, call.__name__)}".strip()


def describe_event(event: Event) -> str:
    if isinstance(event, StoreOutcomeUnknown):
        return "that a request brought no answer"
    return f"{type(event).__name__} {getattr(event, 'member_id', '')[:4]}".strip()
