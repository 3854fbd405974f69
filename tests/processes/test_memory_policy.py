"""Near which memory a worker has its pages, seen from outside: /proc/<pid>/numa_maps, and what the kernel refuses.

A machine of one NUMA node shows that a policy is set, and that a container's filter is borne; not that it helps.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes.syscalls import refusing
from tests.support.processes.tree import REPOSITORY, Agent

SLEEP = ["sleep", "1000"]
HAS_NUMA = Path("/proc/self/numa_maps").exists()

pytestmark = pytest.mark.skipif(not HAS_NUMA, reason="this kernel knows no NUMA")

# Two nodes, of which this machine has the first; every CPU of it is there.
BOUND = """
import os
from launcher.hardware import node_binding
from launcher.hardware.cpu_binding import CpuTopology
from launcher.model.node import Device, Slot
from launcher.hardware.linux import kernel
cpus = frozenset(os.sched_getaffinity(0))
two = CpuTopology(nodes={0: cpus}, socket={}, core={}, cache={}, memory=frozenset({0, 1}))
node_binding.read_topology = lambda allowed: two
device = Device(kind="nvidia", index=0, id="a", visible="0", numa_node=0)
found = node_binding.bind_node("node", [Slot(index=0, devices=(device,))])
print(found.bindings[0].memory, len(found.remarks), found.remarks[-1])
"""


def policies(pid: int) -> set[str]:
    """What the kernel says of the pages of a process."""
    return {line.split()[1] for line in Path(f"/proc/{pid}/numa_maps").read_text().splitlines()}


def test_a_worker_prefers_memory_near_its_cpus(agent: Agent) -> None:
    (near,) = agent.start(1, SLEEP, memory=[0])
    (plain,) = agent.start(2, SLEEP)
    assert policies(near) == {"prefer:0"}
    assert policies(plain) == {"default"}


def test_a_worker_runs_although_the_kernel_refuses_its_policy(agent: Agent) -> None:
    (worker,) = agent.start(1, SLEEP, memory=[900])
    assert policies(worker) == {"default"}


def bound(before: str) -> str:
    """What is made of a machine of two nodes by a process that has done this before."""
    done = subprocess.run(
        [sys.executable, "-c", before + BOUND], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_a_policy_is_tried_before_workers_are_told_of_it() -> None:
    at_exit = "atexit.register(lambda: print(kernel.read_policy()))"
    words = bound("") + bound(f"import atexit\nfrom launcher.hardware.linux import kernel\n{at_exit}\n")
    assert words.count("(0,) 1 --numa-binding node keeps local rank 0 to CPUs") == 2
    assert words.endswith("\n0"), "this process has its own policy back"


def test_a_policy_that_the_agent_was_started_with_stays() -> None:
    assert bound("from launcher.hardware.linux import kernel\nkernel.prefer_nodes([0])\n") == (
        "() 2 --numa-binding: workers take memory as Linux does by default: "
        "the agent has a memory policy of its own, which they inherit"
    )


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the filter has the numbers of x86-64")
def test_a_container_that_forbids_policies_gets_one_remark() -> None:
    set_and_get = refusing(238, 239)
    assert bound(set_and_get) == (
        "() 2 --numa-binding: workers take memory as Linux does by default: "
        "the kernel refuses a memory policy (Operation not permitted); a container needs CAP_SYS_NICE for one"
    )
