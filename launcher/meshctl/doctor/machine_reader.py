"""Reads the values for the checks from the kernel: /proc, /sys, limits, file systems. Nothing is written.

Every file may be missing, in a sandbox for instance; then the value is unknown and causes no warning. No package is
needed for any of this.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from collections.abc import Iterator, Mapping

from launcher.hardware.linux.interfaces import list_addresses
from launcher.meshctl.doctor.cgroups import Cgroups, parse_number
from launcher.meshctl.doctor.machine import DiskSpace, MachineInfo, NetworkInterface, ResourceLimit

_CAP_IPC_LOCK = 14  # include/uapi/linux/capability.h
_TCP_LISTEN = "0A"  # TCP_LISTEN in include/net/tcp_states.h, as /proc/net/tcp writes it
_TEMPORARY_DIRS = ("/tmp", "/var/tmp")  # the directories of logs without --log-dir and TMPDIR


def read_machine(environ: Mapping[str, str], log_dir: str | None, root: str = "/") -> MachineInfo:
    """Read this machine. `log_dir`: the user's; `root`: the directory above /proc, /sys and /dev, for tests."""
    files = _KernelFiles(root)
    memory = files.read_memory()
    cgroups = Cgroups(root)
    return MachineInfo(
        cpu_count=len(os.sched_getaffinity(0)),
        cpu_quota=cgroups.read_cpu_quota(),
        memory=memory,
        memory_limit=cgroups.read_memory_limit(memory),
        oom_groups=cgroups.list_oom_groups(),
        process_limit=cgroups.read_process_limit(),
        shared_memory=_read_space(os.path.join(root, "dev/shm"), "/dev/shm"),
        logs=_find_log_space(environ, log_dir),
        open_files=_read_limit(resource.RLIMIT_NOFILE),
        user_processes=_read_limit(resource.RLIMIT_NPROC)
        if os.geteuid()
        else ResourceLimit(None, None),  # root has none
        locked_memory=_read_limit(resource.RLIMIT_MEMLOCK),
        may_lock=files.has_capability(_CAP_IPC_LOCK),
        rdma_devices=tuple(files.list_directory("sys/class/infiniband")),
        listening_ports=frozenset(files.list_listening_ports()),
        numa_nodes=files.list_numa_nodes(),
        balances_numa=files.read_text("proc/sys/kernel/numa_balancing").strip() not in ("", "0"),
        interfaces=tuple(files.list_interfaces()),
    )


def _read_limit(resource_id: int) -> ResourceLimit:
    soft, hard = (None if value == resource.RLIM_INFINITY else value for value in resource.getrlimit(resource_id))
    return ResourceLimit(soft, hard)


def _find_log_space(environ: Mapping[str, str], log_dir: str | None) -> DiskSpace | None:
    """Return the space where a run would create its log directory; None if it keeps none."""
    if log_dir == os.devnull:
        return None
    if log_dir:
        return _find_space(os.path.abspath(log_dir))
    tried = [_find_space(os.path.abspath(path)) for path in (environ.get("TMPDIR"), *_TEMPORARY_DIRS) if path]
    return next((space for space in tried if not space.amiss), tried[0])


def _find_space(path: str) -> DiskSpace:
    """Return the space for a directory that may not exist yet: that of its nearest existing parent."""
    there = path
    while not os.path.lexists(there) and os.path.dirname(there) != there:
        there = os.path.dirname(there)
    return _read_space(there, path)


def _read_space(path: str, label: str) -> DiskSpace:
    """The file system that `there` is on; `name`: what is wanted on it, for people."""
    try:
        found = os.statvfs(path)
    except OSError as error:
        return DiskSpace(
            label, 0, 0, None, "it is not there" if error.errno == errno.ENOENT else os.strerror(error.errno or 0)
        )
    amiss = ""
    if not os.path.isdir(path):
        amiss = "it is not a directory" if path == label else f"{path} is not a directory"
    elif found.f_flag & os.ST_RDONLY:
        amiss = "its file system is read-only"
    elif not os.access(path, os.W_OK | os.X_OK, effective_ids=True):
        amiss = f"this user may not write {path}"
    inodes = found.f_favail if found.f_files else None  # btrfs, for instance, does not count them
    return DiskSpace(label, found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize, inodes, amiss)


class _KernelFiles:
    """Reads files of the kernel, below `root`."""

    def __init__(self, root: str) -> None:
        self._root = root

    def read_memory(self) -> int | None:
        for line in self.read_text("proc/meminfo").splitlines():
            name, _, value = line.partition(":")
            if name == "MemTotal" and value.split()[:1]:
                return int(value.split()[0]) * 1024
        return None

    def has_capability(self, number: int) -> bool:
        for line in self.read_text("proc/self/status").splitlines():
            name, _, value = line.partition(":")
            if name == "CapEff":
                with contextlib.suppress(ValueError):
                    return bool(int(value.strip(), 16) >> number & 1)
        return False

    def list_listening_ports(self) -> Iterator[int]:
        """Ports of TCP in this network namespace: sl, local address, remote address, state, ..."""
        for table in ("proc/net/tcp", "proc/net/tcp6"):
            for line in self.read_text(table).splitlines()[1:]:
                fields = line.split()
                if len(fields) > 3 and fields[3] == _TCP_LISTEN:
                    with contextlib.suppress(ValueError):
                        yield int(fields[1].rpartition(":")[2], 16)

    def list_numa_nodes(self) -> dict[int, str]:
        folder = "sys/devices/system/node"
        numbers = sorted(
            int(name[4:]) for name in self.list_directory(folder) if name[:4] == "node" and name[4:].isdecimal()
        )
        return {number: self.read_text(f"{folder}/node{number}/cpulist").strip() for number in numbers}

    def list_interfaces(self) -> Iterator[NetworkInterface]:
        for name in self.list_directory("sys/class/net"):
            folder = f"sys/class/net/{name}"
            if not os.path.isdir(os.path.join(self._root, folder)):  # bonding_masters is a file
                continue
            speed = parse_number(self.read_text(f"{folder}/speed"))  # -1, or an error, where there is no carrier
            yield NetworkInterface(
                name=name,
                is_up=bool(int(self.read_text(f"{folder}/flags").strip() or "0", 16) & 1),  # IFF_UP
                addresses=tuple(list_addresses(name)),
                mtu=parse_number(self.read_text(f"{folder}/mtu")),
                speed_mbit=speed,
            )

    def list_directory(self, folder: str) -> list[str]:
        try:
            return sorted(os.listdir(os.path.join(self._root, folder)))
        except OSError:
            return []

    def read_text(self, path: str) -> str:
        try:
            with open(os.path.join(self._root, path), errors="replace") as file:
                return file.read()
        except OSError:
            return ""
