"""The planner's tables of docs/performance.md, from the newest records of placement.py.

Its figures are no pairs: costs and moves are the same in every run and on every machine, times are CPU seconds of fresh
processes. Each part is taken from the newest run that has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks import words
from benchmarks.runs import History, RecordError

MEAN_GOAL, WORST_GOAL = 1.005, 1.03
CPU_GOAL_S, PEAK_GOAL_MIB, MOVED_GOAL, MISSED_GOAL = 1.0, 300, 16, 1 / 300
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
ORDERS = (("path", "by path"), ("address as number", "by address as number"), ("address as text", "as text"))

Line = dict[str, Any]


def lines(history: History, key: str) -> list[Line]:
    """The lines with this key of the newest run of placement.py that has any."""
    return history.lines("placement", key)


def families(history: History) -> list[Line]:
    """The rows of the table of costs, the last for all of them."""
    return lines(history, "family")


def instances(history: History) -> list[Line]:
    """One line for each cluster, but the cases that are checked by hand."""
    return [line for line in lines(history, "instance") if "best" in line]


def times(history: History) -> list[Line]:
    """The rows of the table of times."""
    return [line for line in lines(history, "kind") if "samples" in line]


def losses(history: History) -> list[Line]:
    """The rows of the table of lost nodes."""
    found = lines(history, "loss")
    if faults := [line for line in found if "fault" in line]:
        raise RecordError(f"placement.jsonl: {faults[0]['loss']}: {faults[0]['fault']}")
    return found


def aims(history: History) -> str:
    """What the planner should reach, and whether it does."""
    rows: list[tuple[str, str, str, bool]] = []
    if found := families(history):
        every = found[-1]
        mean, worst = every["mean"], every["worst"]
        what = f"cost J over the best known, geometric mean of {every['compared']} clusters"
        rows.append((what, f"{mean:.4f}", f"at most {MEAN_GOAL:g}", mean <= MEAN_GOAL))
        rows.append(("the same, the worst of them", f"{worst:.4f}", f"at most {WORST_GOAL:g}", worst <= WORST_GOAL))
    for line in lines(history, "optima")[-1:]:
        count, missed = line["optima"], len(line["missed"])
        what = "small clusters (at most 24 nodes) at their proven optimum"
        rows.append((what, f"{count - missed} of {count}", "all but 1 in 300", missed <= MISSED_GOAL * count))
    if found := times(history):
        most = max(line["size"] for line in found)
        largest = [line for line in found if line["size"] == most]
        slowest = max(line["cpu_s"] for line in largest)
        shown = "; ".join(f"{line['cpu_s']:.2f} s {line['kind']}" for line in largest)
        what = f"CPU time for {most:,} nodes with {largest[0]['world']:,} ranks"
        rows.append((what, shown, f"at most {CPU_GOAL_S:g} s", slowest <= CPU_GOAL_S))
        peak = max(line["peak_mib"] for line in found)
        what = "peak memory of the process, at any size"
        rows.append((what, f"{peak:.0f} MiB", f"less than {PEAK_GOAL_MIB} MiB", peak < PEAK_GOAL_MIB))
    for line in losses(history)[:1]:
        what = "ranks that move when one of 512 nodes is lost and a spare is there: median, most"
        shown = f"{line['moved_median']:g}, {line['moved_most']} of {line['world_before']:,}"
        rows.append((what, shown, f"at most {MOVED_GOAL}", line["moved_most"] <= MOVED_GOAL))
    heads = ("what", "figure", "aim", "reached")
    return (
        words.table(heads, ((*row[:3], "yes" if row[3] else "**no**") for row in rows)) if rows else "Not measured yet."
    )


def costs(history: History) -> str:
    """By family: how far above the best known, above the bound, and what other orders cost."""
    rows = []
    for line in families(history):
        name = line["family"]
        shown = "**all**" if name == "all" else f"`{name}`: {FAMILIES[name]}"
        worst = f"{line['worst']:.4f}" + (f" ({line['worst_at']})" if name == "all" else "")
        others = [f"{line[order]:.2f}" for order, _ in ORDERS]
        bound, joined = f"{line['to_bound']:.2f}", f"{line['join order']:.2f}"
        rows.append((shown, f"{line['compared']}", f"{line['mean']:.4f}", worst, bound, *others, joined))
    heads = ("family", "clusters", "meshrun", "its worst", "to bound", *(head for _, head in ORDERS), "join order")
    faults = [f"**{fault}**" for line in families(history)[-1:] for fault in line["faults"]]
    return "\n\n".join([words.table(heads, rows), *faults, near(history)]) if rows else "Not measured yet."


def near(history: History) -> str:
    """How many plans are the best known, within a hundredth, or proven; and the means by size."""
    found = [(line["nodes"], line["cost"] / line["best"] if line["best"] else 1.0) for line in instances(history)]
    if not found:
        return ""
    best, close = (sum(ratio <= limit for _, ratio in found) for limit in (1.0, 1.01))
    proven = families(history)[-1]["at_bound"]
    bounds = ((0, 100), (101, 300), (301, 1_100), (1_101, 10**9))
    means = []
    for least, most in bounds:
        same = [ratio for nodes, ratio in found if least <= nodes <= most]
        size = "more" if most > 10**8 else f"{max(least, min(nodes for nodes, _ in found)):,} to {most:,}"
        means.append(f"{size}: {_mean(same):.4f}")
    return (
        f"{best} of {len(found)} plans are the best known, {close} are within 1 %; {proven} cost what the lower bound "
        f"says, so nothing better exists. By number of nodes the means are {'; '.join(means)}."
    )


def _mean(ratios: Sequence[float]) -> float:
    """The geometric mean."""
    product = 1.0
    for ratio in ratios:
        product *= ratio
    return product ** (1 / len(ratios)) if ratios else float("nan")


def seconds(history: History) -> str:
    """CPU time and memory by size of the cluster, and how the time grows."""
    found = times(history)
    rows = [
        (
            f"`{line['kind']}`",
            f"{line['size']:,}",
            f"{line['world']:,}",
            f"{line['cpu_s']:.3f} s ({line['cpu_s_min']:.3f} to {line['cpu_s_max']:.3f}; {line['samples']})",
            f"{line['feasibility_s'] * 1000:.1f} ms",
            f"{line['peak_mib']:.0f} MiB",
        )
        for line in found
    ]
    heads = ("cluster", "nodes", "ranks", "plan: median (range; processes)", "feasibility", "peak memory")
    return f"{words.table(heads, rows)}\n\n{grown(found)}" if rows else "Not measured yet."


def grown(found: Sequence[Line]) -> str:
    """How the time grows between the two largest sizes, in a sentence."""
    parts = []
    for kind in dict.fromkeys(line["kind"] for line in found):
        fourth, most = sorted((line for line in found if line["kind"] == kind), key=lambda line: int(line["size"]))[-2:]
        times_more = most["cpu_s"] / fourth["cpu_s"]
        parts.append(f"{times_more:.1f} times for `{kind}`")
    return (
        f"From {fourth['size']:,} to {most['size']:,} nodes, {most['size'] / fourth['size']:g} times as many, the time "
        f"grows {words.listed(parts)}."
    )


def moves(history: History) -> str:
    """What moves when a node is lost, and what it costs."""
    rows = []
    for line in losses(history):
        before, after = line["world_before"], line["world_after"]
        if before == after:
            ranks = f"{before:,}, as before"
            middle, most = (line[name] / line["cost_before"] - 1 for name in ("cost_after_median", "cost_after_most"))
            cost = f"{middle:+.2%} (median), {most:+.2%} at most"
        else:
            ranks, cost = (
                f"{before:,} to {after:,}",
                f"{line['cost_after_median']:,.0f}, {line['cost_after_most']:,.0f} at most",
            )
        what = f"{LOSSES.get(line['loss'], line['loss'])}, {line['losses']} losses tried"
        rows.append((what, ranks, f"{line['moved_median']:g}, {line['moved_most']}", cost))
    return words.table(("what", "ranks", "moved: median, most", "J"), rows) if rows else "Not measured yet."
