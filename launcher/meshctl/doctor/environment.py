"""The workers of a run that is not started: the world of nodes like this one, and their variables, as a run makes them.

Only what a run would refuse or remark on is of interest, so what a run alone has, a port for instance, is a constant.
Nothing is started or written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from launcher.config.config import OutputOptions, PlacementOptions, RendezvousOptions, WorkerOptions
from launcher.config.options.readers import Streams
from launcher.locality.gather import Locality
from launcher.model import mesh as meshes
from launcher.model.errors import UsageError
from launcher.model.errors import describe as describe_reason
from launcher.model.locality_path import LEVELS
from launcher.model.node import Slot
from launcher.placement.adapter.description import Description, NodeAssignment, decode_assignment, encode_description
from launcher.placement.adapter.options import parse_limits_and_costs
from launcher.placement.adapter.planner_adapter import PlannerAdapter
from launcher.ranks.spec_builder import WorkerSpecBuilder
from rendezvous.events import MakePlan, PlanRefused, RosterMember

NODES_MAX = 4096  # the planner takes seconds beyond
_PORT = 65431  # represents a port that is drawn for each round
_ADDRESS = "address-of-node-0.invalid"
_QUIET = OutputOptions(
    origins={}, log_dir=None, redirects=Streams(), tee=Streams(), local_ranks_filter=None, log_times="off",
    duplicate_stdout_filters=(), duplicate_stderr_filters=(),
)  # fmt: skip


def choose_node_count(options: PlacementOptions, requested: int | None) -> int:
    """Return the number of nodes: `requested`, else the maximum, else the minimum. Raises UsageError."""
    if requested is None:
        return options.nodes_max or options.nodes_min
    if not 1 <= requested <= NODES_MAX:
        raise UsageError(f"--nodes {requested} is not from 1 to {NODES_MAX}")
    return requested


def plan_world(
    options: RendezvousOptions,
    placement: PlacementOptions,
    slots: Sequence[Slot],
    count: int,
    locality: Locality | None,
) -> list[NodeAssignment]:
    """Plan `count` nodes like this one; of a TPU slice they are all its hosts, and those of further slices.

    `locality`: this node's. The assignments of the nodes with ranks are in the order of these. Raises UsageError where
    the nodes do not make a world.
    """
    mesh, network = placement.grid, options.network
    if count == 1 and network is None and placement.mesh is not None:
        meshes.require_fit(placement.mesh, len(slots))
    place = locality.path if locality is not None and network is not None else ()
    limits, costs = parse_limits_and_costs(
        placement.texts,
        mesh,
        levels=tuple(dict.fromkeys((*LEVELS, *(level for level, _ in place)))) if network is not None else (),
        nodes_min=min(placement.nodes_min, count),
        nodes_max=count if network is None else placement.nodes_max,
    )
    planner = PlannerAdapter(mesh, limits, costs, node_count=count if options.node_rank is not None else 0)
    identity = locality.identity if locality is not None and network is not None else None
    hosts = identity.host_count if identity is not None else 1
    own = options.master_addr or options.local_addr or "127.0.0.1"

    def describe(index: int) -> str:
        further = f" {index // hosts}" if index >= hosts else ""  # of a slice behind this host's
        described = Description(
            slot_count=len(slots),
            address=own if count == 1 else _ADDRESS,
            role="",
            name=f"node{index}",
            machine=f"machine {index}",
            master_port=options.master_port or 0,
            node_rank=None if options.node_rank is None else index,
            master_addr=options.master_addr or "",
            locality=tuple((level, domain + further * (level == "slice")) for level, domain in place),
            index=None if identity is None else index % hosts,
            slice_hosts=0 if identity is None else hosts,
            host_pattern="" if identity is None else identity.host_pattern,
        )
        return encode_description(described)

    roster = tuple(RosterMember(f"m{index}", describe(index), index + 1) for index in range(count))
    planned = planner.plan(MakePlan(1, 1, roster, {}))
    if isinstance(planned, PlanRefused):
        raise UsageError(describe_reason(planned.reason))
    read = (decode_assignment(text, f"{_ADDRESS}:{_PORT}") for text in planned.assignments.values())
    return sorted(read, key=lambda one: one.group_rank)


def list_worker_remarks(
    workers: WorkerOptions,
    placement: PlacementOptions,
    slots: Sequence[Slot],
    assignment: NodeAssignment,
    environ: Mapping[str, str],
    host: str,
) -> list[str]:
    """Make the variables of this assignment's workers as a run does, and return its remarks.

    Raises UsageError as in a run.
    """
    paths = dict.fromkeys(("make_error_path", "make_recorder_path"), lambda *_: "")
    layout: Any = SimpleNamespace(run_id="none", keeps_files=False, **paths)
    builder = WorkerSpecBuilder(
        workers=workers, output=_QUIET, placement=placement, slots=slots, host=host, layout=layout, parent=environ
    )
    builder.make_specs(1, 0, assignment, None)
    return builder.list_remarks()
