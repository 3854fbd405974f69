"""The variables that torchrun sets for its workers, unchanged, and those of the mesh.

Scripts written for torchrun find every variable they expect (those of torch 2.13). New are those of the mesh:

    MESH_AXES=pp,dp,tp  MESH_SHAPE=4,7,8  MESH_COORDS=0,3,2  MESH_TP_RANK=2  MESH_TP_SIZE=8  ...
    MESH_GROUPS=pp,dp,tp

and LAUNCHER_ROUND, which counts every restart, while TORCHELASTIC_RESTART_COUNT counts those that were charged.

Rank 0 hosts the store at MASTER_ADDR:MASTER_PORT (TORCHELASTIC_USE_AGENT_STORE=False), so that no round can
read what an earlier one left behind.

For the devices that a worker sees, and LOCAL_RANK then, see `contract`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from launcher.model.node import Slot
from launcher.ranks.environments.contract import DeviceEnvironment, WorkerAssignment


class TorchEnvironment(DeviceEnvironment, frozen=True, kw_only=True):
    """The variables of torchrun's workers. Without an interface gloo and NCCL choose by themselves, as there."""

    def variables(self, assignment: WorkerAssignment, parent: Mapping[str, str]) -> dict[str, str]:
        """Return what to add to, or overwrite in, the parent's environment for this worker.

        Raises UsageError if --virtual-local-rank finds no entry for the worker in CUDA_VISIBLE_DEVICES.
        """
        seen = self.find_visible_devices(assignment, parent)
        variables = {
            "RANK": str(assignment.rank),
            "WORLD_SIZE": str(assignment.world_size),
            "LOCAL_RANK": str(seen.local_rank),
            "LOCAL_WORLD_SIZE": str(assignment.local_world_size),
            "GROUP_RANK": str(assignment.group_rank),
            "GROUP_WORLD_SIZE": str(assignment.group_world_size),
            "ROLE_NAME": assignment.role,
            "ROLE_RANK": str(assignment.role_rank),
            "ROLE_WORLD_SIZE": str(assignment.role_world_size),
            "MASTER_ADDR": assignment.master_addr,
            "MASTER_PORT": str(assignment.master_port),
            "TORCHELASTIC_RUN_ID": assignment.run_id,
            "TORCHELASTIC_RESTART_COUNT": str(assignment.restart_count),
            "TORCHELASTIC_MAX_RESTARTS": str(assignment.max_restarts),
            "TORCHELASTIC_USE_AGENT_STORE": "False",
            "TORCHELASTIC_ERROR_FILE": assignment.error_file,
            "TORCHELASTIC_SIGNALS_TO_HANDLE": ",".join(self.options.signals_to_handle),
            # Without it a rank whose peer died waits in a collective for ever.
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": parent.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
            "LAUNCHER_ROUND": str(assignment.round),
            **_make_mesh_variables(assignment),
            **seen.variables,
        }
        if self.options.interface is not None:  # NCCL takes a name as the beginning of one, unless told otherwise
            own = {"GLOO_SOCKET_IFNAME": self.options.interface, "NCCL_SOCKET_IFNAME": f"={self.options.interface}"}
            variables.update({name: text for name, text in own.items() if name not in parent})
        if devices := assignment.slot.devices:  # from which `launcher.worker` configures a framework
            variables["LAUNCHER_WORKER_DEVICES"] = f"{devices[0].kind}:{len(devices)}"
        if "OMP_NUM_THREADS" not in parent and assignment.local_world_size > 1:
            variables["OMP_NUM_THREADS"] = "1"  # else every worker starts one thread per CPU
        return variables

    def remarks(self, slots: Sequence[Slot], parent: Mapping[str, str], has_other_nodes: bool) -> list[str]:
        """Name the options that --device-binding excludes."""
        if self.options.device_binding != "visible":
            return []
        kinds = {device.kind for slot in slots for device in slot.devices}
        if kinds <= {"cpu"}:
            return ["--device-binding visible has no effect: there are no devices to hide"]
        if "nvidia" in kinds and len(slots) > 1:
            return [
                "every worker sees its GPU as device 0, so torch's symmetric memory for CUDA does not work: it "
                "compares these numbers among the workers of a node"
            ]
        return []


def _make_mesh_variables(assignment: WorkerAssignment) -> dict[str, str]:
    variables = {
        "MESH_AXES": ",".join(assignment.mesh_axes),
        "MESH_SHAPE": ",".join(map(str, assignment.mesh_shape)),
        "MESH_COORDS": ",".join(map(str, assignment.mesh_coordinates)),
        "MESH_GROUPS": ",".join((*assignment.mesh_axes, *assignment.mesh_groups)),
    }
    for axis, size, rank in zip(assignment.mesh_axes, assignment.mesh_shape, assignment.mesh_coordinates, strict=True):
        variables[f"MESH_{axis.upper()}_RANK"] = str(rank)
        variables[f"MESH_{axis.upper()}_SIZE"] = str(size)
    return variables
