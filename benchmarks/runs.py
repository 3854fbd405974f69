"""Reads the records of benchmarks: which samples a figure has, from which run, and what they come to.

A file holds runs, one after the other, as benchmarks append them. A figure is taken from the newest run that has a
sample of it that counts, and not one side alone if another has both: a run that was cut off replaces what it measured
and nothing else. No file is trusted; what is no record is refused in one sentence, with the line.

Some figures are made of others: by which power requests and bytes grow with the number of agents, and what is left of
the requests at rest without keep-alives.
"""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import figures

OURS, THEIRS = "meshrun", "torchrun"
SIDES = (OURS, THEIRS)
WORDS = ("sample", "pair", "counts", "limit_s", "line")  # of a sample: what is no figure
NEVER = math.inf
LIMIT_S = 20.0  # how long something was waited for where the record does not say


class RecordError(Exception):
    """A file that is no record, or one that is broken; the sentence says where."""


class Spread(NamedTuple):
    """What samples come to. NEVER where one did not come in time."""

    median: float
    least: float
    most: float
    samples: int


@dataclasses.dataclass(frozen=True)
class Run:
    """One run of one benchmark: its head, its samples as side -> figure -> pair -> value, and all of its lines."""

    head: Mapping[str, Any]
    samples: Mapping[str, Mapping[str, Mapping[int, float]]]
    lines: Sequence[Mapping[str, Any]]
    limits_s: Mapping[str, float]
    seconds: float | None  # how long it took; None if it was cut off

    @property
    def benchmark(self) -> str:
        return str(self.head["benchmark"])

    def figures(self) -> list[str]:
        """The names of what it has samples of."""
        return list(dict.fromkeys(figure for figures in self.samples.values() for figure in figures))


@dataclasses.dataclass(frozen=True)
class Series:
    """All samples of one figure, from one run."""

    figure: str
    run: Run

    def values(self, side: str) -> Mapping[int, float]:
        """Pair -> value; empty for a side that took no part."""
        return self.run.samples.get(side, {}).get(self.figure, {})

    def spread(self, side: str) -> Spread | None:
        """Of one side's samples; None without any."""
        return spread(self.values(side).values())

    def ratios(self) -> list[float]:
        """meshrun over torchrun within each pair; what torchrun did not do in time counts as if done at the limit."""
        ours, theirs = self.values(OURS), self.values(THEIRS)
        ends = {pair: self.limit_s if value == NEVER else value for pair, value in theirs.items()}
        return [ours[pair] / ends[pair] for pair in sorted(ours.keys() & ends.keys()) if ends[pair] > 0]

    def ratio(self) -> Spread | None:
        """Of the ratios; None where torchrun took no part, or most often did not come in time."""
        theirs = self.spread(THEIRS)
        return None if theirs is None or theirs.median == NEVER else spread(self.ratios())

    def bound(self) -> Spread | None:
        """What the ratio is at most, where torchrun most often did not come in time; None where there is a ratio."""
        return spread(self.ratios()) if self.ratio() is None else None

    @property
    def limit_s(self) -> float:
        """How long was waited for it."""
        return self.run.limits_s.get(self.figure, LIMIT_S)


class History:
    """All records there are: runs, the newest last, and figures by name."""

    def __init__(self, runs: Iterable[Run]) -> None:
        self.runs = tuple(runs)
        self.series: dict[str, Series] = {}
        for series in (Series(figure, run) for run in self.runs for figure in run.figures()):
            before = self.series.get(series.figure)
            if before is None or series.ratios() or not before.ratios():
                self.series[series.figure] = series
        self._derive()

    def lines(self, benchmark: str, key: str) -> list[dict[str, Any]]:
        """What is no sample: the lines with this key of the newest run that has any."""
        for run in reversed(self.runs):
            found = [dict(line) for line in run.lines if key in line] if run.benchmark == benchmark else []
            if found:
                return found
        return []

    def used(self) -> list[Run]:
        """The runs that some figure is taken from, and the newest of those without samples, by benchmark."""
        taken = {id(series.run) for series in self.series.values()}
        taken |= {id(run) for run in {run.benchmark: run for run in self.runs if not run.figures()}.values()}
        found = [run for run in self.runs if id(run) in taken]
        return sorted(found, key=lambda run: (run.benchmark, run.head.get("unix_time_s") or 0))

    def medians(self, pattern: str) -> dict[int, float]:
        """meshrun's medians of the figures of this pattern by their number; what never came is left out."""
        numbered = figures.numbered(pattern, list(self.series))
        spreads = {count: self.series[name].spread(OURS) for count, name in numbered}
        return {count: found.median for count, found in spreads.items() if found and found.median < NEVER}

    def growth(self, pattern: str) -> float | None:
        """The power by which this figure grows from GROWTH_FROM on; None of fewer than three sizes."""
        found = fit({count: value for count, value in self.medians(pattern).items() if count >= figures.GROWTH_FROM})
        return None if found is None or found.sizes < 3 else found.exponent

    def _derive(self) -> None:
        """Put the derived figures among the others, each in the name of the run that it comes from."""
        for name, pattern in figures.GROWTHS.items():
            grown = self.growth(pattern)
            if grown is not None:
                self._add(name, grown, pattern, max(self.medians(pattern)))
        for asked, kept, is_sum in figures.RESTS:
            keep_alives = self.medians(kept)
            for count, requests in self.medians(asked).items():
                if count in keep_alives:  # of the largest job; members with threads of their own count for more
                    others = max(0.0, requests - keep_alives[count]) / (count if is_sum else 1)
                    self._add(figures.IDLE, others, asked, count)

    def _add(self, name: str, value: float, pattern: str, count: int) -> None:
        run = self.series[pattern.format(n=count)].run
        self.series[name] = Series(name, dataclasses.replace(run, samples={OURS: {name: {1: value}}}))


