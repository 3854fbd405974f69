"""Small clusters whose best layout can be proven: how they are written down and turned into problems.

An instance is a job on a tree of at most 24 nodes with three levels (zone, spine, leaf; or spine, leaf, host with
nodes of unequal size), as irregular as a cluster gets after years of repairs: leaves of 1 to 8 nodes, spines of 1 to
3 leaves, more nodes than the job needs. They were drawn by chance once and are stored with their optima, one JSON
object a line; the history of this file has the generator.

In a line, `leaves` maps the path of a leaf to the devices of its nodes: {"z0/s1/l4": [8, 8, 16]} are three
nodes. "?" in a path is a level that is unknown.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from launcher.model.mesh import Mesh
from launcher.model.mesh import parse as parse_mesh
from launcher.model.node import Node
from launcher.model.topology import build_tree
from launcher.model.traffic import parse as parse_traffic
from launcher.placement.limits import Costs, Limits
from launcher.placement.problem.problem import Problem, make_problem

UNIT = 8


@dataclass(frozen=True, kw_only=True)
class Instance:
    """`shape` is the largest world that fits, found by counting and not by the planner that is tested.

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
        return make_problem(domains, mesh, self.shape, UNIT, limits, costs, capacity, range(len(capacity)))


def instance(line: str) -> Instance:
    """Read a stored line."""
    values = json.loads(line)
    leaves = {leaf: tuple(sizes) for leaf, sizes in values.pop("leaves").items()}
    lists = {key: tuple(value) for key, value in values.items() if isinstance(value, list)}
    return Instance(leaves=leaves, **{**values, **lists})
