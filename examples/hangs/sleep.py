"""One rank sleeps before a collective that the others have entered.

    meshrun --standalone --nproc-per-node 4 examples/hangs/sleep.py

Rank 2 is late for all_reduce 4, and stands in time.sleep of `evaluate`.
"""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from launcher.worker import mesh


def evaluate() -> None:
    time.sleep(86400)


dist.init_process_group("gloo")
rank = mesh().rank
ones = torch.ones(4)
for _ in range(3):
    dist.all_reduce(ones)
print("ready", flush=True)
if rank == 2:
    evaluate()
dist.all_reduce(ones)
