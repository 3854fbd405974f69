"""What a plan costs and whether it is valid, counted rank by rank: the umpire of the benchmark.

The planner reckons in units, in bounds and in differences. Here nothing is clever: every rank has a node, every hop
of every communicator is looked at, and its cost is added up. The two must agree to the last digit, and a plan that
breaks a rule is no plan, however cheap. The orders that people use today are laid out and counted in the same way.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.families import Instance
from launcher.model import topology, traffic
from launcher.model.node import Node
from launcher.placement.limits import Plan

Ints = NDArray[np.int64]


class Edges(NamedTuple):
    """Who talks to whom: pairs of ranks and what passes between them, as integers after multiplying by `scale`."""

    low: Ints
    high: Ints
    weight: Ints
    scale: int


def groups(instance: Instance, shape: Sequence[int], axes: Iterable[str]) -> Ints:
    """The groups of ranks that differ only along `axes`, one a row, in the order of their ranks."""
    names = [axis.name for axis in instance.mesh.axes]
    along = [names.index(axis) for axis in axes]
    across = [axis for axis in range(len(names)) if axis not in along]
    ranks = np.arange(math.prod(shape), dtype=np.int64).reshape(shape).transpose(*across, *along)
    rows: Ints = ranks.reshape(-1, math.prod(shape[axis] for axis in along))
    return rows


def edges(instance: Instance, shape: Sequence[int]) -> Edges:
    """All traffic of a world of this shape."""
    talks = (
        instance.costs.traffic if instance.costs.traffic is not None else traffic.make_default_traffic(instance.mesh)
    )
    found: list[tuple[Ints, Ints, Fraction]] = []
    for one in talks:
        rows = groups(instance, shape, one.axes)
        size = rows.shape[1]
        weight = Fraction(str(one.weight))
        if size == 1 or not weight:
            continue
        if one.kind == "all":
            here, there = np.triu_indices(size, 1)
            found.append((rows[:, here].ravel(), rows[:, there].ravel(), 2 * weight / (size - 1)))
            continue
        found.append((rows[:, :-1].ravel(), rows[:, 1:].ravel(), weight))
        if one.kind == "ring":
            found.append((rows[:, -1], rows[:, 0], weight))
    scale = math.lcm(1, *(weight.denominator for _, _, weight in found))
    nothing = np.zeros(0, dtype=np.int64)
    return Edges(
        np.concatenate([nothing, *(low for low, _, _ in found)]),
        np.concatenate([nothing, *(high for _, high, _ in found)]),
        np.concatenate([nothing, *(np.full(len(low), int(weight * scale)) for low, _, weight in found)]),
        scale,
    )


def domains(instance: Instance) -> tuple[dict[str, int], Ints]:
    """Node id -> column, and for every level, the host's last, the node's domain in that column."""
    tree = topology.build_tree(instance.nodes, instance.limits.levels)
    rows = [*tree.domains, range(len(tree.nodes))]
    return {node.id: column for column, node in enumerate(tree.nodes)}, np.array(rows, dtype=np.int64)


def level_costs(instance: Instance) -> list[Fraction]:
    """Of every level from the outermost, the host's last."""
    return [
        Fraction(str(cost)) for cost in topology.resolve_level_costs(instance.limits.levels, instance.costs.level_costs)
    ]


def cost(instance: Instance, shape: Sequence[int], ranks: Mapping[str, Sequence[int]]) -> Fraction:
    """J of this layout, from the definition."""
    column_of, labels = domains(instance)
    columns = np.full(math.prod(shape), -1)
    for node, held in ranks.items():
        columns[list(held)] = column_of[node]
    talk = edges(instance, shape)
    low, high = columns[talk.low], columns[talk.high]
    leaving = (int(talk.weight[level[low] != level[high]].sum()) for level in labels)
    return sum(
        (cost * Fraction(part, talk.scale) for cost, part in zip(level_costs(instance), leaving, strict=True)),
        Fraction(0),
    )


def as_plan(shape: Sequence[int], ranks: Mapping[str, Sequence[int]]) -> Plan:
    """A layout as a plan, for those who look at its ranks only."""
    held = {node: tuple(runs) for node, runs in ranks.items()}
    return Plan(shape=tuple(shape), ranks=held, spares=(), moved=0, reasons=())


