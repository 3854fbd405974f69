"""Where a process is in the trees of control groups, whatever a container shows of them."""

from __future__ import annotations

import pytest

from launcher.hardware.linux.cgroups import UNIFIED, GroupPlace, find_groups


@pytest.mark.parametrize(
    ("own", "mount", "found"),
    [
        ("0::/user.slice/app", "/ /sys/fs/cgroup", "/sys/fs/cgroup/user.slice/app"),
        ("9:pids:/a\n0::/", "/ /sys/fs/cgroup/unified", "/sys/fs/cgroup/unified"),
        ("0::/docker/1/job", "/docker/1 /sys/fs/cgroup", "/sys/fs/cgroup/job"),
        ("0::/other", "/docker/1 /sys/fs/cgroup", ""),
        ("4:memory:/a", "/ /sys/fs/cgroup", ""),
        ("0::/", "/.. /sys/fs/cgroup", ""),  # in a container the tree of the host
        ("0::/../other", "/ /sys/fs/cgroup", ""),  # entered from outside
    ],
)
def test_the_own_group_is_found_below_its_mount(own: str, mount: str, found: str) -> None:
    mounts = f"22 1 0:20 / /proc rw - proc proc rw\n30 23 0:26 {mount} rw,nosuid shared:9 - cgroup2 cgroup2 rw\n"
    place = next(find_groups(own + "\n", mounts, UNIFIED), None)
    assert (place.directory if place else "") == found


def test_version_1_is_found_in_each_mount_and_a_path_ends_there() -> None:
    mounts = "".join(
        f"3{number} 23 0:2{number} / {at} rw - {kind} {kind} rw,{options}\n"
        for number, (at, kind, options) in enumerate(
            [("/cg/cpu", "cgroup", "cpu,cpuacct"), ("/cg/memory", "cgroup", "memory"), ("/m", "cgroup", "memory")]
        )
    )
    found = find_groups("4:memory:/job\n0::/other\n", mounts, "memory")
    assert [place.directory for place in found] == ["/cg/memory/job", "/m/job"]
    assert list(find_groups("4:cpu:/job\n", mounts, "memory")) == []
    assert GroupPlace("/cg", "/cg/a/b").path == ["/cg/a/b", "/cg/a", "/cg"]
    assert GroupPlace("/cg", "/cg").path == ["/cg"]
    assert GroupPlace("/cg", "").path == ["/cg"]
