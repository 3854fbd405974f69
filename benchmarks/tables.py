"""The tables of docs/performance.md but the planner's: what stands in a row, and what is said of what is missing.

Each function makes one block of the page from the records. A row without a sample is left out, but not one of the aims:
there it says that it was not measured. `measured` is the table that each benchmark prints of itself.

Records of one page can be of several commits, since each benchmark is measured by itself. `date` says of which commit
and day a table is, and a row of another commit says so in its first cell: figures that cannot be compared never look
as if they could.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks import figures, words
from benchmarks.figures import COLD, GLOO, LEADERS_NODE, OTHER_NODE, OVERLAP, STANDBY, WARM, Aim
from benchmarks.runs import NEVER, OURS, THEIRS, History, Run, Series, Source

BESIDE = ("what", "meshrun", "torchrun", "ratio: median (range; pairs)")
EVENTS = {
    "crash": "a worker killed",
    f"kill{OTHER_NODE}": "a node killed, not the leader's",
    f"kill{LEADERS_NODE}": "the leader's node killed",
    f"leave{OTHER_NODE}": "a node told to leave, not the leader's",
    f"leave{LEADERS_NODE}": "the leader's node told to leave",
    "join": "an agent started beside them",
    f"freeze{OTHER_NODE}": "an agent frozen, not the leader's",
    f"freeze{LEADERS_NODE}": "the leader's agent frozen",
    f"pause{OTHER_NODE}": "a node paused, not the leader's",
    f"pause{LEADERS_NODE}": "the leader's node paused",
    f"partition{OTHER_NODE}": "a node cut off, not the leader's",
    f"partition{LEADERS_NODE}": "the leader's node cut off",
}
UNTIL = {
    "": "",
    GLOO: ", to the first step of a gloo job",
    GLOO + WARM: ", the same with `--preload torch,torch._dynamo`",
}
ONE_NODE = (
    ("no launcher: eight Pythons by a loop of the shell, to the last first line", figures.LOOP),
    ("exec to the first line of the last of 8 workers", figures.workers(figures.FIRST_LINE, 8)),
    ("the same, 2 workers", figures.workers(figures.FIRST_LINE, 2)),
    ("the same, 1 worker", figures.workers(figures.FIRST_LINE, 1)),
    ("a whole job that does nothing, 8 workers", figures.workers(figures.WHOLE_JOB, 8)),
    ("the same, 2 workers", figures.workers(figures.WHOLE_JOB, 2)),
    ("the same, 1 worker", figures.workers(figures.WHOLE_JOB, 1)),
    ("a worker of 8 killed, to the first line of the last of the next round", figures.RESTART),
    ("memory (PSS) of all processes but the 8 workers", figures.PSS),
    ("the same, on a node of several, with etcd", figures.PSS_ETCD),
    ("lines per second, 8 workers with prefixes, written in blocks", figures.BLOCKS),
    ("the same, each line an unbuffered `print`", figures.PRINTS),
    ("lines torn in such a run, of 1.6 million", figures.TORN_PRINTS),
)
# On the first screen of README.md.
FIRST = (
    ("start of 8 workers: until the first line of the last one", figures.workers(figures.FIRST_LINE, 8)),
    ("start of 8 workers that import torch, with `--preload torch`: until all have it", figures.WARM_START),
    ("one of these workers killed: until all 8 have imported torch again", figures.WARM_RESTART),
    ("all processes of one of 4 nodes killed: until workers run on the other 3", f"kill{OTHER_NODE}, 4 agents"),
    ("memory of the launcher with 8 workers (PSS)", figures.PSS),
)
AGAIN = "one of 8 killed, until all have imported torch again"
WARM_WORKERS = (
    ("exec until all 8 have imported torch, `--preload torch`", figures.WARM_START),
    ("exec until all 8 have imported torch, `--preload torch --standby 1`", figures.WARM_START + STANDBY),
    ("exec until all 8 have imported torch, cold", figures.WARM_START + COLD),
    (f"{AGAIN}, `--preload torch`", figures.WARM_RESTART),
    (f"{AGAIN}, `--preload torch --standby 1`", figures.WARM_RESTART + STANDBY),
    (f"{AGAIN}, cold", figures.WARM_RESTART + COLD),
    ("memory (PSS) of the 8 workers, `--preload torch`", figures.WARM_PSS),
    ("the same, cold", figures.WARM_PSS + COLD),
    ("memory (PSS) of the fork server beside them", figures.IMAGE_PSS),
    ("memory (PSS) of the launcher beside both", figures.WARM_LAUNCHER_PSS),
)
SCALE = (
    ("first round", figures.AGENTS_FIRST, "s"),
    ("re-seal", figures.AGENTS_SEAL, "s"),
    ("CPU, all", figures.AGENTS_CPU, "s"),
    ("CPU, leader", figures.LEADER_CPU, "s"),
    ("CPU, etcd", figures.ETCD_CPU, "s"),
    ("requests", figures.AGENTS_REQUESTS, ""),
    ("bytes", figures.AGENTS_BYTES, "B"),
    ("requests a second at rest", figures.REST_REQUESTS, "1/s"),
    ("bytes a second at rest", figures.REST_BYTES, "B/s"),
)


def machine(history: History) -> str:
    """Where: the machine and what is installed on it, in a sentence; two, if runs are of two."""
    machines = [(run.benchmark, run.head["machine"]) for run in history.used()]
    memory = next((f", {found['memory_gib']:g} GiB" for _, found in machines[::-1] if "memory_gib" in found), "")
    places: dict[str, list[str]] = {}
    for name, found in machines:
        places.setdefault(_place(found), []).append(f"`{name}`")
    if len(places) < 2:
        return "".join(f"Measured on {place}{memory}." for place in places)
    parts = (f"{words.join(list(dict.fromkeys(names)))} on {place}" for place, names in places.items())
    return f"Measured {'; '.join(parts)}."


def _place(found: Mapping[str, Any]) -> str:
    kernel = str(found.get("kernel")).partition("-")[0]
    return (
        f"{found.get('cores')} cores of an {found.get('cpu')}, kernel {kernel}, "
        f"Python {found.get('python')}, torch {found.get('torch')}, meshrun {found.get('meshrun')}"
    )


def when(history: History) -> str:
    """A line for each run that a figure is from: when, which commit, what load there was before, how long it took."""
    return words.table(("run", "when (UTC)", "commit", "load before", "took"), map(_when, history.used()))


def _when(run: Run) -> tuple[str, ...]:
    load = run.head.get("report", {}).get("load_1min", run.head["machine"].get("load_1min"))
    took = "cut off" if run.seconds is None else f"{run.seconds:.0f} s"
    load = "" if load is None else f"{load:.2f}"
    return (f"`{run.benchmark}`", f"{run.began:%Y-%m-%d %H:%M}", shorten(run.source), load, took)


class Row(NamedTuple):
    """A row of a table, and the runs that its figures are from; none for a row without figures."""

    runs: Sequence[Run]
    cells: Sequence[str]


def date(heads: Sequence[str], rows: Iterable[Row]) -> str:
    """A table, and the commit and day of its figures below it. A row of another commit names that in its first cell."""
    rows = list(rows)
    counts = collections.Counter(source for row in rows for source in {run.source for run in row.runs})
    if not counts:
        return words.table(heads, [row.cells for row in rows])
    usual = max(counts, key=lambda source: (counts[source], source))
    shown = []
    for row in rows:
        own = {run.source for run in row.runs}
        others = words.join([f"{shorten(source)}, {source.day}" for source in sorted(own - {usual})])
        other = f" ({'also ' * (usual in own)}commit {others})" if others else ""
        shown.append((f"{row.cells[0]}{other}", *row.cells[1:]))
    return f"{words.table(heads, shown)}\n\n{sources([usual])}"


def sources(found: Iterable[Source]) -> str:
    """The sentence that names commits and days; empty for none."""
    told = [f"{shorten(source)} on {source.day}" for source in sorted(set(found))]
    return f"Measured at commit{'s' * (len(told) > 1)} {words.join(told)}." if told else ""


def shorten(source: Source) -> str:
    """The first eight digits of its commit."""
    return f"`{source.commit[:8]}`"


def cell(series: Series, side: str, unit: str, *, has_range: bool = False) -> str:
    """The figure of one side. That torchrun did not come in time is no figure after too few runs."""
    found = series.spread(side)
    if found is not None and not series.is_measured(side):
        return "not measured"
    return words.with_range(found, unit) if has_range else words.median(found, unit)


def aims(history: History) -> str:
    """Every aim, and whether it is reached."""
    rows = []
    for aim in figures.AIMS:
        series = history.series.get(aim.figure)
        rows.append(Row([series.run] if series else [], (aim.what, *_judged(aim, series))))
    return date((*BESIDE, "aim", "reached"), rows)


def measured(history: History) -> str:
    """Every figure that there is, with its aim where there is one."""
    rows = []
    for figure, series in history.series.items():
        aim = figures.aim(figure)
        row = next((row.cells for row in _rows(history, [(figure, figure)])), ())
        rows.append((figure, *_judged(aim, series)) if aim else (*row, "", "") if row else ())
    return words.table((*BESIDE, "aim", "reached"), filter(None, rows))


def verdict(aim: Aim, series: Series | None) -> bool | None:
    """Whether the median, or every run, reaches the aim; None if it was not measured, or not for long enough."""
    if series is None:
        return None
    found = series.ratio() if aim.ratio is not None else series.spread(OURS)
    if found is None and aim.ratio is not None and not aim.least:
        bound = series.bound()
        return True if bound is not None and aim.is_reached(bound.median) else None
    if found is None:
        return None
    worst = found.least if aim.least else found.most
    return aim.is_reached(worst if aim.every else found.median)


def _judged(aim: Aim, series: Series | None) -> tuple[str, ...]:
    kind = figures.kind(aim.figure)
    assert kind is not None
    value = aim.ratio if aim.ratio is not None else aim.value
    unit = "" if aim.ratio is not None else words.SHOWN.get(kind.unit, kind.unit)
    limit = f"{'≥' if aim.least else '≤'} {value:g} {unit}".rstrip().replace(" ", "\N{NO-BREAK SPACE}")
    if series is None:
        return ("", "", "", limit, "not measured")
    reached = {True: "yes", False: "**no**", None: "not known"}[verdict(aim, series)]
    has_range = aim.ratio is None and kind.benchmark != "derived"
    ours, theirs = cell(series, OURS, kind.unit, has_range=has_range), cell(series, THEIRS, kind.unit)
    return (ours, theirs, describe_ratio(series) if aim.ratio is not None else "", limit, reached)


def describe_ratio(series: Series) -> str:
    """The ratio, or its upper bound, of which a range would say nothing."""
    aim, bound = figures.aim(series.figure), series.bound()
    if bound is None:
        return words.ratio(series.ratio(), aim)
    middle = words.number(words.round_up(bound.median), 2)
    return f"less than {middle} ({bound.samples})"


def _rows(history: History, names: Iterable[tuple[str, str]]) -> Iterator[Row]:
    """What the page calls a figure, and the figure: a row for each that has samples."""
    for what, name in names:
        series, kind = history.series.get(name), figures.kind(name)
        if series is None or kind is None:
            continue
        ours, ratio = series.spread(OURS), series.ratio()
        shown = cell(series, OURS, kind.unit, has_range=ratio is None)
        beside = words.ratio(ratio, figures.aim(name)) if ours is None or ours.median else ""
        yield Row([series.run], (what, shown, cell(series, THEIRS, kind.unit), beside))


def _shorten(series: Series, side: str, unit: str) -> str:
    """The median of one side to two digits, if it has one."""
    found = series.spread(side)
    if found is None or found.median == NEVER or not series.is_measured(side):
        return cell(series, side, unit) or "not measured"
    return words.quantity(float(f"{found.median:.1e}"), unit, 2)  # or 0.0997 would be 0.100


def first(history: History) -> str:
    """Return the few figures of README.md to two digits, with their ratios. The first cell says on what machine."""
    rows, cores = [], set()
    for what, name in FIRST:
        series, kind = history.series.get(name), figures.kind(name)
        if series is not None and kind is not None:
            sides = (_shorten(series, side, kind.unit) for side in (OURS, THEIRS))
            found = series.ratio()
            ratio = words.number(found.median, 2) if found else describe_ratio(series).partition(" (")[0]
            rows.append(Row([series.run], (what, *sides, ratio)))
            cores.add(f"{series.run.head['machine'].get('cores')}")
    machine = f"one machine with {words.join(sorted(cores))} cores, nodes are processes"
    return date((machine, *BESIDE[1:3], "ratio"), rows)


def one_node(history: History) -> str:
    """Start-up, restart, memory and output of one node."""
    return date(BESIDE, _rows(history, ONE_NODE))


def warm(history: History) -> str:
    """Workers that import torch: with the modules in memory and without."""
    return date(BESIDE, _rows(history, WARM_WORKERS))


def rounds(history: History) -> str:
    """The first round of N members, and what it costs."""
    rows = []
    for count, name in figures.numbered(figures.FIRST_ROUND, list(history.series)):
        series = history.series[name]
        asked = history.series.get(figures.REQUESTS.format(n=count))
        runs = [series.run, asked.run] if asked else [series.run]
        times = (cell(series, side, "s") for side in (OURS, THEIRS))
        rows.append(Row(runs, (f"{count}", *times, describe_ratio(series), cell(asked, OURS, "") if asked else "")))
    heads = ("members", "meshrun", "torchrun, c10d", BESIDE[3], "requests per member")
    return f"{_without_empty(heads, rows)}\n\n{rest(history)}" if rows else words.NOT_MEASURED


def rest(history: History) -> str:
    """What members ask that are at rest, in a sentence."""
    kept, parts, found = history.medians(figures.KEEP_ALIVES), [], set()
    for count, rate in history.medians(figures.REST).items():
        also = f", {words.number(kept[count], 3)} of them keep-alives" if count in kept else ""
        parts.append(f"of {count} members {words.number(rate, 3)}{also}")
        names = [figures.REST, figures.KEEP_ALIVES] if also else [figures.REST]
        found |= {history.series[name.format(n=count)].run.source for name in names}
    return f"Requests a second of one member at rest: {words.join(parts)}. {sources(found)}" if parts else ""


def events(history: History) -> str:
    """What happens to a node, by number of agents; each until the first line, and until the first step of training."""
    rows = []
    for event, what in EVENTS.items():
        for more, until in UNTIL.items():
            for agents, name in figures.numbered(f"{event}, {{n}} agents{more}", list(history.series)):
                series, overlap = history.series[name], history.series.get(name + OVERLAP)
                both = (cell(series, side, "s", has_range=True) for side in (OURS, THEIRS))
                runs = [series.run, overlap.run] if overlap else [series.run]
                rows.append(Row(runs, (what + until, f"{agents}", *both, _overlap(overlap))))
    heads = ("event", "agents", "meshrun", "torchrun", "overlap at most")
    return f"{_without_empty(heads, rows)}{failures(history)}" if rows else words.NOT_MEASURED


def _overlap(series: Series | None) -> str:
    found = series.spread(OURS) if series else None
    if found is None:
        return ""
    return "none" if found.most <= 0 else words.quantity(found.most, "s", 2)


def failures(history: History) -> str:
    """Which jobs came to nothing before anything happened to them, in a sentence; nothing if there are none."""
    lines = [line for run in history.used() if run.benchmark == "failover" for line in run.lines if "failed" in line]
    found = [f"{line.get('side')}: {line['failed']}" for line in lines]
    return f"\n\nNot counted, since they came to no first round: {'; '.join(found)}." if found else ""


def scale(history: History) -> str:
    """N agents without workers: time, CPU, requests and bytes; and the power by which each grows."""
    columns = [(head, history.medians(pattern), pattern, unit) for head, pattern, unit in SCALE]
    columns = [column for column in columns if column[1]]
    rows = []
    for count in sorted({count for _, found, *_ in columns for count in found}):
        cells = (words.quantity(found[count], unit, 2) if count in found else "" for _, found, _, unit in columns)
        runs = [history.series[pattern.format(n=count)].run for _, found, pattern, _ in columns if count in found]
        rows.append(Row(runs, (f"{count:,}", *cells)))
    grown = {pattern: history.growth(pattern) for _, _, pattern, _ in columns}
    powers = ("" if each is None else f"{each:.2f}" for each in grown.values())
    largest = [history.series[pattern.format(n=max(found))].run for _, found, pattern, _ in columns if grown[pattern]]
    rows.append(Row(largest, (f"grows by the power, from {figures.GROWTH_FROM} on", *powers)))
    return date(["agents", *(head for head, *_ in columns)], rows) if columns else words.NOT_MEASURED


def _without_empty(heads: Sequence[str], rows: Sequence[Row]) -> str:
    """A table without the columns behind the fourth that have nothing in them."""
    used = [column for column in range(len(heads)) if column < 4 or any(row.cells[column] for row in rows)]
    return date([heads[at] for at in used], (Row(row.runs, [row.cells[at] for at in used]) for row in rows))
