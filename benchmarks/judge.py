"""What a plan costs and whether it is valid, counted rank by rank: the umpire of the benchmark.

The planner reckons in units, in bounds and in differences. Here nothing is clever: every rank has a node, every hop
of every communicator is looked at, and its cost is added up. The two must agree to the last digit, and a plan that
breaks a rule is no plan, however cheap. The orders that people use today are laid out and counted in the same way.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.families import Instance
from launcher.model import topology, traffic
from launcher.model.node import Node
from launcher.placement.limits import Plan
from tests.support.placement.plans import faults

Ints = NDArray[np.int64]
Ranks = Mapping[str, Sequence[int]]


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
    given = instance.costs.traffic
    found: list[tuple[Ints, Ints, Fraction]] = []
    for one in traffic.make_default_traffic(instance.mesh) if given is None else given:
        rows, weight = groups(instance, shape, one.axes), Fraction(str(one.weight))
        size = rows.shape[1]
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
    parts = [(np.zeros(0, dtype=np.int64),) * 3]
    parts += [(low, high, np.full(len(low), int(weight * scale))) for low, high, weight in found]
    return Edges(*(np.concatenate(each) for each in zip(*parts, strict=True)), scale=scale)


def domains(instance: Instance) -> tuple[dict[str, int], Ints]:
    """Node id -> column, and for every level, the host's last, the node's domain in that column."""
    tree = topology.build_tree(instance.nodes, instance.limits.levels)
    rows = [*tree.domains, range(len(tree.nodes))]
    return {node.id: column for column, node in enumerate(tree.nodes)}, np.array(rows, dtype=np.int64)


def level_costs(instance: Instance) -> list[Fraction]:
    """Of every level from the outermost, the host's last."""
    costs = topology.resolve_level_costs(instance.limits.levels, instance.costs.level_costs)
    return [Fraction(str(cost)) for cost in costs]


def cost(instance: Instance, shape: Sequence[int], ranks: Ranks) -> Fraction:
    """J of this layout, from the definition."""
    column_of, labels = domains(instance)
    columns = np.full(math.prod(shape), -1)
    for node, held in ranks.items():
        columns[list(held)] = column_of[node]
    talk = edges(instance, shape)
    low, high = columns[talk.low], columns[talk.high]
    total = Fraction(0)
    for price, level in zip(level_costs(instance), labels, strict=True):
        total += price * int(talk.weight[level[low] != level[high]].sum())
    return total / talk.scale


class Part(NamedTuple):
    """What one communicator moves at once in a step, one way: link -> bytes ("leaf:l0" outwards, "host:h1" inwards)."""

    communicator: str
    out: Mapping[str, float]
    into: Mapping[str, float]


def parts(instance: Instance, shape: Sequence[int], ranks: Ranks, fast: str | None = None) -> list[Part]:
    """What every link carries, one part of a step after the other: a line forward and then back, others at once.

    `fast`: the level whose domains have links of their own beside the hosts' NICs. Weights are megabytes.
    """
    paths = {node.id: _name_domains(node) for node in instance.nodes}
    host_of = {rank: host for host, held in ranks.items() for rank in held}
    levels = instance.limits.levels
    inner = len(levels) if fast is None else levels.index(fast)
    nic = "host" if fast is None else f"{fast}/host"
    found = []
    given = instance.costs.traffic
    for one in traffic.make_default_traffic(instance.mesh) if given is None else given:
        rows = groups(instance, shape, one.axes).tolist()
        for hops in _directed_hops(one.kind, rows, one.weight * 1e6):
            out: dict[str, float] = {}
            into: dict[str, float] = {}
            for low, high, size in hops:
                for loads, here, there in ((out, host_of[low], host_of[high]), (into, host_of[high], host_of[low])):
                    ours, theirs = paths[here], paths[there]
                    links = [f"{nic}:{here}"]
                    if fast is not None and ours == theirs:
                        links = [f"host:{here}"]
                    depths = range(1, inner + 1)
                    links += [f"{levels[at - 1]}:{ours[at - 1]}" for at in depths if ours[:at] != theirs[:at]]
                    for link in links if here != there else ():
                        loads[link] = loads.get(link, 0) + size
            found.append(Part(one.name, out, into))
    return found


