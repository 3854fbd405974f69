"""The CPUs to which a worker is bound: --numa-binding, as a pure function from a machine's topology to CPU sets.

A worker that runs near its GPU copies faster, and one whose caches are its own is not disturbed. The modes are
torchrun 2.13's (docs/cluster/devices.md); two things differ from there. numactl is not needed, because the supervisor
sets each worker's affinity before it runs. And a worker whose device has no known node, in particular one on the CPU,
is not refused: such workers are spread evenly over the nodes. No worker gets a CPU that the agent itself may not use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, pairwise

from msgspec import Struct

from launcher.config.options.readers import NumaMode
from launcher.model import ranges
from launcher.model.errors import UsageError
from launcher.model.node import Slot

FLAG = "--numa-binding"


class CpuTopology(Struct, frozen=True):
    """A machine's CPUs, by the kernel's numbers."""

    nodes: Mapping[int, frozenset[int]]
    """NUMA node to its CPUs."""
    socket: Mapping[int, int]
    """CPU to its socket."""
    core: Mapping[int, int]
    """CPU to its core, named by the lowest CPU of the core; a CPU without an entry is a core of its own."""
    cache: Mapping[int, int]
    """CPU to its last-level cache, named by the lowest CPU that shares it; without an entry it is unknown."""


class CpuBinding(Struct, frozen=True):
    """One worker's CPUs, the reason, and the number of cores it has to itself: at least 1; shared cores are divided."""

    cpus: frozenset[int]
    reason: str
    core_count: int


def bind(
    mode: NumaMode, topology: CpuTopology, allowed: frozenset[int], numa_nodes: Sequence[frozenset[int]]
) -> tuple[CpuBinding, ...]:
    """Return every worker's CPUs, in local order. `numa_nodes`: those of each worker's devices, empty where unknown.

    `allowed`: what this process may use. Raises UsageError where the mode's guarantee cannot be kept.
    """
    homes = _assign_homes(topology, allowed, numa_nodes)
    pools = [_list_near_cpus(mode, topology, home) & allowed for home in homes]
    for local_rank, (home, pool) in enumerate(zip(homes, pools, strict=True)):
        if not pool:
            near = format_ranges(_list_near_cpus("node", topology, home)) or "(none)"
            raise UsageError(
                f"{FLAG} {mode}: local rank {local_rank} belongs on {_format_nodes(home)}, but this process may use "
                f"none of its CPUs, {near}; it may use {format_ranges(allowed)}",
                f"leave {FLAG} out, or give the job CPUs of every node that it has devices on",
            )
    if mode in ("exclusive", "core-complex"):
        _require_disjoint(mode, homes)
        divide = _split_cores if mode == "exclusive" else _assign_complexes
        for home in set(homes):
            here = [local_rank for local_rank, other in enumerate(homes) if other == home]
            for local_rank, cpus in zip(here, divide(topology, pools[here[0]], len(here), home), strict=True):
                pools[local_rank] = cpus
    return tuple(
        CpuBinding(
            pool,
            _format_nodes(home) if known else f"dealt to {_format_nodes(home)}",
            _count_cores(topology, pool, pools),
        )
        for pool, home, known in zip(pools, homes, numa_nodes, strict=True)
    )


def list_numa_nodes(slots: Sequence[Slot]) -> list[frozenset[int]]:
    """Return the NUMA nodes of each slot's devices; empty where unknown."""
    return [frozenset(device.numa_node for device in slot.devices if device.numa_node is not None) for slot in slots]


def format_ranges(cpus: frozenset[int]) -> str:
    """Format CPUs as the kernel writes them: 0-3,8."""
    return ranges.format_ranges(sorted(cpus)).replace(" ", "")


def describe_bindings(mode: NumaMode, bindings: Sequence[CpuBinding]) -> str:
    """Describe the bindings in one line for the start."""
    first, *others = (f"{format_ranges(binding.cpus)} ({binding.reason})" for binding in bindings)
    rest = "".join(f", {local_rank} to {what}" for local_rank, what in enumerate(others, 1))
    return f"{FLAG} {mode} binds local rank 0 to CPUs {first}{rest}"


