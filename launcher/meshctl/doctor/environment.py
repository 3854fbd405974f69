"""The environment that the worker of a rank would get, as `meshctl doctor --env RANK` shows it.

The same modules work as in a run: the planner places `count` nodes like this one, and the spec builder adds the
frameworks' variables. Values that only a run has, a port for instance, are placeholders in angle brackets. Nothing is
started or written.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from launcher.agent.startup.stale_agents import LOCK_VARIABLE
from launcher.config.config import Config
from launcher.config.options.worker_options import Streams
from launcher.config.scrub import PRIVATE
from launcher.hardware.linux.shared_page import VARIABLE as BOARD
from launcher.model.errors import UsageError
from launcher.model.locality_path import LEVELS
from launcher.model.mesh import DEFAULT_MESH
from launcher.model.node import Slot
from launcher.placement.adapter.description import Description, decode_assignment, encode_description
from launcher.placement.adapter.options import parse_limits_and_costs
from launcher.placement.adapter.planner_adapter import PlannerAdapter
from launcher.ranks.spec_builder import WorkerSpecBuilder
from launcher.worker.client import SOCKET_VARIABLE
from rendezvous.events import MakePlan, PlanRefused, RosterMember

if TYPE_CHECKING:
    from launcher.locality.gather import Locality
    from launcher.placement.adapter.description import NodeAssignment

NODES_MAX = 4096  # the planner takes seconds beyond
MASKED = "(not shown)"
# Names of variables whose values are secret.
_SECRET_WORDS = ("PASSWORD", "PASSWD", "SECRET", "TOKEN", "CREDENTIAL", "API_KEY", "ACCESS_KEY", "PRIVATE_KEY")
_PORT = 65431  # represents a port that is drawn for each round
_ADDRESS = "address-of-node-0.invalid"
_RUN_ID = "run-id.invalid"


class PlannedWorld(NamedTuple):
    """The plan of `node_count` nodes like this one: a share for each that has ranks, in the order of ranks."""

    node_count: int
    shares: tuple[NodeAssignment, ...]

    @property
    def size(self) -> int:
        return self.shares[0].world_size


class EnvironmentChanges(NamedTuple):
    """`changed`: name -> the agent's value, and the worker's. `unset`: variables that the worker does not inherit."""

    rank: int
    local_rank: int
    node_index: int
    added: Mapping[str, str]
    changed: Mapping[str, tuple[str, str]]
    unset: tuple[str, ...]


def choose_node_count(config: Config, requested: int | None) -> int:
    """Return the number of nodes: `requested`, else the maximum, else the minimum."""
    count = requested
    if count is None:
        count = 1 if config.network is None else config.nodes_max or config.nodes_min
    if requested is not None and not 1 <= count <= NODES_MAX:
        raise UsageError(f"--nodes {count}: from 1 to {NODES_MAX} can be shown")
    return count


def plan_world(config: Config, slots: Sequence[Slot], count: int, locality: Locality | None = None) -> PlannedWorld:
    """Plan `count` nodes like this one; of a TPU slice they are all its hosts, and those of further slices.

    `locality`: this node's. Raises UsageError where they do not make a world.
    """
    place = locality.path if locality is not None and config.network is not None else ()
    levels = tuple(dict.fromkeys((*LEVELS, *(level for level, _ in place)))) if config.network is not None else ()
    mesh = config.mesh or DEFAULT_MESH
    asked = parse_limits_and_costs(
        config.placement_options,
        mesh,
        levels=levels,
        nodes_min=min(config.nodes_min, count),
        nodes_max=count if config.network is None else config.nodes_max,
    )
    planner = PlannerAdapter(mesh, *asked, node_count=count if config.node_rank is not None else 0)
    roster = tuple(
        RosterMember(f"m{index}", _describe_node(config, len(slots), index, count, place, locality), _PORT, index + 1)
        for index in range(count)
    )
    planned = planner.plan(MakePlan(1, 1, roster, {}))
    if isinstance(planned, PlanRefused):
        raise UsageError(planned.reason)
    shares = [decode_assignment(text) for text in planned.assignments.values()]
    return PlannedWorld(count, tuple(sorted(shares, key=lambda share: share.group_rank)))


def find_share(rank: int, world: PlannedWorld) -> NodeAssignment:
    """Return the share with this rank. Raises UsageError for a rank that does not exist."""
    for share in world.shares:
        if rank in share.ranks:
            return share
    many = "1 node" if world.node_count == 1 else f"{world.node_count} nodes"
    raise UsageError(
        f"--env {rank}: on {many} like this one the ranks are 0 to {world.size - 1}", "--nodes N shows more nodes"
    )


def compare_environment(
    config: Config, maker: WorkerSpecBuilder, share: NodeAssignment, rank: int, environ: Mapping[str, str]
) -> EnvironmentChanges:
    """Compare the environment of the worker of this rank with the agent's. Raises UsageError as in a run."""
    local_rank = share.ranks.index(rank)
    spec = maker.make_specs(1, 0, share, None)[local_rank]
    after = {name: _insert_placeholders(config, value) for name, value in sorted(spec.env.items())}
    return EnvironmentChanges(
        rank=rank,
        local_rank=local_rank,
        node_index=share.group_rank,
        added={name: mask(name, value) for name, value in after.items() if name not in environ},
        changed={
            name: (mask(name, environ[name]), mask(name, value))
            for name, value in after.items()
            if name in environ and environ[name] != value
        },
        unset=tuple(sorted(name for name in spec.unset if name in environ)),
    )


