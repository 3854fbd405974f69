"""JAX in several processes, as short as it can be: everybody brings its number, and everybody has the sum.

Started by a test. `initialize` gets its arguments from the variables that torch's env:// reads.
"""

from __future__ import annotations

import os

import jax
from jax.experimental.multihost_utils import process_allgather

jax.distributed.initialize(
    coordinator_address=f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}",
    num_processes=int(os.environ["WORLD_SIZE"]),
    process_id=int(os.environ["RANK"]),
)
total = int(process_allgather(jax.process_index() + 1).sum())
print(f"process {jax.process_index()} of {jax.process_count()}: {jax.device_count()} devices, sum {total}", flush=True)
