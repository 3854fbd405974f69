"""Binds the workers of this node to its CPUs: read the machine, then bind.

Linux shows the machine under /sys: the CPUs of each NUMA node, and which of them are threads of one core, share a cache
or sit on one socket. A kernel without NUMA, as in some sandboxes, counts as one node. Memory needs no policy: Linux
takes it from the node of the CPU that touches it first, which is the worker's own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence

from launcher.config.options.readers import NumaMode
from launcher.hardware.cpu_binding import CpuBinding, CpuTopology, bind, list_numa_nodes
from launcher.hardware.linux.sysfs import FileTree
from launcher.model.node import Slot

_SYSFS = "/sys/devices/system"


# docs/internals/decisions/0027-numa-memory-by-first-touch.md
def bind_node(mode: NumaMode, slots: Sequence[Slot]) -> tuple[CpuBinding, ...]:
    """Return the CPUs of every worker, in local order. Raises UsageError if they cannot be bound."""
    allowed = frozenset(os.sched_getaffinity(0))
    return bind(mode, read_topology(allowed), allowed, list_numa_nodes(slots))


def read_topology(allowed: frozenset[int], root: str = "/") -> CpuTopology:
    """Read the topology of this machine. `allowed`: what this process may use. `root`: of /sys, for tests."""
    files = FileTree(root)
    every_node = files.list_numbers(f"{_SYSFS}/node/node")
    lists = {node: _parse_cpus(files.read_text(f"{_SYSFS}/node/node{node}/cpulist")) for node in every_node}
    nodes = {node: cpus for node, cpus in lists.items() if cpus} or {0: allowed}
    every = sorted(frozenset[int]().union(*nodes.values()))
    sockets = {cpu: files.read_number(f"{_SYSFS}/cpu/cpu{cpu}/topology/physical_package_id") for cpu in every}
    return CpuTopology(
        nodes=nodes,
        socket={cpu: socket for cpu, socket in sockets.items() if socket is not None},
        core=_map_to_lowest(every, lambda cpu: files.read_text(f"{_SYSFS}/cpu/cpu{cpu}/topology/thread_siblings_list")),
        cache=_map_to_lowest(every, lambda cpu: _read_cache_sharers(files, f"{_SYSFS}/cpu/cpu{cpu}/cache")),
    )


def _map_to_lowest(cpus: Iterable[int], read_sharers: Callable[[int], str]) -> dict[int, int]:
    """Map each CPU to the lowest of its sharers; one without an answer is left out.

    A list is read once for all CPUs that are in it, because a large machine has hundreds.
    """
    found: dict[int, int] = {}
    for cpu in cpus:
        if cpu not in found and (group := _parse_cpus(read_sharers(cpu))):
            found.update(dict.fromkeys(group, min(group)))
    return found


def _read_cache_sharers(files: FileTree, folder: str) -> str:
    """Return the CPUs that share a CPU's last-level cache for data."""
    levels = {}
    for name in files.list_names(folder):
        level = files.read_number(f"{folder}/{name}/level")
        if level is not None and files.read_text(f"{folder}/{name}/type") in ("Data", "Unified"):
            levels[level] = name
    return files.read_text(f"{folder}/{levels[max(levels)]}/shared_cpu_list") if levels else ""


def _parse_cpus(text: str) -> frozenset[int]:
    """Parse a list as the kernel writes it, 0-3,8."""
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if first.isdecimal() and (last.isdecimal() or not dash):
            found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)
