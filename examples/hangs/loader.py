"""One rank's data loader reads from a pipe into which nobody writes.

    meshrun --standalone --nproc-per-node 4 examples/hangs/loader.py

Rank 3 is late for all_reduce 4, and stands in `__getitem__` of its data set.
"""

from __future__ import annotations

import os
import tempfile

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

from launcher.worker import mesh


class Pipe(Dataset[int]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        if mesh().rank == 3 and index == 3:
            with tempfile.TemporaryDirectory() as folder:
                os.mkfifo(f"{folder}/pipe")
                pipe = os.open(f"{folder}/pipe", os.O_RDWR)
            return len(os.read(pipe, 1))
        return index


dist.init_process_group("gloo")
for batch in DataLoader(Pipe(), batch_size=1):
    if int(batch) == 2:
        print("ready", flush=True)
    dist.all_reduce(torch.ones(4))
