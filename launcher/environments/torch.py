"""What torchrun tells its workers, word for word, and where in the mesh they stand.

Scripts written for torchrun find every variable they know (those of torch 2.13). New ones are the mesh:

    MESH_AXES=pp,dp,tp  MESH_SHAPE=4,7,8  MESH_COORDS=0,3,2  MESH_TP_RANK=2  MESH_TP_SIZE=8  ...

and LAUNCHER_ROUND, which counts every restart, while TORCHELASTIC_RESTART_COUNT counts those that were charged.

Rank 0 hosts the store at MASTER_ADDR:MASTER_PORT (TORCHELASTIC_USE_AGENT_STORE=False), so that no round can
read what an earlier one left behind.

All workers of a node see all its GPUs and pick by LOCAL_RANK, as under torchrun. Two settings give each
worker only its own: --virtual-local-rank, where LOCAL_RANK is 0 for all, and --devices-per-worker above 1,
where LOCAL_RANK still counts the workers and a script must pick among its devices from 0.
"""

from __future__ import annotations

from collections.abc import Mapping

from launcher.environments import Place
from launcher.errors import UsageError

SIGNALS_TO_HANDLE = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")  # torchrun's default
_VISIBLE = "CUDA_VISIBLE_DEVICES"


class TorchEnvironment:
    """Both arguments are the flags of the same name; the signals are passed on for scripts that use torch.elastic."""

    name = "torch"

    def __init__(
        self, *, virtual_local_rank: bool = False, signals_to_handle: tuple[str, ...] = SIGNALS_TO_HANDLE
    ) -> None:
        self._is_virtual = virtual_local_rank
        self._signals = ",".join(signals_to_handle)

    def variables(self, place: Place, parent: Mapping[str, str]) -> dict[str, str]:
        """What to add to, or overwrite in, the parent's environment for this worker.

        Raises UsageError if --virtual-local-rank finds no entry for the worker in CUDA_VISIBLE_DEVICES.
        """
        variables = {
            "RANK": str(place.rank),
            "WORLD_SIZE": str(place.world_size),
            "LOCAL_RANK": "0" if self._is_virtual else str(place.local_rank),
            "LOCAL_WORLD_SIZE": str(place.local_world_size),
            "GROUP_RANK": str(place.group_rank),
            "GROUP_WORLD_SIZE": str(place.group_world_size),
            "ROLE_NAME": place.role,
            "ROLE_RANK": str(place.role_rank),
            "ROLE_WORLD_SIZE": str(place.role_world_size),
            "MASTER_ADDR": place.master_addr,
            "MASTER_PORT": str(place.master_port),
            "TORCHELASTIC_RUN_ID": place.run_id,
            "TORCHELASTIC_RESTART_COUNT": str(place.restart_count),
            "TORCHELASTIC_MAX_RESTARTS": str(place.max_restarts),
            "TORCHELASTIC_USE_AGENT_STORE": "False",
            "TORCHELASTIC_ERROR_FILE": place.error_file,
            "TORCHELASTIC_SIGNALS_TO_HANDLE": self._signals,
            # Without it a rank whose peer died waits in a collective for ever.
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": parent.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
            "LAUNCHER_ROUND": str(place.round),
            **_mesh(place),
        }
        if "OMP_NUM_THREADS" not in parent and place.local_world_size > 1:
            variables["OMP_NUM_THREADS"] = "1"  # else every worker starts one thread per CPU
        visible = self._visible(place, parent)
        if visible is not None:
            variables[_VISIBLE] = visible
        return variables

    def _visible(self, place: Place, parent: Mapping[str, str]) -> str | None:
        """The worker's own CUDA_VISIBLE_DEVICES; None where it sees what the agent sees."""
        devices = place.slot.devices
        if len(devices) > 1 and devices[0].kind == "nvidia":
            return ",".join(device.visible for device in devices)
        if not self._is_virtual:
            return None
        if _VISIBLE not in parent:
            return str(place.local_rank)
        entries = parent[_VISIBLE].split(",")
        if place.local_rank >= len(entries):
            raise UsageError(
                f"--virtual-local-rank gives each worker one entry of {_VISIBLE}={parent[_VISIBLE]}, "
                f"and local rank {place.local_rank} finds none"
            )
        return entries[place.local_rank].strip()


def _mesh(place: Place) -> dict[str, str]:
    variables = {
        "MESH_AXES": ",".join(place.mesh_axes),
        "MESH_SHAPE": ",".join(map(str, place.mesh_shape)),
        "MESH_COORDS": ",".join(map(str, place.mesh_coordinates)),
    }
    for axis, size, rank in zip(place.mesh_axes, place.mesh_shape, place.mesh_coordinates, strict=True):
        variables[f"MESH_{axis.upper()}_RANK"] = str(rank)
        variables[f"MESH_{axis.upper()}_SIZE"] = str(size)
    return variables
