"""The environment of a worker: the contract of a framework's plug-in, and visible devices.

As under torchrun all workers of a node see all its devices and pick by LOCAL_RANK. Three settings restrict the visible
devices, by the variable that the kind of device has for it:

--virtual-local-rank       the worker's entry of CUDA_VISIBLE_DEVICES, by text. LOCAL_RANK is 0 for all
--device-binding visible   the worker's own devices of any kind. LOCAL_RANK is 0 for all, because code that picks by it
                           finds one device: Megatron-LM, DeepSpeed and torch's DeviceMesh call set_device(LOCAL_RANK).
                           LAUNCHER_LOCAL_RANK still counts the workers
--devices-per-worker N     above 1 the worker's own. LOCAL_RANK still counts the workers, and a script must pick among
                           its devices from 0

For TPU chips `tpu` does this together with the other variables that libtpu reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from launcher.config.config import WorkerOptions
from launcher.hardware.accelerators.contract import format_visible_variable
from launcher.model.errors import UsageError
from launcher.model.node import Slot


class WorkerAssignment(Struct, frozen=True, kw_only=True):
    """One worker's ranks in one round. Ranks and sizes as torchrun names them; `group` is the node."""

    run_id: str
    round: int
    restart_count: int
    max_restarts: int
    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    group_rank: int
    group_world_size: int
    role: str
    role_rank: int
    role_world_size: int
    master_addr: str
    """Where rank 0 listens in this round."""
    master_port: int
    mesh_axes: tuple[str, ...]
    """From the outermost to the innermost, as the shape and the coordinates."""
    mesh_shape: tuple[int, ...]
    mesh_coordinates: tuple[int, ...]
    slot: Slot
    error_file: str
    mesh_groups: tuple[str, ...] = ()
    """Groups over several axes that were declared, such as "dp+cp"."""
    slice_index: int = 0
    """The TPU slice this node is in."""
    slice_count: int = 0
    """0 without slices."""


class Environment(Protocol):
    def variables(self, assignment: WorkerAssignment, parent: Mapping[str, str]) -> dict[str, str]:
        """Return what to add to, or overwrite in, the parent's environment for this worker."""

    def remarks(self, slots: Sequence[Slot], parent: Mapping[str, str], has_other_nodes: bool) -> list[str]:
        """Return sentences for the start. `slots`: this node's."""


LOCAL_RANK = "LAUNCHER_LOCAL_RANK"
"""Distinguishes the workers of a node where LOCAL_RANK does not."""
_CUDA_VISIBLE = "CUDA_VISIBLE_DEVICES"


class VisibleDevices(Struct, frozen=True):
    """`variables` are empty where the worker sees what the agent sees."""

    local_rank: int
    variables: dict[str, str]


class DeviceEnvironment(Struct, frozen=True, kw_only=True):
    """What frameworks share: the devices that a worker sees."""

    options: WorkerOptions

    def find_visible_devices(self, assignment: WorkerAssignment, parent: Mapping[str, str]) -> VisibleDevices:
        """Return the devices that this worker sees.

        Raises UsageError if --virtual-local-rank finds no entry for the worker in CUDA_VISIBLE_DEVICES.
        """
        devices = assignment.slot.devices
        own = format_visible_variable(devices) if devices and devices[0].kind != "tpu" else None
        if own is not None and (self.options.device_binding == "visible" or len(devices) > 1):
            if self.options.device_binding == "visible":
                return VisibleDevices(0, {own[0]: own[1], LOCAL_RANK: str(assignment.local_rank)})
            return VisibleDevices(0 if self.options.virtual_local_rank else assignment.local_rank, {own[0]: own[1]})
        if not self.options.virtual_local_rank:
            return VisibleDevices(assignment.local_rank, {})
        if _CUDA_VISIBLE not in parent:
            return VisibleDevices(0, {_CUDA_VISIBLE: str(assignment.local_rank)})
        entries = parent[_CUDA_VISIBLE].split(",")
        if assignment.local_rank >= len(entries):
            raise UsageError(
                f"--virtual-local-rank gives each worker one entry of {_CUDA_VISIBLE}={parent[_CUDA_VISIBLE]}, "
                f"which has none for local rank {assignment.local_rank}"
            )
        return VisibleDevices(0, {_CUDA_VISIBLE: entries[assignment.local_rank].strip()})
