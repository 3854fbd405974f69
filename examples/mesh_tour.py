"""Show where every rank stands in the mesh, and with whom it forms the group of each axis.

    meshrun --standalone --nproc-per-node 8 --mesh pp=2,dp=*,tp=2 examples/mesh_tour.py

What the launcher knows needs no framework. With torch installed rank 0 gathers the lines and prints them in order;
without it every rank prints its own.
"""

from __future__ import annotations

import os

from launcher.worker import mesh


def main() -> None:
    if "MESH_AXES" not in os.environ:
        raise SystemExit("there is no mesh in the environment: start this with meshrun")
    here = mesh()
    place = " ".join(f"{axis}={coordinate}" for axis, coordinate in zip(here.axes, here.coordinates, strict=True))
    groups = "  ".join(f"{name} {list(here.group(name))}" for name in here.group_names)
    line = f"rank {here.rank}: {place}   groups: {groups}"

    try:
        import torch.distributed as dist
    except ImportError:
        print(line, flush=True)
        return
    dist.init_process_group("gloo")
    lines = [""] * here.world_size
    dist.gather_object(line, lines if here.rank == 0 else None)
    if here.rank == 0:
        sizes = str(here).replace(",", " ")
        print("\n".join([f"mesh {sizes}, round {os.environ['LAUNCHER_ROUND']}", *lines]), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
