"""Limits of the control groups on the way from this process's own upwards, of which the tightest counts.

In a container the way is short: the kernel shows only the container's part of the tree, as the whole.
"""

from __future__ import annotations

import re

from msgspec import Struct

from launcher.hardware.linux.cgroups import UNIFIED, find_groups
from launcher.hardware.linux.sysfs import FileTree


class CgroupLimit(Struct, frozen=True, order=True):
    """A limit of a control group."""

    most: float
    used: float
    origin: str
    """The file of the limit."""

    @property
    def left(self) -> float:
        return self.most - self.used


def read_cpu_quota(files: FileTree) -> CgroupLimit | None:
    """Return how many CPUs at once, over a period, this process and its groups may use."""
    texts = [(f"{at}/cpu.max", files.read_text(f"{at}/cpu.max")) for at in list_groups(files, UNIFIED)]
    for at in list_groups(files, "cpu"):
        parts = (files.read_text(f"{at}/cpu.cfs_{part}_us") for part in ("quota", "period"))
        texts.append((f"{at}/cpu.cfs_quota_us", " ".join(parts)))
    found = []
    for path, text in texts:
        if match := re.fullmatch(r"(\d+) (\d*[1-9]\d*)", text):
            found.append(CgroupLimit(int(match[1]) / int(match[2]), 0, path))
    return min(found, default=None)


def list_groups(files: FileTree, controller: str) -> list[str]:
    """Return the directories of this process's group and its visible parents, the innermost first."""
    groups, mounts = files.read_text("/proc/self/cgroup"), files.read_text("/proc/self/mountinfo")
    found = next(find_groups(groups, mounts, controller), None)
    return found.path if found else []


def explain_quota(worker_count: int) -> str:
    """Return the end of a sentence about this many workers, if they have less than one CPU each; else ""."""
    quota = read_cpu_quota(FileTree())
    if quota is None or quota.most >= worker_count:
        return ""
    return f"; the container may use {quota.most:g} CPUs, less than one each: raise its limit"
