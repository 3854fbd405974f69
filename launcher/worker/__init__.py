"""The API for training scripts: the mesh, stop requests, heartbeats. No script needs it to run.

    from launcher.worker import heartbeat, mesh, stop_requested, torch_mesh

    mesh().group("tp")          # the ranks of my tensor-parallel group; grid.py
    torch_mesh()["dp", "tp"]    # the same grid as a DeviceMesh; jax_mesh() for JAX; frameworks.py
    stop_requested()            # whether it is time to save and leave; client.py
    stop_request()              # the same with the remaining seconds and the reason
    heartbeat()                 # this worker makes progress
    with phase("eval", limit_s=900): ...    # it may be silent for this long; phases.py
    progress(step)              # this training step is done
    checkpoint_saved()          # now is a good time for a restart on more nodes
    give_up("no data left")     # no restart would help: end the job; claims.py
    blame_node("bad GPU")       # restart, and without this node if there are others

The functions that use torch and jax import them when they are called; the others import only the smallest parts of the
standard library. Most functions also work under another launcher: see each one.
"""

from launcher.worker.claims import blame_node, give_up
from launcher.worker.client import (
    StopRequest,
    checkpoint_saved,
    heartbeat,
    progress,
    stop_request,
    stop_requested,
)
from launcher.worker.frameworks import init_jax, jax_mesh, torch_mesh
from launcher.worker.grid import WorkerMesh, mesh
from launcher.worker.phases import phase

__all__ = [
    "StopRequest",
    "WorkerMesh",
    "blame_node",
    "checkpoint_saved",
    "give_up",
    "heartbeat",
    "init_jax",
    "jax_mesh",
    "mesh",
    "phase",
    "progress",
    "stop_request",
    "stop_requested",
    "torch_mesh",
]
