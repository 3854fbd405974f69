"""Kernel and C library calls of a worker that Python's library lacks.

As in `launcher/hardware/linux`, of which nothing can be imported here; a test compares the numbers.
"""

from __future__ import annotations

import ctypes
import os

# include/uapi/linux/prctl.h
PR_SET_PDEATHSIG = 1
PR_SET_PTRACER = 0x59616D61

_library = ctypes.CDLL(None, use_errno=True)
# Variadic in C: every argument has to be as wide as the kernel reads it.
_library.prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
_library.fflush.argtypes = [ctypes.c_void_p]


def signal_on_parent_death(signum: int) -> None:
    """Have the kernel send `signum` to this process when its parent ends. Raises OSError."""
    if _library.prctl(PR_SET_PDEATHSIG, signum, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def allow_tracing_by(pid: int) -> None:
    """Let this process and its descendants trace the calling one; without Yama there is nothing to allow."""
    _library.prctl(PR_SET_PTRACER, pid, 0, 0, 0)


def flush_c_streams() -> None:
    """Flush what C libraries have printed, lest every fork write it once more."""
    _library.fflush(None)
