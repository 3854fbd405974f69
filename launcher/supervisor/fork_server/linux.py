"""Kernel and C library calls of a worker that Python's library lacks.

As in `launcher/hardware/linux`, of which nothing can be imported here; a test compares the numbers.
"""

from __future__ import annotations

import ctypes
import os
import sys

# include/uapi/linux/prctl.h
PR_SET_PDEATHSIG = 1
PR_SET_PTRACER = 0x59616D61
# set_mempolicy(2): the policies, and the number of the call by machine
PREFERRED = 1
PREFERRED_MANY = 5
_GENERIC = 237
SET_MEMPOLICY = {
    "x86_64": 238,
    "aarch64": _GENERIC,
    "riscv64": _GENERIC,
    "loongarch64": _GENERIC,
    "ppc64le": 261,
    "s390x": 270,
}
_NODES_MAX = 1024  # CONFIG_NODES_SHIFT is 10 at most

_library = ctypes.CDLL(None, use_errno=True)
# Variadic in C: every argument has to be as wide as the kernel reads it.
_library.prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
_library.fflush.argtypes = [ctypes.c_void_p]
_library.syscall.restype = ctypes.c_long


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


def prefer_memory(nodes: list[int]) -> None:
    """Take memory from these NUMA nodes while they have some; where that cannot be set, as Linux does."""
    number = SET_MEMPOLICY.get(os.uname().machine)
    if number is None or sys.maxsize < 1 << 32:  # a 32-bit Python on such a machine has other numbers
        return
    width = 8 * ctypes.sizeof(ctypes.c_ulong)
    mask = (ctypes.c_ulong * (_NODES_MAX // width))()
    for node in nodes:
        mask[node // width] |= 1 << (node % width)
    policy = PREFERRED if len(nodes) == 1 else PREFERRED_MANY
    # The kernel counts the bits of the mask with one too many, see set_mempolicy(2), BUGS.
    _library.syscall(ctypes.c_long(number), ctypes.c_long(policy), mask, ctypes.c_long(_NODES_MAX + 1))