def _assign_homes(
    topology: CpuTopology, allowed: frozenset[int], numa_nodes: Sequence[frozenset[int]]
) -> list[frozenset[int]]:
    """Return each worker's nodes; one is chosen where none is known: neighbours together, the load spread evenly."""
    usable = [node for node, cpus in sorted(topology.nodes.items()) if cpus & allowed] or sorted(topology.nodes)
    strays = [local_rank for local_rank, home in enumerate(numa_nodes) if not home]
    homes = list(numa_nodes)
    for place, local_rank in enumerate(strays):
        homes[local_rank] = frozenset({usable[place * len(usable) // len(strays)]})
    return homes


def _list_near_cpus(mode: NumaMode, topology: CpuTopology, nodes: frozenset[int]) -> frozenset[int]:
    """Return the CPUs of these nodes; by socket those of all nodes on their sockets."""
    cpus = frozenset[int]().union(*(topology.nodes.get(node, frozenset()) for node in nodes))
    if mode != "socket":
        return cpus
    sockets = {topology.socket.get(cpu) for cpu in cpus}
    return cpus | {cpu for cpu, socket in topology.socket.items() if socket in sockets}


def _require_disjoint(mode: NumaMode, homes: Sequence[frozenset[int]]) -> None:
    """Workers of one node divide it among them. One with devices on two nodes cannot take part in both."""
    for (one, home), (other, its_home) in combinations(enumerate(homes), 2):
        if home != its_home and home & its_home:
            raise UsageError(
                f"{FLAG} {mode}: local ranks {one} and {other} have devices on {_format_nodes(home | its_home)}, which "
                "cannot be shared out between them",
                f"use {FLAG} node or socket",
            )


def _split_cores(
    topology: CpuTopology, pool: frozenset[int], count: int, nodes: frozenset[int]
) -> list[frozenset[int]]:
    """Split the pool's cores into `count` parts, in their order; the first ones have one more if they do not divide."""
    cores = _group_cpus(pool, {cpu: topology.core.get(cpu, cpu) for cpu in pool})
    if len(cores) < count:
        raise UsageError(
            f"{FLAG} exclusive: {count} workers belong on {_format_nodes(nodes)}, where this process may use "
            f"{len(cores)} core{'s' * (len(cores) != 1)}, CPUs {format_ranges(pool)}",
            f"start fewer workers, or let them share cores: {FLAG} node",
        )
    size, rest = divmod(len(cores), count)
    bounds = [place * size + min(place, rest) for place in range(count + 1)]
    return [frozenset[int]().union(*cores[first:last]) for first, last in pairwise(bounds)]


def _assign_complexes(
    topology: CpuTopology, pool: frozenset[int], count: int, nodes: frozenset[int]
) -> list[frozenset[int]]:
    """Assign the pool's core complexes in turns, those with most CPUs first."""
    if not topology.cache.keys() >= pool:
        raise UsageError(
            f"{FLAG} core-complex: this kernel does not list which CPUs of {_format_nodes(nodes)} share a cache",
            f"use {FLAG} node or exclusive",
        )
    complexes = sorted(_group_cpus(pool, topology.cache), key=lambda cpus: (-len(cpus), min(cpus)))
    return [complexes[place % len(complexes)] for place in range(count)]


def _group_cpus(pool: frozenset[int], key: Mapping[int, int]) -> list[frozenset[int]]:
    """Group the CPUs by their key, in the order of the keys."""
    return [frozenset(cpu for cpu in pool if key[cpu] == value) for value in sorted({key[cpu] for cpu in pool})]


def _count_cores(topology: CpuTopology, pool: frozenset[int], pools: Sequence[frozenset[int]]) -> int:
    cores = {topology.core.get(cpu, cpu) for cpu in pool}
    return max(1, len(cores) // sum(1 for other in pools if other & pool))


def _format_nodes(nodes: frozenset[int]) -> str:
    return f"NUMA node{'s' * (len(nodes) > 1)} {format_ranges(nodes)}"
