"""Small clusters whose best layout can be proven: how they are made, written down and turned into problems.

An instance is a job on a tree of at most 24 nodes with three levels (zone, spine, leaf; or spine, leaf, host with
nodes of unequal size), as irregular as a cluster gets after years of repairs: leaves of 1 to 8 nodes, spines of 1 to
3 leaves, more nodes than the job needs. Everything about it follows from its number, so the same set can be made
again; it is nevertheless stored with its optima, one JSON object a line, so that no test depends on this generator.

In a line, `leaves` maps the path of a leaf to the devices of its nodes: {"z0/s1/l4": [8, 8, 16]} are three
nodes. "?" in a path is a level that is unknown.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from launcher.model.mesh import Mesh
from launcher.model.mesh import parse as parse_mesh
from launcher.model.node import Node
from launcher.model.topology import HOST, build_tree
from launcher.model.traffic import parse as parse_traffic
from launcher.placement.limits import Costs, Limits
from launcher.placement.problem.problem import Problem, make_problem

NODES_MIN, NODES_MAX = 6, 24
UNIT = 8


@dataclass(frozen=True, kw_only=True)
class Instance:
    """`shape` is the largest world that fits, found here by counting and not by the planner that is tested.

    `optimum`: the least J in scaled numbers; `layout`: unit -> the node that has it, counted in the tree's order.
    """

    name: str
    levels: tuple[str, ...]
    leaves: Mapping[str, tuple[int, ...]]
    mesh: str
    shape: tuple[int, ...]
    traffic: str = ""
    level_costs: Mapping[str, int] = field(default_factory=dict)
    within: Mapping[str, str] = field(default_factory=dict)
    optimum: int | None = None
    layout: tuple[int, ...] = ()

    @property
    def nodes(self) -> list[Node]:
        nodes: list[Node] = []
        for leaf, sizes in self.leaves.items():
            path = tuple(None if domain == "?" else domain for domain in leaf.split("/"))
            nodes += [Node(id=f"h{len(nodes) + index}", slot_count=size, path=path) for index, size in enumerate(sizes)]
        return nodes

    @property
    def job(self) -> tuple[Mesh, Limits, Costs]:
        """What the planner is asked, beside the nodes."""
        mesh = parse_mesh(self.mesh)
        limits = Limits(levels=self.levels, block_size=UNIT, within=dict(self.within))
        return (
            mesh,
            limits,
            Costs(traffic=parse_traffic(self.traffic, mesh) if self.traffic else None, level_costs=self.level_costs),
        )

    def problem(self) -> Problem:
        """The same as arrays. Items are the nodes in the tree's order."""
        mesh, limits, costs = self.job
        domains = build_tree(self.nodes, self.levels)
        capacity = [node.slot_count // UNIT for node in domains.nodes]
        return make_problem(domains, mesh, self.shape, UNIT, limits, costs, capacity)

    def line(self) -> str:
        """As stored; keys without a value are left out."""
        values = {key: value for key, value in vars(self).items() if value not in ("", None, (), {})}
        return json.dumps(values, separators=(",", ":"))


def instance(line: str) -> Instance:
    """Read what `Instance.line` wrote."""
    values = json.loads(line)
    leaves = {leaf: tuple(sizes) for leaf, sizes in values.pop("leaves").items()}
    lists = {key: tuple(value) for key, value in values.items() if isinstance(value, list)}
    return Instance(leaves=leaves, **{**values, **lists})


# Name, chance, meshes, and what may be drawn for their traffic.
KINDS = (
    ("pipeline", 6, ("pp={p},dp=*,tp=8",), ("", "pp={a},dp={b}")),
    ("fixed", 4, ("pp={p},dp={d},tp=8", "dp={d},pp={p},tp=8"), ("", "pp={a},dp={b}")),
    ("context", 4, ("pp={c},dp=*,cp={e},tp=8", "dp=*,cp={p},tp=8"), ("", "pp={a},dp={b},cp={f}", "dp+cp={a},cp={f}")),
    ("experts", 4, ("dp=*,ep={p},tp=8", "pp={c},dp=*,ep={e},tp=8"), ("", "dp={a},ep={f}")),
    ("wide", 3, ("pp={p},dp=*,tp=16", "dp=*,cp={e},tp=16"), ("", "tp={f},dp={b}")),
    ("within", 3, ("pp={c},dp=*,cp={e},tp=8", "dp=*,ep={e},tp=8", "pp={c},dp=*,tp=16"), ("",)),
)


def make(number: int) -> Instance | None:
    """The instance of this number; None where its mesh does not fit its tree, or fits into a single leaf."""
    chance = random.Random(number)
    node_count = NODES_MIN + number % (NODES_MAX - NODES_MIN + 1)
    name, _, meshes, loads = chance.choices(KINDS, [kind[1] for kind in KINDS])[0]
    is_host_level = name != "within" and chance.random() < 0.35
    leaves, levels = _tree(chance, node_count, is_host_level)
    small = 6 if node_count > 9 else 3
    sizes = {"p": chance.randint(2, small), "c": chance.randint(2, 3), "e": chance.randint(2, 4 if small > 3 else 2)}
    sizes |= {"d": chance.randint(2, max(2, node_count // sizes["p"]))}
    weights = {"a": chance.randint(1, 10), "b": chance.randint(1, 20), "f": chance.randint(5, 40)}
    mesh, load = chance.choice(meshes).format(**sizes), chance.choice(loads).format(**weights)
    load = ",".join(part for part in load.split(",") if set(part.split("=")[0].split("+")) <= _axes(mesh))
    within = {}
    if name == "within":
        axis = next(axis for axis in ("cp", "ep", "tp") if f"{axis}=" in mesh)
        within = {axis: chance.choice(levels[1:])}
    level_costs = {}
    if chance.random() < 0.5:
        level_costs = dict(zip(levels, sorted((chance.randint(1, 9) for _ in levels), reverse=True), strict=True))
        level_costs[HOST] = chance.randint(0, 1 + is_host_level)
    found = Instance(
        name=f"{name}-{number}", levels=levels, leaves=leaves, mesh=mesh, shape=(), traffic=load,
        level_costs=level_costs, within=within,
    )  # fmt: skip
    shape = _largest(found)
    if shape is None or int(np.prod(shape)) <= max(sum(sizes) for sizes in leaves.values()):
        return None
    return Instance(**{**vars(found), "shape": shape})


def _tree(
    chance: random.Random, node_count: int, is_host_level: bool
) -> tuple[dict[str, tuple[int, ...]], tuple[str, ...]]:
    """Leaves and the names of the levels. Units are counted, not nodes, so nodes of 16 devices make a tree smaller."""
    leaves: dict[str, tuple[int, ...]] = {}
    room = node_count
    zone = spine = 0
    leaf_max = chance.randint(3, 8)
    spine_ends, zone_ends = chance.random() * 0.6 + 0.2, chance.random() * 0.7 + 0.2
    while room:
        units = min(room, chance.randint(1, leaf_max))
        room -= units
        devices: list[int] = []
        while units:
            size = 2 if is_host_level and units > 1 and chance.random() < 0.6 else 1
            devices.append(size * UNIT)
            units -= size
        # Numbers count over the whole tree, so that names say who is who.
        leaf = "?" if not is_host_level and chance.random() < 0.03 else f"l{len(leaves)}"
        path = f"s{spine}/{leaf}" if is_host_level else f"z{zone}/s{spine}/{leaf}"
        leaves[path] = (*leaves.get(path, ()), *devices)
        if chance.random() < spine_ends:
            spine += 1
            zone += chance.random() < zone_ends
    return leaves, ("spine", "leaf") if is_host_level else ("zone", "spine", "leaf")


def _axes(mesh: str) -> set[str]:
    return {part.split("=")[0] for part in mesh.split(",")}


def _largest(found: Instance) -> tuple[int, ...] | None:
    """The shape of the largest world, by trying sizes."""
    mesh = parse_mesh(found.mesh)
    best = None
    for size in range(1, NODES_MAX + 1):
        shape = tuple(axis.size or size for axis in mesh.axes)
        if _holds(found, shape):
            best = shape
    return best


def _holds(found: Instance, shape: tuple[int, ...]) -> bool:
    units = {leaf: sum(sizes) // UNIT for leaf, sizes in found.leaves.items()}
    if not found.within:
        return int(np.prod(shape)) // UNIT <= sum(units.values())
    ((axis, level),) = found.within.items()
    names = [each.name for each in parse_mesh(found.mesh).axes]
    # Groups of tp=16 are two units; those of other axes have a unit for every step.
    group = shape[names.index(axis)] // (UNIT if axis == "tp" else 1)
    depth = found.levels.index(level) + 1
    rooms: dict[str, int] = {}
    for leaf, count in units.items():
        # The nodes of an unknown leaf share no leaf, but they share what is above it.
        alone = depth == len(found.levels) and leaf.endswith("?")
        domain = "/".join(leaf.split("/")[:depth])
        rooms[domain] = 1 if alone else rooms.get(domain, 0) + count
    if group > 1 and depth == len(found.levels):
        rooms = {domain: room for domain, room in rooms.items() if not domain.endswith("?")}
    return int(np.prod(shape)) // UNIT <= sum(room // group * group for room in rooms.values())
