"""What `meshctl doctor` reads of a machine: control groups of both versions, ports, NUMA nodes, from made-up trees."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from launcher.hardware.linux.sysfs import FileTree
from launcher.meshctl.doctor.machine import (
    CgroupLimit,
    list_oom_groups,
    read_cpu_quota,
    read_machine,
    read_memory_limit,
    read_process_limit,
)

V2 = "29 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n"


def tree(root: Path, files: dict[str, str]) -> str:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return str(root)


BELOW = V2.replace(" / /sys", " /docker/abc /sys")
CPU = "sys/fs/cgroup/cpu.max"


@pytest.mark.parametrize(
    ("group", "mounts", "files", "expected"),
    [
        # The tightest on the way up counts.
        ("/slurm/job7/step2", V2, {
            "sys/fs/cgroup/slurm/job7/step2/cpu.max": "max 100000\n",
            "sys/fs/cgroup/slurm/job7/cpu.max": "250000 100000\n",
            "sys/fs/cgroup/slurm/cpu.max": "6400000 100000\n",
        }, CgroupLimit(2.5, 0, "/sys/fs/cgroup/slurm/job7/cpu.max")),
        # What is outside of the mounted tree is not looked for, neither above nor beside it.
        ("/../other", V2, {CPU: "100000 100000\n", "sys/fs/other/cpu.max": "1 100000\n"}, CgroupLimit(1, 0, f"/{CPU}")),
        ("/other", BELOW, {CPU: "100000 100000\n", "sys/fs/cgroup/other/cpu.max": "1 100000\n"},
         CgroupLimit(1, 0, f"/{CPU}")),
        ("/docker/abc/x", BELOW, {"sys/fs/cgroup/x/cpu.max": "200000 100000\n"},
         CgroupLimit(2, 0, "/sys/fs/cgroup/x/cpu.max")),
        # A quota that cannot be read is none.
        *(("/", V2, {CPU: text}, None) for text in ("", "max\n", "x y\n", "100000 0\n", "1 2 3\n")),
    ],
)  # fmt: skip
def test_the_tightest_quota_of_the_groups_that_can_be_seen_counts(
    tmp_path: Path, group: str, mounts: str, files: dict[str, str], expected: CgroupLimit | None
) -> None:
    head = {"proc/self/cgroup": f"0::{group}\n", "proc/self/mountinfo": mounts}
    assert read_cpu_quota(FileTree(tree(tmp_path, {**head, **files}))) == expected


def test_a_container_sees_its_own_group_as_the_whole_tree(tmp_path: Path) -> None:
    group = {
        "cpu.max": "50000 100000\n", "memory.max": str(8 << 30), "memory.current": str(3 << 30),
        "memory.stat": f"anon 1\ninactive_file {1 << 30}\n", "memory.oom.group": "1\n", "pids.max": "100\n",
        "pids.current": "40\n",
    }  # fmt: skip
    head = {"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": V2}
    files = FileTree(tree(tmp_path, head | {f"sys/fs/cgroup/{name}": text for name, text in group.items()}))
    assert read_cpu_quota(files) == CgroupLimit(0.5, 0, "/sys/fs/cgroup/cpu.max")
    assert read_memory_limit(64 << 30, files) == CgroupLimit(8 << 30, 2 << 30, "/sys/fs/cgroup/memory.max")
    assert read_memory_limit(4 << 30, files) is None  # more than the machine has
    assert list_oom_groups(files) == ("/sys/fs/cgroup",)
    assert read_process_limit(files) == CgroupLimit(100, 40, "/sys/fs/cgroup/pids.max")


def test_cgroups_of_version_1_are_found_below_their_controllers_mounts(tmp_path: Path) -> None:
    mounts = (
        "34 31 0:30 /docker/abc /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n"
        "35 31 0:31 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
        "36 31 0:32 / /sys/fs/cgroup/unified ro - cgroup2 cgroup2 rw\n"
    )
    tree(
        tmp_path,
        {
            "proc/self/cgroup": "5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n1:name=systemd:/\n0::/\n",
            "proc/self/mountinfo": mounts,
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "150000\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "1073741824\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "1000\n",
        },
    )
    files = FileTree(str(tmp_path))
    assert read_cpu_quota(files) == CgroupLimit(1.5, 0, "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us")
    assert read_memory_limit(2 << 30, files) == CgroupLimit(
        1 << 30, 1000, "/sys/fs/cgroup/memory/memory.limit_in_bytes"
    )
    (tmp_path / "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us").write_text("-1\n")
    assert read_cpu_quota(files) is None


def test_a_machine_whose_kernel_says_nothing_is_read_without_a_word(tmp_path: Path) -> None:
    machine = read_machine({}, str(tmp_path), root=str(tmp_path))
    assert (machine.cpu_quota, machine.memory, machine.memory_limit, machine.oom_groups) == (None, None, None, ())
    assert (machine.rdma_devices, machine.listening_ports, machine.numa_nodes) == ((), frozenset(), {})
    assert machine.shared_memory is not None
    assert machine.shared_memory.amiss == "it does not exist"


def test_ports_nodes_devices_and_capabilities_are_read(tmp_path: Path) -> None:
    head = "  sl  local_address rem_address   st tx_queue\n"
    root = tree(
        tmp_path,
        {
            "proc/net/tcp": head + "   0: 0100007F:3A99 00000000:0000 0A 0\n   1: 0100007F:3A9E 0100007F:0016 01 0\n",
            "proc/net/tcp6": head + "   0: 00000000000000000000000000000000:0016 0:0000 0A 0\nrubbish\n",
            "proc/self/status": "Name:\tx\nCapEff:\t0000000000004000\n", "proc/meminfo": "MemTotal:        1024 kB\n",
            "proc/sys/kernel/numa_balancing": "1\n", "sys/devices/system/node/node0/cpulist": "0-3\n",
            "sys/devices/system/node/node1/cpulist": "4-7\n", "sys/devices/system/node/possible": "0-1\n",
            "sys/class/infiniband/mlx5_0/node_guid": "x\n", "sys/class/net/nosuch0/mtu": "9000\n",
            "sys/class/net/nosuch0/speed": "-1\n", "sys/class/net/nosuch0/flags": "0x1003\n",
            "sys/class/net/bonding_masters": "bond0\n",
        },
    )  # fmt: skip
    machine = read_machine({}, os.devnull, root=root)
    assert machine.listening_ports == {15001, 22}
    assert machine.may_lock
    assert machine.memory == 1 << 20
    assert machine.balances_numa
    assert machine.numa_nodes == {0: "0-3", 1: "4-7"}
    assert machine.rdma_devices == ("mlx5_0",)
    assert machine.logs is None
    interface = machine.interfaces[0]
    assert (interface.name, interface.is_up, interface.mtu, interface.speed_mbit) == ("nosuch0", True, 9000, None)


def test_logs_are_looked_for_where_they_would_be_made(tmp_path: Path) -> None:
    def amiss(log_dir: str | None, **environ: str) -> tuple[str, str]:
        space = read_machine(environ, log_dir, root=str(tmp_path)).logs
        assert space is not None
        return space.path, space.amiss

    assert amiss(str(tmp_path / "a/b/c")) == (str(tmp_path / "a/b/c"), "")
    assert not (tmp_path / "a").exists()
    (tmp_path / "file").write_text("")
    assert amiss(str(tmp_path / "file")) == (str(tmp_path / "file"), "it is not a directory")
    assert amiss(str(tmp_path / "file/c"))[1] == f"{tmp_path}/file is not a directory"
    assert amiss(None, TMPDIR=str(tmp_path)) == (str(tmp_path), "")


@pytest.mark.parametrize(
    ("scope", "capabilities", "refusal"),
    [("", 0, 0), ("0", 0, 0), ("1", 0, 0), ("2", 0, 2), ("2", 1 << 19, 0), ("3", 1 << 19, 3)],
)
def test_yama_refuses_a_launcher_that_may_not_read_its_own_workers(
    tmp_path: Path, scope: str, capabilities: int, refusal: int
) -> None:
    files = {"proc/self/status": f"CapEff:\t{capabilities:016x}\n"}
    if scope:
        files["proc/sys/kernel/yama/ptrace_scope"] = f"{scope}\n"
    assert read_machine({}, None, tree(tmp_path, files)).trace_refusal == refusal
