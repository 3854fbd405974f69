"""One rank is in a C function that holds the GIL, so that no Python of it runs, in no thread.

    meshrun --standalone --nproc-per-node 4 examples/hangs/gil.py

Rank 1 is late for all_reduce 4. Its stack comes from outside of the process: nothing in it could print one.
"""

from __future__ import annotations

import ctypes

import torch
import torch.distributed as dist

from launcher.worker import mesh


def call_extension() -> None:
    ctypes.PyDLL(None).sleep(86400)  # CDLL would release the GIL


dist.init_process_group("gloo")
rank = mesh().rank
ones = torch.ones(4)
for _ in range(3):
    dist.all_reduce(ones)
print("ready", flush=True)
if rank == 1:
    call_extension()
dist.all_reduce(ones)
