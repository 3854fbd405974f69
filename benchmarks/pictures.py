"""Which pictures docs/performance.md has: what each shows, from the records, and what those are told who cannot see it.

A picture is a file's name, an SVG and its alternative text, which says what is seen, with the figures of these records.
None is made of what was not measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from benchmarks import figures, planner_tables, plots, truth_tables, words
from benchmarks.figures import COLD, STANDBY
from benchmarks.runs import NEVER, OURS, THEIRS, History, Run, Series
from benchmarks.tables import EVENTS, SCALE, cell, describe_ratio
from benchmarks.truth_tables import ADDRESS, JOIN, PATH, PLAN

# Shorter than in the table of aims: what stands at the left of a picture.
RATIOS = {
    figures.workers(figures.FIRST_LINE, 8): "start 8 workers: first line",
    figures.WARM_START: "start 8 workers: torch imported",
    figures.WARM_RESTART: "restart 8 workers: torch imported",
    figures.WARM_RESTART + STANDBY: "the same, --standby 1",
    figures.RESTART: "restart 8 workers: first line",
    "crash, 8 agents": "worker killed, 8 agents",
    figures.FIRST_ROUND.format(n=128): "first round, 128 members",
    figures.PSS: "memory, one node",
    figures.PSS_ETCD: "memory, with etcd",
    figures.BLOCKS: "a line of output, in blocks",
    figures.PRINTS: "a line of output, print",
}


class Picture(NamedTuple):
    """An SVG, and what it shows in words."""

    svg: str
    alt: str
    runs: Sequence[Run]
    """Those that its figures are from."""


def ratios(history: History) -> Picture | None:
    """Every aim that is a ratio to torchrun, on one axis; rates are turned over, so that left is always better."""
    rows, told, used = [], [], []
    for name, what in RATIOS.items():
        series, aim = history.series.get(name), figures.aim(name)
        found = series.ratio() or series.bound() if series else None
        if series is None or found is None or found.median == NEVER or aim is None or aim.ratio is None:
            continue
        values = [1 / each if aim.least else each for each in series.ratios() if 0 < each < NEVER]
        middle, limit = (1 / each if aim.least else each for each in (found.median, aim.ratio))
        shown = words.number(middle, words.digits(found))
        if series.bound() is not None:
            shown = describe_ratio(series).partition(" (")[0]
        rows.append(plots.Row(what, {"meshrun": values}, limit, shown))
        told.append(f"{what} {shown}, aim {limit:.2g}")
        used.append(series.run)
    if not rows:
        return None
    title = "Relative to torchrun in the same run: lower is better"
    svg = plots.rows(title, "ratio to torchrun", ["meshrun"], rows, at_one="torchrun")
    return Picture(svg, f"Dots by ratio to torchrun on a logarithmic axis, one for each pair: {'; '.join(told)}.", used)


def warm(history: History) -> Picture | None:
    """Start and restart of eight workers that import torch, in every way."""
    rows, told, used = [], [], []
    ways = (("torchrun", "", THEIRS), ("cold", COLD, OURS), ("--preload", "", OURS), ("--standby 1", STANDBY, OURS))
    for what, figure in (("start", figures.WARM_START), ("restart", figures.WARM_RESTART)):
        for way, option, side in ways:
            series = history.series.get(figure + option)
            found = series.spread(side) if series else None
            if series is None or found is None or found.median == NEVER:
                continue
            shown = cell(series, side, "s")
            name = THEIRS if side == THEIRS else f"meshrun {way}"
            rows.append(plots.Row(f"{what}, {name}", {side: list(series.values(side).values())}, None, shown))
            told.append(f"{what} under {name} {shown}")
            used.append(series.run)
    if not rows:
        return None
    title = "Until all of 8 workers have imported torch"
    return Picture(plots.rows(title, "seconds", [OURS, THEIRS], rows), f"Dots by time: {'; '.join(told)}.", used)


def events(history: History) -> Picture | None:
    """What happens to a node: a dot for each run."""
    rows, used = [], []
    told: list[str] = []
    for event, what in EVENTS.items():
        for agents, name in figures.numbered(f"{event}, {{n}} agents", list(history.series)):
            series, aim = history.series[name], figures.aim(name)
            ours = series.spread(OURS)
            if ours is None:
                continue
            seen = {side: [each for each in series.values(side).values() if each < NEVER] for side in (OURS, THEIRS)}
            spreads = {side: series.spread(side) for side in (OURS, THEIRS) if series.is_measured(side)}
            late = {side: spread.watched_s for side, spread in spreads.items() if spread and spread.late}
            limit = aim.value if aim else None
            shown = cell(series, OURS, "s")
            row = f"{_short(what)}, {agents} {'agent' if agents == 1 else 'agents'}"
            rows.append(plots.Row(row, seen, limit, shown, late))
            told.append(f"{row} {shown}")
            used.append(series.run)
    if not rows:
        return None
    title = "From an event to the first line of the last worker of the next round"
    svg = plots.rows(title, "seconds", [OURS, THEIRS], rows)
    is_late = any(row.beyond.get(THEIRS) for row in rows)
    never = "; torchrun's marks stand at the right end where it did not come within the time watched" if is_late else ""
    alt = f"Dots by time on a logarithmic axis, meshrun's medians: {'; '.join(told)}{never}."
    return Picture(svg, alt, used)


def _short(what: str) -> str:
    return what.replace(", not the leader's", "").replace(" beside them", "")


def rounds(history: History) -> Picture | None:
    """The first round by number of members, both sides."""
    found = [(count, history.series[name]) for count, name in figures.numbered(figures.FIRST_ROUND, [*history.series])]
    if len(found) < 2:
        return None
    drawn = [_curve(side, found, side, index) for index, side in enumerate((OURS, THEIRS))]
    aims = []
    for count, series in found:
        aim, theirs = figures.aim(series.figure), series.spread(THEIRS)
        if aim is not None and aim.ratio is not None and theirs is not None and theirs.median < NEVER:
            aims.append((float(count), aim.ratio * theirs.median, "aim"))
        if theirs is not None and theirs.median == NEVER and series.is_measured(THEIRS):
            aims.append((float(count), theirs.watched_s, f"torchrun: {words.median(theirs, 's')}"))
    svg = plots.curves("First round of members that begin at once", "members", [plots.Panel("time", "s", drawn, aims)])
    ends = [cell(found[-1][1], side, "s") or "not tried" for side in (OURS, THEIRS)]
    many = found[-1][0]
    alt = f"Time by number of members, {found[0][0]} to {many}: at {many} meshrun {ends[0]}, torchrun {ends[1]}."
    return Picture(svg, alt, [series.run for _, series in found])


def scale(history: History) -> Picture | None:
    """Time, CPU, requests and bytes by number of agents."""
    panels = [
        _panel(history, "time", "s", {"first round": figures.AGENTS_FIRST, "re-seal": figures.AGENTS_SEAL}),
        _panel(
            history, "CPU", "s",
            {"all agents": figures.AGENTS_CPU, "leader": figures.LEADER_CPU, "etcd": figures.ETCD_CPU},
        ),
        _panel(history, "requests to etcd, first round", "", {"requests": figures.AGENTS_REQUESTS}),
        _panel(history, "bytes from and to etcd, first round", "", {"bytes": figures.AGENTS_BYTES}),
    ]  # fmt: skip
    drawn = [panel for panel in panels if panel.curves]
    if not drawn:
        return None
    told = []
    for panel in drawn:
        for curve in panel.curves:
            (least, first), (most, last) = curve.points[0], curve.points[-1]
            unit = panel.unit or ("B" if panel.title.startswith("bytes") else "")
            ends = (words.quantity(each, unit, 2) for each in (first, last))
            told.append(f"{panel.title}, {curve.words}: {' to '.join(ends)} for {least:,.0f} to {most:,.0f} agents")
    svg = plots.curves("Agents that share two cores and one etcd", "agents", drawn)
    patterns = [pattern for _, pattern, _ in SCALE[:7]]
    names = [name for pattern in patterns for _, name in figures.numbered(pattern, list(history.series))]
    used = [history.series[name].run for name in names]
    return Picture(svg, f"Curves on logarithmic scales. {'; '.join(told)}.", used)


def _panel(history: History, title: str, unit: str, patterns: dict[str, str]) -> plots.Panel:
    names = list(history.series)
    drawn = []
    for index, (what, pattern) in enumerate(patterns.items()):
        found = [(count, history.series[name]) for count, name in figures.numbered(pattern, names)]
        curve = _curve(what, found, OURS, index)
        if len(curve.points) > 1:
            drawn.append(curve)
    slope = next((point for point in drawn[0].points if point[0] >= figures.GROWTH_FROM), None) if drawn else None
    aims = [
        (float(count), aim.value, f"aim: {aim.value:g} {unit}")
        for pattern in patterns.values()
        for count, name in figures.numbered(pattern, names)
        if (aim := figures.aim(name)) is not None and aim.value is not None
    ]
    return plots.Panel(title, unit, drawn, aims, slope)


def _curve(what: str, found: Sequence[tuple[int, Series]], side: str, look: int) -> plots.Curve:
    points, ranges = [], []
    for count, series in found:
        spread = series.spread(side)
        if spread is not None and spread.most < NEVER:
            points.append((float(count), spread.median))
            ranges.append((float(count), spread.least, spread.most))
    return plots.Curve(what, points, ranges, look)


def placement_quality(history: History) -> Picture | None:
    """For each family of clusters how far plans, and the orders of today, lie above the best known."""
    shown = {"meshrun": "cost", "order of paths": "path", "address as text": "address as text"}
    found: dict[str, dict[str, list[float]]] = {}
    for line in planner_tables.instances(history):
        if "best" not in line:
            continue
        family = found.setdefault(line["instance"].partition("/")[0], {name: [] for name in shown})
        for name, key in shown.items():
            if key in line:
                family[name].append(line[key] / line["best"] if line["best"] else 1.0)
    if not found:
        return None
    marks = {planner_tables.MEAN_GOAL: "aim: mean", planner_tables.WORST_GOAL: "aim: worst"}
    title = "Cost above the best known layout, a dot per cluster"
    svg = plots.quality(title, list(shown), [plots.Row(family, values) for family, values in found.items()], marks)
    worst = (max(planner_tables.ratios(planner_tables.instances(history), "cost", "best").values()) - 1) * 100
    alt = (
        "For each family a row of dots, one per cluster. meshrun's plans are at the left, many where nothing is left to"
        f" gain, at most {worst:.1f} per cent above; the order of paths lies mostly around 10 to 100 per cent above,"
        " the order of addresses as text further right"
    )
    return Picture(svg, alt, history.having("placement", "instance"))


def placement_time(history: History) -> Picture | None:
    """CPU time of the planner by number of nodes."""
    found = planner_tables.times(history)
    if not found:
        return None
    drawn = []
    for index, kind in enumerate(dict.fromkeys(line["kind"] for line in found)):
        own = sorted((line for line in found if line["kind"] == kind), key=lambda line: int(line["size"]))
        points = [(line["size"], line["cpu_s"]) for line in own]
        drawn.append(
            plots.Curve(kind, points, [(line["size"], line["cpu_s_min"], line["cpu_s_max"]) for line in own], index)
        )
    sizes = sorted({line["size"] for line in found})
    slope = (
        next(((size, time) for size, time in drawn[0].points if size == sizes[-2]), None) if len(sizes) > 1 else None
    )
    aims = [(sizes[-1], planner_tables.CPU_GOAL_S, f"aim: {planner_tables.CPU_GOAL_S:g} s")]
    title = "CPU time from the text of a cluster file to its plan"
    svg = plots.curves(title, "nodes", [plots.Panel("CPU time", "s", drawn, aims, slope)])
    ends = [max(line["cpu_s"] for line in found if line["size"] == size) for size in (sizes[0], sizes[-1])]
    few, many = (words.quantity(each, "s", 2) for each in ends)
    alt = f"CPU time by number of nodes, at most {few} for {sizes[0]:,} and at most {many} for {sizes[-1]:,}"
    return Picture(svg, alt, history.having("placement", "kind"))


def placement_truth(history: History) -> Picture | None:
    """Measured by predicted seconds of a step, a dot for each order of each case."""
    kinds = {"plan": {PLAN}, "join, address, path": {JOIN, ADDRESS, PATH}}
    groups: dict[str, list[tuple[float, float]]] = {name: [] for name in (*kinds, "random")}
    cases = truth_tables.find_cases(history)
    for case in cases:
        for order in case.orders:
            group = next((group for group, names in kinds.items() if names & set(order.names)), "random")
            groups[group].append((order.predicted_s, order.measured_s))
    points = [point for group in groups.values() for point in group]
    if not points:
        return None
    svg = plots.scatter("A step's communication", ("seconds, predicted", "seconds, measured"), groups)
    ratios = [measured / predicted for predicted, measured in points if predicted > 0]
    alt = (
        f"A dot for each of {len(points)} orders by predicted and measured seconds, along the diagonal: measured is "
        f"{min(ratios):.2f} to {max(ratios):.2f} times predicted; plans lie at the lower left of their cases."
    )
    return Picture(svg, alt, [case.run for case in cases])


PICTURES: dict[str, Callable[[History], Picture | None]] = {
    "performance-ratios.svg": ratios,
    "performance-warm.svg": warm,
    "performance-rounds.svg": rounds,
    "performance-events.svg": events,
    "performance-scale.svg": scale,
    "placement-quality.svg": placement_quality,
    "placement-time.svg": placement_time,
    "placement-truth.svg": placement_truth,
}
