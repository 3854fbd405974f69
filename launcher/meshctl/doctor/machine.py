"""The machine and the run as values for the checks; other modules read them.

A check is a pure function of these two. So every check can be tested for machines that are not at hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class CgroupLimit(NamedTuple):
    """A limit of a cgroup: `most` of something, of which `used` are taken. `origin`: the file of the limit."""

    most: float
    used: float
    origin: str


class DiskSpace(NamedTuple):
    """A directory on a file system. `inodes_free` None: it does not count them. `amiss`: why nobody can write there."""

    path: str
    size: int
    free: int
    inodes_free: int | None = None
    amiss: str = ""


class ResourceLimit(NamedTuple):
    """A limit of processes; None is none."""

    soft: int | None
    hard: int | None


_UNLIMITED = ResourceLimit(None, None)


class NetworkInterface(NamedTuple):
    """A network interface. `speed_mbit` None: its driver does not say."""

    name: str
    is_up: bool
    addresses: tuple[str, ...] = ()
    mtu: int | None = None
    speed_mbit: int | None = None


@dataclass(frozen=True, kw_only=True)
class MachineInfo:
    """What this process may use, and what is around it. None or empty: the kernel does not say.

    `cpu_count`: the CPUs of its affinity set; `cpu_quota`, in CPUs, `memory_limit`, in bytes, and `process_limit`: the
    tightest of its cgroup and those above it. `oom_groups`: those of them whose processes the kernel kills together.
    `shared_memory`: /dev/shm. `logs`: where log files would lie. `may_lock`: it may lock memory without a limit.
    `rdma_devices`: InfiniBand and its like. `listening_ports`: TCP ports on which a process listens here. `numa_nodes`:
    node -> its CPUs, as the kernel writes them.
    """

    cpu_count: int = 1
    cpu_quota: CgroupLimit | None = None
    memory: int | None = None
    memory_limit: CgroupLimit | None = None
    oom_groups: tuple[str, ...] = ()
    process_limit: CgroupLimit | None = None
    shared_memory: DiskSpace | None = None
    logs: DiskSpace | None = None
    open_files: ResourceLimit = _UNLIMITED
    user_processes: ResourceLimit = _UNLIMITED
    locked_memory: ResourceLimit = _UNLIMITED
    may_lock: bool = False
    rdma_devices: tuple[str, ...] = ()
    listening_ports: frozenset[int] = frozenset()
    numa_nodes: Mapping[int, str] = field(default_factory=dict)
    balances_numa: bool = False
    interfaces: tuple[NetworkInterface, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """What would run here. `worker_count` 0: none could start. `accelerators`: kinds of device that workers get.

    `node_count`: how many nodes there may be, as far as that is known. `frameworks`: what workers are told about, jax
    for instance. `environ`: what the agent inherits.
    """

    worker_count: int = 1
    accelerators: frozenset[str] = frozenset()
    node_count: int = 1
    frameworks: tuple[str, ...] = ()
    shutdown_timeout_s: float = 30
    is_bound: bool = False
    environ: Mapping[str, str] = field(default_factory=dict)
