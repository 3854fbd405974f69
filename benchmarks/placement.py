"""How good the planner's layouts are, how long they take, and what moves when a node is lost.

Quality is a ratio: the cost J of the plan to the best that is known for the same instance (`long_search.py`), and
beside it what the orders that people use today would cost. Costs are counted rank by rank by `judge.py`, which also
refuses a plan that breaks a rule. Times are CPU seconds in a fresh process each, from the text of a cluster file to the
plan; memory is that process's peak.

    python -m benchmarks.placement --json placement.jsonl
"""

from __future__ import annotations

import gc
import json
import math
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import click
from msgspec.structs import replace

from benchmarks import judge, long_search, pairs, planner_tables
from benchmarks.families import Instance, dgx, families, irregular, regular
from launcher.model import mesh as meshes
from launcher.model.node import Node
from launcher.model.rates import parse_rates
from launcher.placement.capacity import assess_feasibility
from launcher.placement.limits import Costs, Limits, Plan
from launcher.placement.planner import plan

SIZES = (64, 512, 4_096, 16_384)
PARTS = ("optima", "quality", "stability", "time")

Line = dict[str, Any]


def assess(instance: Instance, best: dict[str, Any] | None) -> Line:
    """One instance: costs of the plan, of the bound, of the best known layout and of the orders of today."""
    line: Line = {"instance": instance.name, "nodes": len(instance.nodes)}
    began = time.process_time()
    try:
        answer = plan(*instance.question, None)
    except Exception as error:  # whatever it is, it is a line of the table and not the end of it
        return line | {"fault": f"{type(error).__name__}: {error}"}
    line["cpu_s"] = time.process_time() - began
    fault = judge.find_fault(instance, answer)
    if fault is not None:
        return line | {"fault": fault}
    found = judge.cost(instance, answer.shape, answer.ranks)
    if not math.isclose(answer.cost, found, rel_tol=1e-12):
        line["wrong"] = f"the planner says that this costs {answer.cost}, it costs {float(found)}"
    elif answer.lower_bound > answer.cost:
        line["wrong"] = f"the bound {answer.lower_bound} lies above the cost {answer.cost}"
    line |= {"shape": answer.shape, "cost": float(found), "lower_bound": float(answer.lower_bound)}
    for name, order in judge.BASELINES.items():
        ranks = judge.lay_out(instance, answer.shape, order(instance.nodes))
        line[name] = float(judge.cost(instance, answer.shape, ranks))
        is_valid = judge.find_fault(instance, judge.as_plan(instance, answer.shape, ranks)) is None
        if name == "path" and line[name] < found and is_valid and not _is_slower(instance, answer, ranks):
            line["wrong"] = f"dearer than the order of paths and no faster, {found} and {line[name]:g}"
    if best is not None and best["fingerprint"] == long_search.fingerprint(instance):
        if tuple(best["shape"]) != answer.shape:
            line["fault"] = f"a world of {answer.shape}; the best known is of {tuple(best['shape'])}"
        else:
            line["best"] = min(float(Fraction(best["cost"])), float(found))
            if answer.lower_bound > line["best"] * (1 + 1e-12):
                line["wrong"] = f"the bound {answer.lower_bound} lies above a known cost, {line['best']}"
    return line


def _is_slower(instance: Instance, answer: Plan, ranks: judge.Ranks) -> bool:
    """Whether a step with these ranks takes longer than with the plan, which may cost J for that."""
    planned, other = (judge.time_alike(instance, answer.shape, one) for one in (answer.ranks, ranks))
    return other > planned


def count_optima() -> Line:
    """The stored small clusters whose optimum an exact solver has proven: how many plans reach it."""
    from tests.support.placement.optima import missed, stored

    instances = stored()
    return {"optima": len(instances), "missed": missed(instances)}


def lose_nodes() -> Iterator[Line]:
    """One node lost: where a spare takes its place, and where a replica less remains."""
    hall = dgx(random.Random("loss"), "loss/512", 512, "pp=8,dp=*,tp=8", 32, 0.03)
    yield _lose("one of 512, with spares", hall._replace(mesh=meshes.parse("pp=8,dp=61,tp=8")))
    thirty_two = regular("loss/32", (8, 8, 8, 8), "pp=4,dp=*,tp=8", "")
    costs = Costs(level_costs={"spine": 4, "leaf": 2, "host": 1})
    yield _lose("one of 32, none spare", thirty_two._replace(costs=costs))


