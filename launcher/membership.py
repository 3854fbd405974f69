"""How this node takes part in the agreement: what it says of itself, by which limits, over which store.

On one machine the store is inside the agent and nobody else can reach it. So the lease has no end and there is
no leash unless one is asked for: Ctrl-Z or a debugger must not kill a run.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable

from launcher.config import Config
from launcher.console import tell
from launcher.demand import limits_and_costs, written
from launcher.errors import UsageError
from launcher.mesh import Mesh
from launcher.node import Node
from launcher.placement import Costs, Limits, feasibility
from launcher.roster import Description, RosterPlanner, describe
from launcher.topology import HOST
from rendezvous.driver import Driver
from rendezvous.errors import SettingsError
from rendezvous.protocol import Protocol
from rendezvous.records import Spec
from rendezvous.settings import Settings
from rendezvous.stores.memory import MemoryStore

PREFIX = "meshrun"


def settings(config: Config) -> Settings:
    """The agreement's limits for this run. Raises UsageError for a lease that is too short."""
    try:
        return Settings(
            lease_ttl_s=math.inf if config.lease_ttl_s is None else config.lease_ttl_s,
            max_restarts=config.max_restarts,
            shutdown_timeout_s=config.shutdown_timeout_s,
            restart_grace_s=min(Settings.restart_grace_s, config.shutdown_timeout_s),
        )
    except SettingsError as error:
        raise UsageError(f"{config.origins['lease_ttl_s']}: {error}", error.hint) from None


def demands(config: Config, mesh: Mesh, slot_count: int) -> tuple[Limits, Costs]:
    """What is asked of the placement. Raises UsageError if it cannot be, or not by `slot_count` slots on one node."""
    variables = {name: config.origins[name] for name in config.demands if not config.origins[name].startswith("--")}
    limits, costs = limits_and_costs(
        config.demands, mesh, nodes_min=config.nodes_min, nodes_max=config.nodes_max, variables=variables
    )
    # One machine is all there will be: nobody needs to wait for others that could make it possible.
    world = feasibility([Node(id="this", slot_count=slot_count)], mesh, limits)
    if not world.world_size:
        raise UsageError(world.reason)
    if world.world_size < slot_count:
        tell(world.reason)
    if unknown := [level for level in costs.tolls if level != HOST]:
        tell(f"{config.origins['tolls']}: nobody pays for {', '.join(unknown)}: one machine knows no such level")
    return limits, costs


def new_driver(
    config: Config,
    limits: Settings,
    mesh: Mesh,
    *,
    slot_count: int,
    run_id: str,
    node_name: str,
    worker_port: int,
    wake: Callable[[], None],
) -> Driver:
    """The member that this node is going to be. `wake` is called from any thread when the driver has work."""
    asked = demands(config, mesh, slot_count)
    planner = RosterPlanner(mesh, *asked)
    description = Description(
        slot_count=slot_count,
        address=config.master_addr or config.local_addr or "127.0.0.1",
        role=config.role,
        master_port=config.master_port or 0,
    )
    protocol = Protocol(
        settings=limits,
        # Nobody else reads the store of one machine, so nothing has to be compared with other agents.
        spec=Spec(mesh=str(mesh), limits=written(*asked), digest=""),
        node_name=node_name,
        boot_id="",
        description=describe(description),
        worker_port=worker_port,
        prefix=PREFIX,
        run_id=run_id,
        sizer=planner.size,
        chance=_chance,
    )
    return Driver(
        protocol=protocol, store=MemoryStore(clock=now), planner=planner.plan, clock=now, wake=wake, is_local=True
    )


def now() -> float:
    """Seconds that also pass while the machine sleeps; never compared with another machine's."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _chance() -> float:
    return int.from_bytes(os.urandom(6), "big") / 2**48
