"""Reads what the checks want to know from the kernel: /proc, /sys, limits, file systems. Nothing is written.

Every file may be missing, in a sandbox for instance; then nothing is known and nothing is warned of. No package is
needed for any of this.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from collections.abc import Iterator, Mapping

from launcher.doctor.cgroups import Cgroups
from launcher.doctor.machine import Interface, Limit, Machine, Space
from launcher.interfaces import addresses_of

_CAP_IPC_LOCK = 14  # include/uapi/linux/capability.h
_LISTENS = "0A"  # TCP_LISTEN in include/net/tcp_states.h, as /proc/net/tcp writes it
_TEMPORARY = ("/tmp", "/var/tmp")  # where logs lie if neither --log-dir nor TMPDIR says


def read(environ: Mapping[str, str], log_dir: str | None, root: str = "/") -> Machine:
    """This machine. `log_dir`: the user's; `root`: where /proc, /sys and /dev hang, for tests."""
    files = _Files(root)
    memory = files.memory()
    cgroups = Cgroups(root)
    return Machine(
        cpu_count=len(os.sched_getaffinity(0)),
        cpu_quota=cgroups.cpu_quota(),
        memory=memory,
        memory_limit=cgroups.memory_limit(memory),
        oom_groups=cgroups.oom_groups(),
        process_limit=cgroups.process_limit(),
        shared_memory=_space(os.path.join(root, "dev/shm"), "/dev/shm"),
        logs=_logs(environ, log_dir),
        open_files=_limit(resource.RLIMIT_NOFILE),
        user_processes=_limit(resource.RLIMIT_NPROC) if os.geteuid() else Limit(None, None),  # root has none
        locked_memory=_limit(resource.RLIMIT_MEMLOCK),
        may_lock=files.has_capability(_CAP_IPC_LOCK),
        rdma_devices=tuple(files.listed("sys/class/infiniband")),
        listening=frozenset(files.listening()),
        numa_nodes=files.numa_nodes(),
        balances_numa=files.text("proc/sys/kernel/numa_balancing").strip() not in ("", "0"),
        interfaces=tuple(files.interfaces()),
    )


def _limit(which: int) -> Limit:
    soft, hard = (None if value == resource.RLIM_INFINITY else value for value in resource.getrlimit(which))
    return Limit(soft, hard)


def _logs(environ: Mapping[str, str], log_dir: str | None) -> Space | None:
    """Where a run would make its directory of logs; None if it keeps none."""
    if log_dir == os.devnull:
        return None
    if log_dir:
        return _place(os.path.abspath(log_dir))
    tried = [_place(os.path.abspath(path)) for path in (environ.get("TMPDIR"), *_TEMPORARY) if path]
    return next((space for space in tried if not space.amiss), tried[0])


def _place(path: str) -> Space:
    """A directory that would be made if it is not there: the file system is that of the nearest one that is."""
    there = path
    while not os.path.lexists(there) and os.path.dirname(there) != there:
        there = os.path.dirname(there)
    return _space(there, path)


def _space(there: str, name: str) -> Space:
    """The file system that `there` is on; `name`: what is wanted on it, for people."""
    try:
        found = os.statvfs(there)
    except OSError as error:
        return Space(
            name, 0, 0, None, "it is not there" if error.errno == errno.ENOENT else os.strerror(error.errno or 0)
        )
    amiss = ""
    if not os.path.isdir(there):
        amiss = "it is not a directory" if there == name else f"{there} is not a directory"
    elif found.f_flag & os.ST_RDONLY:
        amiss = "its file system is read-only"
    elif not os.access(there, os.W_OK | os.X_OK, effective_ids=True):
        amiss = f"this user may not write {there}"
    inodes = found.f_favail if found.f_files else None  # btrfs, for instance, does not count them
    return Space(name, found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize, inodes, amiss)


class _Files:
    """What files of the kernel say, below `root`."""

    def __init__(self, root: str) -> None:
        self._root = root

    def memory(self) -> int | None:
        for line in self.text("proc/meminfo").splitlines():
            name, _, value = line.partition(":")
            if name == "MemTotal" and value.split()[:1]:
                return int(value.split()[0]) * 1024
        return None

    def has_capability(self, number: int) -> bool:
        for line in self.text("proc/self/status").splitlines():
            name, _, value = line.partition(":")
            if name == "CapEff":
                with contextlib.suppress(ValueError):
                    return bool(int(value.strip(), 16) >> number & 1)
        return False

    def listening(self) -> Iterator[int]:
        """Ports of TCP in this network namespace: sl, local address, remote address, state, ..."""
        for table in ("proc/net/tcp", "proc/net/tcp6"):
            for line in self.text(table).splitlines()[1:]:
                fields = line.split()
                if len(fields) > 3 and fields[3] == _LISTENS:
                    with contextlib.suppress(ValueError):
                        yield int(fields[1].rpartition(":")[2], 16)

    def numa_nodes(self) -> dict[int, str]:
        folder = "sys/devices/system/node"
        numbers = sorted(int(name[4:]) for name in self.listed(folder) if name[:4] == "node" and name[4:].isdecimal())
        return {number: self.text(f"{folder}/node{number}/cpulist").strip() for number in numbers}

    def interfaces(self) -> Iterator[Interface]:
        for name in self.listed("sys/class/net"):
            folder = f"sys/class/net/{name}"
            if not os.path.isdir(os.path.join(self._root, folder)):  # bonding_masters is a file
                continue
            speed = _number(self.text(f"{folder}/speed"))  # -1, or an error, where there is no carrier
            yield Interface(
                name=name,
                is_up=bool(int(self.text(f"{folder}/flags").strip() or "0", 16) & 1),  # IFF_UP
                addresses=tuple(addresses_of(name)),
                mtu=_number(self.text(f"{folder}/mtu")),
                speed_mbit=speed,
            )

    def listed(self, folder: str) -> list[str]:
        try:
            return sorted(os.listdir(os.path.join(self._root, folder)))
        except OSError:
            return []

    def text(self, path: str) -> str:
        try:
            with open(os.path.join(self._root, path), errors="replace") as file:
                return file.read()
        except OSError:
            return ""


def _number(text: str) -> int | None:
    text = text.strip()
    return int(text) if text.isdecimal() else None
