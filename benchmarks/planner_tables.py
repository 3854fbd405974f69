"""The planner's tables of docs/performance.md, from the newest records of placement.py.

Its figures are no pairs: costs and moves are the same in every run and on every machine, times are CPU seconds of fresh
processes. Each part is taken from the newest run that has it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks import words
from benchmarks.runs import History, RecordError, Run, spread
from benchmarks.tables import Row, date

MEAN_GOAL, WORST_GOAL = 1.02, 1.10  # a faster step may cost J: docs/internals/decisions/0046-seconds-beside-the-cost.md
CPU_GOAL_S, RATES_CPU_GOAL_S, PEAK_GOAL_MIB, MOVED_GOAL, MISSED_GOAL = 1.0, 1.2, 300, 16, 1 / 300
FAMILIES = {
    "dgx": "leaves of 4 to 32 nodes with 8 GPUs, some in repair",
    "nvl72": "racks of 18 hosts with 4 GPUs",
    "tpu": "v5e-16 slices used whole, of some one host is missing",
    "zones": "three zones, far apart, of different sizes",
    "irregular": "leaves of 3 to 17 nodes, spines of 2 to 9 leaves",
    "unknown": "for 10 to 60 % of the nodes leaf or pod is unknown",
    "tp16": "TP over two or four nodes, leaves of odd sizes",
    "experts": "context and expert parallelism across nodes",
    "uneven": "nodes of 4, 8 and 16 devices, some with one less",
    "surplus": "a fixed mesh, up to half as many nodes again as it needs",
}
LOSSES = {
    "one of 512, with spares": "one of 512 nodes, 24 of them spare",
    "one of 32, none spare": "one of 32 nodes, none spare: 28 used, dp 8 to 7",
}
ORDERS = {
    "path": "by path",
    "address as number": "by address as number",
    "address as text": "as text",
    "join order": "join order",
}

Line = Mapping[str, Any]


def instances(history: History) -> list[Line]:
    """One line for each cluster."""
    return list(history.lines("placement", "instance"))


def times(history: History) -> list[Line]:
    """A row for each kind of cluster and size: medians over processes, and the range of the CPU time."""
    groups: dict[tuple[str, int], list[Line]] = {}
    for line in history.lines("placement", "kind"):
        groups.setdefault((line["kind"], line["size"]), []).append(line)
    found = []
    for same in groups.values():
        medians = {name: statistics.median(line[name] for line in same) for name in ("feasibility_s", "peak_mib")}
        cpu_s = spread(line["cpu_s"] for line in same)
        assert cpu_s is not None
        ends = {"cpu_s": cpu_s.median, "cpu_s_min": cpu_s.least, "cpu_s_max": cpu_s.most, "samples": cpu_s.samples}
        found.append({**same[0], **medians, **ends})
    return found


def losses(history: History) -> list[Line]:
    """The rows of the table of lost nodes. Raises RecordError for a plan that is invalid."""
    found = history.lines("placement", "loss")
    if faults := [line for line in found if "fault" in line]:
        raise RecordError(f"placement.jsonl: {faults[0]['loss']}: {faults[0]['fault']}")
    return list(found)


def ratios(lines: Iterable[Line], name: str, to: str) -> dict[str, float]:
    """By instance: how many times `to` the cost `name` is, where both are known and the plan is valid."""
    pairs = {
        line["instance"]: (line[name], line[to]) for line in lines if "fault" not in line and {name, to} <= {*line}
    }
    return {at: 1.0 if one == other else one / other if other else math.inf for at, (one, other) in pairs.items()}


def mean(found: Iterable[float]) -> float:
    """The geometric mean."""
    logs = [math.log(each) for each in found if math.isfinite(each)]
    return math.exp(statistics.fmean(logs)) if logs else math.nan


def aims(history: History) -> str:
    """What the planner should reach, and whether it does."""
    rows: list[tuple[str, str, str, str, bool]] = []  # the key of the lines that it is from, and the cells
    if found := ratios(instances(history), "cost", "best"):
        middle, worst = mean(found.values()), max(found.values())
        what = f"cost J over the best known, geometric mean of {len(found)} clusters"
        rows.append(("instance", what, f"{middle:.4f}", f"at most {MEAN_GOAL:g}", middle <= MEAN_GOAL))
        what, limit = "the worst of these clusters", f"at most {WORST_GOAL:g}"
        rows.append(("instance", what, f"{worst:.4f}", limit, worst <= WORST_GOAL))
    for line in history.lines("placement", "optima")[-1:]:
        count, missed = line["optima"], len(line["missed"])
        what = "small clusters (at most 24 nodes) at their proven optimum"
        shown, is_reached = f"{count - missed} of {count}", missed <= MISSED_GOAL * count
        rows.append(("optima", what, shown, "all but 1 in 300", is_reached))
    if timed := times(history):
        most = max(line["size"] for line in timed)
        for with_rates, goal in ((False, CPU_GOAL_S), (True, RATES_CPU_GOAL_S)):
            largest = [line for line in timed if line["size"] == most and ("rates" in line["kind"]) == with_rates]
            if largest:
                shown = "; ".join(f"{line['cpu_s']:.2f} s {line['kind']}" for line in largest)
                what = f"CPU time for {most:,} nodes{', with rates' * with_rates}"
                is_reached = max(line["cpu_s"] for line in largest) <= goal
                rows.append(("kind", what, shown, f"at most {goal:g} s", is_reached))
        peak = max(line["peak_mib"] for line in timed)
        what = "peak memory of the process, at any size"
        rows.append(("kind", what, f"{peak:.0f} MiB", f"less than {PEAK_GOAL_MIB} MiB", peak < PEAK_GOAL_MIB))
    for line in losses(history)[:1]:
        what = "ranks that move when one of 512 nodes is lost and a spare is there: median, most"
        shown = f"{line['moved_median']:g}, {line['moved_most']} of {line['world_before']:,}"
        rows.append(("loss", what, shown, f"at most {MOVED_GOAL}", line["moved_most"] <= MOVED_GOAL))
    found_rows = [Row(_runs(history, key), (*cells, "yes" if reached else "**no**")) for key, *cells, reached in rows]
    return date(("what", "figure", "aim", "reached"), found_rows)


def _runs(history: History, key: str) -> list[Run]:
    return history.having("placement", key)


def costs(history: History) -> str:
    """By family: how far above the best known, and what other orders cost."""
    lines = instances(history)
    families = list(dict.fromkeys(line["instance"].partition("/")[0] for line in lines))
    rows = []
    for family in [*families, "all"] if lines else []:
        same = [line for line in lines if family in ("all", line["instance"].partition("/")[0])]
        found = ratios(same, "cost", "best")
        at = max(found, key=found.__getitem__, default="")
        worst = f"{found.get(at, math.nan):.4f}" + (f" ({at})" if family == "all" else "")
        orders = [f"{mean(ratios(same, order, 'best').values()):.2f}" for order in ORDERS]
        shown = "**all**" if family == "all" else f"`{family}`: {FAMILIES[family]}"
        cells = (shown, f"{len(found)}", f"{mean(found.values()):.4f}", worst, *orders)
        rows.append(Row(_runs(history, "instance"), cells))
    heads = ("family", "clusters", "meshrun", "its worst", *ORDERS.values())
    faults = [f"**{line['instance']}: {line[key]}**" for line in lines for key in ("fault", "wrong") if key in line]
    return "\n\n".join([date(heads, rows), *faults, near(lines)]) if rows else words.NOT_MEASURED


def near(lines: Sequence[Line]) -> str:
    """How many plans are the best known, or within a hundredth; and the means by size."""
    found, nodes = ratios(lines, "cost", "best"), {line["instance"]: line["nodes"] for line in lines}
    if not found:
        return ""
    best, close = (sum(ratio <= limit for ratio in found.values()) for limit in (1.0, 1.01))
    means = []
    for least, most in ((0, 100), (101, 300), (301, 1_100), (1_101, 10**9)):
        same = [ratio for at, ratio in found.items() if least <= nodes[at] <= most]
        size = "more" if most > 10**8 else f"{max(least, min(nodes[at] for at in found)):,} to {most:,}"
        means += [f"{size}: {mean(same):.4f}"] if same else []
    return (
        f"{best} of {len(found)} plans are the best known, {close} are within 1 %. By number of nodes the means are "
        f"{'; '.join(means)}."
    )


def seconds(history: History) -> str:
    """CPU time and memory by size of the cluster, and how the time grows."""
    found = times(history)
    runs = _runs(history, "kind")
    rows = [
        Row(
            runs,
            (
                f"`{line['kind']}`",
                f"{line['size']:,}",
                f"{line['world']:,}",
                f"{line['cpu_s']:.3f} s ({line['cpu_s_min']:.3f} to {line['cpu_s_max']:.3f}; {line['samples']})",
                f"{line['feasibility_s'] * 1000:.1f} ms",
                f"{line['peak_mib']:.0f} MiB",
            ),
        )
        for line in found
    ]
    if not rows:
        return words.NOT_MEASURED
    heads = ("cluster", "nodes", "ranks", "plan: median (range; processes)", "feasibility", "peak memory")
    sizes = sorted({line["size"] for line in found})[-2:]
    by_size = {(line["kind"], line["size"]): line["cpu_s"] for line in found}
    growths = [
        f"{by_size[kind, sizes[1]] / by_size[kind, sizes[0]]:.1f} times for `{kind}`"
        for kind in dict.fromkeys(line["kind"] for line in found)
        if all((kind, size) in by_size for size in sizes)  # a run that was stopped has measured some kinds only
    ]
    if len(sizes) < 2 or not growths:
        return date(heads, rows)
    return (
        f"{date(heads, rows)}\n\nFrom {sizes[0]:,} to {sizes[1]:,} nodes, "
        f"{sizes[1] / sizes[0]:g} times as many, the time grows {words.join(growths)}."
    )


def moves(history: History) -> str:
    """What moves when a node is lost, and what it costs."""
    rows = []
    for line in losses(history):
        before, after = line["world_before"], line["world_after"]
        middle, most = line["cost_after_median"], line["cost_after_most"]
        ranks, cost = f"{before:,} to {after:,}", f"{middle:,.0f}, {most:,.0f} at most"
        if before == after:
            ranks = f"{before:,}, as before"
            cost = f"{middle / line['cost_before'] - 1:+.2%} (median), {most / line['cost_before'] - 1:+.2%} at most"
        what = f"{LOSSES.get(line['loss'], line['loss'])}, {line['losses']} losses tried"
        cells = (what, ranks, f"{line['moved_median']:g}, {line['moved_most']}", cost)
        rows.append(Row(_runs(history, "loss"), cells))
    return date(("what", "ranks", "moved: median, most", "J"), rows)
