"""Figures that are made of others: by which power something grows, and what is left of requests without keep-alives.

The power is that of the line which fits best on two logarithmic scales, by least squares: 1 for what is linear in N, 2
for what is quadratic. Its spread is the slope's standard error, from how far the points lie from the line. A fixed
part, which every figure has, makes the slope of small N less than what it becomes; so the fit is over the larger ones.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import NamedTuple

from benchmarks import figures
from benchmarks.runs import NEVER, OURS, History, Run, Series

FROM = 64  # members or agents: below, what is done once per job hides what is done once per agent


class Fit(NamedTuple):
    """figure = factor * N ** exponent, over `sizes` of them; `spread` is infinite where two points are all there is."""

    factor: float
    exponent: float
    spread: float
    sizes: int

    def __str__(self) -> str:
        spread = f" +- {self.spread:.2f}" if self.spread < math.inf else ""
        return f"N^{self.exponent:.2f}{spread}"


def fit(points: Mapping[int, float]) -> Fit | None:
    """The fit of N -> value; None for fewer than two that are above 0 and came at all."""
    logs = [(math.log(size), math.log(value)) for size, value in sorted(points.items()) if 0 < value < NEVER]
    if len(logs) < 2:
        return None
    count = len(logs)
    middle_x = sum(x for x, _ in logs) / count
    middle_y = sum(y for _, y in logs) / count
    width = sum((x - middle_x) ** 2 for x, _ in logs)
    slope = sum((x - middle_x) * (y - middle_y) for x, y in logs) / width
    height = middle_y - slope * middle_x
    rest = sum((y - height - slope * x) ** 2 for x, y in logs)
    spread = math.sqrt(rest / (count - 2) / width) if count > 2 else math.inf
    return Fit(math.exp(height), slope, spread, count)


def medians(history: History, pattern: str, side: str = OURS) -> list[tuple[int, float]]:
    """The figures of this pattern by their number; what never came is left out."""
    found = []
    for count, name in figures.numbered(pattern, list(history.series)):
        spread = history.series[name].spread(side)
        if spread is not None and spread.median < NEVER:
            found.append((count, spread.median))
    return found


def growth(history: History, pattern: str) -> float | None:
    """The power by which this figure grows from FROM on; None of fewer than three sizes."""
    found = fit({count: value for count, value in medians(history, pattern) if count >= FROM})
    return None if found is None or found.sizes < 3 else found.exponent


def add(history: History) -> None:
    """Put the derived figures among the others, each in the name of the run that it comes from."""
    for name, pattern in (
        (figures.GROWTH_REQUESTS, figures.AGENTS_REQUESTS),
        (figures.GROWTH_BYTES, figures.AGENTS_BYTES),
    ):
        found = growth(history, pattern)
        if found is not None:
            origin = figures.numbered(pattern, list(history.series))[-1][1]
            history.series[name] = _one(name, found, history.series[origin].run)
    for asked, kept, is_sum in (
        (figures.REST_REQUESTS, figures.REST_KEPT, True),
        (figures.REST, figures.KEEP_ALIVES, False),
    ):
        keep_alives = dict(medians(history, kept))
        for count, requests in medians(history, asked):
            if count in keep_alives:  # of the largest job; members with threads of their own count for more
                others = max(0.0, requests - keep_alives[count]) / (count if is_sum else 1)
                history.series[figures.IDLE] = _one(figures.IDLE, others, history.series[asked.format(n=count)].run)


def _one(name: str, value: float, run: Run) -> Series:
    return Series(name, dataclasses.replace(run, samples={OURS: {name: {1: value}}}))
