"""Reads the limits of this process's control groups: those of cgroup v2 and v1, and all visible parents.

Any group on the path may have a limit, and the tightest counts. In a container the path is short: the kernel shows
only the container's own part of the tree, as the whole. The directory follows from two files: /proc/self/cgroup names
the group, /proc/self/mountinfo where, and from which group on, the tree is mounted.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

from launcher.meshctl.doctor.machine import CgroupLimit

_UNIFIED = ""  # the name of version 2's controllers in /proc/self/cgroup


class Cgroups:
    """`root`: the directory above /proc and /sys, for tests."""

    def __init__(self, root: str = "/") -> None:
        self._root = root
        self._group_by_controller = dict(self._read_groups())
        self._mounts = tuple(self._read_mounts())

    def read_cpu_quota(self) -> CgroupLimit | None:
        """Return how many CPUs at once, over a period, this process and its group may use."""
        found = [
            CgroupLimit(int(words[0]) / int(words[1]), 0, path)
            for path, words in self._read_fields(_UNIFIED, "cpu.max")
            if len(words) == 2 and all(word.isdecimal() for word in words) and int(words[1])
        ]
        for path, words in self._read_fields("cpu", "cpu.cfs_quota_us"):
            period = parse_number(self._read_text(f"{os.path.dirname(path)}/cpu.cfs_period_us"))
            if (quota := parse_number(" ".join(words))) is not None and quota > 0 and period:
                found.append(CgroupLimit(quota / period, 0, path))
        return min(found, default=None)

    def read_memory_limit(self, total_bytes: int | None) -> CgroupLimit | None:
        """The limit in bytes. `total_bytes`: the machine's; a higher limit is none, and version 1 always has one."""
        found = []
        for path, most in self._read_numbers(_UNIFIED, "memory.max"):
            folder = os.path.dirname(path)
            found.append(CgroupLimit(most, self._read_used(folder, "memory.current", "inactive_file"), path))
        for path, most in self._read_numbers("memory", "memory.limit_in_bytes"):
            folder = os.path.dirname(path)
            found.append(
                CgroupLimit(most, self._read_used(folder, "memory.usage_in_bytes", "total_inactive_file"), path)
            )
        real = [bound for bound in found if total_bytes is None or bound.most < total_bytes]
        return min(real, key=lambda bound: bound.most - bound.used, default=None)

    def read_process_limit(self) -> CgroupLimit | None:
        """Return the limit of processes and threads."""
        found = [
            CgroupLimit(most, parse_number(self._read_text(f"{os.path.dirname(path)}/pids.current")) or 0, path)
            for controller in (_UNIFIED, "pids")
            for path, most in self._read_numbers(controller, "pids.max")
        ]
        return min(found, key=lambda bound: bound.most - bound.used, default=None)

    def list_oom_groups(self) -> tuple[str, ...]:
        """List the groups whose processes the kernel kills together, the innermost first."""
        return tuple(
            os.path.dirname(path) for path, words in self._read_fields(_UNIFIED, "memory.oom.group") if words == ["1"]
        )

    def _read_numbers(self, controller: str, name: str) -> Iterator[tuple[str, int]]:
        for path, words in self._read_fields(controller, name):
            if (most := parse_number(" ".join(words))) is not None:
                yield path, most

    def _read_fields(self, controller: str, name: str) -> Iterator[tuple[str, list[str]]]:
        """Yield the file of that name in each group of this process, from its own upwards."""
        for folder in self._list_directories(controller):
            path = f"{folder}/{name}"
            if words := self._read_text(path).split():
                yield path, words

    def _list_directories(self, controller: str) -> Iterator[str]:
        group = self._group_by_controller.get(controller)
        mount = next((mount for mount in self._mounts if mount.has_controller(controller)), None)
        if group is None or mount is None:
            return
        top = mount.mount_point.rstrip("/")
        below = group.removeprefix(mount.root_group.rstrip("/")) if _is_within(group, mount.root_group) else ""
        folder = f"{top}{below}".rstrip("/")
        while True:
            yield folder
            if folder == top:
                return
            folder = folder.rpartition("/")[0]

    def _read_used(self, directory: str, current: str, cached: str) -> int:
        """Return the usage without memory that the kernel can reclaim at once."""
        used = parse_number(self._read_text(f"{directory}/{current}")) or 0
        for line in self._read_text(f"{directory}/memory.stat").splitlines():
            name, _, value = line.partition(" ")
            if name == cached:
                used -= parse_number(value) or 0
        return max(used, 0)

    def _read_groups(self) -> Iterator[tuple[str, str]]:
        """Yield controller -> group, from /proc/self/cgroup: "4:cpu,cpuacct:/job" or "0::/job"."""
        for line in self._read_text("/proc/self/cgroup").splitlines():
            _, _, rest = line.partition(":")
            controllers, _, group = rest.partition(":")
            # Above the visible part of the tree nothing can be read: /.. begins outside of it.
            group = "/" if group.startswith("/..") else group
            for controller in controllers.split(","):
                yield controller, group

    def _read_mounts(self) -> Iterator[_Mount]:
        """By /proc/self/mountinfo, see proc_pid_mountinfo(5)."""
        for line in self._read_text("/proc/self/mountinfo").splitlines():
            before, _, after = line.partition(" - ")
            fields, kind = before.split(), after.split()
            if len(fields) > 4 and len(kind) > 2 and kind[0] in ("cgroup", "cgroup2"):
                controllers = frozenset(kind[2].split(",")) if kind[0] == "cgroup" else frozenset({_UNIFIED})
                yield _Mount(fields[4], fields[3], controllers)

    def _read_text(self, path: str) -> str:
        try:
            with open(os.path.join(self._root, path.lstrip("/")), errors="replace") as file:
                return file.read()
        except OSError:
            return ""


class _Mount(NamedTuple):
    """A tree of groups: where it is mounted, and the group that is its root there."""

    mount_point: str
    root_group: str
    controllers: frozenset[str]

    def has_controller(self, controller: str) -> bool:
        return controller in self.controllers


def _is_within(group: str, top: str) -> bool:
    return top == "/" or group == top or group.startswith(f"{top}/")


def parse_number(text: str) -> int | None:
    """Return the whole number in a file of the kernel; None if there is none, such as "max"."""
    text = text.strip()
    return int(text) if text.isdecimal() else None
