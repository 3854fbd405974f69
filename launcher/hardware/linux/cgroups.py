"""Where a process is in the trees of control groups, by /proc/PID/cgroup and /proc/PID/mountinfo."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

UNIFIED = ""
"""The name of version 2's controllers in /proc/PID/cgroup."""


class GroupPlace(Struct, frozen=True):
    """Directories without a slash at their end."""

    top: str
    """The visible part of the tree."""
    directory: str
    """The process's own group; "" if it is outside of that part."""

    @property
    def path(self) -> list[str]:
        """The directories from the process's group to the top; the top alone if the group cannot be seen."""
        names = self.directory[len(self.top) :].split("/")[1:]
        return ["/".join((self.top, *names[:count])) for count in range(len(names), -1, -1)]


def parse_groups(text: str) -> dict[str, str]:
    """Parse /proc/PID/cgroup, "4:cpu,cpuacct:/job" or "0::/job": controller -> group."""
    found = {}
    for line in text.splitlines():
        _, controllers, group = (*line.split(":", 2), "", "")[:3]
        found.update(dict.fromkeys(controllers.split(","), group))
    return found


def find_groups(groups: str, mounts: str, controller: str) -> Iterator[GroupPlace]:
    """Yield where a process's group of this controller is, from its /proc/PID/cgroup and proc_pid_mountinfo(5).

    Usually there is one place; several if the tree is mounted more than once, none if it is not mounted.
    """
    group = parse_groups(groups).get(controller)
    for line in mounts.splitlines():
        # ID parent dev root mount-point options [fields ...] - kind source super-options
        mount, _, file_system = line.partition(" - ")
        fields, kind = mount.split(), file_system.split()
        if group is None or len(fields) < 5 or len(kind) < 3 or kind[0] not in ("cgroup", "cgroup2"):
            continue
        if controller in (kind[2].split(",") if kind[0] == "cgroup" else (UNIFIED,)):
            top, point = fields[3].rstrip("/"), fields[4].rstrip("/")
            # /.. begins outside of the cgroup namespace, as where a container sees the host's tree.
            is_below = f"{group}/".startswith(f"{top}/") and "/../" not in f"{group}/"
            yield GroupPlace(point, f"{point}{group[len(top) :].rstrip('/')}" if is_below else "")
