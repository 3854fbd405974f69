"""The declared mesh as a torch DeviceMesh and as a JAX Mesh.

The two frameworks differ in the devices that a worker uses. torch picks one of the visible ones by LOCAL_RANK; JAX
takes all that are visible, unless it gets a list. Here both use the devices that the worker was assigned.
"""

from __future__ import annotations

import os
from typing import Any

from launcher.worker import recorder
from launcher.worker.grid import mesh

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from jax.sharding import Mesh
    from torch.distributed.device_mesh import DeviceMesh

DEVICES_VARIABLE = "LAUNCHER_WORKER_DEVICES"
"""The devices that this worker was assigned, as KIND:COUNT."""
_VISIBLE_DEVICES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


def torch_mesh(device_type: str | None = None, **more: Any) -> DeviceMesh:
    """Return the declared mesh as a torch DeviceMesh with the names of its axes. Every worker must call this once.

    `device_type` is by default torch's accelerator, or "cpu" if the workers have none or were placed on CPUs. Without a
    process group, the function creates one and passes `more` to init_process_group. Submeshes work as in torch:
    `torch_mesh()["dp", "tp"]`. Groups over several axes from `--traffic` are available by name:
    `torch_mesh()["dp+cp"]`. Raises RuntimeError without a launcher.
    """
    place = mesh()
    import torch
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh

    device_type = device_type or _find_torch_device_type()
    if device_type != "cpu":
        # A worker to which only its own devices are visible sees fewer than LOCAL_RANK counts.
        count = torch.get_device_module(device_type).device_count()
        own = int(os.environ.get("LOCAL_RANK", "0")) % max(1, count)
        torch.get_device_module(device_type).set_device(own)
        torch.empty(1, device=f"{device_type}:{own}")  # else torch would pick by LOCAL_RANK after all
    if not distributed.is_initialized():
        distributed.init_process_group(**more)
    found = init_device_mesh(device_type, place.shape, mesh_dim_names=place.axes)
    for name in place.group_names:
        if "+" in name:
            found[tuple(name.split("+"))]._flatten(name)
    recorder.open_recorder()
    return found


def init_jax(**more: Any) -> None:
    """Call jax.distributed.initialize with the launcher's values; do nothing if JAX is already initialized.

    The values are the coordinator (rank 0, on the port of this round), the number of processes, this process's number
    and, if the worker sees more devices than its own, the ids of its own. JAX's cluster detection is turned off: it
    would query Slurm, MPI or a metadata server, which know only the agent. Further arguments of initialize in `more`,
    such as `initialization_timeout`, take precedence. Call this function before JAX computes anything. Raises
    RuntimeError without a launcher.
    """
    place = mesh()
    import jax

    if jax.distributed.is_initialized():
        return
    address, port = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
    arguments: dict[str, Any] = {
        "coordinator_address": f"[{address}]:{port}" if ":" in address else f"{address}:{port}",
        "num_processes": place.world_size,
        "process_id": place.rank,
        "local_device_ids": local_device_ids(os.environ),
        "cluster_detection_method": "deactivate",
    }
    if (address == "::1" or address.startswith("127.")) and "JAX_COORDINATOR_BIND_ADDRESS" not in os.environ:
        arguments["coordinator_bind_address"] = arguments["coordinator_address"]  # else on all of this host's networks
    jax.distributed.initialize(**{**arguments, **more})


def jax_mesh(*, local_axis: str | None = None, **more: Any) -> Mesh:
    """Call init_jax, and return the declared mesh as a jax.sharding.Mesh over all devices of all processes.

    The devices of process i have the coordinates of rank i. Workers with several devices need one more axis, the
    innermost, over the devices of a worker: `local_axis` is its name, and the axis exists even if its size is 1.
    `more` are further arguments of Mesh, such as `axis_types`.

    Raises RuntimeError without a launcher. Raises ValueError if workers have several devices and no `local_axis`, or
    different numbers of devices, or if the mesh already has an axis of that name.
    """
    place = mesh()
    init_jax()
    import jax
    import numpy

    if local_axis in place.axes:
        raise ValueError(f"local_axis {local_axis!r} is an axis of the mesh {place}: give it another name")
    rows: list[list[Any]] = [[] for _ in range(place.world_size)]
    for device in jax.devices():  # in the order of their ids within a process
        rows[device.process_index].append(device)
    counts = sorted({len(row) for row in rows})
    if len(counts) > 1:
        raise ValueError(
            f"some workers have {counts[0]} devices and some {counts[-1]}: mesh {place} needs equal numbers"
        )
    if counts[0] != 1 and local_axis is None:
        raise ValueError(
            f"mesh {place} has one device per worker, and each worker has {counts[0]}: "
            "name the axis over them, as in jax_mesh(local_axis='chip')"
        )
    # Filled in a loop: numpy.array would search a list of devices for numbers.
    devices = numpy.empty((place.world_size, counts[0]), dtype=object)
    for rank, row in enumerate(rows):
        devices[rank, :] = row
    inner = () if local_axis is None else (counts[0],)
    names = place.axes if local_axis is None else (*place.axes, local_axis)
    return jax.sharding.Mesh(devices.reshape(*place.shape, *inner), names, **more)


def local_device_ids(environ: Mapping[str, str]) -> list[int] | None:
    """Return the ids of this worker's devices among those JAX sees; None: all, or those of JAX_LOCAL_DEVICE_IDS."""
    if environ.get("JAX_LOCAL_DEVICE_IDS"):
        return None  # JAX reads it
    _, _, count = environ.get(DEVICES_VARIABLE, "").partition(":")
    workers = int(environ.get("LOCAL_WORLD_SIZE", "1"))
    visible = next((environ[name] for name in _VISIBLE_DEVICES if name in environ), None)
    sees_only_its_own = visible is not None and len(visible.split(",")) < workers
    if sees_only_its_own or count not in ("", "1") or (not count and workers == 1):
        return None
    return [int(environ["LOCAL_RANK"])]


def _find_torch_device_type() -> str:
    import torch

    kind, _, _ = os.environ.get(DEVICES_VARIABLE, "").partition(":")
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return "cpu" if kind == "cpu" or accelerator is None else accelerator.type
