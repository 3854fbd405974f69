"""One rank gives a tensor of another size: its last batch was empty.

    meshrun --standalone --nproc-per-node 4 examples/hangs/other_size.py

A mismatch: number 4 is an all_reduce of no numbers on rank 1 and of four on the others. gloo lets rank 1 pass, and it
waits in number 5. (Most other pairs of sizes make gloo raise an error, and the job fails.)
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from launcher.worker import mesh

dist.init_process_group("gloo")
rank = mesh().rank
for _ in range(3):
    dist.all_reduce(torch.ones(4))
print("ready", flush=True)
dist.all_reduce(torch.ones(0 if rank == 1 else 4))
dist.all_reduce(torch.ones(4))
