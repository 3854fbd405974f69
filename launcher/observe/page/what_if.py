"""What would happen if a node were lost: the planner's answer for the nodes that are there now.

The round that runs is the plan before, and the leader tells mesh and limits, so the answer is what the leader would
do; rates that nodes measure are not known here. Spares count with the slots that they have.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from launcher.model import mesh as meshes
from launcher.model.errors import UsageError
from launcher.model.mesh import Mesh
from launcher.model.node import Node
from launcher.model.text import format_count
from launcher.observe.node_report import NodeReport, RunReport
from launcher.placement.adapter.description import Description
from launcher.placement.adapter.options import parse_limits_and_costs
from launcher.placement.adapter.topology import build_topology
from launcher.placement.limits import Plan
from launcher.placement.planner import plan

_USABLE = ("running", "spare", "waiting", "stopping")


class WhatIf(Struct, frozen=True, kw_only=True):
    """`sentence`: what would be. `receiving`: nodes that would get coordinates of the mesh that are elsewhere now.

    `spares`: nodes that would have no ranks. `is_possible`: whether any world can be formed. `reasons`: the planner's.
    """

    sentence: str
    is_possible: bool
    receiving: tuple[str, ...] = ()
    spares: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()


def plan_without(report: RunReport, lost: Sequence[str]) -> WhatIf:
    """Plan the run without the nodes of these names. Raises UsageError if one is not there, or too little is known."""
    usable = {one.node: one for one in report.nodes if one.state in _USABLE and (one.slot_count or one.ranks)}
    for name in lost:
        if name not in usable:
            raise UsageError(f"node {name} does not take part now")
    leader = next((one for one in report.nodes if one.mesh), None)
    if leader is None:
        raise UsageError("the leader has not told the mesh of the run")
    mesh = meshes.parse(leader.mesh)
    before = _find_current_plan(report)
    left = {name: one for name, one in usable.items() if name not in lost}
    without = f"without {', '.join(lost)}"
    if report.missing:
        without += f" and the {len(report.missing)} that did not answer"
    if not left:
        return WhatIf(sentence=f"{without} no node is left", is_possible=False)
    try:
        found = _plan(left, mesh, leader.placement, before)
    except UsageError as error:
        return WhatIf(sentence=f"{without} no world can be formed: {error}", is_possible=False)
    return WhatIf(
        sentence=f"{without}: {_describe(found, before, mesh)}",
        is_possible=True,
        receiving=tuple(_list_receiving(found, before, mesh)) if before is not None else (),
        spares=found.spares,
        reasons=found.reasons,
    )


def _find_current_plan(report: RunReport) -> Plan | None:
    """Return the plan of the round that runs, None for none. Ranks of silent nodes stand on a node without a name."""
    active = [one for one in report.nodes if one.round and one.ranks and one.mesh_shape]
    if not active:
        return None
    current = max(one.round for one in active)
    shape = next(one.mesh_shape for one in active if one.round == current)
    ranks = {one.node: tuple(rank.rank for rank in one.ranks) for one in active if one.round == current}
    told = {rank for held in ranks.values() for rank in held}
    silent = tuple(rank for rank in range(math.prod(shape)) if rank not in told)
    return Plan(shape=shape, ranks={**ranks, **({"": silent} if silent else {})}, spares=(), moved=0, reasons=())


def _plan(nodes: Mapping[str, NodeReport], mesh: Mesh, placement: str, before: Plan | None) -> Plan:
    known = {
        name: Description(
            slot_count=one.slot_count or len(one.ranks), address=name, role="", name=name, locality=one.locality
        )
        for name, one in nodes.items()
    }
    words = placement.split()
    texts = {flag[2:]: text for flag, text in zip(words[::2], words[1::2], strict=False)}
    least, _, most = texts.pop("nnodes", "1:").partition(":")
    topology = build_topology(known)
    limits, costs = parse_limits_and_costs(
        texts, mesh, levels=topology.levels, nodes_min=int(least), nodes_max=int(most) if most else None
    )
    planned = [
        Node(id=name, slot_count=one.slot_count, path=topology.paths[name], address=name, order=index)
        for index, (name, one) in enumerate(sorted(known.items()))
    ]
    return plan(planned, mesh, limits, costs, before)


def _list_receiving(after: Plan, before: Plan, mesh: Mesh) -> Iterator[str]:
    held = {mesh.find_coordinates(rank, before.shape): name for name, ranks in before.ranks.items() for rank in ranks}
    for name, ranks in after.ranks.items():
        if any(held.get(mesh.find_coordinates(rank, after.shape), name) != name for rank in ranks):
            yield name


def _describe(found: Plan, before: Plan | None, mesh: Mesh) -> str:
    sizes = ", ".join(f"{axis.name}={size}" for axis, size in zip(mesh.axes, found.shape, strict=True))
    parts = [f"mesh {sizes}: {format_count(found.world_size, 'rank')} on {format_count(len(found.ranks), 'node')}"]
    if before is not None and found.world_size != before.world_size:
        difference = found.world_size - before.world_size
        parts.append(f"{abs(difference):,} {'fewer' if difference < 0 else 'more'} than now")
    parts.append(f"{format_count(found.moved, 'rank')} would move" if found.moved else "no rank would move")
    parts.append(format_count(len(found.spares), "spare") if found.spares else "no spare")
    return "; ".join(parts)
