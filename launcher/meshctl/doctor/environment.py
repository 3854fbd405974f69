"""The environment that the worker of a rank would get, as `meshctl doctor --env RANK` shows it.

The same modules work as in a run: the planner places nodes like this one, and the spec builder adds the frameworks'
variables. Values that only a run has, a port for instance, are placeholders in angle brackets. Nothing is started or
written.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from launcher.agent.startup.stale_agents import LOCK_VARIABLE
from launcher.config.config import Config
from launcher.config.options.readers import Streams
from launcher.config.scrub import PRIVATE
from launcher.hardware.linux.shared_page import VARIABLE as PAGE_VARIABLE
from launcher.model import mesh as meshes
from launcher.model.errors import UsageError
from launcher.model.locality_path import LEVELS
from launcher.model.mesh import DEFAULT_MESH
from launcher.model.node import Slot
from launcher.placement.adapter.description import Description, NodeAssignment, decode_assignment, encode_description
from launcher.placement.adapter.options import parse_limits_and_costs
from launcher.placement.adapter.planner_adapter import PlannerAdapter
from launcher.ranks.spec_builder import WorkerSpecBuilder
from launcher.worker.client import SOCKET_VARIABLE
from rendezvous.events import MakePlan, PlanRefused, RosterMember

if TYPE_CHECKING:
    from launcher.locality.gather import Locality

NODES_MAX = 4096  # the planner takes seconds beyond
MASKED = "(not shown)"
# Names of variables whose values are secret.
_SECRET_WORDS = ("PASSWORD", "PASSWD", "SECRET", "TOKEN", "CREDENTIAL", "API_KEY", "ACCESS_KEY", "PRIVATE_KEY")
_PORT = 65431  # represents a port that is drawn for each round
_ADDRESS = "address-of-node-0.invalid"
_RUN_ID = "run-id.invalid"


def choose_node_count(config: Config, requested: int | None) -> int:
    """Return the number of nodes: `requested`, else the maximum, else the minimum. Raises UsageError."""
    if requested is None:
        return 1 if config.network is None else config.nodes_max or config.nodes_min
    if not 1 <= requested <= NODES_MAX:
        raise UsageError(f"--nodes {requested}: from 1 to {NODES_MAX} can be shown")
    return requested


def plan_world(config: Config, slots: Sequence[Slot], count: int, locality: Locality | None) -> list[NodeAssignment]:
    """Plan `count` nodes like this one; of a TPU slice they are all its hosts, and those of further slices.

    `locality`: this node's. The assignments of the nodes with ranks are in the order of these. Raises UsageError where
    the nodes do not make a world.
    """
    mesh = config.mesh or DEFAULT_MESH
    if count == 1 and config.network is None and config.mesh is not None:
        meshes.require_fit(config.mesh, len(slots))
    place = locality.path if locality is not None and config.network is not None else ()
    limits, costs = parse_limits_and_costs(
        config.placement_options,
        mesh,
        levels=tuple(dict.fromkeys((*LEVELS, *(level for level, _ in place)))) if config.network is not None else (),
        nodes_min=min(config.nodes_min, count),
        nodes_max=count if config.network is None else config.nodes_max,
    )
    planner = PlannerAdapter(mesh, limits, costs, node_count=count if config.node_rank is not None else 0)
    identity = locality.identity if locality is not None and config.network is not None else None
    hosts = identity.host_count if identity is not None else 1
    own = config.master_addr or config.local_addr or "127.0.0.1"

    def describe(index: int) -> str:
        return encode_description(
            Description(
                slot_count=len(slots),
                address=own if count == 1 else _ADDRESS,
                role=config.role,
                name=f"node{index}",
                machine=f"machine {index}",
                master_port=config.master_port or 0,
                node_rank=None if config.node_rank is None else index,
                master_addr=config.master_addr or "",
                locality=tuple(
                    (level, f"{domain} {index // hosts}" if level == "slice" and index >= hosts else domain)
                    for level, domain in place
                ),
                index=None if identity is None else index % hosts,
                slice_hosts=0 if identity is None else hosts,
                host_pattern="" if identity is None else identity.host_pattern,
            )
        )

    roster = tuple(RosterMember(f"m{index}", describe(index), index + 1) for index in range(count))
    planned = planner.plan(MakePlan(1, 1, roster, {}))
    if isinstance(planned, PlanRefused):
        raise UsageError(planned.reason)
    read = (decode_assignment(text, f"{_ADDRESS}:{_PORT}") for text in planned.assignments.values())
    return sorted(read, key=lambda one: one.group_rank)


def describe_environment(
    config: Config,
    builder: WorkerSpecBuilder,
    assignment: NodeAssignment,
    rank: int,
    node_count: int,
    environ: Mapping[str, str],
) -> dict[str, Any]:
    """Compare the environment of the worker of this rank with the agent's, as values for JSON.

    "changed" has the agent's value and the worker's, "unset" what the worker does not inherit. Raises UsageError as in
    a run.
    """
    local_rank = assignment.ranks.index(rank)
    spec = builder.make_specs(1, 0, assignment, None)[local_rank]
    after = {name: _insert_placeholders(config, value) for name, value in sorted(spec.env.items())}
    return {
        "rank": rank,
        "local_rank": local_rank,
        "node": assignment.group_rank,
        "nodes": node_count,
        "world_size": assignment.world_size,
        "added": {name: mask(name, value) for name, value in after.items() if name not in environ},
        "changed": {
            name: {"from": mask(name, environ[name]), "to": mask(name, value)}
            for name, value in after.items()
            if name in environ and environ[name] != value
        },
        "unset": sorted(name for name in spec.unset if name in environ),
    }


def find_assignment(rank: int, world: Sequence[NodeAssignment], node_count: int) -> NodeAssignment:
    """Return the assignment with this rank. Raises UsageError for a rank that does not exist."""
    for assignment in world:
        if rank in assignment.ranks:
            return assignment
    many = "1 node" if node_count == 1 else f"{node_count} nodes"
    sentence = f"--env {rank}: on {many} like this one the ranks are 0 to {world[0].world_size - 1}"
    raise UsageError(sentence, "--nodes N shows more nodes")


def make_spec_builder(
    config: Config, slots: Sequence[Slot], environ: Mapping[str, str], host: str
) -> WorkerSpecBuilder:
    """Create a run's spec builder, without streams and directories. Raises UsageError as in a run."""
    quiet = replace(
        config, redirects=Streams(), tee=Streams(), local_ranks_filter=None,
        duplicate_stdout_filters=(), duplicate_stderr_filters=(),
    )  # fmt: skip
    layout: Any = _LogPaths(config)
    page: Any = SimpleNamespace(list_variables=lambda at: {PAGE_VARIABLE: f"<what the agent has opened>:{1 + at}"})
    builder = WorkerSpecBuilder(
        config=quiet, mesh=config.mesh or DEFAULT_MESH, slots=slots, host=host, layout=layout, parent=environ,
        shared_page=page,
    )  # fmt: skip
    if config.network is not None:
        builder.add_variables({LOCK_VARIABLE: "<mark of this run on this node>"})
        if config.settings.get("grow") == "checkpoint":
            builder.add_variables({SOCKET_VARIABLE: "<socket of the agent>"})
    return builder


def mask(name: str, value: str) -> str:
    """Return the value, unless the name marks it as secret."""
    is_secret = name in PRIVATE or any(word in name.upper() for word in _SECRET_WORDS)
    return MASKED if is_secret and value else value


def _insert_placeholders(config: Config, value: str) -> str:
    """Return the value with placeholders for what only a run has."""
    value = value.replace(_ADDRESS, "<address of node 0>").replace(_RUN_ID, "<run id>")
    return value.replace(str(_PORT), "<free port>") if config.master_port is None else value


class _LogPaths:
    """Replaces the directories of a run's logs, none of which is created."""

    def __init__(self, config: Config) -> None:
        self.run_id = config.run_id or _RUN_ID
        self.keeps_files = config.log_dir != os.devnull
        self._root = "<temporary directory>"
        if config.log_dir:
            self._root = f"{os.path.abspath(config.log_dir)}/{self.run_id}_<random>"

    def make_error_path(self, round: int, restart_count: int, local_rank: int) -> str:
        return f"{self._root}/attempt_{restart_count}/{local_rank}/error.json" if self.keeps_files else ""

    def make_recorder_path(self, round: int, local_rank: int) -> str:
        return f"<temporary directory>/{round}.{local_rank}"
