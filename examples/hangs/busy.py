"""One rank computes for ever. The script knows nothing of the launcher.

    meshrun --standalone --nproc-per-node 4 examples/hangs/busy.py

Rank 3 has not entered the collective in which the others wait.
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist


def search() -> None:
    while True:
        sum(range(1000))


dist.init_process_group("gloo")
ones = torch.ones(4)
for _ in range(3):
    dist.all_reduce(ones)
print("ready", flush=True)
if os.environ["RANK"] == "3":
    search()
dist.all_reduce(ones)
