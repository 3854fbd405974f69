"""Show where every rank stands in the mesh, and with whom it forms the group of each axis.

    meshrun --standalone --nproc-per-node 8 --mesh pp=2,dp=*,tp=2 examples/mesh_tour.py

Everything is read from the environment, so it works for any framework. With torch installed rank 0 gathers the
lines and prints them in order; without it every rank prints its own.
"""

from __future__ import annotations

import math
import os


def numbers(variable: str) -> list[int]:
    return [int(number) for number in os.environ[variable].split(",")]


def group(axis: int, shape: list[int], coordinates: list[int]) -> list[int]:
    """The ranks that differ from this one only along `axis`; the last axis varies fastest."""
    stride = math.prod(shape[axis + 1 :])
    first = int(os.environ["RANK"]) - coordinates[axis] * stride
    return [first + step * stride for step in range(shape[axis])]


def main() -> None:
    if "MESH_AXES" not in os.environ:
        raise SystemExit("there is no mesh in the environment: start this with meshrun")
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    axes = os.environ["MESH_AXES"].split(",")
    shape, coordinates = numbers("MESH_SHAPE"), numbers("MESH_COORDS")
    place = " ".join(f"{axis}={coordinate}" for axis, coordinate in zip(axes, coordinates, strict=True))
    groups = "  ".join(f"{axis} {group(index, shape, coordinates)}" for index, axis in enumerate(axes))
    line = f"rank {rank}: {place}   groups: {groups}"

    try:
        import torch.distributed as dist
    except ImportError:
        print(line, flush=True)
        return
    dist.init_process_group("gloo")
    lines = [""] * world_size
    dist.gather_object(line, lines if rank == 0 else None)
    if rank == 0:
        sizes = " ".join(f"{axis}={size}" for axis, size in zip(axes, shape, strict=True))
        print("\n".join([f"mesh {sizes}, round {os.environ['LAUNCHER_ROUND']}", *lines]), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
