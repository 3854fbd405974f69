"""This node's membership in the agreement: its description, its limits, its store.

On one machine the store is inside the agent and no other process can reach it. So the lease has no end and there is
no watchdog unless the user sets one: Ctrl-Z or a debugger must not kill a run. With other nodes both are needed, and
the store is in the network; see `cluster`.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence

from msgspec.structs import replace

from launcher.config.config import Config
from launcher.model.console import log
from launcher.model.errors import UsageError
from launcher.model.mesh import Mesh
from launcher.model.node import Node
from launcher.model.topology import HOST
from launcher.placement.adapter.options import parse_limits_and_costs
from launcher.placement.capacity import assess_feasibility
from launcher.placement.limits import Costs, Limits
from rendezvous.driver.driver import Driver
from rendezvous.errors import SettingsError
from rendezvous.settings import DEFAULTS, Settings

PREFIX = "meshrun"


def make_settings(config: Config, *, handles_sigterm: bool = True) -> Settings:
    """Return the agreement's limits for this run. Raises UsageError for impossible ones, such as too short a lease.

    `handles_sigterm`: a SIGTERM ends workers. Where it does not, as under JAX, nothing waits for that when a round has
    failed; a stop that leaves time to save is another matter.
    """
    # docs/internals/decisions/agreement.md#0004-endless-lease-in-a-private-store
    no_lease = math.inf if config.network is None else DEFAULTS.lease_ttl_s
    try:
        return Settings(
            lease_ttl_s=no_lease if config.lease_ttl_s is None else config.lease_ttl_s,
            max_restarts=config.max_restarts,
            shutdown_timeout_s=config.shutdown_timeout_s,
            restart_grace_s=min(DEFAULTS.restart_grace_s, config.shutdown_timeout_s) if handles_sigterm else 0.0,
            **config.settings,  # type: ignore[arg-type]  # the options have parsed each by its field's type
        )
    except SettingsError as error:
        raise UsageError(f"{config.origins['lease_ttl_s']}: {error}", error.hint) from None


def resolve_limits(config: Config, mesh: Mesh, levels: Sequence[str] = ()) -> tuple[Limits, Costs]:
    """The limits and costs of the placement. `levels`: the known ones. Raises UsageError for unreadable options."""
    origins = {name: config.origins[name] for name in config.placement_options}
    limits, costs = parse_limits_and_costs(
        config.placement_options,
        mesh,
        levels=levels,
        nodes_min=config.nodes_min,
        nodes_max=config.nodes_max,
        variables={name: origin for name, origin in origins.items() if not origin.startswith("--")},
    )
    if not levels and (unknown := [level for level in costs.level_costs if level != HOST]):
        log(f"{config.origins['level-costs']}: nobody pays for {', '.join(unknown)}: one machine knows no such level")
    return limits, costs


def require_feasible_alone(mesh: Mesh, limits: Limits, slot_count: int) -> None:
    """Check that the slots of one machine make a world, since no other node will join.

    Raises UsageError if they do not.
    """
    world = assess_feasibility([Node(id="this", slot_count=slot_count)], mesh, limits)
    if not world.world_size:
        raise UsageError(world.reason)
    if world.world_size < slot_count:
        log(world.reason)


def require_feasible(config: Config, mesh: Mesh, limits: Limits, slot_count: int) -> None:
    """Raise UsageError if no number of nodes like this one could ever form a world, so that waiting is futile.

    Only where the user has set the number of workers of a node. A detected number may differ elsewhere, or here because
    a device has failed; then the leading agent reports what it waits for. Domains of the network are left to it, too:
    only the nodes know which there are.
    """
    if not isinstance(config.worker_count, int):
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
            f"{nodes} with {slot_count} worker{'s' * (slot_count > 1)} each cannot form this: {world.reason}",
            f"where other nodes have more, {config.origins['worker_count']} auto waits for them",
        )


class NodeMembership:
    """This node's membership of the job. Close it when the agent has ended.

    `locality`: the node's place in the network, (level, domain) pairs, outermost first. `elastic_max`: the largest
    size of the elastic axis, None for no limit.
    """

    elastic_max: int | None = None

    def __init__(self, driver: Driver, call_limit_s: float, locality: Sequence[tuple[str, str]] = ()) -> None:
        self.driver = driver
        self.locality = tuple((level, domain) for level, domain in locality)
        self._call_limit_s = call_limit_s

    def close(self) -> None:
        self.driver.close(self._call_limit_s)


def read_clock() -> float:
    """Return seconds that also pass while the machine sleeps; never compared with another machine's."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def draw_random() -> float:
    """Return a random number in [0, 1)."""
    return int.from_bytes(os.urandom(6), "big") / 2**48