def _name_domains(node: Node) -> list[str | None]:
    """The path of a node that shares an unknown domain, and what is in it, with no other."""
    known = itertools.takewhile(lambda one: one is not None, node.path)
    path: list[str | None] = list(known)
    return path + [f"unknown, of {node.id}"] * (len(node.path) - len(path))


def _directed_hops(kind: str, rows: Sequence[Sequence[int]], size: float) -> Iterator[list[tuple[int, int, float]]]:
    """Who sends how many bytes to whom, for each part of a communicator, all of its groups at once."""
    if kind == "all":
        yield [(low, high, size / (len(row) - 1)) for row in rows for low, high in itertools.permutations(row, 2)]
    elif kind == "ring":
        yield [(low, high, size) for row in rows for low, high in zip(row, (*row[1:], row[0]), strict=True)]
    else:
        forward = [(low, high, size / 2) for row in rows for low, high in itertools.pairwise(row)]
        yield forward
        yield [(high, low, half) for low, high, half in forward]


def seconds(found: Iterable[Part], rates: Mapping[str, float]) -> float:
    """How long a step takes; rates in bits per second.

    The parts follow each other, each as long as its slowest link. Of what that takes longer than the fullest link needs
    for all parts, or than the longest communicator takes, a fifth is gained, because parts overlap.
    """
    own: dict[str, float] = {}
    busy: dict[tuple[str, str], float] = {}
    for part in found:
        times = {
            (way, link): size * 8 / rates.get(link, rates.get(link.partition(":")[0], math.inf))
            for way, loads in (("out", part.out), ("into", part.into))
            for link, size in loads.items()
        }
        busy |= {link: busy.get(link, 0.0) + time for link, time in times.items()}
        own[part.communicator] = own.get(part.communicator, 0.0) + max(times.values(), default=0.0)
    total = sum(own.values())
    return total - (total - max([*busy.values(), *own.values()], default=0.0)) / 5


def time_alike(instance: Instance, shape: Sequence[int], ranks: Ranks) -> float:
    """How long a step takes, in proportion, if all links are equally fast."""
    return seconds(parts(instance, shape, ranks), dict.fromkeys((*instance.limits.levels, "host"), 1e9))


def as_plan(instance: Instance, shape: Sequence[int], ranks: Ranks) -> Plan:
    """A layout as a plan."""
    held = {node: tuple(runs) for node, runs in ranks.items()}
    spares = tuple(node.id for node in instance.nodes if node.id not in held)
    return Plan(shape=tuple(shape), ranks=held, spares=spares, moved=0, reasons=())


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
    return next(faults(plan, instance.nodes, instance.mesh, instance.limits, unit_of(instance)), None)


def find_slices(instance: Instance, nodes: Iterable[Node]) -> list[list[Node]]:
    """The complete domains that are used whole or not at all: their hosts in order, the first that is met first."""
    whole = instance.limits.all_or_nothing
    assert whole is not None
    depth = instance.limits.levels.index(whole.level) + 1
    found: dict[object, list[Node]] = {}
    for node in nodes:
        found.setdefault(node.path[:depth], []).append(node)
    return [sorted(hosts, key=lambda node: node.index or 0) for hosts in found.values() if len(hosts) == whole.hosts]


BASELINES: dict[str, Callable[[Sequence[Node]], list[Node]]] = {
    "join order": lambda nodes: sorted(nodes, key=lambda node: node.order),
    "address as text": lambda nodes: sorted(nodes, key=lambda node: node.address),
    "address as number": lambda nodes: sorted(nodes, key=lambda node: [int(part) for part in node.address.split(".")]),
    "path": topology.sort_nodes,
}


def lay_out(instance: Instance, shape: Sequence[int], order: Sequence[Node]) -> dict[str, range]:
    """Ranks to nodes in this order, each filled with whole units, as launchers do that know no network.

    Domains that are used whole come whole, each where its first node stands, without those that miss a host.
    """
    unit, world = unit_of(instance), math.prod(shape)
    if instance.limits.all_or_nothing is not None:
        order = list(itertools.chain.from_iterable(find_slices(instance, order)))
    ranks: dict[str, range] = {}
    start = 0
    for node in order:
        length = min(node.slot_count // unit * unit, world - start)
        if length > 0:
            ranks[node.id] = range(start, start + length)
            start += length
    return ranks
