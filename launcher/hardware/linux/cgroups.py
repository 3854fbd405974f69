"""Where a process is in the trees of control groups, by /proc/PID/cgroup and /proc/PID/mountinfo."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

UNIFIED = ""
"""The name of version 2's controllers in /proc/PID/cgroup."""


class GroupMount(Struct, frozen=True):
    """A tree of groups: where it is mounted, the group that is its root there, and the controllers."""

    mount_point: str
    root_group: str
    controllers: frozenset[str]


def parse_groups(text: str) -> dict[str, str]:
    """Parse /proc/PID/cgroup, "4:cpu,cpuacct:/job" or "0::/job": controller -> group."""
    found = {}
    for line in text.splitlines():
        _, controllers, group = (*line.split(":", 2), "", "")[:3]
        found.update(dict.fromkeys(controllers.split(","), group))
    return found


def parse_mounts(text: str) -> Iterator[GroupMount]:
    """Parse the trees of groups in /proc/PID/mountinfo, see proc_pid_mountinfo(5)."""
    for line in text.splitlines():
        # ID parent dev root mount-point options [fields ...] - kind source super-options
        mount, _, file_system = line.partition(" - ")
        fields, kind = mount.split(), file_system.split()
        if len(fields) > 4 and len(kind) > 2 and kind[0] in ("cgroup", "cgroup2"):
            controllers = frozenset(kind[2].split(",")) if kind[0] == "cgroup" else frozenset({UNIFIED})
            yield GroupMount(fields[4], fields[3], controllers)
