"""What this machine gives a job: CPUs, memory, limits, space, devices of the network, as values for the checks.

Everything is read from the kernel, nothing is written, and no package is needed. Every file may be missing, in a
sandbox for instance; then the value is unknown and causes no warning.

Of the control groups every one on the path from this process's own upwards may have a limit, and the tightest counts.
In a container the path is short: the kernel shows only the container's part of the tree, as the whole.
"""

from __future__ import annotations

import errno
import os
import re
import resource
from collections.abc import Iterator, Mapping

from msgspec import Struct

from launcher.diagnosis.stacks import find_command
from launcher.hardware.linux.cgroup_limits import CgroupLimit, list_groups, read_cpu_quota
from launcher.hardware.linux.cgroups import UNIFIED
from launcher.hardware.linux.interfaces import list_addresses
from launcher.hardware.linux.sysfs import FileTree

_CAP_IPC_LOCK, _CAP_SYS_PTRACE = 14, 19  # include/uapi/linux/capability.h
# A line of /proc/net/tcp: number, local address and port, remote ones, state; 0A is TCP_LISTEN (net/tcp_states.h).
_LISTENING = re.compile(r"^ *\d+: [0-9A-F]+:([0-9A-F]{4}) \S+ 0A ", re.MULTILINE)
_IFF_UP = 1  # include/uapi/linux/if.h
_NET = "/sys/class/net"
_NODE = "/sys/devices/system/node/node"
_TEMPORARY_DIRS = ("/tmp", "/var/tmp")  # the directories of logs without --log-dir and TMPDIR


class DiskSpace(Struct, frozen=True):
    """A directory on a file system."""

    path: str
    size: int
    free: int
    inodes_free: int | None = None
    """None if the file system does not count them."""
    amiss: str = ""
    """Why it cannot be written, "" if it can."""


class ResourceLimit(Struct, frozen=True):
    """A limit of processes; None is none."""

    soft: int | None = None
    hard: int | None = None


class NetworkInterface(Struct, frozen=True):
    """A network interface. `speed_mbit` None: its driver does not say."""

    name: str
    is_up: bool
    addresses: tuple[str, ...] = ()
    mtu: int | None = None
    speed_mbit: int | None = None


class MachineInfo(Struct, frozen=True, kw_only=True):
    """What this process may use, and what surrounds it. None or empty: the kernel does not report it."""

    cpu_count: int = 1
    """The CPUs of its affinity set."""
    cpu_quota: CgroupLimit | None = None
    """In CPUs, the tightest of its control groups."""
    memory: int | None = None
    memory_limit: CgroupLimit | None = None
    """In bytes, the tightest of its control groups."""
    oom_groups: tuple[str, ...] = ()
    """Its control groups whose processes the OOM killer ends together, the innermost first."""
    process_limit: CgroupLimit | None = None
    """The tightest of its control groups."""
    shared_memory: DiskSpace | None = None
    """/dev/shm."""
    logs: DiskSpace | None = None
    """Where log files would be."""
    open_files: ResourceLimit = ResourceLimit()
    user_processes: ResourceLimit = ResourceLimit()
    locked_memory: ResourceLimit = ResourceLimit()
    may_lock: bool = False
    """It may lock memory without a limit."""
    rdma_devices: tuple[str, ...] = ()
    """InfiniBand and similar."""
    listening_ports: frozenset[int] = frozenset()
    """TCP ports on which a process of this machine listens."""
    numa_nodes: Mapping[int, str] = {}
    """Node to its CPUs, as the kernel writes them."""
    balances_numa: bool = False
    interfaces: tuple[NetworkInterface, ...] = ()
    has_stack_reader: bool = True
    """py-spy is installed."""
    trace_refusal: int = 0
    """kernel.yama.ptrace_scope where it keeps a worker from being read by its own launcher, else 0."""


def read_machine(environ: Mapping[str, str], log_dir: str | None, root: str = "/") -> MachineInfo:
    """Read this machine. `log_dir`: the user's. `root`: the directory above /proc, /sys and /dev, for tests."""
    files = FileTree(root)
    total = _search_number(r"^MemTotal:\s+(\d+)", files.read_text("/proc/meminfo"))
    memory = None if total is None else total * 1024
    capabilities = _search_number(r"^CapEff:\s+([0-9a-f]+)", files.read_text("/proc/self/status"), 16) or 0
    tables = "\n".join(files.read_text(f"/proc/net/{table}") for table in ("tcp", "tcp6"))
    return MachineInfo(
        cpu_count=len(os.sched_getaffinity(0)),
        cpu_quota=read_cpu_quota(files),
        memory=memory,
        memory_limit=read_memory_limit(memory, files),
        oom_groups=list_oom_groups(files),
        process_limit=read_process_limit(files),
        shared_memory=_read_space(files.resolve("/dev/shm"), "/dev/shm"),
        logs=_find_log_space(environ, log_dir),
        open_files=_read_limit(resource.RLIMIT_NOFILE),
        user_processes=_read_limit(resource.RLIMIT_NPROC) if os.geteuid() else ResourceLimit(),  # root has none
        locked_memory=_read_limit(resource.RLIMIT_MEMLOCK),
        may_lock=bool(capabilities >> _CAP_IPC_LOCK & 1),
        rdma_devices=tuple(files.list_names("/sys/class/infiniband")),
        listening_ports=frozenset(int(port, 16) for port in _LISTENING.findall(tables)),
        numa_nodes={number: files.read_text(f"{_NODE}{number}/cpulist") for number in files.list_numbers(_NODE)},
        balances_numa=files.read_text("/proc/sys/kernel/numa_balancing") not in ("", "0"),
        interfaces=tuple(_list_interfaces(files)),
        has_stack_reader=find_command() is not None,
        trace_refusal=_find_trace_refusal(files, may_trace=bool(capabilities >> _CAP_SYS_PTRACE & 1)),
    )


