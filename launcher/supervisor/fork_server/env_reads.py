"""Detects the variables that an import reads too early: those that differ between workers, or between rounds.

A module that reads RANK while it is imported here finds nothing, and keeps that. So reads are recorded: every access to
a variable in `os.environ` goes through one function, which encodes its name. Reads in C code bypass it and are not
seen; neither is a copy of all variables, which contains none of these.
"""

from __future__ import annotations

import os
import re
import sys

# The variables of `launcher/ranks/environments` that differ by worker or by round; a test compares.
WORKER_VARIABLES = re.compile(
    r"""(?:
    RANK|LOCAL_RANK|GROUP_RANK|ROLE_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|GROUP_WORLD_SIZE|ROLE_WORLD_SIZE
    |MASTER_ADDR|MASTER_PORT|TORCHELASTIC_RESTART_COUNT|TORCHELASTIC_ERROR_FILE
    |LAUNCHER_(?:ROUND|LOCAL_RANK|WORKER_DEVICES|BOARD)
    |MESH_(?:SHAPE|COORDS|\w+_RANK|\w+_SIZE)
    |JAX_(?:COORDINATOR_ADDRESS|COORDINATOR_BIND_ADDRESS|LOCAL_DEVICE_IDS)
    |OMPI_COMM_WORLD_(?:SIZE|RANK|LOCAL_RANK)
    |MEGASCALE_(?:COORDINATOR_ADDRESS|NUM_SLICES|SLICE_ID|PORT)
    |TPU_(?:VISIBLE_CHIPS|VISIBLE_DEVICES|CHIPS_PER_PROCESS_BOUNDS|PROCESS_BOUNDS|PROCESS_ADDRESSES|PROCESS_PORT)
    |CLOUD_TPU_TASK_ID
    |PJRT_(?:LOCAL_PROCESS_RANK|LOCAL_PROCESS_COUNT)
    )\Z""",
    re.VERBOSE,
)


class EnvReadRecorder:
    """A context manager that records which modules read these variables. `read`: module to names, in order."""

    def __init__(self) -> None:
        self.reads_by_module: dict[str, list[str]] = {}

    def __enter__(self) -> EnvReadRecorder:
        self._environ, self._encode = os.environ, os.environ.encodekey
        self._environ.encodekey = self._record_read
        return self

    def __exit__(self, *error: object) -> None:
        self._environ.encodekey = self._encode

    def _record_read(self, name: str) -> str:
        if isinstance(name, str) and WORKER_VARIABLES.match(name):
            reader = _find_reader()
            if reader and name not in self.reads_by_module.setdefault(reader, []):
                self.reads_by_module[reader].append(name)
        return self._encode(name)


def _find_reader() -> str:
    """Return the module that reads; empty if it writes."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__") in ("os", "_collections_abc", "collections.abc"):
        if frame.f_code.co_name in ("__setitem__", "__delitem__"):
            return ""
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", "?"))
