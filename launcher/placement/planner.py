"""The plan of a round: the first nodes in order of locality, or the round before with its holes filled.

This planner looks at no traffic. Sorting puts neighbours next to each other, and from then on a node that
can stay stays. A search over layouts can take the place of `_fresh` behind the same contract.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from launcher.errors import UsageError
from launcher.mesh import Mesh
from launcher.node import Node
from launcher.placement import Costs, Limits, Plan
from launcher.placement.capacity import NAMES_MAX, World, largest_world, names
from launcher.placement.patch import Run, by_unit, holders, moved_count, stay, tile
from launcher.topology import natural


def plan(nodes: Sequence[Node], mesh: Mesh, limits: Limits, costs: Costs, previous: Plan | None) -> Plan:
    """Who gets which ranks; with `previous`, as few coordinates as possible change their node.

    Raises UsageError, naming what is missing, when no valid world exists.
    """
    world = largest_world(nodes, mesh, limits)
    if not world.size:
        raise UsageError(world.reason, "add nodes, or ask for fewer nodes or a smaller mesh")
    shape = mesh.shape(world.size)
    owners = holders(previous, mesh, shape)
    runs, moved = _layout(world, owners, limits)
    active = {run.node for run in runs}
    spares = [node for node in (*world.usable, *world.unusable) if node.id not in active]
    ranks = {run.node: tuple(range(run.start * world.unit, run.end * world.unit)) for run in runs}
    return Plan(
        shape=shape,
        ranks=ranks,
        spares=tuple(node.id for node in spares),
        moved=moved,
        reasons=tuple(_reasons(world, spares, ranks, owners, moved)),
    )


def _layout(world: World, owners: list[str | None], limits: Limits) -> tuple[list[Run], int]:
    """The runs that move the fewest ranks, and how many ranks these are."""
    candidates = []
    held = by_unit(owners, world.unit)
    if any(name in world.capacity for name in held):
        for patch in (stay, tile):
            runs = patch(held, world.usable, world.capacity)
            if runs is not None and _is_within(len(runs), limits):
                candidates.append(runs)
    candidates.append(_fresh(world))
    counted = [(moved_count(owners, runs, world.unit), index) for index, runs in enumerate(candidates)]
    moved, best = min(counted)
    return candidates[best], moved


def _is_within(node_count: int, limits: Limits) -> bool:
    return limits.nodes_min <= node_count and (limits.nodes_max is None or node_count <= limits.nodes_max)


def _fresh(world: World) -> list[Run]:
    """The active nodes one after the other, each filled before the next."""
    runs: list[Run] = []
    start, end = 0, world.size // world.unit
    for node in world.active:
        length = min(world.capacity[node.id], end - start)
        runs.append(Run(node.id, start, length))
        start += length
    return runs


def _reasons(
    world: World,
    spares: Sequence[Node],
    ranks: Mapping[str, tuple[int, ...]],
    owners: Sequence[str | None],
    moved: int,
) -> list[str]:
    usable = [node for node in spares if node.id in world.capacity]
    spare = "" if not usable else f"; {len(usable)} spare{'s' if len(usable) > 1 else ''}: {names(usable)}"
    reasons = [world.reason + spare]
    if world.unusable:
        reasons.append(f"not usable, as {world.unit} ranks must sit on one node: {names(world.unusable)}")
    idle = sum(node.slot_count - len(ranks[node.id]) for node in world.usable if node.id in ranks)
    if idle:
        reasons.append(f"{idle} slot{'s' if idle > 1 else ''} of active nodes stay{'' if idle > 1 else 's'} idle")
    before = {owner for owner in owners if owner is not None}
    if before:
        gone = sorted(before - set(ranks), key=natural)
        joined = [node for node in world.usable if node.id in ranks and node.id not in before]
        changes = [f"without {_listed(gone)}"] * bool(gone) + [f"with {names(joined)}"] * bool(joined)
        reasons.append("; ".join([f"{moved} of {world.size} ranks change their node", *changes]))
    return reasons


def _listed(ids: Sequence[str]) -> str:
    return ", ".join(ids[:NAMES_MAX]) + (f" and {len(ids) - NAMES_MAX} more" if len(ids) > NAMES_MAX else "")
