"""What the simulated network does to messages: how slow it is, what it loses, and who cannot reach whom.

Two networks are told apart, because in life they fail apart: the way from a node to the store, and the way from
node to node over which presence runs. A cut is silent: nothing is refused, things just do not arrive, and what a
kernel would send again arrives after the heal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class NetworkModel:
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
    """How long after its end a lease is acted upon."""


class Cuts:
    """Which ways are cut, and until when. Ends are names of nodes; `STORE` and `ANYBODY` stand for what they say."""

    STORE, ANYBODY = "*store", "*"

    def __init__(self) -> None:
        self._until: dict[tuple[str, str], float] = {}

    def cut(self, source: str, target: str, until: float) -> None:
        """Lose what goes from `source` to `target`; other cuts of this way stay."""
        self._until[source, target] = max(until, self._until.get((source, target), -math.inf))

    def is_cut(self, source: str, target: str, now: float) -> bool:
        """Whether a message to another node is lost."""
        if not self._until:
            return False
        pairs = ((source, target), (source, self.ANYBODY), (self.ANYBODY, target))
        return any(now < self._until.get(pair, -math.inf) for pair in pairs)

    def get_store_cut_until(self, node: str) -> float:
        return self._until.get((node, self.STORE), -math.inf)

    def heal(self) -> None:
        self._until.clear()


class Lags:
    """How far single watches are behind, while the others are current."""

    def __init__(self) -> None:
        self._lags: dict[str, tuple[float, float]] = {}  # watched key -> until when, and by how much

    def begin(self, key: str, lag_s: float, until: float) -> None:
        self._lags[key] = (until, lag_s)

    def get_lag_s(self, key: str, now: float) -> float:
        until, lag_s = self._lags.get(key, (-math.inf, 0.0))
        return lag_s if now < until else 0.0

    def heal(self) -> None:
        self._lags.clear()
