"""Binds the workers of this node to its CPUs: read the machine, bind, and test whether a memory policy can be set.

Whether it does is known only by asking it. Containers' usual filters of system calls refuse, and a policy that
somebody has set for the whole job, by starting the agent under numactl, is theirs and stays. Neither keeps a worker
from starting; it is said once.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from launcher.hardware.binding import cpu_topology
from launcher.hardware.binding.cpu_binding import FLAG, CpuBinding, bind, describe_bindings, list_numa_nodes
from launcher.hardware.linux import memory_policy
from launcher.model.node import Slot
from rendezvous.values import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.config.options.worker_options import NumaMode


class NodeBinding(NamedTuple):
    """The bindings by local rank, and a line about them for the start."""

    bindings: tuple[CpuBinding, ...]
    remarks: tuple[str, ...]


def bind_node(mode: NumaMode, slots: Sequence[Slot]) -> NodeBinding:
    """Return the CPUs of every worker. Raises UsageError if they cannot be bound."""
    allowed = frozenset(os.sched_getaffinity(0))
    bindings = bind(mode, cpu_topology.read_topology(allowed), allowed, list_numa_nodes(slots))
    remarks = [describe_bindings(mode, bindings)]
    if refusal := _explain_refusal({binding.memory for binding in bindings if binding.memory}):
        bindings = tuple(binding._replace(memory=()) for binding in bindings)
        remarks.append(f"{FLAG}: workers take memory as Linux does by default: {refusal}")
    return NodeBinding(bindings, tuple(remarks))


def _explain_refusal(node_sets: Iterable[tuple[int, ...]]) -> str:
    """Explain why such policies cannot be set; empty if they can be. This thread's own is restored."""
    node_sets = sorted(node_sets)
    if not node_sets:
        return ""
    try:
        if memory_policy.read_policy()[0] != memory_policy.DEFAULT:
            return "the agent has a memory policy of its own, which they inherit"
        try:
            for nodes in node_sets:
                memory_policy.prefer_nodes(nodes)
        finally:
            memory_policy.reset_policy()
    except OSError as error:
        return f"the kernel refuses a memory policy ({error.strerror}); a container needs CAP_SYS_NICE for one"
    return ""
