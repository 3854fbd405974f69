"""The workers of a run that is not started: the world of nodes like this one, and their variables, as a run makes them.

Only what a run would refuse or remark on is of interest, so what a run alone has, a port for instance, is a constant.
Nothing is started or written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from launcher.config.config import Config
from launcher.config.options.readers import Streams
from launcher.model import mesh as meshes
from launcher.model.errors import UsageError
from launcher.model.errors import describe as describe_reason
from launcher.model.locality_path import LEVELS
from launcher.model.mesh import DEFAULT_MESH
from launcher.model.node import Slot
from launcher.placement.adapter.description import Description, NodeAssignment, decode_assignment, encode_description
from launcher.placement.adapter.options import parse_limits_and_costs
from launcher.placement.adapter.planner_adapter import PlannerAdapter
from launcher.ranks.spec_builder import WorkerSpecBuilder
from rendezvous.events import MakePlan, PlanRefused, RosterMember

if TYPE_CHECKING:
    from launcher.locality.gather import Locality

NODES_MAX = 4096  # the planner takes seconds beyond
_PORT = 65431  # represents a port that is drawn for each round
_ADDRESS = "address-of-node-0.invalid"


def choose_node_count(config: Config, requested: int | None) -> int:
    """Return the number of nodes: `requested`, else the maximum, else the minimum. Raises UsageError."""
    if requested is None:
        return 1 if config.rendezvous.network is None else config.placement.nodes_max or config.placement.nodes_min
    if not 1 <= requested <= NODES_MAX:
        raise UsageError(f"--nodes {requested} is not from 1 to {NODES_MAX}")
    return requested


def plan_world(config: Config, slots: Sequence[Slot], count: int, locality: Locality | None) -> list[NodeAssignment]:
    """Plan `count` nodes like this one; of a TPU slice they are all its hosts, and those of further slices.

    `locality`: this node's. The assignments of the nodes with ranks are in the order of these. Raises UsageError where
    the nodes do not make a world.
    """
    mesh = config.placement.mesh or DEFAULT_MESH
    if count == 1 and config.rendezvous.network is None and config.placement.mesh is not None:
        meshes.require_fit(config.placement.mesh, len(slots))
    place = locality.path if locality is not None and config.rendezvous.network is not None else ()
    limits, costs = parse_limits_and_costs(
        config.placement.texts,
        mesh,
        levels=tuple(dict.fromkeys((*LEVELS, *(level for level, _ in place))))
        if config.rendezvous.network is not None
        else (),
        nodes_min=min(config.placement.nodes_min, count),
        nodes_max=count if config.rendezvous.network is None else config.placement.nodes_max,
    )
    planner = PlannerAdapter(mesh, limits, costs, node_count=count if config.rendezvous.node_rank is not None else 0)
    identity = locality.identity if locality is not None and config.rendezvous.network is not None else None
    hosts = identity.host_count if identity is not None else 1
    own = config.rendezvous.master_addr or config.rendezvous.local_addr or "127.0.0.1"

    def describe(index: int) -> str:
        return encode_description(
            Description(
                slot_count=len(slots),
                address=own if count == 1 else _ADDRESS,
                role=config.workers.role,
                name=f"node{index}",
                machine=f"machine {index}",
                master_port=config.rendezvous.master_port or 0,
                node_rank=None if config.rendezvous.node_rank is None else index,
                master_addr=config.rendezvous.master_addr or "",
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
        raise UsageError(describe_reason(planned.reason))
    read = (decode_assignment(text, f"{_ADDRESS}:{_PORT}") for text in planned.assignments.values())
    return sorted(read, key=lambda one: one.group_rank)


def list_worker_remarks(
    config: Config, slots: Sequence[Slot], assignment: NodeAssignment, environ: Mapping[str, str], host: str
) -> list[str]:
    """Make the variables of this assignment's workers as a run does, and return its remarks.

    Raises UsageError as in a run.
    """
    quiet = replace(
        config.output, redirects=Streams(), tee=Streams(), local_ranks_filter=None,
        duplicate_stdout_filters=(), duplicate_stderr_filters=(),
    )  # fmt: skip
    layout: Any = SimpleNamespace(
        run_id=config.rendezvous.run_id or "none",
        keeps_files=False,
        make_error_path=_make_no_path,
        make_recorder_path=_make_no_path,
    )
    builder = WorkerSpecBuilder(
        config=replace(config, output=quiet),
        mesh=config.placement.mesh or DEFAULT_MESH,
        slots=slots,
        host=host,
        layout=layout,
        parent=environ,
    )
    builder.make_specs(1, 0, assignment, None)
    return builder.list_remarks()


def _make_no_path(*_: int) -> str:
    return ""