class Fit(NamedTuple):
    """A figure grows as N ** exponent, over `sizes` of N; `spread` is infinite where two points are all there is."""

    exponent: float
    spread: float
    sizes: int

    def __str__(self) -> str:
        spread = f" +- {self.spread:.2f}" if self.spread < math.inf else ""
        return f"N^{self.exponent:.2f}{spread}"


def fit(points: Mapping[int, float]) -> Fit | None:
    """By which power the value grows with N: a line through logarithms, by least squares, and its standard error.

    1 is linear, 2 quadratic. A fixed part, which every figure has, makes the power of small N less than what it
    becomes. None for fewer than two points that are above 0 and came at all.
    """
    sizes = [math.log(size) for size, value in points.items() if 0 < value < NEVER]
    values = [math.log(value) for value in points.values() if 0 < value < NEVER]
    count = len(sizes)
    if count < 2:
        return None
    slope, height = statistics.linear_regression(sizes, values)
    rest = sum((value - height - slope * size) ** 2 for size, value in zip(sizes, values, strict=True))
    spread = math.sqrt(rest / (count - 2) / (statistics.pvariance(sizes) * count)) if count > 2 else math.inf
    return Fit(slope, spread, count)


def spread(values: Iterable[float]) -> Spread | None:
    """Median, range and number; None of nothing."""
    found = list(values)
    return Spread(statistics.median(found), min(found), max(found), len(found)) if found else None


def load(folder: Path) -> History:
    """Every record below `folder`. Raises RecordError."""
    return History(run for file in sorted(folder.glob("*.jsonl")) for run in read(file.read_text(), file.name))


def read(text: str, name: str) -> list[Run]:
    """The runs in the text of a file. Raises RecordError with `name` and the line for what is no record of ours."""
    return read_lines(_parse(text, name), name)


def read_lines(lines: Iterable[tuple[int, dict[str, Any]]], name: str) -> list[Run]:
    """The same from lines with their numbers."""
    found: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []
    for number, line in lines:
        if "machine" in line:
            if not isinstance(line.get("benchmark"), str) or not isinstance(line["machine"], dict):
                raise RecordError(f"{name}, line {number}: a head of a record that names no benchmark or no machine")
            found.append((line, []))
        elif not found:
            raise RecordError(f"{name}, line {number}: no head of a record stands before it")
        else:
            found[-1][1].append({**line, "line": number})
    return [_run(head, lines, name) for head, lines in found]


def _parse(text: str, name: str) -> Iterator[tuple[int, dict[str, Any]]]:
    lines = text.splitlines()
    for number, words in enumerate(lines, start=1):
        try:
            line = json.loads(words)
        except ValueError:
            if number == len(lines) and not text.endswith("\n"):
                return  # whoever wrote it was stopped within its last line
            raise RecordError(f"{name}, line {number}: no JSON: {words[:60]!r}") from None
        if not isinstance(line, dict):
            raise RecordError(f"{name}, line {number}: not an object: {words[:60]!r}")
        yield number, line


def _run(head: dict[str, Any], lines: Sequence[dict[str, Any]], name: str) -> Run:
    samples: dict[str, dict[str, dict[int, float]]] = {}
    limits_s: dict[str, float] = {}
    for line in lines:
        side, pair = line.get("sample"), line.get("pair")
        if side is None or not line.get("counts", True):
            continue
        if side not in SIDES:
            raise RecordError(f"{name}, line {line['line']}: a sample of {side!r}, neither {OURS} nor {THEIRS}")
        if not isinstance(pair, int):
            raise RecordError(f"{name}, line {line['line']}: a sample without the number of its pair")
        for figure, value in line.items():
            if figure in WORDS or isinstance(value, bool) or not isinstance(value, (int, float, type(None))):
                continue
            samples.setdefault(side, {}).setdefault(figure, {})[pair] = NEVER if value is None else float(value)
            if isinstance(limit_s := line.get("limit_s"), (int, float)):
                limits_s[figure] = float(limit_s)
    ends = [line for line in lines if line.get("end") is True]
    seconds = float(ends[-1].get("seconds", 0)) if ends else None
    return Run(head=head, samples=samples, lines=lines, limits_s=limits_s, seconds=seconds)
