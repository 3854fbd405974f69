"""One JAX process sleeps before a computation over all of them.

    JAX_PLATFORMS=cpu meshrun --standalone --nproc-per-node 2 --framework jax examples/hangs/jax_sleep.py

Rank 1 is the odd one, by its stack: JAX records nothing. Which computation the other waits for cannot be known.
"""

from __future__ import annotations

import time

import jax
from jax.experimental import multihost_utils

from launcher.worker import init_jax


def evaluate() -> None:
    time.sleep(86400)


init_jax()
multihost_utils.sync_global_devices("first step")
print("ready", flush=True)
if jax.process_index() == 1:
    evaluate()
multihost_utils.sync_global_devices("second step")
