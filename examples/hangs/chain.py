"""A chain of waits over three kinds of groups, from a data loader that hangs.

    meshrun --standalone --nproc-per-node 8 --mesh pp=2,dp=2,tp=2 examples/hangs/chain.py

Rank 5 loads. Rank 4 waits for it in tp, ranks 0 and 1 for these in pp, and 2, 3, 6 and 7 for them in dp. Each group by
itself accuses another rank; only rank 5 waits for nobody.
"""

from __future__ import annotations

import os
import tempfile

import torch
import torch.distributed as dist

from launcher.worker import mesh, torch_mesh


def load_batch() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        os.mkfifo(f"{folder}/pipe")
        pipe = os.open(f"{folder}/pipe", os.O_RDWR)
    return os.read(pipe, 1)


dist.init_process_group("gloo")
rank, grid = mesh().rank, torch_mesh()
ones = torch.ones(4)
for step in range(4):
    if step == 3:
        print("ready", flush=True)
        if rank == 5:
            load_batch()
    for axis in ("tp", "pp", "dp"):
        dist.all_reduce(ones, group=grid[axis].get_group())
