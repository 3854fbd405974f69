"""Reads the records of benchmarks: which samples a figure has, from which run, and what they come to.

A file holds runs, one after the other, as scripts append them. A figure is taken from the newest run that has a sample
of it that counts, and not one side alone if another has both: a run that was cut off replaces what it measured and
nothing else. Nothing here trusts a file; what is no record of ours is refused in one sentence, with the line.
"""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

OURS, THEIRS = "meshrun", "torchrun"
SIDES = (OURS, THEIRS)
WORDS = ("sample", "pair", "counts", "limit_s", "case", "repeat")  # of a sample: what is no figure
NEVER = math.inf
OLD_LIMIT_S = 20.0  # how long the first records of lost nodes were watched; newer ones say so


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
    """One run of one script: its head, its samples as side -> figure -> pair -> value, and whatever else it noted."""

    head: Mapping[str, Any]
    samples: Mapping[str, Mapping[str, Mapping[int, float]]]
    lines: Sequence[Mapping[str, Any]]
    limits_s: Mapping[str, float]
    seconds: float | None  # how long it took; None if it was cut off

    @property
    def benchmark(self) -> str:
        return str(self.head["benchmark"])

    def figures(self) -> set[str]:
        """The names of what it has samples of."""
        return {figure for figures in self.samples.values() for figure in figures}


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
        return self.run.limits_s.get(self.figure, OLD_LIMIT_S)


class History:
    """All records there are: runs, the newest last, and figures by name."""

    def __init__(self, runs: Iterable[Run]) -> None:
        self.runs = tuple(runs)
        self.series: dict[str, Series] = {}
        for series in (Series(figure, run) for run in self.runs for figure in sorted(run.figures())):
            before = self.series.get(series.figure)
            if before is None or series.ratios() or not before.ratios():
                self.series[series.figure] = series

    def lines(self, benchmark: str, key: str) -> list[dict[str, Any]]:
        """What is no sample: the lines with this key of the newest run that has any; summaries unwrapped."""
        for run in reversed(self.runs):
            found = [line.get("summary", line) for line in run.lines] if run.benchmark == benchmark else []
            if same := [dict(line) for line in found if isinstance(line, dict) and key in line]:
                return same
        return []

    def used(self) -> list[Run]:
        """The runs that some figure is taken from, and the newest of those without samples, by benchmark."""
        taken = {id(series.run) for series in self.series.values()}
        taken |= {id(run) for run in {run.benchmark: run for run in self.runs if not run.figures()}.values()}
        found = [run for run in self.runs if id(run) in taken]
        return sorted(found, key=lambda run: (run.benchmark, run.head.get("unix_time_s") or 0))


def spread(values: Iterable[float]) -> Spread | None:
    """Median, range and number; None of nothing."""
    found = list(values)
    return Spread(statistics.median(found), min(found), max(found), len(found)) if found else None


def load(folder: Path) -> History:
    """Every record below `folder`. Raises RecordError."""
    return History(run for file in sorted(folder.glob("*.jsonl")) for run in read(file.read_text(), file.name))


def read(text: str, name: str) -> list[Run]:
    """The runs in a file. Raises RecordError with `name` and the line for what is no record of ours."""
    runs: list[Run] = []
    head: dict[str, Any] | None = None
    lines: list[dict[str, Any]] = []
    for number, line in _objects(text, name):
        if "machine" in line:
            if not isinstance(line.get("benchmark"), str) or not isinstance(line["machine"], dict):
                raise RecordError(f"{name}, line {number}: a head of a record that names no benchmark or no machine")
            if head is not None:
                runs.append(_run(head, lines, name))
            head, lines = line, []
        elif head is None:
            raise RecordError(
                f"{name}, line {number}: no head of a record stands before it, so nobody knows what it is"
            )
        else:
            lines.append(line | {"line": number})
    if head is not None:
        runs.append(_run(head, lines, name))
    return runs


def _objects(text: str, name: str) -> Iterator[tuple[int, dict[str, Any]]]:
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
    for line in map(_renewed, lines):
        side = line.get("sample")
        if side is None or not line.get("counts", True):
            continue
        if side not in SIDES:
            raise RecordError(
                f"{name}, line {line['line']}: a sample of {side!r}, which is neither {OURS} nor {THEIRS}"
            )
        pair = line.get("pair")
        if not isinstance(pair, int):
            raise RecordError(f"{name}, line {line['line']}: a sample without the number of its pair")
        for figure, value in line.items():
            if figure in (*WORDS, "line") or isinstance(value, bool) or not isinstance(value, (int, float, type(None))):
                continue
            samples.setdefault(side, {}).setdefault(figure, {})[pair] = NEVER if value is None else float(value)
            if isinstance(limit_s := line.get("limit_s"), (int, float)):
                limits_s[figure] = float(limit_s)
    ends = [line for line in lines if line.get("end") is True]
    seconds = float(ends[-1].get("seconds", 0)) if ends else None
    return Run(head=head, samples=samples, lines=lines, limits_s=limits_s, seconds=seconds)


def _renewed(line: dict[str, Any]) -> dict[str, Any]:
    """A line in the words of today: the first records of lost nodes and of members at rest had others."""
    if "case" in line and "s" in line:
        words = {key: value for key, value in line.items() if key not in ("case", "s", "repeat")}
        return {**words, "pair": line.get("pair", line.get("repeat", 0) + 1), line["case"]: line["s"]}
    if "at rest" in line:
        found = line["at rest"]
        name = f"requests per member and second at rest, {found['members']} members"
        return {"line": line["line"], "sample": OURS, "pair": 1, name: found["requests per member and second"]}
    return line
