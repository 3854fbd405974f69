"""How good the planner's layouts are, how long they take, and what moves when a node is lost.

Quality is a ratio: the cost J of the plan to the best that anybody has found for the same instance
(`long_search.py`), to the lower bound, and beside it what the orders that people use today would cost. Costs are
counted rank by rank by `judge.py`, which also refuses a plan that breaks a rule. Times are CPU seconds in a fresh
process each, from the text of a cluster file to the plan; memory is that process's peak.

    python -m benchmarks.placement --json placement.jsonl
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from benchmarks import judge, long_search, pairs
from benchmarks.families import Instance, cases, dgx, families, irregular, regular
from benchmarks.planner_tables import CPU_GOAL_S, MEAN_GOAL, PEAK_GOAL_MIB, WORST_GOAL
from launcher.model import mesh as meshes
from launcher.model.node import Node
from launcher.placement.capacity import assess_feasibility
from launcher.placement.limits import Costs, Limits, Plan
from launcher.placement.planner import plan

SIZES = (64, 512, 4_096, 16_384)
PARTS = ("cases", "optima", "quality", "stability", "time")

Line = dict[str, Any]


# Quality --------------------------------------------------------------------------------------------------------


def measured(instance: Instance, best: dict[str, Any] | None) -> Line:
    """One instance: costs of the plan, of the bound, of the best known layout and of the orders of today."""
    line: Line = {"instance": instance.name, "nodes": len(instance.nodes)}
    began = time.process_time()
    try:
        answer = plan(*instance.question, None)
    except Exception as error:  # whatever it is, it is a line of the table and not the end of it
        return line | {"fault": f"{type(error).__name__}: {error}"}
    line["cpu_s"] = time.process_time() - began
    fault = judge.fault(instance, answer)
    if fault is not None:
        return line | {"fault": fault}
    found = judge.cost(instance, answer.shape, answer.ranks)
    if not math.isclose(answer.cost, found, rel_tol=1e-12):
        line["wrong"] = f"the planner says that this costs {answer.cost}, it costs {float(found)}"
    elif answer.lower_bound > answer.cost:
        line["wrong"] = f"the bound {answer.lower_bound} lies above the cost {answer.cost}"
    line |= {"shape": answer.shape, "cost": float(found), "lower_bound": float(answer.lower_bound)}
    for name, order in judge.BASELINES.items():
        ranks = judge.laid_out(instance, answer.shape, order(instance.nodes))
        line[name] = float(judge.cost(instance, answer.shape, ranks))
        if line[name] < found and name == "path" and judge.fault(instance, judge.as_plan(answer.shape, ranks)) is None:
            line["wrong"] = f"dearer than the order of paths, {found} and {line[name]:g}"
    if best is not None and best["fingerprint"] == long_search.fingerprint(instance):
        if tuple(best["shape"]) != answer.shape:
            line["fault"] = f"a world of {answer.shape}; the best known is of {tuple(best['shape'])}"
        else:
            line["best"] = min(float(Fraction(best["cost"])), float(found))
            if answer.lower_bound > line["best"] * (1 + 1e-12):
                line["wrong"] = f"the bound {answer.lower_bound} lies above a known cost, {line['best']}"
    return line


def ratio(line: Line, name: str, to: str) -> float | None:
    """How many times `to` the cost `name` is; None where either is not known."""
    above, below = line.get(name), line.get(to)
    if above is None or below is None or "fault" in line:
        return None
    return 1.0 if above == below else above / below if below else math.inf


def mean(ratios: Sequence[float]) -> float | None:
    """The geometric mean; None of nothing."""
    finite = [each for each in ratios if math.isfinite(each)]
    return math.exp(statistics.fmean(map(math.log, finite))) if finite else None


def of_family(name: str, lines: Sequence[Line]) -> Line:
    """One row of the table of quality."""
    to_best = {line["instance"]: each for line in lines if (each := ratio(line, "cost", "best")) is not None}
    row: Line = {"family": name, "instances": len(lines), "compared": len(to_best)}
    row["mean"] = mean(list(to_best.values()))
    row["worst"], row["worst_at"] = max(((each, at) for at, each in to_best.items()), default=(None, ""))
    row["to_bound"] = mean([each for line in lines if (each := ratio(line, "cost", "lower_bound")) is not None])
    row["at_bound"] = sum(ratio(line, "cost", "lower_bound") == 1 for line in lines)
    for baseline in judge.BASELINES:
        row[baseline] = mean([each for line in lines if (each := ratio(line, baseline, "best")) is not None])
    row["faults"] = [f"{line['instance']}: {line[key]}" for line in lines for key in ("fault", "wrong") if key in line]
    return row


def quality(lines: Sequence[Line]) -> tuple[list[Line], str]:
    """The rows of the table, the last for all families together, and the table as text."""
    names = list(dict.fromkeys(line["instance"].partition("/")[0] for line in lines))
    rows = [of_family(name, [line for line in lines if line["instance"].startswith(f"{name}/")]) for name in names]
    rows.append(of_family("all", lines))

    def shown(value: float | None, digits: int = 4) -> str:
        return "-" if value is None else f"{value:.{digits}f}"

    text = [
        "cost of the plan as a multiple of the best known, and of the lower bound;",
        "cost of other orders as a multiple of the best known (geometric means)",
        "",
        "family      n    mean   worst at          bound  path number  text  join",
    ]
    for row in rows:
        size = row["worst_at"] if row["family"] == "all" else row["worst_at"].partition("/")[2]
        others = "".join(f"{shown(row[name], 2):>6}" for name in ("path", "address as number", "address as text"))
        text.append(
            f"{row['family']:<10}{row['compared']:>3}{shown(row['mean']):>8}{shown(row['worst']):>8} {size:<15}"
            f"{shown(row['to_bound'], 2):>6}{others}{shown(row['join order'], 2):>6}"
        )
    last = rows[-1]
    if last["mean"] is not None:
        text += [
            "",
            aim("geometric mean", last["mean"], MEAN_GOAL, ".4f"),
            aim("worst", last["worst"], WORST_GOAL, ".4f"),
            f"{last['at_bound']} of {last['instances']} plans cost what the lower bound says: proven the best there is",
        ]
    return rows, "\n".join([*text, *last["faults"]])


def aim(what: str, value: float, goal: float, form: str, unit: str = "") -> str:
    verdict = "reached" if value <= goal else "missed"
    return f"{what} {value:{form}}{unit}, aim at most {goal:g}{unit}: {verdict}"


def details(lines: Sequence[Line]) -> str:
    """Every instance, the furthest from its best first."""
    ordered = sorted(lines, key=lambda line: -(ratio(line, "cost", "best") or 0))
    rows = [f"{'instance':<18}{'cost':>14}{'best known':>14}{'ratio':>8}{'bound':>8}{'CPU s':>7}"]
    for line in ordered:
        if "cost" in line:
            to_best, to_bound = ratio(line, "cost", "best"), ratio(line, "cost", "lower_bound")
            rows.append(
                f"{line['instance']:<18}{line['cost']:>14.1f}{line.get('best', math.nan):>14.1f}"
                f"{to_best or math.nan:>8.4f}{to_bound or math.nan:>8.3f}{line['cpu_s']:>7.2f}"
            )
    return "\n".join(rows)


def known_cases() -> Iterator[Line]:
    """The cases that can be checked by hand."""
    for case in cases():
        line = measured(case.instance, None)
        yield line | {"optimum": case.optimum, "path_expected": case.path_cost}


def proven() -> Line:
    """The stored small clusters whose optimum an exact solver has proven: how many plans reach it."""
    from tests.support.placement.optima import missed, stored

    instances = stored()
    return {"optima": len(instances), "missed": missed(instances)}


# Stability ------------------------------------------------------------------------------------------------------


def losses() -> Iterator[Line]:
    """One node lost: where a spare takes its place, and where a replica less remains."""
    hall = dgx(random.Random("loss"), "loss/512", 512, "pp=8,dp=*,tp=8", 32, 0.03)
    question = hall._replace(mesh=meshes.parse("pp=8,dp=61,tp=8"))
    yield _loss("one of 512, with spares", question)
    thirty_two = regular("loss/32", (8, 8, 8, 8), "pp=4,dp=*,tp=8", "")
    costs = Costs(level_costs={"spine": 4, "leaf": 2, "host": 1})
    yield _loss("one of 32, none spare", thirty_two._replace(costs=costs))


def _loss(name: str, instance: Instance) -> Line:
    """Every sixteenth active node in turn is lost; the figures are those of the worst."""
    before = plan(*instance.question, None)
    j_before = judge.cost(instance, before.shape, before.ranks)
    tries: list[tuple[int, float, Plan]] = []
    active = sorted(before.ranks)
    for lost in active[:: max(1, len(active) // 16)]:
        rest = instance._replace(nodes=tuple(node for node in instance.nodes if node.id != lost))
        after = plan(*rest.question, before)
        if (fault := judge.fault(rest, after)) is not None:
            return {"loss": name, "fault": f"without {lost}: {fault}"}
        tries.append((after.moved, float(judge.cost(rest, after.shape, after.ranks)), after))
    moved, _, after = max(tries, key=lambda each: each[0])
    costs = sorted(cost for _, cost, _ in tries)
    return {
        "loss": name,
        "losses": len(tries),
        "world_before": before.world_size,
        "world_after": after.world_size,
        "cost_before": float(j_before),
        "cost_after_median": costs[len(costs) // 2],
        "cost_after_most": costs[-1],
        "moved_most": moved,
        "moved_median": statistics.median(each[0] for each in tries),
    }


def stability(lines: Sequence[Line]) -> str:
    rows = [f"{'one node lost':<26}{'ranks':>14}{'moved: median, most':>21}{'J: median, most':>19}"]
    for line in lines:
        if "fault" in line:
            rows.append(f"{line['loss']}: {line['fault']}")
            continue
        after = ("cost_after_median", "cost_after_most")
        ranks = f"{line['world_before']} > {line['world_after']}"
        moved = f"{line['moved_median']:g}, {line['moved_most']}"
        if line["world_before"] == line["world_after"]:
            change = [f"{line[name] / line['cost_before'] - 1:+.2%}" for name in after]
        else:
            change = [f"{line[name]:g}" for name in after]
        rows.append(f"{line['loss']:<26}{ranks:>14}{moved:>21}{', '.join(change):>19}")
    return "\n".join(rows)


# Time and memory ------------------------------------------------------------------------------------------------


def hall(size: int, kind: str) -> Instance:
    """The cluster whose plan is timed: leaves of 32 of which some nodes are missing, or a hall without any rule."""
    name = f"{kind}/{size}"
    if kind == "dgx":
        return dgx(random.Random(name), name, size, "pp=8,dp=*,tp=8", 32, 0.03)
    return irregular(random.Random(name), name, size, "pp=16,dp=*,tp=8", "tp=100,dp=10,pp=10")


def timed(size: int, kind: str) -> Line:
    """In this process: CPU seconds from the text of a cluster file to the plan, of `assess_feasibility`, and the peak.

    numpy is imported by then; what the planner itself imports when it is first called counts.
    """
    source = hall(size, kind)
    text = json.dumps([{"id": node.id, "path": node.path, "devices": node.slot_count} for node in source.nodes])
    mesh, limits, costs = source.mesh, Limits(levels=source.limits.levels), source.costs
    del source
    gc.collect()
    began = time.process_time()
    nodes = [
        Node(id=entry["id"], slot_count=entry["devices"], path=tuple(entry["path"]), order=order)
        for order, entry in enumerate(json.loads(text))
    ]
    built = time.process_time()
    answer = plan(nodes, mesh, limits, costs, None)
    planned = time.process_time()
    assess_feasibility(nodes, mesh, limits)
    quick = time.process_time()
    for entry in Path("/proc/self/status").read_text().splitlines():
        if entry.startswith("VmHWM:"):
            peak_mib = int(entry.split()[1]) / 1024
    return {
        "size": size,
        "kind": kind,
        "world": answer.world_size,
        "cpu_s": planned - began,
        "nodes_s": built - began,
        "feasibility_s": quick - planned,
        "peak_mib": peak_mib,
    }


def times(repeats: int, sizes: Sequence[int]) -> Iterator[Line]:
    """Each size in `repeats` fresh processes, one after the other."""
    for kind in ("dgx", "irregular"):
        for size in sizes:
            for _ in range(repeats):
                command = [sys.executable, "-m", "benchmarks.placement", "--child", kind, str(size)]
                found: Line = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
                yield found


def of_size(lines: Sequence[Line]) -> list[Line]:
    """One row for each kind of hall and size: medians, and the range of the CPU time."""
    rows = []
    for kind, size in dict.fromkeys((line["kind"], line["size"]) for line in lines):
        same = [line for line in lines if (line["kind"], line["size"]) == (kind, size)]
        row: Line = {"kind": kind, "size": size, "samples": len(same), "world": same[0]["world"]}
        for name in ("cpu_s", "feasibility_s", "nodes_s", "peak_mib"):
            row[name] = statistics.median(line[name] for line in same)
        row["cpu_s_min"], row["cpu_s_max"] = (pick(line["cpu_s"] for line in same) for pick in (min, max))
        rows.append(row)
    return rows


def time_table(rows: Sequence[Line]) -> str:
    text = [f"{'hall':<11}{'nodes':>7}{'ranks':>9}{'CPU s: median (range)':>26}{'feasibility':>13}{'peak':>10}"]
    for row in rows:
        spread = f"{row['cpu_s']:.3f} ({row['cpu_s_min']:.3f} to {row['cpu_s_max']:.3f})"
        text.append(
            f"{row['kind']:<11}{row['size']:>7,}{row['world']:>9,}{spread:>26}"
            f"{row['feasibility_s'] * 1000:>10.1f} ms{row['peak_mib']:>6.0f} MiB"
        )
    by_size = {(row["kind"], row["size"]): row for row in rows}
    for kind in dict.fromkeys(row["kind"] for row in rows):
        most, fourth = by_size.get((kind, SIZES[-1])), by_size.get((kind, SIZES[-2]))
        if most and fourth:
            growth = most["cpu_s"] / fourth["cpu_s"]
            text += [
                aim(f"{kind}, {SIZES[-1]:,} nodes:", most["cpu_s"], CPU_GOAL_S, ".2f", " s"),
                aim(f"{kind}, {SIZES[-1]:,} nodes:", most["peak_mib"], PEAK_GOAL_MIB, ".0f", " MiB"),
                f"{kind}, {SIZES[-2]:,} to {SIZES[-1]:,} nodes: {growth:.1f} times the time for 4 times the nodes",
            ]
    return "\n".join(text)


# All of it ------------------------------------------------------------------------------------------------------


def main() -> None:
    parser = pairs.arguments(__doc__ or "", pairs=5, quick=3)
    parser.add_argument("--part", choices=PARTS, action="append", help="only this part; may be given again")
    parser.add_argument("--size-max", type=int, metavar="N", help="quality of instances of at most so many nodes")
    parser.add_argument("--repeats", type=int, help="processes for each time (default: --pairs)")
    parser.add_argument("--details", action="store_true", help="print every instance")
    parser.add_argument("--best", type=Path, default=long_search.BEST, help="best known costs (default: %(default)s)")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(timed(int(options.child[1]), options.child[0])))
        return
    with pairs.recording(options) as record:
        for part in options.part or PARTS:
            print(part, file=sys.stderr, flush=True)
            lines, text = measure(part, options)
            for line in lines:
                record(line)
            print(text + "\n", flush=True)


def measure(part: str, options: argparse.Namespace) -> tuple[list[Line], str]:
    """The lines of a part's record, and its table."""
    if part == "cases":
        lines = list(known_cases())
        text = [f"{'case':<12}{'cost':>10}{'optimum':>10}{'path order':>12}"]
        for line in lines:
            costs = line.get("cost", math.nan), line["optimum"], line.get("path", math.nan)
            text.append(f"{line['instance']:<12}{costs[0]:>10g}{costs[1]:>10g}{costs[2]:>12g}")
        return lines, "\n".join(text)
    if part == "optima":
        line = proven()
        met = line["optima"] - len(line["missed"])
        return [line], "\n".join([f"{met} of {line['optima']} small clusters at their proven optimum", *line["missed"]])
    if part == "quality":
        best = long_search.load(options.best)
        lines = [measured(instance, best.get(instance.name)) for instance in families(options.size_max)]
        rows, table = quality(lines)
        also = f"\n\n{details(lines)}" if options.details else ""
        return [*lines, *({"summary": row} for row in rows)], table + also
    if part == "stability":
        lines = list(losses())
        return lines, stability(lines)
    lines = list(times(options.repeats or options.pairs, SIZES))
    rows = of_size(lines)
    return [*lines, *({"summary": row} for row in rows)], time_table(rows)


if __name__ == "__main__":
    main()
