"""The declared mesh as torch and as JAX know it.

What the two disagree about is whose devices a worker uses. torch picks one of those that it sees by LOCAL_RANK; JAX
takes all that it sees, unless it is told which. Here both use the worker's own.
"""

from __future__ import annotations

import os
from typing import Any

from launcher.worker.grid import mesh

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from jax.sharding import Mesh
    from torch.distributed.device_mesh import DeviceMesh

DEVICES_VARIABLE = "LAUNCHER_WORKER_DEVICES"
"""What this worker has been given, as KIND:COUNT."""
_VISIBLE_DEVICES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


def torch_mesh(device_type: str | None = None, **more: Any) -> DeviceMesh:
    """The declared mesh as a torch DeviceMesh with the axes' names; every worker must call it, and once is enough.

    `device_type`: by default that of torch's accelerator, and "cpu" where there is none or where the workers were
    placed on CPUs. A process group is made if there is none yet; `more` are arguments of init_process_group for that.
    Slices are torch's: `torch_mesh()["dp", "tp"]`. A group that `--traffic` declares over several axes is there under
    its name, `torch_mesh()["dp+cp"]`. Raises RuntimeError without a launcher.
    """
    place = mesh()
    import torch
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh

    device_type = device_type or _find_torch_device_type()
    if device_type != "cpu":
        # A worker that was given its devices for itself sees no others, and LOCAL_RANK counts beyond them.
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
    return found


def init_jax(**more: Any) -> None:
    """jax.distributed.initialize with what the launcher knows; once it has been called, by whomever, do nothing.

    Given are the coordinator (rank 0, on the port of this round), the number of processes, this process's number and,
    where the worker sees more devices than its own, which are its own. JAX's detection of clusters is off: it would
    ask Slurm, MPI or a metadata server, which know only the agent. `more` are further arguments of initialize, such
    as `initialization_timeout`, and win over those. Call it before anything else of JAX computes. Raises RuntimeError
    without a launcher.
    """
    place = mesh()
    import jax

    if jax.distributed.is_initialized():
        return
    address, port = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
    given: dict[str, Any] = {
        "coordinator_address": f"[{address}]:{port}" if ":" in address else f"{address}:{port}",
        "num_processes": place.world_size,
        "process_id": place.rank,
        "local_device_ids": local_device_ids(os.environ),
        "cluster_detection_method": "deactivate",
    }
    if (address == "::1" or address.startswith("127.")) and "JAX_COORDINATOR_BIND_ADDRESS" not in os.environ:
        given["coordinator_bind_address"] = given["coordinator_address"]  # else on every network of this machine
    jax.distributed.initialize(**{**given, **more})


def jax_mesh(*, local_axis: str | None = None, **more: Any) -> Mesh:
    """The declared mesh as a jax.sharding.Mesh over all devices of all processes; calls init_jax first.

    The devices of the process with number i stand where rank i stands. A worker with several devices needs one axis
    more, the innermost, over the devices of a worker: `local_axis` is its name, and it is there even if it is 1 long.
    `more` are further arguments of Mesh, such as `axis_types`.

    Raises RuntimeError without a launcher, and ValueError if workers have several devices and no `local_axis`, differ
    in how many they have, or the axis has a name of the mesh.
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
        raise ValueError(f"some workers have {counts[0]} devices and some {counts[-1]}: they form no mesh {place}")
    if counts[0] != 1 and local_axis is None:
        raise ValueError(
            f"mesh {place} has one device per worker, and each worker has {counts[0]}: "
            "name the innermost axis that they form, as in jax_mesh(local_axis='chip')"
        )
    # Made by hand: numpy would look into a list of devices for numbers.
    devices = numpy.empty((place.world_size, counts[0]), dtype=object)
    for rank, row in enumerate(rows):
        devices[rank, :] = row
    inner = () if local_axis is None else (counts[0],)
    names = place.axes if local_axis is None else (*place.axes, local_axis)
    return jax.sharding.Mesh(devices.reshape(*place.shape, *inner), names, **more)


def local_device_ids(environ: Mapping[str, str]) -> list[int] | None:
    """Which of the devices that JAX sees are this worker's; None: all of them, or what JAX_LOCAL_DEVICE_IDS says."""
    if environ.get("JAX_LOCAL_DEVICE_IDS"):
        return None  # JAX reads it
    _, _, count = environ.get(DEVICES_VARIABLE, "").partition(":")
    workers = int(environ.get("LOCAL_WORLD_SIZE", "1"))
    seen = next((environ[name] for name in _VISIBLE_DEVICES if name in environ), None)
    sees_its_own = seen is not None and len(seen.split(",")) < workers
    if sees_its_own or count not in ("", "1") or (not count and workers == 1):
        return None
    return [int(environ["LOCAL_RANK"])]


def _find_torch_device_type() -> str:
    import torch

    kind, _, _ = os.environ.get(DEVICES_VARIABLE, "").partition(":")
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return "cpu" if kind == "cpu" or accelerator is None else accelerator.type
