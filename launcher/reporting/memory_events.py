"""Has the kernel killed one of our processes for want of memory?

A worker that ends with SIGKILL looks the same whether a person, a scheduler or the kernel sent it. The kernel
counts its own kills per control group, and workers live in the agent's, or below it in one without a memory
controller: if the count has grown while a round ran, a SIGKILL in that round was the kernel's. On a host without
limits, or where the control groups cannot be seen, there is no count and nothing is claimed.
"""

from __future__ import annotations

import os
import re


class MemoryEvents:
    """The control group of this process. `proc_dir` is /proc/self, or a copy of it for tests."""

    def __init__(self, proc_dir: str = "/proc/self") -> None:
        self._proc_dir = proc_dir
        self._file: str | None = None
        self._is_searched = False

    def count_oom_kills(self) -> int | None:
        """Processes of the group that the kernel has killed for memory so far; None if that cannot be known."""
        if not self._is_searched:
            self._file = _find_file(self._proc_dir)
            self._is_searched = True
        if self._file is None:
            return None
        match = re.search(r"^oom_kill (\d+)$", _read(self._file), re.MULTILINE)
        return int(match[1]) if match else None


def is_out_of_memory(exit_code: int, before: int | None, after: int | None) -> bool:
    """Was it the kernel's lack of memory that ended a worker, given the counts before its round and now?"""
    return exit_code == -9 and before is not None and after is not None and after > before


def _find_file(proc_dir: str) -> str | None:
    """The file with the count: memory.events in version 2 of control groups, memory.oom_control in version 1."""
    group_v1 = group_v2 = None
    for line in _read(f"{proc_dir}/cgroup").splitlines():
        number, controllers, path = (*line.split(":", 2), "", "")[:3]
        if "memory" in controllers.split(","):
            group_v1 = path
        elif number == "0":
            group_v2 = path
    # Where both are mounted, the memory controller belongs to one of them; version 1 has it if it names it.
    if group_v1 is not None:
        return _find_group_file(proc_dir, "cgroup", "memory", group_v1, "memory.oom_control")
    if group_v2 is not None:
        return _find_group_file(proc_dir, "cgroup2", "", group_v2, "memory.events")
    return None


def _find_group_file(proc_dir: str, kind: str, option: str, group: str, name: str) -> str | None:
    for line in _read(f"{proc_dir}/mountinfo").splitlines():
        # proc_pid_mountinfo(5): ID parent dev root mount-point options [fields ...] - kind source super-options
        mount, _, file_system = line.partition(" - ")
        fields, system = mount.split(), file_system.split()
        if len(fields) < 5 or len(system) < 3 or system[0] != kind:
            continue
        if option and option not in system[2].split(","):
            continue
        root, point = fields[3], fields[4]
        # A container may see its group's path as the host does, but have only the group itself mounted.
        inside = group[len(root.rstrip("/")) :] if f"{group}/".startswith(f"{root.rstrip('/')}/") else ""
        for path in (f"{point}{inside.rstrip('/')}/{name}", f"{point}/{name}"):
            if os.path.exists(path):
                return path
    return None


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
