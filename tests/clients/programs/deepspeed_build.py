"""Compile what DeepSpeed wants before its first collective on a CPU; it does so once, and keeps it.

Not within a job: a worker that is stopped meanwhile leaves a lock behind, and all later ones wait for that.
"""

from __future__ import annotations

from deepspeed.comm.torch import build_shm_op

print(build_shm_op())
