"""The virtual clock of a simulated cluster: scheduled calls, random numbers, the trace, and counts of what was met."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

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
