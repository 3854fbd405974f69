"""Reads the records of benchmarks: which samples a figure has, from which run, and what they come to.

A file holds runs, one after the other, as benchmarks append them. A figure is taken from the newest run that has a
sample of it that counts, and not one side alone if another has both: a run that was cut off replaces what it measured
and nothing else. No file is trusted; an invalid record is refused in one sentence, with the line.

Every sample keeps its own limit: how long that run was watched. "torchrun does not recover within 12 s" is a claim
about another program, so it names the shortest watch and needs WATCHES_MIN runs.

`load` reads records that are published. It refuses a run that does not name the commit it measured, or that measured
uncommitted changes: nobody could repeat it.

Some figures are made of others: the power by which requests and bytes grow with the number of agents, and the requests
at rest without keep-alives.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import math
import re
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import figures

OURS, THEIRS = "meshrun", "torchrun"
SIDES = (OURS, THEIRS)
WORDS = ("sample", "pair", "counts", "limit_s", "line")  # keys of a sample that are not figures
NEVER = math.inf
WATCHES_MIN = 3  # runs in which torchrun must have been late before the page says so
COMMIT = re.compile(r"[0-9a-f]{40}")
LATEST_S = 253402300800  # the year 10000, which no date reaches


class RecordError(Exception):
    """A file that is no record, or one that is broken; the sentence says where."""


class Sample(NamedTuple):
    """One figure of one run."""

    value: float
    """In the figure's unit; NEVER if it did not come in time."""
    limit_s: float | None = None
    """How long this run was watched; None where nothing is waited for. A late sample always has one."""


class Spread(NamedTuple):
    """What samples come to. NEVER where one did not come in time."""

    median: float
    least: float
    most: float
    samples: int
    late: int = 0
    """How many of the samples did not come in time."""
    watched_s: float = 0.0
    """The shortest watch of the late ones: none of them came within this time."""


class Source(NamedTuple):
    """The code that a figure is of, and the day on which it was measured; the older day comes first."""

    day: str
    """YYYY-MM-DD, UTC."""
    commit: str
    """40 hexadecimal digits; empty outside of a repository."""


@dataclasses.dataclass(frozen=True)
class Run:
    """One run of one benchmark."""

    head: Mapping[str, Any]
    """`benchmark`, `arguments`, `machine`, `commit`, `is_dirty` and `unix_time_s`."""
    samples: Mapping[str, Mapping[str, Mapping[int, Sample]]]
    """Side -> figure -> pair -> sample."""
    lines: Sequence[Mapping[str, Any]]
    """All lines but the head."""
    seconds: float | None
    """How long it took; None if it was cut off."""
    where: str = ""
    """File and line of its head."""

    @property
    def benchmark(self) -> str:
        return str(self.head["benchmark"])

    @property
    def source(self) -> Source:
        return Source(f"{self.began:%Y-%m-%d}", str(self.head.get("commit") or ""))

    @property
    def began(self) -> datetime.datetime:
        return datetime.datetime.fromtimestamp(self.head.get("unix_time_s") or 0, datetime.timezone.utc)

    def figures(self) -> list[str]:
        """The names of what it has samples of."""
        return list(dict.fromkeys(figure for figures in self.samples.values() for figure in figures))


@dataclasses.dataclass(frozen=True)
class Series:
    """All samples of one figure, from one run."""

    figure: str
    run: Run

    def samples(self, side: str) -> Mapping[int, Sample]:
        """Pair -> sample; empty for a side that took no part."""
        return self.run.samples.get(side, {}).get(self.figure, {})

    def values(self, side: str) -> dict[int, float]:
        """Pair -> value; empty for a side that took no part."""
        return {pair: sample.value for pair, sample in self.samples(side).items()}

    def spread(self, side: str) -> Spread | None:
        """Of one side's samples; None without any."""
        return spread(self.values(side).values(), self._watches_s(side))

    def is_measured(self, side: str) -> bool:
        """Whether this side has a figure: that torchrun is late is said only after WATCHES_MIN runs."""
        found = self.spread(side)
        if found is None:
            return False
        return side == OURS or found.median < NEVER or found.late >= WATCHES_MIN

    def ratios(self, watched_s: float | None = None) -> list[float]:
        """meshrun over torchrun within each pair.

        A late torchrun counts as if it had come at the end of that very watch, or of one of `watched_s`.
        """
        ours, theirs = self.values(OURS), self.samples(THEIRS)
        ends = {
            pair: (watched_s or sample.limit_s or 0.0) if sample.value == NEVER else sample.value
            for pair, sample in theirs.items()
        }
        return [ours[pair] / ends[pair] for pair in sorted(ours.keys() & ends.keys()) if ends[pair] > 0]

    def ratio(self) -> Spread | None:
        """Of the ratios; None where torchrun took no part, or was late in most runs."""
        theirs = self.spread(THEIRS)
        return None if theirs is None or theirs.median == NEVER else spread(self.ratios())

    def bound(self) -> Spread | None:
        """Upper bounds of the ratios, from the shortest watch, where torchrun was late in most runs.

        None where there is a ratio, where meshrun was late too, and for fewer than WATCHES_MIN late runs.
        """
        theirs = self.spread(THEIRS)
        if theirs is None or theirs.median < NEVER or not self.is_measured(THEIRS):
            return None
        found = spread(self.ratios(theirs.watched_s))
        return found if found and found.median < NEVER else None

    def _watches_s(self, side: str) -> list[float]:
        """The watches of the samples that were late."""
        return [sample.limit_s or 0.0 for sample in self.samples(side).values() if sample.value == NEVER]


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
        """Lines that are not samples: those with this key, of the newest run that has any."""
        return [dict(line) for run in self.having(benchmark, key) for line in run.lines if key in line]

    def having(self, benchmark: str, key: str) -> list[Run]:
        """The newest run that has lines with this key, if there is one."""
        same = (run for run in reversed(self.runs) if run.benchmark == benchmark)
        return [run for run in same if any(key in line for line in run.lines)][:1]

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
        """The power by which this figure grows from GROWTH_FROM on.

        None for fewer than three sizes, or if these were measured at several commits.
        """
        points = {count: value for count, value in self.medians(pattern).items() if count >= figures.GROWTH_FROM}
        found = fit(points)
        commits = {self.series[pattern.format(n=count)].run.source.commit for count in points}
        return None if found is None or found.sizes < 3 or len(commits) > 1 else found.exponent

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
        self.series[name] = Series(name, dataclasses.replace(run, samples={OURS: {name: {1: Sample(value)}}}))


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


