"""The variables of libtpu and torch_xla: for several processes that share a host's chips, and for joined slices.

One process on each host, with all its chips, is the usual way (JAX, and torch_xla with SPMD) and needs nothing from a
launcher: the slice's variables from GKE, LWS or the metadata server reach the worker unchanged. Two cases differ.

Several slices. libtpu joins them by MEGASCALE_ variables. A controller has written these once for all; a round may have
fewer slices, in another order, with rank 0 on another host, and old values make the start hang. So they are written
for every round.

Several processes on a host. Each gets its chips, the box that they form, the grid of all processes of the slice,
and the address of each. Formula and ports are those of torch_xla (_internal/tpu.py, configure_topology), the
splits of one host those of JAX's own tests (_src/test_multiprocess.py). Over several hosts this has not been tried on
hardware, and public code has one example of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from msgspec import Struct

from launcher.extensions.devices.tpu import VISIBLE
from launcher.hardware import slice_identity, slice_types
from launcher.hardware.metadata_server import LINK_LOCAL
from launcher.model.errors import UsageError
from launcher.model.node import Slot
from launcher.ranks.environments.contract import WorkerAssignment

MEGASCALE = ("MEGASCALE_COORDINATOR_ADDRESS", "MEGASCALE_NUM_SLICES", "MEGASCALE_SLICE_ID", "MEGASCALE_PORT")
MEGASCALE_PORT = 8081  # of ray and xpk
PROCESS_PORT = 8476  # of torch_xla

_CHIP_BOUNDS = ("TPU_CHIPS_PER_PROCESS_BOUNDS", "TPU_CHIPS_PER_HOST_BOUNDS")  # the older name last
_HOST_BOUNDS = (slice_identity.PROCESS_BOUNDS, slice_identity.HOST_BOUNDS)
_HOST_BOXES = {1: (1, 1, 1), 4: (2, 2, 1), 8: (2, 4, 1)}  # chips of a host -> the box that they form
# Chips of a host and of a process -> the box of those, where public code has it.
_PROCESS_BOXES = {(4, 1): (1, 1, 1), (4, 2): (1, 2, 1), (8, 1): (1, 1, 1), (8, 4): (2, 2, 1)}
_EIGHT_PROCESS_GRID = (4, 2, 1)  # as JAX's tests have it, though 4 to a process lie in 2x4 there
_PJRT = {"tpu": "TPU", "nvidia": "CUDA"}

Box = tuple[int, ...]


class TpuEnvironment(Struct, frozen=True, kw_only=True):
    """`metadata`: the server whose answers are used, if it was queried when chips were detected; for tests."""

    metadata: tuple[str, int] = LINK_LOCAL

    def variables(self, assignment: WorkerAssignment, parent: Mapping[str, str]) -> dict[str, str]:
        """Return what to add to, or overwrite in, the parent's environment for this worker.

        Raises UsageError where the chips cannot be divided like that.
        """
        if assignment.slot.devices[0].kind != "tpu":
            return {}
        said = slice_identity.merge_metadata(parent, self.metadata)
        return {**_make_megascale_variables(assignment, said), **_make_process_variables(assignment, parent, said)}

    def remarks(self, slots: Sequence[Slot], parent: Mapping[str, str], has_other_nodes: bool) -> list[str]:
        """Return sentences for the start, about a host that is one of several of its slice."""
        identity, _ = slice_identity.read_identity(slice_identity.merge_metadata(parent, self.metadata))
        if slots[0].devices[0].kind != "tpu" or identity is None or identity.host_count == 1:
            return []
        if not has_other_nodes:
            own = f"worker {identity.worker_id} of a TPU slice of {identity.host_count} hosts"
            remedy = "set --nnodes and a rendezvous to make them one job"
            return [f"this host is {own}, and libtpu waits for the others: {remedy}"]
        said = "several processes on each of several TPU hosts are set up as torch_xla does it, not tried on hardware"
        return [said] if len(slots) > 1 else []


class XlaEnvironment:
    """torch_xla: the PJRT client that it creates, and the worker's number among the processes of this host."""

    def variables(self, assignment: WorkerAssignment, parent: Mapping[str, str]) -> dict[str, str]:
        """Return what to add to, or overwrite in, the parent's environment for this worker."""
        return {
            "PJRT_DEVICE": parent.get("PJRT_DEVICE") or _PJRT.get(assignment.slot.devices[0].kind, "CPU"),
            "PJRT_LOCAL_PROCESS_RANK": str(assignment.local_rank),
            "PJRT_LOCAL_PROCESS_COUNT": str(assignment.local_world_size),
        }

    def remarks(self, slots: Sequence[Slot], parent: Mapping[str, str], has_other_nodes: bool) -> list[str]:
        """Return no remarks."""
        return []


