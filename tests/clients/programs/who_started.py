"""Prints the worker's rank, the size of the world, and whether meshrun started it. Started by a test."""

from __future__ import annotations

import os

launcher = "meshrun" if "LAUNCHER_ROUND" in os.environ else "torch"
print(f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']} by {launcher}", flush=True)
