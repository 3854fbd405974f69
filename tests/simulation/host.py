"""A simulated machine as the network, the store and a checker see it, and what a node needs of those who see it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

from rendezvous.events import Action, Event, Exit, StoreRequest
from rendezvous.state.state import MemberState
from rendezvous.stores.contract import Watch
from tests.simulation.network import Network
from tests.simulation.processes import Running, SimulatedProcesses

Send = Callable[[int, Event], None]
"""Gives an event to the agent of this incarnation; an agent that was replaced since does not get it."""


class Host:
    """`clock_offset_s`: how far this machine's clock is ahead of the timeline; clocks of two machines do not agree."""

    def __init__(
        self,
        name: str,
        *,
        network: Network,
        processes: SimulatedProcesses,
        clock_offset_s: float,
    ) -> None:
        self.name = name
        self.processes = processes
        self.is_powered_off = False
        self.is_walled = False  # a firewall blocks all presence connections
        self.is_masked = False  # peers see another address than it advertises
        self.hosts_store = False  # it leaves last, because the store of the others ends with it
        # The present agent, or the last one.
        self.address = ""  # of its presence listener
        self.state: MemberState | None = None  # None: the agent was killed
        self.ended: Exit | None = None
        self.is_told_to_leave = False
        self.member_ids: list[str] = []  # all that agents of this machine have registered as
        # Faults.
        self.paused_until = -math.inf
        self.watches_stalled_until = -math.inf
        self.stale_until = -math.inf  # until then a replaced leader of the store answers its renewals
        self.is_served_elsewhere = False  # all requests but renewals reach another server meanwhile
        self.renews_only_until = -math.inf  # until then all requests but renewals, and all watched events, are lost
        self._lags: dict[str, tuple[float, float]] = {}  # watched key -> until when it is late, and by how much
        self._timeline, self._network = network.timeline, network
        self._clock_offset_s = clock_offset_s
        self._deferred_calls: list[tuple[Callable[..., None], tuple[object, ...]]] = []

    @property
    def running(self) -> Running | None:
        """The processes of a round, until the last is gone."""
        return self.processes.running

    @property
    def is_up(self) -> bool:
        """Whether an agent runs."""
        return self.state is not None and self.ended is None

    def has_agent(self, member_id: str) -> bool:
        """Whether the agent of this member runs here."""
        return self.state is not None and self.ended is None and self.state.member_id == member_id

    @property
    def is_leader(self) -> bool:
        return self.state is not None and self.state.leadership is not None

    @property
    def is_frozen(self) -> bool:
        return self._timeline.now < self.paused_until

    @property
    def store_cut_until(self) -> float:
        return self._network.get_store_cut_until(self.name)

    @property
    def is_cut_from_store(self) -> bool:
        return self._timeline.now < self.store_cut_until

    def read_clock(self) -> float:
        """What this machine's clock shows."""
        return self._timeline.now + self._clock_offset_s

    def to_timeline(self, time: float) -> float:
        """The time on the timeline when this machine's clock shows `time`."""
        return time - self._clock_offset_s

    def get_lag_s(self, key: str) -> float:
        """How late events of this watch are now."""
        until, lag_s = self._lags.get(key, (-math.inf, 0.0))
        return lag_s if self._timeline.now < until else 0.0

    # --- an agent starts, is paused and goes on ---

    def begin_agent(self, address: str) -> None:
        """An agent starts with this listener; what was known of the one before is over."""
        self.address = address
        self.ended, self.paused_until, self.processes.watchdog_until = None, -math.inf, math.inf
        self.is_told_to_leave = self.is_powered_off = False
        self._deferred_calls = []

    def defer_if_frozen(self, call: Callable[..., None], *arguments: object) -> bool:
        """Whether the agent is paused; then the call is kept for `take_deferred_calls`."""
        if self.is_frozen:
            self._deferred_calls.append((call, arguments))
        return self.is_frozen

    def take_deferred_calls(self) -> list[tuple[Callable[..., None], tuple[object, ...]]]:
        calls, self._deferred_calls = self._deferred_calls, []
        return calls

    # --- faults between this machine and the store ---

    def stall(self, duration_s: float) -> None:
        """Hold back all watched events, while requests are answered."""
        self._timeline.trace(f"{self.name} hears nothing of its watches for {duration_s:g} s")
        self.watches_stalled_until = max(self.watches_stalled_until, self._timeline.now + duration_s)

    def lag(self, key: str, lag_s: float, duration_s: float) -> None:
        """For `duration_s`, deliver the events of this watch late by `lag_s`."""
        self._timeline.trace(f"{self.name} hears {lag_s:g} s late of {key.split('/', 4)[-1]}")
        self._lags[key] = (self._timeline.now + duration_s, lag_s)

    def meet_stale_leader(self, duration_s: float, is_served_elsewhere: bool) -> None:
        """Have renewals answered that renew nothing, and no watched events; other calls fail, or are served."""
        other = "other calls are served" if is_served_elsewhere else "all else fails"
        self._timeline.trace(f"{self.name} renews at a stale leader for {duration_s:g} s, {other}")
        self.stale_until = max(self.stale_until, self._timeline.now + duration_s)
        self.is_served_elsewhere = is_served_elsewhere

    def pass_renewals_only(self, duration_s: float) -> None:
        """Lose what takes longer than a renewal, as a bad line or a store under load does."""
        self._timeline.trace(f"of {self.name} only renewals pass for {duration_s:g} s")
        self.renews_only_until = self._timeline.now + duration_s

    def heal(self) -> None:
        """End every fault of this machine."""
        self.is_walled = False
        self.paused_until = self.watches_stalled_until = self.stale_until = self.renews_only_until = self._timeline.now
        self._lags.clear()


class StoreAccess(Protocol):
    """The store as one node reaches it: in time, late, or not at all."""

    def request(self, host: Host, incarnation: int, store_request: StoreRequest, send: Send) -> None:
        """Carry a request to the store and its answer back."""

    def follow(self, host: Host, key: str, start_revision: int, incarnation: int, send: Send) -> Watch:
        """Watch this key, or all below it if it ends with a slash."""


class Observers:
    """Functions that every node of a cluster calls. A checker and the work of the processes put theirs here."""

    def __init__(self) -> None:
        self.before_start: Callable[[Host, Running], None] = lambda host, running: None
        self.after_start: Callable[[SimulatedProcesses], None] = lambda processes: None
        self.after_step: Callable[[Host, Sequence[Event], Sequence[Action]], None] = lambda host, events, actions: None
        self.before_request: Callable[[Host, StoreRequest], None] = lambda host, store_request: None
        self.after_end: Callable[[Host, Sequence[str]], None] = lambda host, watched: None
