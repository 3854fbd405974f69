"""The kernel's memory policy, which decides on which NUMA nodes a process gets its pages; Python's library lacks it.

A worker that is bound to the CPUs of a NUMA node gets its memory there anyway, until one of its threads touches a page
first from elsewhere, or the kernel's balancer moves it. A policy makes it explicit. It is a preference, never strict:
if the node has no memory left the kernel takes it from another, while under MPOL_BIND it would kill the worker for
lack of memory on a machine that has plenty. See set_mempolicy(2).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection
from errno import ENOSYS

from launcher.hardware.linux.kernel import load_libc

# include/uapi/linux/mempolicy.h
DEFAULT = 0
# docs/internals/decisions/0027-preferred-numa-memory.md
PREFERRED = 1
PREFERRED_MANY = 5  # since Linux 5.15
# The numbers of get_mempolicy and set_mempolicy, by machine; glibc has no functions for them.
_GENERIC = (236, 237)  # include/uapi/asm-generic/unistd.h
_CALLS = {
    "x86_64": (239, 238),
    "aarch64": _GENERIC,
    "riscv64": _GENERIC,
    "loongarch64": _GENERIC,
    "ppc64le": (260, 261),
    "s390x": (269, 270),
}
_NODES_MAX = 1024  # CONFIG_NODES_SHIFT is 10 at most


def prefer_nodes(nodes: Collection[int]) -> None:
    """Take memory from these nodes while they have some, from now on and over exec. Raises OSError."""
    _set_policy(PREFERRED if len(nodes) == 1 else PREFERRED_MANY, nodes)


def reset_policy() -> None:
    """Restore Linux's default: memory of the node whose CPU touches it first. Raises OSError."""
    _set_policy(DEFAULT, ())


def read_policy() -> tuple[int, frozenset[int]]:
    """Return the policy of this thread and its nodes. Raises OSError."""
    import ctypes

    mode, mask = ctypes.c_int(), _make_mask(())
    _call_kernel(0, ctypes.byref(mode), mask, _NODES_MAX, 0, 0)
    width = 8 * ctypes.sizeof(ctypes.c_ulong)
    nodes = (node for node in range(_NODES_MAX) if mask[node // width] >> (node % width) & 1)
    return mode.value, frozenset(nodes)


def _set_policy(mode: int, nodes: Collection[int]) -> None:
    # The kernel counts the bits of the mask with one too many, see set_mempolicy(2), BUGS.
    _call_kernel(1, mode, _make_mask(nodes) if nodes else None, _NODES_MAX + 1 if nodes else 0)


def _make_mask(nodes: Collection[int]):  # type: ignore[no-untyped-def]  # an array of c_ulong, whose type is made anew
    import ctypes

    width = 8 * ctypes.sizeof(ctypes.c_ulong)
    mask = (ctypes.c_ulong * (_NODES_MAX // width))()
    for node in nodes:
        mask[node // width] |= 1 << (node % width)
    return mask


def _call_kernel(which: int, *arguments: object) -> None:
    import ctypes

    numbers = _CALLS.get(os.uname().machine)
    if numbers is None or sys.maxsize < 1 << 32:  # a 32-bit Python on such a machine has other numbers
        raise OSError(ENOSYS, os.strerror(ENOSYS))
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in arguments]
    if load_libc().syscall(ctypes.c_long(numbers[which]), *words) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
