"""The control group of all that an agent starts: one write kills every process in it.

A process can clear its environment or close the lock, but it cannot leave its group. So the next agent of the run
kills by it what is left when keeper, supervisor and agent were all killed at once (`stale_agents`). It needs a cgroup
of version 2 in which this user may create others: one that systemd has delegated, or the root of a container's tree or
of a machine without systemd. No controller is enabled for it, so it changes no limit and no share.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress

from launcher.hardware.linux.cgroups import UNIFIED, find_groups
from launcher.hardware.linux.kernel import read_text

_PREFIX = "meshrun-"
_OLD_S = 60.0  # a keeper joins a new group within milliseconds; a run that never returns leaves an empty one


def make_path(name: str) -> str:
    """Return the directory for a new group of this process; "" where none may be created.

    Outside of its own part of the tree a process would escape from the limits of its container, and from its end.
    """
    found = next(find_groups(read_text("/proc/self/cgroup"), read_text("/proc/self/mountinfo"), UNIFIED), None)
    here = found.directory if found else ""
    return os.path.join(here, f"{_PREFIX}{name}-{os.urandom(4).hex()}") if here and _is_delegated(here) else ""


def make(path: str) -> bool:
    """Create the group and remove empty old ones beside it; whether one write can kill it (since Linux 5.14)."""
    parent = os.path.dirname(path)
    try:
        names = os.listdir(parent)
        os.mkdir(path)
    except OSError:
        return False
    for beside in (f"{parent}/{name}" for name in names if name.startswith(_PREFIX)):
        with suppress(OSError):  # another agent has removed it
            if os.stat(beside).st_ctime < time.time() - _OLD_S:
                remove(beside)
    if os.path.exists(f"{path}/cgroup.kill"):
        return True
    remove(path)
    return False


def list_members(path: str) -> list[int]:
    """Return the processes in a group and its subgroups: a worker may have created one. Empty if there is no group."""
    if not os.path.basename(path).startswith(_PREFIX):  # it was read from a file
        return []
    return [int(pid) for folder, _, _ in os.walk(path) for pid in read_text(f"{folder}/cgroup.procs").split()]


def clear(path: str, spared: set[int]) -> list[int]:
    """Kill the processes in the group and what they fork meanwhile; return those found. Nothing if one is `spared`."""
    left = list_members(path)
    if spared.intersection(left):
        return []
    if left:
        with suppress(OSError), open(f"{path}/cgroup.kill", "w") as file:
            file.write("1")
    remove(path)
    return left


def remove(path: str) -> None:
    """Remove the group and its subgroups if no process is in any of them."""
    if os.path.basename(path).startswith(_PREFIX) and not list_members(path):
        for folder, _, _ in os.walk(path, topdown=False):
            with suppress(OSError):
                os.rmdir(folder)


def _is_delegated(path: str) -> bool:
    """Whether it is the root of a machine's or container's tree, or systemd has delegated it or a parent to its user.

    Only the root of a machine's tree may hold both processes and groups with controllers. They share the machine: all
    workers together would get as much of it as one process beside them.
    """
    if read_text(f"{path}/cgroup.subtree_control").strip():
        return False
    if not os.path.exists(f"{path}/../cgroup.procs"):
        return True
    while os.path.exists(f"{path}/cgroup.procs"):
        for name in ("user.delegate", "trusted.delegate"):
            with suppress(OSError):
                if os.getxattr(path, name) == b"1":
                    return True
        path = os.path.dirname(path)
    return False