# docs/internals/decisions/0031-tpu-rank-order.md
def _make_megascale_variables(assignment: WorkerAssignment, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the slice's number in this round. A single slice keeps its own, unless a controller counts others."""
    if not assignment.slice_count or not (assignment.slice_count > 1 or any(environ.get(name) for name in MEGASCALE)):
        return {}
    values = assignment.master_addr, str(assignment.slice_count), str(assignment.slice_index)
    variables = dict(zip(MEGASCALE, values, strict=False))
    if assignment.local_world_size > 1:  # each process listens for other slices
        base = environ.get("MEGASCALE_PORT", "")
        first = int(base) if base.isascii() and base.isdigit() else MEGASCALE_PORT
        variables["MEGASCALE_PORT"] = str(first + assignment.local_rank)
    return variables


def _make_process_variables(
    assignment: WorkerAssignment, parent: Mapping[str, str], environ: Mapping[str, str]
) -> dict[str, str]:
    """Return the worker's chips and its place among the processes of the slice; nothing where it has the whole host."""
    own, count = len(assignment.slot.devices), assignment.local_world_size
    host_box = _find_host_box(environ, own * count)
    host_chips = math.prod(host_box)
    if count == 1 and own >= host_chips:
        return {}
    identity = slice_identity.read_identity(environ)[0] if assignment.group_world_size > 1 else None
    if identity is not None and identity.host_count == 1:
        identity = None
    if own * count != host_chips and (count > 1 or identity):
        where = "on a slice of several hosts" if identity else "with several processes"
        sentence = f"{own * count} of this host's {host_chips} TPU chips would be used, which libtpu cannot do {where}"
        raise UsageError(sentence, "use --devices-per-worker all to give a worker all of them")
    box = _find_process_box(own, host_box)
    visible = ",".join(device.visible for device in assignment.slot.devices)
    variables = {name: visible for name in VISIBLE if name == VISIBLE[0] or name in parent}
    variables[_CHIP_BOUNDS[0]] = _format_bounds(box)
    if count == 1:
        return {**variables, _HOST_BOUNDS[0]: "1,1,1"}
    hosts, host_grid, worker_id = _resolve_hosts(identity, environ, host_box)
    grid = tuple(side // part for side, part in zip(host_box, box, strict=True))
    if identity is None and own == 1 and host_chips == 8 and not _parse_bounds(environ, _CHIP_BOUNDS):
        grid = _EIGHT_PROCESS_GRID
    bounds = _format_bounds(tuple(a * b for a, b in zip(host_grid, grid, strict=True)))
    ports = range(PROCESS_PORT, PROCESS_PORT + count)
    return {
        **variables,
        _HOST_BOUNDS[0]: f"{bounds},2" if _is_tpu7x(assignment, environ) else bounds,  # torch_xla: a 4th side for tpu7x
        "TPU_PROCESS_ADDRESSES": ",".join(f"{host}:{port}" for host in hosts for port in ports),
        "TPU_PROCESS_PORT": str(ports[assignment.local_rank]),
        "CLOUD_TPU_TASK_ID": str(worker_id * count + assignment.local_rank),
        "ALLOW_MULTIPLE_LIBTPU_LOAD": parent.get("ALLOW_MULTIPLE_LIBTPU_LOAD", "1"),
    }


def _find_process_box(chip_count: int, host_box: Box) -> Box:
    """Return the box of a process's chips. Raises UsageError."""
    host_chips = math.prod(host_box)
    box = host_box if chip_count == host_chips else _PROCESS_BOXES.get((host_chips, chip_count))
    if box is None or any(side % part for side, part in zip(host_box, box, strict=True)):
        fit = [str(each) for chips, each in _PROCESS_BOXES if chips == host_chips]
        raise UsageError(
            f"{chip_count} TPU chips per process: the position of such a part of a host with {host_chips} is unknown",
            f"set --devices-per-worker to {', '.join((*fit, 'all'))}",
        )
    return box


def _resolve_hosts(
    identity: slice_identity.SliceIdentity | None, environ: Mapping[str, str], host_box: Box
) -> tuple[Sequence[str], Box, int]:
    """Return the hosts of the slice in order, their grid, and the index of this one. Raises UsageError."""
    if identity is None:
        return ("localhost",), (1, 1, 1), 0
    host_grid = _find_host_grid(environ, host_box)
    if len(identity.hostnames) != math.prod(host_grid):
        grid = slice_types.format_grid(host_grid)
        known = f"they form a grid of {grid}" if all(host_grid) else "their grid is unknown"
        raise UsageError(
            "several processes on each TPU host need the names and the grid of the slice's hosts: "
            f"{slice_identity.HOSTNAMES} lists {len(identity.hostnames)}, and {known}",
            "use --devices-per-worker all to start one process on each host",
        )
    return identity.hostnames, host_grid, identity.worker_id


def _find_host_box(environ: Mapping[str, str], used: int) -> Box:
    """Return the box of the chips of this host. `used`: the number of chips of all its workers."""
    box = _parse_bounds(environ, _CHIP_BOUNDS)
    if box is None and (slice_type := _parse_type(environ)) is not None:
        box = _HOST_BOXES.get(slice_type.chips_per_host)
    return _HOST_BOXES.get(used, (used, 1, 1)) if box is None or math.prod(box) < used else box


def _find_host_grid(environ: Mapping[str, str], host_box: Box) -> Box:
    """Return the grid of the hosts of the slice; (0, 0, 0) if unknown."""
    if bounds := _parse_bounds(environ, _HOST_BOUNDS):
        return bounds
    topology = slice_types.parse_topology(environ.get("TPU_TOPOLOGY", ""))
    if topology is None and (slice_type := _parse_type(environ)) is not None:
        topology = slice_type.topology
    if topology is None:
        return 0, 0, 0
    return compute_host_bounds(topology, math.prod(host_box)) or (0, 0, 0)


def compute_host_bounds(topology: Sequence[int], chips_per_host: int) -> tuple[int, ...] | None:
    """Return the grid of the hosts of a slice of several: each is a box of 2x2 chips. None where they do not fit."""
    sides = (*topology, 1, 1)[:3]
    box = (2, 2, 1) if chips_per_host == slice_types.CHIPS_PER_HOST else sides
    quotients = [divmod(side, part) for side, part in zip(sides, box, strict=True)]
    return None if any(rest for _, rest in quotients) else tuple(count for count, _ in quotients)


def _format_bounds(topology: Sequence[int]) -> str:
    """Format a box as libtpu does: three numbers, "4,4,1"."""
    return ",".join(map(str, (*topology, 1, 1)[:3]))


def _parse_type(environ: Mapping[str, str]) -> slice_types.SliceType | None:
    try:
        return slice_types.parse(environ.get(slice_identity.TYPE, ""))
    except UsageError:
        return None  # an unknown model


def _is_tpu7x(assignment: WorkerAssignment, environ: Mapping[str, str]) -> bool:
    slice_type = _parse_type(environ)
    return "tpu7x" in (assignment.slot.devices[0].model, slice_type.model.name if slice_type else "")


def _parse_bounds(environ: Mapping[str, str], names: Sequence[str]) -> Box | None:
    """Parse three numbers with commas, from the first of these variables that has them."""
    for name in names:
        if sides := slice_types.parse_bounds(environ.get(name, "")):
            return sides
    return None
