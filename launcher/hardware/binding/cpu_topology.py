"""Reads this machine's CPUs and memory from the kernel; used only when workers are to be bound.

Linux shows it under /sys: the CPUs of each NUMA node, which of them are threads of one core, share a cache or sit on
one socket, and which nodes have memory. A kernel without NUMA, as in some sandboxes, counts as one node. A list is read
once for all CPUs that are in it, because a large machine has hundreds.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from launcher.hardware.binding.cpu_binding import CpuTopology
from launcher.hardware.linux.sysfs import list_names, read_number, read_text


def read_topology(allowed: frozenset[int], root: str = "/") -> CpuTopology:
    """Read the topology of this machine. `allowed`: what this process may use. `root`: of /sys and /proc, for tests."""
    folder = os.path.join(root, "sys/devices/system")
    nodes = {
        int(name[4:]): cpus
        for name in list_names(f"{folder}/node")
        if name.startswith("node") and name[4:].isdecimal() and (cpus := _read_cpus(f"{folder}/node/{name}/cpulist"))
    }
    if not nodes:
        nodes = {0: allowed}
    every = sorted(frozenset[int]().union(*nodes.values()))
    sockets = {cpu: read_number(f"{folder}/cpu/cpu{cpu}/topology/physical_package_id") for cpu in every}
    return CpuTopology(
        nodes=nodes,
        socket={cpu: socket for cpu, socket in sockets.items() if socket is not None},
        core=_map_to_lowest(every, lambda cpu: _read_cpus(f"{folder}/cpu/cpu{cpu}/topology/thread_siblings_list")),
        cache=_map_to_lowest(every, lambda cpu: _read_cache_sharers(f"{folder}/cpu/cpu{cpu}/cache")),
        memory=_read_memory_nodes(root) or frozenset(nodes),
    )


def _read_memory_nodes(root: str) -> frozenset[int]:
    """Return the nodes that have memory, within the cpuset of this process."""
    there = _read_cpus(os.path.join(root, "sys/devices/system/node/has_memory"))  # in the format of a CPU list
    for line in read_text(os.path.join(root, "proc/self/status")).splitlines():
        if line.startswith("Mems_allowed_list:"):
            return there & _parse_cpus(line.partition(":")[2])
    return there


def _map_to_lowest(cpus: Iterable[int], sharers: Callable[[int], frozenset[int]]) -> dict[int, int]:
    """Map each CPU to the lowest of its sharers; a CPU without an answer is left out."""
    found: dict[int, int] = {}
    for cpu in cpus:
        if cpu not in found and (group := sharers(cpu)):
            found.update(dict.fromkeys(group, min(group)))
    return found


def _read_cache_sharers(folder: str) -> frozenset[int]:
    """Return the CPUs that share a CPU's last-level cache for data."""
    levels = {}
    for name in list_names(folder):
        if name.startswith("index") and read_text(f"{folder}/{name}/type").strip() in ("Data", "Unified"):
            level = read_number(f"{folder}/{name}/level")
            if level is not None:
                levels[level] = name
    return _read_cpus(f"{folder}/{levels[max(levels)]}/shared_cpu_list") if levels else frozenset()


def _read_cpus(path: str) -> frozenset[int]:
    """Read the list in a file; empty if there is none."""
    return _parse_cpus(read_text(path))


def _parse_cpus(text: str) -> frozenset[int]:
    """Parse a list as the kernel writes it, 0-3,8."""
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if first.isdecimal() and (last.isdecimal() or not dash):
            found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)
