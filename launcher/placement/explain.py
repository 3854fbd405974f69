"""Why a plan costs what it costs: J taken apart by level and communicator, and other orders to compare it with.

The picture: stand at the edge of every leaf, pod and host and count what goes out. Per level that is a number for
each axis; times the level's toll, and summed up, they are J to the last digit. The domain that most leaves is the
first to look at when the network is slow, and the group that is spread widest feels it most.

The other orders are what a job gets without a planner: the same number of ranks on the first nodes in the order in
which they joined, of their addresses as text (torchrun sorts like this), of their addresses as numbers, of their
paths. Nodes are filled one after the other with as many whole runs as the plan gives to nodes. Such an order may
break a rule that the plan keeps; what it would cost is told all the same, and which rule.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from launcher.mesh import Mesh
from launcher.node import Node
from launcher.placement import Costs, Limits, Plan
from launcher.placement.cost import Labels
from launcher.placement.hops import Exchange, Hops, Traffic, box, traffic
from launcher.placement.shortage import several
from launcher.topology import HOST, Tree, natural, tolls_of, tree
from launcher.traffic import Communicator, in_integers, usual

Holders = NDArray[np.int32]
"""rank -> position in the tree's nodes of the one that holds it."""


class Busiest(NamedTuple):
    """The domain that most traffic leaves or enters, the first in order of several; on how many ranks."""

    name: str
    traffic: Fraction
    rank_count: int


@dataclass(frozen=True, kw_only=True)
class Level:
    """What leaves the domains of one level; "host" is the last.

    `leaving`, `spreads`: one entry per communicator. A hop counts once, though it leaves one domain and enters
    another. `spreads`: how many domains the widest group touches. `domain_count`: domains that hold ranks.
    `busiest` is None where nothing leaves.
    """

    name: str
    toll: Fraction
    leaving: tuple[Fraction, ...]
    spreads: tuple[int, ...]
    domain_count: int
    busiest: Busiest | None

    @property
    def cost(self) -> Fraction:
        return self.toll * sum(self.leaving)


class Baseline(NamedTuple):
    """What another order of the nodes would cost, and the rules that it breaks, in words."""

    name: str
    cost: Fraction
    faults: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """`levels` from the outermost to the host; `baselines` without those that the nodes tell too little for."""

    communicators: tuple[Communicator, ...]
    levels: tuple[Level, ...]
    baselines: tuple[Baseline, ...]

    @property
    def cost(self) -> Fraction:
        """J, the sum of what stands in the levels."""
        return sum((level.cost for level in self.levels), Fraction(0))


def explain(plan: Plan, nodes: Sequence[Node], mesh: Mesh, limits: Limits, costs: Costs) -> Explanation:
    """Take a plan's cost apart. `nodes`: all that were there to be planned with, the plan's among them."""
    place = tree(nodes, limits.levels)
    view = _View(plan.shape, mesh, place, costs)
    holders = _holders(plan, place)
    unit = view.unit(holders)
    return Explanation(
        communicators=view.communicators,
        levels=tuple(_levels(view, holders, unit)),
        baselines=tuple(_baselines(view, unit, limits)),
    )


def stays(plan: Plan, nodes: Sequence[Node], mesh: Mesh, limits: Limits) -> str:
    """Which axes stay together where: "tp stays on one host, pp on one leaf; dp goes over 2 leaves".

    Levels at which all the plan's nodes are together made no difference; if that is all of them, it is empty.
    """
    place = tree(nodes, limits.levels)
    holders = _holders(plan, place)
    rings = [(HOST, holders.reshape(plan.shape))]
    for name, level in reversed(list(zip(place.levels, place.domains, strict=True))):
        labels = np.array(level, dtype=np.int32)[holders].reshape(plan.shape)
        if (labels != labels.flat[0]).any():
            rings.append((name, labels))
    if len(rings) == 1:
        return ""
    inside: dict[str, list[str]] = {}
    across: list[str] = []
    for index, axis in enumerate(mesh.axes):
        if plan.shape[index] == 1:
            continue
        spreads = {name: _widest(labels, index) for name, labels in rings}
        home = next((name for name, spread in spreads.items() if spread == 1), None)
        if home is not None:
            inside.setdefault(home, []).append(axis.name)
        else:
            name, spread = list(spreads.items())[-1]
            across.append(f"{axis.name} goes over {spread} {several(name)}")
    names = [name for name, _ in rings if name in inside]
    kept = ", ".join(f"{' and '.join(inside[name])} on one {name}" for name in names)
    verb = "stay" if names and len(inside[names[0]]) > 1 else "stays"
    return "; ".join(filter(None, (kept.replace(" on one", f" {verb} on one", 1), *across)))


