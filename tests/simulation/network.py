"""The virtual clock and the network of a simulated cluster: how slow it is, what it loses, who cannot reach whom.

The paths from a node to the store and from node to node, over which presence runs, fail independently of each other,
as they do in production. A cut is silent: nothing is refused, messages just do not arrive, and what a kernel would
retransmit arrives after the heal.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

from msgspec import Struct

STORE, ANYBODY = "*store", "*"  # ends of a path that are no node: the store, and any node
GRID = 2.0**20  # ticks per second: clocks that differ by whole seconds then agree on the time to the last bit

Call = Callable[..., object]
Schedule = Callable[[float, Call, tuple[Any, ...]], None]  # time, call, arguments


class Timeline:
    """`schedule` takes the calls; it decides when each is made. `begin`: the time that a trace counts from."""

    def __init__(self, *, random: Random, trace: Callable[[str], None], schedule: Schedule, begin: float = 0.0) -> None:
        self.now = begin
        self.random = random
        self.counts: Counter[str] = Counter()  # how often each fault, and each rule that answers one, was met
        self._begin = begin
        self._trace = trace
        self._schedule = schedule

    def call_at(self, time: float, call: Call, *arguments: object) -> None:
        self._schedule(time, call, arguments)

    def call_later(self, delay_s: float, call: Call, *arguments: object) -> None:
        self._schedule(self.now + delay_s, call, arguments)

    def count(self, what: str) -> None:
        self.counts[what] += 1

    def trace(self, line: str) -> None:
        self._trace(f"{self.now - self._begin:9.3f}  {line}")


class NetworkModel(Struct, frozen=True, kw_only=True):
    """Delays in seconds, and the share of requests to the store that meet each fault."""

    delay_s: tuple[float, float] = (0.001, 0.001)
    lose_request: float = 0.0
    lose_answer: float = 0.0
    slow_answer: float = 0.0
    slow_request: float = 0.0
    apply_late: float = 0.0
    refuse: float = 0.0
    late_s: tuple[float, float] = (1.0, 8.0)
    expiry_late_s: tuple[float, float] = (0.0, 0.0)
    """How long after its end a lease expires."""


class Network:
    """Delays and cuts. `on_change` is called whenever a cut begins or ends."""

    def __init__(self, timeline: Timeline, model: NetworkModel) -> None:
        self.timeline = timeline
        self.model = model
        self.is_forging_refusals = False  # a middlebox answers connection attempts with RST in place of a live host
        self.on_change: Callable[[], None] = lambda: None
        self._cut_until: dict[tuple[str, str], float] = {}

    def draw_delay(self) -> float:
        return self.timeline.random.uniform(*self.model.delay_s)

    def cut(self, source: str, target: str, duration_s: float) -> None:
        """Lose what goes from `source` to `target`, for this long; other cuts of this path stay."""
        until = self.timeline.now + duration_s
        self._cut_until[source, target] = max(until, self._cut_until.get((source, target), -math.inf))
        self.on_change()
        self.timeline.call_later(duration_s, self.on_change)

    def is_cut(self, source: str, target: str) -> bool:
        """Whether a message from one node to another is lost."""
        if not self._cut_until:
            return False
        pairs = ((source, target), (source, ANYBODY), (ANYBODY, target))
        return any(self.timeline.now < self._cut_until.get(pair, -math.inf) for pair in pairs)

    def get_store_cut_until(self, node: str) -> float:
        return self._cut_until.get((node, STORE), -math.inf)

    def heal(self) -> None:
        """End every fault, without a call of `on_change`."""
        self.model = NetworkModel(delay_s=self.model.delay_s)
        self._cut_until.clear()
        self.is_forging_refusals = False