def spread(values: Iterable[float], watches_s: Sequence[float] = ()) -> Spread | None:
    """Median, range and number; None of nothing. `watches_s`: how long each late one was watched."""
    found = list(values)
    if not found:
        return None
    watched_s = min(watches_s, default=0.0)
    return Spread(statistics.median(found), min(found), max(found), len(found), len(watches_s), watched_s)


def load(folder: Path) -> History:
    """Every record below `folder`, for publication. Raises RecordError."""
    return History(
        run for file in sorted(folder.glob("*.jsonl")) for run in read_published(file.read_text(), file.name)
    )


def read_published(text: str, name: str) -> list[Run]:
    """The runs in the text of a file that is published.

    Raises RecordError for one that does not say which commit it measured and when, or that measured uncommitted
    changes: the page could only say that its figures are of code that no one has.
    """
    found = read(text, name)
    for run in found:
        commit, began_s = run.head.get("commit"), run.head.get("unix_time_s")
        if not isinstance(commit, str) or not COMMIT.fullmatch(commit):
            raise RecordError(f"{run.where}: `commit` must be the 40 digits of the commit that was measured")
        if not isinstance(began_s, (int, float)) or not 0 <= began_s < LATEST_S:
            raise RecordError(f"{run.where}: `unix_time_s` must be the time at which the run began")
        if run.head.get("is_dirty") is not False:
            raise RecordError(f"{run.where}: this run measured uncommitted changes and cannot be published")
    return found


def read(text: str, name: str) -> list[Run]:
    """The runs in the text of a file. Raises RecordError with `name` and the line for what is no record of ours."""
    return read_lines(_parse(text, name), name)


def read_lines(lines: Iterable[tuple[int, dict[str, Any]]], name: str) -> list[Run]:
    """The same from lines with their numbers."""
    found: list[tuple[dict[str, Any], str, list[dict[str, Any]]]] = []
    for number, line in lines:
        if "machine" in line:
            if not isinstance(line.get("benchmark"), str) or not isinstance(line["machine"], dict):
                raise RecordError(f"{name}, line {number}: a head of a record that names no benchmark or no machine")
            found.append((line, f"{name}, line {number}", []))
        elif not found:
            raise RecordError(f"{name}, line {number}: no head of a record stands before it")
        else:
            found[-1][-1].append({**line, "line": number})
    return [_run(head, lines, name, where) for head, where, lines in found]


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


def _run(head: dict[str, Any], lines: Sequence[dict[str, Any]], name: str, where: str) -> Run:
    samples: dict[str, dict[str, dict[int, Sample]]] = {}
    for line in lines:
        side, pair = line.get("sample"), line.get("pair")
        if side is None or not line.get("counts", True):
            continue
        if side not in SIDES:
            raise RecordError(f"{name}, line {line['line']}: a sample of {side!r}, neither {OURS} nor {THEIRS}")
        if not isinstance(pair, int):
            raise RecordError(f"{name}, line {line['line']}: a sample without the number of its pair")
        limit_s = line.get("limit_s")
        for figure, value in line.items():
            if figure in WORDS or isinstance(value, bool) or not isinstance(value, (int, float, type(None))):
                continue
            if value is None and not (isinstance(limit_s, (int, float)) and limit_s > 0):
                raise RecordError(
                    f"{name}, line {line['line']}: {figure!r} was late, and no limit_s says after how long"
                )
            sample = Sample(NEVER if value is None else float(value), limit_s)
            samples.setdefault(side, {}).setdefault(figure, {})[pair] = sample
    ends = [line for line in lines if line.get("end") is True]
    seconds = float(ends[-1].get("seconds", 0)) if ends else None
    return Run(head=head, samples=samples, lines=lines, seconds=seconds, where=where)
