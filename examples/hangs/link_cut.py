"""All ranks are in the same collective, and the network between them carries nothing any more.

    meshrun --nnodes 2 --nproc-per-node 1 --rdzv-endpoint HOST:PORT examples/hangs/link_cut.py

Nothing is wrong in this script: cut the link while it runs. All have entered, and none comes out: no rank is at fault.
"""

from __future__ import annotations

import itertools

import torch
import torch.distributed as dist

from launcher.worker import mesh

dist.init_process_group("gloo")
mesh()
ones = torch.zeros(1_000_000)
for step in itertools.count():
    dist.all_reduce(ones)
    if step == 3:
        print("ready", flush=True)