def _find_trace_refusal(files: FileTree, *, may_trace: bool) -> int:
    """Return Yama's setting if it refuses; 1 does not, since workers name the process that may read them."""
    scope = _read_count(files, "/proc/sys/kernel/yama/ptrace_scope") or 0
    return scope if scope > (2 if may_trace else 1) else 0


def _search_number(pattern: str, text: str, base: int = 10) -> int | None:
    found = re.search(pattern, text, re.MULTILINE)
    return int(found[1], base) if found else None


def _read_count(files: FileTree, path: str) -> int | None:
    """Return the number in a file of the kernel; None if there is none, such as "max" or -1."""
    count = files.read_number(path)
    return count if count is not None and count >= 0 else None


def _read_limit(resource_id: int) -> ResourceLimit:
    limits = resource.getrlimit(resource_id)
    return ResourceLimit(*(None if value == resource.RLIM_INFINITY else value for value in limits))


def _list_interfaces(files: FileTree) -> Iterator[NetworkInterface]:
    for name in files.list_names(_NET):
        if not files.is_directory(f"{_NET}/{name}"):  # bonding_masters is a file
            continue
        yield NetworkInterface(
            name=name,
            is_up=bool((files.read_number(f"{_NET}/{name}/flags") or 0) & _IFF_UP),
            addresses=tuple(list_addresses(name)),
            mtu=_read_count(files, f"{_NET}/{name}/mtu"),
            speed_mbit=_read_count(files, f"{_NET}/{name}/speed"),  # -1, or an error, where there is no carrier
        )


# --- space ---


def _find_log_space(environ: Mapping[str, str], log_dir: str | None) -> DiskSpace | None:
    """Return the space where a run would create its log directory; None if it keeps none."""
    if log_dir == os.devnull:
        return None
    paths = [log_dir] if log_dir else [path for path in (environ.get("TMPDIR"), *_TEMPORARY_DIRS) if path]
    tried = [_find_space(os.path.abspath(path)) for path in paths]
    return next((space for space in tried if not space.amiss), tried[0])


def _find_space(path: str) -> DiskSpace:
    """Return the space for a directory that may not exist yet: that of its nearest existing parent."""
    there = path
    while not os.path.lexists(there) and os.path.dirname(there) != there:
        there = os.path.dirname(there)
    return _read_space(there, path)


def _read_space(path: str, label: str) -> DiskSpace:
    """Return the space of the file system that `path` is on; `label`: what is wanted on it, for people."""
    try:
        found = os.statvfs(path)
    except OSError as error:
        amiss = "it does not exist" if error.errno == errno.ENOENT else os.strerror(error.errno or 0)
        return DiskSpace(label, 0, 0, None, amiss)
    amiss = ""
    if not os.path.isdir(path):
        amiss = "it is not a directory" if path == label else f"{path} is not a directory"
    elif found.f_flag & os.ST_RDONLY:
        amiss = "its file system is read-only"
    elif not os.access(path, os.W_OK | os.X_OK, effective_ids=True):
        amiss = f"this user cannot write {path}"
    inodes = found.f_favail if found.f_files else None  # btrfs, for instance, does not count them
    return DiskSpace(label, found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize, inodes, amiss)


# --- control groups ---


def read_memory_limit(total_bytes: int | None, files: FileTree) -> CgroupLimit | None:
    """The limit in bytes. `total_bytes`: the machine's; a higher limit is none, and version 1 always has one.

    Memory that the kernel can reclaim at once counts as free.
    """
    found = [
        *_list_limits(files, UNIFIED, "memory.max", "memory.current", "inactive_file"),
        *_list_limits(files, "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ]
    real = [limit for limit in found if total_bytes is None or limit.most < total_bytes]
    return min(real, key=lambda limit: limit.left, default=None)


def read_process_limit(files: FileTree) -> CgroupLimit | None:
    """Return the limit of processes and threads."""
    found = [limit for kind in (UNIFIED, "pids") for limit in _list_limits(files, kind, "pids.max", "pids.current")]
    return min(found, key=lambda limit: limit.left, default=None)


def list_oom_groups(files: FileTree) -> tuple[str, ...]:
    """List the groups whose processes the kernel kills together, the innermost first."""
    return tuple(at for at in list_groups(files, UNIFIED) if files.read_text(f"{at}/memory.oom.group") == "1")


def _list_limits(files: FileTree, controller: str, limit: str, usage: str, cache: str = "") -> Iterator[CgroupLimit]:
    """Yield the limits in the files of that name. `cache`: the entry of memory.stat that does not count as used."""
    for at in list_groups(files, controller):
        if (most := _read_count(files, f"{at}/{limit}")) is not None:
            used = _read_count(files, f"{at}/{usage}") or 0
            cached = _search_number(rf"^{cache} (\d+)", files.read_text(f"{at}/memory.stat")) if cache else 0
            yield CgroupLimit(most, max(used - (cached or 0), 0), f"{at}/{limit}")
