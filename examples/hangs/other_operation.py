"""One rank calls another operation than the rest.

    meshrun --standalone --nproc-per-node 4 examples/hangs/other_operation.py

A mismatch: number 4 is a broadcast on rank 1 and an all_reduce on the others.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from launcher.worker import mesh

dist.init_process_group("gloo")
rank = mesh().rank
ones = torch.ones(4)
for _ in range(3):
    dist.all_reduce(ones)
print("ready", flush=True)
if rank == 1:
    dist.broadcast(ones, 0)
else:
    dist.all_reduce(ones)