def _widest(labels: NDArray[np.int32], axis: int) -> int:
    """How many domains the widest group along an axis touches."""
    return int((np.diff(np.sort(labels, axis=axis), axis=axis) != 0).sum(axis=axis).max()) + 1


class _View:
    """One world on one tree of nodes: what is the same for the plan and for every other order."""

    def __init__(self, shape: Sequence[int], mesh: Mesh, place: Tree, costs: Costs) -> None:
        self.shape = tuple(shape)
        self.axes = [axis.name for axis in mesh.axes]
        self.place = place
        self.levels = (*place.levels, HOST)
        self.domains = [*(np.array(level, dtype=np.int32) for level in place.domains)]
        self.domains.append(np.arange(len(place.nodes), dtype=np.int32))
        self.tolls = tolls_of(place.levels, costs.tolls)
        self.toll_scale = in_integers(self.tolls)[1]
        self.communicators = costs.traffic or usual(mesh)

    def unit(self, holders: Holders) -> int:
        """The longest runs of ranks that are boxes of the mesh and lie on one node each."""
        ends = np.flatnonzero(np.diff(holders)) + 1
        longest = math.gcd(holders.size, *ends.tolist())
        return next(unit for unit in range(longest, 0, -1) if longest % unit == 0 and box(self.shape, unit))

    def traffic(self, unit: int) -> Traffic:
        return traffic(self.shape, self.axes, unit, self.communicators, self.tolls)

    def labels(self, holders: Holders, unit: int) -> list[Labels]:
        """Per level: unit -> domain."""
        return [level[holders[::unit]] for level in self.domains]

    def name(self, level: int, domain: int) -> str:
        return self.place.nodes[domain].id if level == len(self.place.levels) else self.place.names[level][domain]


def _holders(plan: Plan, place: Tree) -> Holders:
    holders = np.empty(plan.world_size, dtype=np.int32)
    for position, node in enumerate(place.nodes):
        if node.id in plan.ranks:
            holders[list(plan.ranks[node.id])] = position
    return holders


def _levels(view: _View, holders: Holders, unit: int) -> list[Level]:
    talk = view.traffic(unit)
    scale = talk.scale // view.toll_scale  # of weights alone
    found: list[Level] = []
    for index, (name, toll, labels) in enumerate(zip(view.levels, talk.tolls, view.labels(holders, unit), strict=True)):
        domain_count = int(view.domains[index].max()) + 1
        leaving = dict.fromkeys(view.communicators, 0)
        at_edge = np.zeros(domain_count, dtype=object)  # Python's integers: weights may be large
        for part in _parts(talk):
            ends = _ends(part, labels, domain_count)
            leaving[part.communicator] += int(ends.sum()) // 2 * part.weight
            at_edge += ends.astype(object) * part.weight
        held = np.bincount(labels, minlength=domain_count)
        most = int(np.argmax(at_edge))
        busiest = Busiest(view.name(index, most), Fraction(at_edge[most], scale), int(held[most]) * unit)
        found.append(
            Level(
                name=name,
                toll=Fraction(toll, view.toll_scale),
                leaving=tuple(Fraction(leaving[one], scale) for one in view.communicators),
                spreads=tuple(_spread(one.axes, labels, talk.grid, view.axes) for one in view.communicators),
                domain_count=int(np.count_nonzero(held)),
                busiest=busiest if at_edge[most] else None,
            )
        )
    return found


