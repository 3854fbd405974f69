"""The simulated network: how slow it is, what it loses, and which nodes cannot reach each other.

The paths from a node to the store and from node to node, over which presence runs, fail independently of each other,
as they do in production. A cut is silent: nothing is refused, messages just do not arrive, and what a kernel would
retransmit arrives after the heal.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from msgspec import Struct

from rendezvous.testing.simulation.timeline import Timeline

STORE, ANYBODY = "*store", "*"  # ends of a path that are no node: the store, and any node


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
