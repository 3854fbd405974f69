"""Two ranks use the same two groups, in opposite orders.

    meshrun --standalone --nproc-per-node 2 examples/hangs/two_groups.py

A deadlock: rank 0 waits in `weights` for rank 1, which waits in `statistics` for rank 0.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from launcher.worker import mesh

dist.init_process_group("gloo")
rank = mesh().rank
weights = dist.new_group([0, 1], group_desc="weights")
statistics = dist.new_group([0, 1], group_desc="statistics")
ones = torch.ones(4)
for group in (weights, statistics):
    dist.all_reduce(ones, group=group)
print("ready", flush=True)
for group in (weights, statistics) if rank == 0 else (statistics, weights):
    dist.all_reduce(ones, group=group)