def _parts(talk: Traffic) -> list[Hops | Exchange]:
    return [*talk.hops, *talk.exchanges]


def _ends(part: Hops | Exchange, labels: Labels, domain_count: int) -> NDArray[np.int64]:
    """For every domain: how many hops, or talking pairs of units, have one end in it and the other elsewhere."""
    if isinstance(part, Hops):
        low, high = labels[part.low], labels[part.high]
        is_leaving = low != high
        ends = np.bincount(low[is_leaving], minlength=domain_count)
        return ends + np.bincount(high[is_leaving], minlength=domain_count)
    # What a domain has of a class, without an entry for each that could be: that would be units squared.
    together, counts = np.unique(part.class_of.astype(np.int64) * domain_count + labels, return_counts=True)
    ends = np.zeros(domain_count, dtype=np.int64)
    np.add.at(ends, together % domain_count, counts * (part.size - counts))
    return ends


def _spread(along: Sequence[str], labels: Labels, grid: Sequence[int], axes: Sequence[str]) -> int:
    """How many domains the widest of the groups along these axes touches."""
    inner = [axes.index(axis) for axis in along]
    outer = [axis for axis in range(len(grid)) if axis not in inner]
    groups = labels.reshape(grid).transpose(*outer, *inner).reshape(-1, math.prod(grid[axis] for axis in inner))
    return int((np.diff(np.sort(groups, axis=1), axis=1) != 0).sum(axis=1).max()) + 1


def _baselines(view: _View, unit: int, limits: Limits) -> list[Baseline]:
    nodes = view.place.nodes
    orders = {"join order": sorted(range(len(nodes)), key=lambda at: (nodes[at].order, nodes[at].id))}
    if any(node.address for node in nodes):
        # Nodes without an address come last, as they came.
        def by_text(at: int) -> tuple[bool, str, int]:
            return not nodes[at].address, nodes[at].address, nodes[at].order

        numbers = {node.address: natural(node.address) for node in nodes}
        orders["address order, as text"] = sorted(range(len(nodes)), key=by_text)
        orders["address order, as numbers"] = sorted(
            range(len(nodes)), key=lambda at: (not nodes[at].address, numbers[nodes[at].address], nodes[at].order)
        )
    orders["path order"] = list(range(len(nodes)))
    talks: dict[int, Traffic] = {}
    found: list[Baseline] = []
    for name, order in orders.items():
        room = [nodes[at].slot_count // unit * unit for at in order]
        holders = np.repeat(np.array(order, dtype=np.int32), room)[: math.prod(view.shape)]
        step = view.unit(holders)
        talk = talks.setdefault(step, view.traffic(step))
        labels = view.labels(holders, step)
        found.append(Baseline(name, _cost(view, talk, labels), tuple(_faults(view, talk, labels, limits))))
    return found


def _cost(view: _View, talk: Traffic, labels: Sequence[Labels]) -> Fraction:
    total = 0
    for toll, level, domains in zip(talk.tolls, labels, view.domains, strict=True):
        for part in _parts(talk) if toll else ():
            total += toll * part.weight * (int(_ends(part, level, int(domains.max()) + 1).sum()) // 2)
    return Fraction(total, talk.scale)


def _faults(view: _View, talk: Traffic, labels: Sequence[Labels], limits: Limits) -> list[str]:
    """The rules that an order breaks."""
    found: list[str] = []
    for axis, level in limits.within.items():
        if _spread((axis,), labels[view.levels.index(level)], talk.grid, view.axes) > 1:
            found.append(f"{axis} leaves its {level}")
    used = np.unique(labels[-1])
    if limits.whole:
        parts = np.bincount(view.domains[view.levels.index(limits.whole.level)][used])
        if (parts[parts > 0] != limits.whole.hosts).any():
            found.append(f"uses parts of a {limits.whole.level}")
    if limits.nodes_max is not None and len(used) > limits.nodes_max:
        found.append(f"uses {len(used)} nodes")
    return found
