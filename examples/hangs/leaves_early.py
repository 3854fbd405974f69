"""One rank ends with exit code 0 before the others begin: it has found no data.

    meshrun --standalone --nproc-per-node 4 examples/hangs/leaves_early.py

Rank 1 has ended, and the others wait in init_process_group. No collective has been recorded: it is told by the stacks.
"""

from __future__ import annotations

import os
import sys

import torch.distributed as dist

print("ready", flush=True)
if os.environ["RANK"] == "1":
    sys.exit(0)
dist.init_process_group("gloo")
