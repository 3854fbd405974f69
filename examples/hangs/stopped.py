"""One rank is stopped, as by a debugger or by Ctrl-Z.

    meshrun --standalone --nproc-per-node 4 examples/hangs/stopped.py

Rank 2 is stopped. Its recorder cannot answer, so it is said not to have been seen in all_reduce 4.
"""

from __future__ import annotations

import os
import signal

import torch
import torch.distributed as dist

from launcher.worker import mesh

dist.init_process_group("gloo")
rank = mesh().rank
ones = torch.ones(4)
for _ in range(3):
    dist.all_reduce(ones)
print("ready", flush=True)
if rank == 2:
    os.kill(os.getpid(), signal.SIGSTOP)
dist.all_reduce(ones)
