"""Whether nodes like this one can ever form what the options of placement ask for, before anybody waits for them."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from launcher.config.config import DeviceOptions, PlacementOptions
from launcher.model.console import log
from launcher.model.errors import UsageError, describe
from launcher.model.mesh import Mesh
from launcher.model.node import Node
from launcher.model.topology import HOST
from launcher.placement.adapter.options import parse_limits_and_costs
from launcher.placement.capacity import assess_feasibility
from launcher.placement.limits import Costs, Limits


def resolve_limits(options: PlacementOptions, levels: Sequence[str] = ()) -> tuple[Limits, Costs]:
    """The limits and costs of the placement. `levels`: the known ones. Raises UsageError for unreadable options."""
    limits, costs = parse_limits_and_costs(
        options.texts,
        options.grid,
        levels=levels,
        nodes_min=options.nodes_min,
        nodes_max=options.nodes_max,
        variables={name: options.origins[name] for name in options.texts if not options.origins[name].startswith("--")},
    )
    if not levels and (unknown := [level for level in costs.level_costs if level != HOST]):
        option = options.origins["level-costs"]
        log(f"{option}: unknown level {', '.join(unknown)}; a single node has only the level host")
    return limits, costs


def require_feasible_alone(mesh: Mesh, limits: Limits, slot_count: int) -> None:
    """Check that the slots of one machine make a world, since no other node will join.

    Raises UsageError if they do not.
    """
    world = assess_feasibility([Node(id="this", slot_count=slot_count)], mesh, limits)
    if not world.world_size:
        raise UsageError(describe(world.reason))
    if world.world_size < slot_count:
        log(describe(world.reason))


def require_feasible(options: DeviceOptions, mesh: Mesh, limits: Limits, slot_count: int) -> None:
    """Raise UsageError if no number of nodes like this one could ever form a world, so that waiting is futile.

    Only where the user has set the number of workers of a node. A detected number may differ elsewhere, or here because
    a device has failed; then the leading agent reports what it waits for. Domains of the network are left to it, too:
    only the nodes know which there are.
    """
    if not isinstance(options.worker_count, int):
        return
    least = mesh.replica_size * (limits.elastic_min if mesh.elastic_axis else 1)
    # A block that fits leaves less than half a node empty.
    count = max(limits.nodes_min, 2 * -(-least // slot_count) + 1)
    count = count if limits.nodes_max is None else min(count, limits.nodes_max)
    within = {axis: level for axis, level in limits.within.items() if level == HOST}
    alike = [Node(id=str(index), slot_count=slot_count) for index in range(count)]
    world = assess_feasibility(alike, mesh, replace(limits, levels=(), within=within, all_or_nothing=None))
    if not world.world_size:
        nodes = "any number of nodes" if count != limits.nodes_max else f"{count} node{'s' * (count > 1)}"
        raise UsageError(
            f"{nodes} with {slot_count} worker{'s' * (slot_count > 1)} each cannot form this: {describe(world.reason)}",
            f"use {options.origins['worker_count']} auto to wait for nodes that have more",
        )
