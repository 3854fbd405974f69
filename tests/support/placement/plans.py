"""What tests ask of a plan, counted rank by rank from the definitions and not with the planner's own arithmetic."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from hypothesis import strategies as st

from launcher.model.mesh import Mesh, parse
from launcher.model.node import Node
from launcher.model.topology import HOST
from launcher.placement.limits import Limits, Plan

# What properties draw from: meshes of every make, and domains of which some are unknown.
meshes = st.sampled_from(
    [
        "dp=*", "dp=*,tp=2", "dp=*,tp=4", "pp=2,dp=*,tp=2", "tp=2,dp=*", "pp=2,dp=*", "dp=*,cp=2,tp=3", "pp=2,tp=4",
        "tp=3",
    ]
).map(parse)  # fmt: skip
domains = st.sampled_from([None, "a", "b", "c2", "c10"])


def coordinates(plan: Plan, mesh: Mesh) -> dict[tuple[int, ...], str]:
    """Coordinates -> the node that holds them."""
    return {mesh.find_coordinates(rank, plan.shape): node for node, ranks in plan.ranks.items() for rank in ranks}


def count_moved(before: Plan, after: Plan, mesh: Mesh) -> int:
    """Ranks whose coordinates another node held before."""
    old = coordinates(before, mesh)
    return sum(old.get(place, node) != node for place, node in coordinates(after, mesh).items())


def domain(node: Node, level: str, levels: Sequence[str]) -> tuple[str | None, ...]:
    """What tells the node's domain apart: its path down to the level, to the next known one, or its own name."""
    path = (*node.path, *(None,) * (len(levels) - len(node.path)))
    start = len(levels) if level == HOST else levels.index(level)
    end = next((below + 1 for below in range(start, len(levels)) if path[below] is not None), None)
    return path[:end] if end is not None else ("node", node.id)


def faults(plan: Plan, nodes: Sequence[Node], mesh: Mesh, limits: Limits, unit: int = 1) -> Iterator[str]:
    """Every way in which the plan is not valid. `unit`: runs of so many ranks are not torn apart."""
    by_id = {node.id: node for node in nodes}
    if sorted(itertools.chain(*plan.ranks.values())) != list(range(plan.world_size)):
        yield "not every rank is held once"
    if plan.shape != mesh.resolve_shape(plan.world_size):
        yield f"shape {plan.shape} is not that of {plan.world_size} ranks"
    if sorted([*plan.ranks, *plan.spares]) != sorted(by_id):
        yield "a node is neither active nor spare, or both"
    if not limits.nodes_min <= len(plan.ranks) <= (limits.nodes_max or len(nodes)):
        yield f"{len(plan.ranks)} nodes are active"
    elastic_size = plan.world_size // mesh.replica_size
    if mesh.elastic_axis and not limits.elastic_min <= elastic_size <= (limits.elastic_max or elastic_size):
        yield f"the elastic axis is {elastic_size} long"
    for name, ranks in plan.ranks.items():
        if not 0 < len(ranks) <= by_id[name].slot_count:
            yield f"{name} holds {len(ranks)} ranks"
        if ranks != tuple(range(ranks[0], ranks[0] + len(ranks))):
            yield f"{name} holds several runs"
        for start in range(0, len(ranks), unit):
            if ranks[start] % unit or ranks[start : start + unit] != tuple(range(ranks[start], ranks[start] + unit)):
                yield f"{name} holds a part of a unit"
    yield from _scattered(plan, by_id, mesh, limits)
    yield from _torn(plan, nodes, limits)


def _scattered(plan: Plan, by_id: dict[str, Node], mesh: Mesh, limits: Limits) -> Iterator[str]:
    for axis, level in limits.within.items():
        index = [each.name for each in mesh.axes].index(axis)
        groups: dict[tuple[int, ...], set[tuple[str | None, ...]]] = {}
        for place, name in coordinates(plan, mesh).items():
            group = (*place[:index], *place[index + 1 :])
            groups.setdefault(group, set()).add(domain(by_id[name], level, limits.levels))
        if any(len(domains) > 1 for domains in groups.values()):
            yield f"a group of {axis} leaves its {level}"


def _torn(plan: Plan, nodes: Sequence[Node], limits: Limits) -> Iterator[str]:
    if limits.all_or_nothing is None:
        return
    members: dict[tuple[str | None, ...], list[Node]] = {}
    for node in nodes:
        members.setdefault(domain(node, limits.all_or_nothing.level, limits.levels), []).append(node)
    for place, hosts in members.items():
        active = sorted((node for node in hosts if node.id in plan.ranks), key=lambda node: plan.ranks[node.id])
        if not active:
            continue
        if not len(active) == len(hosts) == limits.all_or_nothing.hosts:
            yield f"{place} is used in part"
        if active[0].index is not None and [node.index for node in active] != list(range(len(active))):
            yield f"{place} is not in the order of its indices"
        ranks = list(itertools.chain(*(plan.ranks[node.id] for node in active)))
        if ranks != list(range(ranks[0], ranks[0] + len(ranks))) or ranks[0] % len(ranks):
            yield f"{place} is not one aligned run"
        if len(ranks) != sum(node.slot_count for node in active):
            yield f"{place} has idle slots"