def _lose(name: str, instance: Instance) -> Line:
    """Every sixteenth active node in turn is lost; the figures are those of the worst."""
    before = plan(*instance.question, None)
    tries: list[Plan] = []
    costs: list[float] = []
    active = sorted(before.ranks)
    for lost in active[:: max(1, len(active) // 16)]:
        rest = instance._replace(nodes=tuple(node for node in instance.nodes if node.id != lost))
        after = plan(*rest.question, before)
        if (fault := judge.find_fault(rest, after)) is not None:
            return {"loss": name, "fault": f"without {lost}: {fault}"}
        tries.append(after)
        costs.append(float(judge.cost(rest, after.shape, after.ranks)))
    worst = max(tries, key=lambda after: after.moved)
    return {
        "loss": name,
        "losses": len(tries),
        "world_before": before.world_size,
        "world_after": worst.world_size,
        "cost_before": float(judge.cost(instance, before.shape, before.ranks)),
        "cost_after_median": sorted(costs)[len(costs) // 2],
        "cost_after_most": max(costs),
        "moved_most": worst.moved,
        "moved_median": statistics.median(after.moved for after in tries),
    }


def make_hall(size: int, kind: str) -> Instance:
    """The cluster whose plan is timed: leaves of 32 of which some nodes are missing, or a hall without any rule."""
    name = f"{kind}/{size}".removeprefix("rates-")
    if kind.endswith("dgx"):
        hall = dgx(random.Random(name), name, size, "pp=8,dp=*,tp=8", 32, 0.03)
    else:
        hall = irregular(random.Random(name), name, size, "pp=16,dp=*,tp=8", "tp=100,dp=10,pp=10")
    if not kind.startswith("rates-"):
        return hall
    outer, leaf = hall.limits.levels
    rates = parse_rates(f"host=3200Gbit,{leaf}=12800Gbit,{outer}=100Tbit")
    return hall._replace(costs=replace(hall.costs, rates=rates))


def time_here(size: int, kind: str) -> Line:
    """In this process: CPU seconds from the text of a cluster file to the plan, of `assess_feasibility`, and the peak.

    numpy is imported by then; what the planner itself imports when it is first called counts.
    """
    source = make_hall(size, kind)
    text = json.dumps([{"id": node.id, "path": node.path, "devices": node.slot_count} for node in source.nodes])
    mesh, limits, costs = source.mesh, Limits(levels=source.limits.levels), source.costs
    del source
    gc.collect()
    began = time.process_time()
    nodes = [
        Node(id=entry["id"], slot_count=entry["devices"], path=tuple(entry["path"]), order=order)
        for order, entry in enumerate(json.loads(text))
    ]
    answer = plan(nodes, mesh, limits, costs, None)
    planned = time.process_time()
    assess_feasibility(nodes, mesh, limits)
    assessed = time.process_time()
    (peak,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:")]
    return {
        "size": size,
        "kind": kind,
        "world": answer.world_size,
        "cpu_s": planned - began,
        "feasibility_s": assessed - planned,
        "peak_mib": int(peak.split()[1]) / 1024,
    }


def time_plans(repeats: int) -> Iterator[Line]:
    """Each kind and size in `repeats` fresh processes, one after the other."""
    for kind in ("dgx", "irregular", "rates-dgx", "rates-irregular"):
        for size in SIZES:
            code = f"import json, benchmarks.placement as p; print(json.dumps(p.time_here({size}, {kind!r})))"
            for _ in range(repeats):
                done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
                found: Line = json.loads(done.stdout)
                yield found


@pairs.benchmark(pairs=5, quick=3)
@click.option("--part", "parts", type=click.Choice(PARTS), multiple=True, help="Only this part; or these.")
@click.option("--size-max", type=int, help="Quality of instances of at most so many nodes.")
def main(bench: pairs.Bench, parts: Sequence[str], size_max: int | None) -> str:
    best = long_search.load()
    measures: dict[str, Callable[[], Iterable[Line]]] = {
        "optima": lambda: [count_optima()],
        "quality": lambda: (assess(instance, best.get(instance.name)) for instance in families(size_max)),
        "stability": lose_nodes,
        "time": lambda: time_plans(bench.pairs),
    }
    for part in parts or PARTS:
        print(part, file=sys.stderr, flush=True)
        for line in measures[part]():
            bench.record(line)
    shown = (planner_tables.aims, planner_tables.costs, planner_tables.moves, planner_tables.seconds)
    return "\n\n".join(table(bench.history()) for table in shown)


if __name__ == "__main__":
    main()
