"""The tables of docs/performance.md but the planner's: what stands in a row, and what is said of what is missing.

Each function makes one block of the page from the records. A row without a sample is left out, but not one of the aims:
there it says that it was not measured. `measured` is the table that each benchmark prints of itself.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks import figures, words
from benchmarks.figures import COLD, GLOO, LEADERS_NODE, OTHER_NODE, OVERLAP, STANDBY, WARM, Aim
from benchmarks.runs import OURS, THEIRS, History, Run, Series

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
    ("start: from the command to the first line of 8 workers", figures.workers(figures.FIRST_LINE, 8)),
    ("a node of 4 is lost: until workers run again on the others", f"kill{OTHER_NODE}, 4 agents"),
    ("a worker of 8 is lost: until all have torch imported again, with `--preload torch`", figures.WARM_RESTART),
    ("memory of the launcher beside 8 workers (PSS)", figures.PSS),
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
    at = datetime.datetime.fromtimestamp(run.head.get("unix_time_s") or 0, datetime.timezone.utc)
    load = run.head.get("report", {}).get("load_1min", run.head["machine"].get("load_1min"))
    commit = f"`{run.head['commit']}`" if run.head.get("commit") else ""
    took = "cut off" if run.seconds is None else f"{run.seconds:.0f} s"
    return (f"`{run.benchmark}`", f"{at:%Y-%m-%d %H:%M}", commit, "" if load is None else f"{load:.2f}", took)


def aims(history: History) -> str:
    """Every aim, and whether it is reached."""
    rows = [(aim.what, *_judged(aim, history.series.get(aim.figure))) for aim in figures.AIMS]
    return words.table((*BESIDE, "aim", "reached"), rows)


def measured(history: History) -> str:
    """Every figure that there is, with its aim where there is one."""
    rows = []
    for figure, series in history.series.items():
        aim = figures.aim(figure)
        row = next(_rows(history, [(figure, figure)]), ())
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
    ours = words.median(series.spread(OURS), kind.unit, series.limit_s)
    theirs = words.median(series.spread(THEIRS), kind.unit, series.limit_s)
    if aim.ratio is not None:
        return (ours, theirs, _ratio(series), limit, reached)
    if kind.benchmark != "derived":
        ours = words.with_range(series.spread(OURS), kind.unit, series.limit_s)
    return (ours, theirs, "", limit, reached)


def _ratio(series: Series) -> str:
    """The ratio, or what it is less than."""
    aim, bound = figures.aim(series.figure), series.bound()
    return f"less than {words.ratio(bound, aim)}" if bound else words.ratio(series.ratio(), aim)


def _rows(history: History, names: Iterable[tuple[str, str]]) -> Iterator[tuple[str, ...]]:
    """What the page calls a figure, and the figure: a row for each that has samples."""
    for what, name in names:
        series, kind = history.series.get(name), figures.kind(name)
        if series is None or kind is None:
            continue
        ours = series.spread(OURS)
        shown = words.median if series.ratio() is not None else words.with_range
        theirs = words.median(series.spread(THEIRS), kind.unit, series.limit_s)
        ratio = words.ratio(series.ratio(), figures.aim(name)) if ours is None or ours.median else ""
        yield (what, shown(ours, kind.unit, series.limit_s), theirs, ratio)


def first(history: History) -> str:
    """Return the few figures of README.md, each with its ratio."""
    rows = []
    for what, name in FIRST:
        series, kind = history.series.get(name), figures.kind(name)
        if series is not None and kind is not None:
            sides = (words.median(series.spread(side), kind.unit, series.limit_s) for side in (OURS, THEIRS))
            rows.append((what, *sides, _ratio(series).partition(" (")[0]))
    return words.table(("", *BESIDE[1:3], "ratio"), rows)


def one_node(history: History) -> str:
    """Start-up, restart, memory and output of one node."""
    return words.table(BESIDE, _rows(history, ONE_NODE))


def warm(history: History) -> str:
    """Workers that import torch: with the modules in memory and without."""
    return words.table(BESIDE, _rows(history, WARM_WORKERS))


def rounds(history: History) -> str:
    """The first round of N members, and what it costs."""
    rows = []
    for count, name in figures.numbered(figures.FIRST_ROUND, list(history.series)):
        series = history.series[name]
        asked = history.series.get(figures.REQUESTS.format(n=count))
        times = (words.median(series.spread(side), "s", series.limit_s) for side in (OURS, THEIRS))
        rows.append((f"{count}", *times, _ratio(series), words.median(asked.spread(OURS), "") if asked else ""))
    heads = ("members", "meshrun", "torchrun, c10d", BESIDE[3], "requests per member")
    return f"{_without_empty(heads, rows)}\n\n{rest(history)}" if rows else words.NOT_MEASURED


def rest(history: History) -> str:
    """What members ask that are at rest, in a sentence."""
    kept, parts = history.medians(figures.KEEP_ALIVES), []
    for count, rate in history.medians(figures.REST).items():
        also = f", {words.number(kept[count], 3)} of them keep-alives" if count in kept else ""
        parts.append(f"of {count} members {words.number(rate, 3)}{also}")
    return f"Requests a second of one member at rest: {words.join(parts)}." if parts else ""


def events(history: History) -> str:
    """What happens to a node, by number of agents; each until the first line, and until the first step of training."""
    rows = []
    for event, what in EVENTS.items():
        for more, until in UNTIL.items():
            for agents, name in figures.numbered(f"{event}, {{n}} agents{more}", list(history.series)):
                series, overlap = history.series[name], history.series.get(name + OVERLAP)
                both = (words.with_range(series.spread(side), "s", series.limit_s) for side in (OURS, THEIRS))
                rows.append((what + until, f"{agents}", *both, _overlap(overlap)))
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
        rows.append([f"{count:,}", *cells])
    grown = (history.growth(pattern) for _, _, pattern, _ in columns)
    powers = ("" if each is None else f"{each:.2f}" for each in grown)
    rows.append([f"grows by the power, from {figures.GROWTH_FROM} on", *powers])
    return words.table(["agents", *(head for head, *_ in columns)], rows) if columns else words.NOT_MEASURED


def _without_empty(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table without the columns behind the fourth that have nothing in them."""
    rows = list(rows)
    used = [column for column in range(len(heads)) if column < 4 or any(row[column] for row in rows)]
    return words.table([heads[at] for at in used], ([row[at] for at in used] for row in rows))
