"""Binds the workers of this node to its CPUs: read the machine, bind, and test whether a memory policy can be set.

Linux shows the machine under /sys: the CPUs of each NUMA node, which of them are threads of one core, share a cache or
sit on one socket, and which nodes have memory. A kernel without NUMA, as in some sandboxes, counts as one node.

Whether a memory policy can be set is known only by asking the kernel. Containers' usual filters of system calls refuse,
and a policy that the agent was started with, by numactl, stays. Neither keeps a worker from starting; it is said once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from launcher.hardware.cpu_binding import FLAG, CpuBinding, CpuTopology, bind, describe_bindings, list_numa_nodes
from launcher.hardware.linux import kernel
from launcher.hardware.linux.sysfs import FileTree
from launcher.model.node import Slot

if TYPE_CHECKING:
    from launcher.config.options.readers import NumaMode


_SYSFS = "/sys/devices/system"


class NodeBinding(Struct, frozen=True):
    """The bindings by local rank, and a line about them for the start."""

    bindings: tuple[CpuBinding, ...]
    remarks: tuple[str, ...]


def bind_node(mode: NumaMode, slots: Sequence[Slot]) -> NodeBinding:
    """Return the CPUs of every worker. Raises UsageError if they cannot be bound."""
    allowed = frozenset(os.sched_getaffinity(0))
    bindings = bind(mode, read_topology(allowed), allowed, list_numa_nodes(slots))
    remarks = [describe_bindings(mode, bindings)]
    if refusal := _explain_refusal({binding.memory for binding in bindings if binding.memory}):
        bindings = tuple(replace(binding, memory=()) for binding in bindings)
        remarks.append(f"{FLAG}: workers take memory as Linux does by default: {refusal}")
    return NodeBinding(bindings, tuple(remarks))


def _explain_refusal(node_sets: Iterable[tuple[int, ...]]) -> str:
    """Explain why such policies cannot be set; empty if they can be. This thread's own is restored."""
    node_sets = sorted(node_sets)
    if not node_sets:
        return ""
    try:
        if kernel.read_policy() != kernel.POLICY_DEFAULT:
            return "the agent has a memory policy of its own, which they inherit"
        try:
            for nodes in node_sets:
                kernel.prefer_nodes(nodes)
        finally:
            kernel.reset_policy()
    except OSError as error:
        return f"the kernel refuses a memory policy ({error.strerror}); a container needs CAP_SYS_NICE for one"
    return ""


def read_topology(allowed: frozenset[int], root: str = "/") -> CpuTopology:
    """Read the topology of this machine. `allowed`: what this process may use. `root`: of /sys and /proc, for tests."""
    files = FileTree(root)
    every_node = files.list_numbers(f"{_SYSFS}/node/node")
    lists = {node: _parse_cpus(files.read_text(f"{_SYSFS}/node/node{node}/cpulist")) for node in every_node}
    nodes = {node: cpus for node, cpus in lists.items() if cpus} or {0: allowed}
    every = sorted(frozenset[int]().union(*nodes.values()))
    sockets = {cpu: files.read_number(f"{_SYSFS}/cpu/cpu{cpu}/topology/physical_package_id") for cpu in every}
    has_memory = _parse_cpus(files.read_text(f"{_SYSFS}/node/has_memory"))  # in the format of a CPU list
    for line in files.read_text("/proc/self/status").splitlines():
        if line.startswith("Mems_allowed_list:"):  # the cpuset of this process
            has_memory &= _parse_cpus(line.partition(":")[2])
    return CpuTopology(
        nodes=nodes,
        socket={cpu: socket for cpu, socket in sockets.items() if socket is not None},
        core=_map_to_lowest(every, lambda cpu: files.read_text(f"{_SYSFS}/cpu/cpu{cpu}/topology/thread_siblings_list")),
        cache=_map_to_lowest(every, lambda cpu: _read_cache_sharers(files, f"{_SYSFS}/cpu/cpu{cpu}/cache")),
        memory=has_memory or frozenset(nodes),
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