def make_worker_maker(
    config: Config, slots: Sequence[Slot], environ: Mapping[str, str], host: str
) -> WorkerSpecBuilder:
    """Create a run's spec builder, without streams and directories. Raises UsageError as in a run."""
    quiet = dataclasses.replace(
        config, redirects=Streams(), tee=Streams(), local_ranks_filter=None, logs_specs=None,
        duplicate_stdout_filters=(), duplicate_stderr_filters=(),
    )  # fmt: skip
    mesh = config.mesh or DEFAULT_MESH
    layout: Any = _PlaceholderLayout(config)
    board: Any = _PlaceholderPage()
    made = WorkerSpecBuilder(
        config=quiet, mesh=mesh, slots=slots, host=host, layout=layout, parent=environ, shared_page=board
    )
    made.add_variables(_list_run_variables(config, environ))
    return made


def mask(name: str, value: str) -> str:
    """Return the value, unless the name marks it as secret."""
    is_secret = name in PRIVATE or any(word in name.upper() for word in _SECRET_WORDS)
    return MASKED if is_secret and value else value


def _describe_node(
    config: Config,
    slot_count: int,
    index: int,
    count: int,
    place: Sequence[tuple[str, str]],
    locality: Locality | None,
) -> str:
    """Encode the description of the node of this index."""
    own = config.master_addr or config.local_addr or "127.0.0.1"
    identity = locality.identity if locality is not None and config.network is not None else None
    hosts = identity.host_count if identity is not None else 1
    return encode_description(
        Description(
            slot_count=slot_count,
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


def _list_run_variables(config: Config, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that the agent adds for every worker, whatever its rank."""
    found = {}
    if environ.get("TORCHELASTIC_ENABLE_FILE_TIMER") == "1":
        found["TORCHELASTIC_TIMER_FILE"] = environ.get("TORCHELASTIC_TIMER_FILE") or "<pipe of the agent>"
    if config.network is not None:
        found[LOCK_VARIABLE] = "<mark of this run on this node>"
        if config.settings.get("grow") == "checkpoint":
            found[SOCKET_VARIABLE] = "<socket of the agent>"
    return found


def _insert_placeholders(config: Config, value: str) -> str:
    """Return the value with placeholders for what only a run has."""
    value = value.replace(_ADDRESS, "<address of node 0>").replace(_RUN_ID, "<run id>")
    return value.replace(str(_PORT), "<free port>") if config.master_port is None else value


class _PlaceholderLayout:
    """Replaces the directories of a run's logs, none of which is created."""

    keeps_files = True
    is_temporary = True

    def __init__(self, config: Config) -> None:
        self.run_id = config.run_id or _RUN_ID
        self.keeps_files = config.log_dir != os.devnull
        self.root = f"{os.path.abspath(config.log_dir) if config.log_dir else '<temporary directory>'}"
        if config.log_dir:
            self.root += f"/{self.run_id}_<random>"

    def make_error_path(self, round: int, restart_count: int, local_rank: int) -> str:
        return f"{self.root}/attempt_{restart_count}/{local_rank}/error.json" if self.keeps_files else ""

    def make_stream_path(self, round: int, restart_count: int, local_rank: int, stream: str) -> str | None:
        return None

    def make_filter_path(self, round: int, restart_count: int, stream: str) -> str | None:
        return None


class _PlaceholderPage:
    """Replaces the page of memory that agent and workers share."""

    def list_variables(self, index: int) -> dict[str, str]:
        return {BOARD: f"<what the agent has opened>:{1 + index}"}