def unit_of(instance: Instance) -> int:
    """Ranks that must stay on one node: those of the innermost axes that fit the most common node, or a part of one."""
    if instance.limits.block_size is not None:
        return instance.limits.block_size
    counts = [node.slot_count for node in instance.nodes]
    slots = max(set(counts), key=lambda count: (counts.count(count) * count, count))
    unit = 1
    for axis in reversed(instance.mesh.axes):
        part = math.gcd(axis.size, slots // unit) if axis.size is not None else 1
        unit *= part
        if part != axis.size:
            break
    return unit


def find_fault(instance: Instance, plan: Plan) -> str | None:
    """What makes the plan invalid, or None."""
    limits, unit = instance.limits, unit_of(instance)
    nodes = {node.id: node for node in instance.nodes}
    if sorted(itertools.chain.from_iterable(plan.ranks.values())) != list(range(math.prod(plan.shape))):
        return "not every rank is there once"
    for name, ranks in plan.ranks.items():
        if len(ranks) > nodes[name].slot_count:
            return f"{name} has more ranks than slots"
        runs = [ranks[start : start + unit] for start in range(0, len(ranks), unit)]
        if any(run[0] % unit or list(run) != list(range(run[0], run[0] + unit)) for run in runs):
            return f"a unit of {name} is torn: {ranks}"
        if limits.is_contiguous and list(ranks) != list(range(ranks[0], ranks[0] + len(ranks))):
            return f"the ranks of {name} are not consecutive"
    column_of, labels = domains(instance)
    columns = np.empty(math.prod(plan.shape), dtype=np.int64)
    for name, ranks in plan.ranks.items():
        columns[list(ranks)] = column_of[name]
    for axis, level in limits.within.items():
        places = labels[[*limits.levels, topology.HOST].index(level)][columns[groups(instance, plan.shape, (axis,))]]
        if (places != places[:, :1]).any():
            return f"a group of {axis} lies in several domains of {level}"
    return _find_fault_of_slices(instance, plan) if limits.all_or_nothing else None


def _find_fault_of_slices(instance: Instance, plan: Plan) -> str | None:
    assert instance.limits.all_or_nothing is not None
    depth = instance.limits.levels.index(instance.limits.all_or_nothing.level) + 1
    slices: dict[object, list[Node]] = {}
    for node in instance.nodes:
        if node.id in plan.ranks:
            slices.setdefault(node.path[:depth], []).append(node)
    for path, hosts in slices.items():
        hosts.sort(key=lambda node: node.index or 0)
        held = [rank for host in hosts for rank in plan.ranks[host.id]]
        if len(hosts) != instance.limits.all_or_nothing.hosts:
            return f"{path} is used in part"
        if held[0] % len(held) or held != list(range(held[0], held[0] + len(held))):
            return f"the ranks of {path} do not follow its hosts"
    return None


def _numbers(node: Node) -> list[int]:
    return [int(part) for part in node.address.split(".")]


BASELINES: dict[str, Callable[[Sequence[Node]], list[Node]]] = {
    "join order": lambda nodes: sorted(nodes, key=lambda node: node.order),
    "address as text": lambda nodes: sorted(nodes, key=lambda node: node.address),
    "address as number": lambda nodes: sorted(nodes, key=_numbers),
    "path": topology.sort_nodes,
}


def lay_out(instance: Instance, shape: Sequence[int], order: Sequence[Node]) -> dict[str, range]:
    """Ranks to nodes in this order, each filled with whole units, as launchers do that know no network.

    Domains that are used whole come whole, each where its first node stands, without those that miss a host.
    """
    unit, world = unit_of(instance), math.prod(shape)
    whole = instance.limits.all_or_nothing
    if whole is not None:
        depth = instance.limits.levels.index(whole.level) + 1
        slices: dict[object, list[Node]] = {}
        for node in order:
            slices.setdefault(node.path[:depth], []).append(node)
        complete = [
            sorted(hosts, key=lambda node: node.index or 0) for hosts in slices.values() if len(hosts) == whole.hosts
        ]
        order = list(itertools.chain.from_iterable(complete))
    ranks: dict[str, range] = {}
    start = 0
    for node in order:
        length = min(node.slot_count // unit * unit, world - start)
        if length > 0:
            ranks[node.id] = range(start, start + length)
            start += length
    return ranks
