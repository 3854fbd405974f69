"""What `meshctl doctor` warns of, check by check, on machines made up for it."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from launcher.meshctl.doctor import checks
from launcher.meshctl.doctor.checks import Finding, PlannedRun, describe_verdict, sort_findings
from launcher.meshctl.doctor.machine import CgroupLimit, DiskSpace, MachineInfo, ResourceLimit
from launcher.model.text import format_bytes, format_number

MIB, GIB = 1 << 20, 1 << 30
ROOMY = MachineInfo(
    cpu_count=64, memory=512 * GIB, memory_limit=CgroupLimit(256 * GIB, GIB, "/sys/fs/cgroup/memory.max"),
    process_limit=CgroupLimit(100_000, 100, "/sys/fs/cgroup/pids.max"),
    shared_memory=DiskSpace("/dev/shm", 256 * GIB, 256 * GIB), logs=DiskSpace("/logs", 100 * GIB, 50 * GIB, 1_000_000),
    open_files=ResourceLimit(1024, 1_048_576), user_processes=ResourceLimit(500_000, 500_000),
    locked_memory=ResourceLimit(None, None), rdma_devices=("mlx5_0",), numa_nodes={0: "0-31", 1: "32-63"},
    listening_ports=frozenset({22, 15001}),
)  # fmt: skip
RUN = PlannedRun(worker_count=8, accelerators=frozenset({"nvidia"}), node_count=32, frameworks=("torch",))


def found(machine: MachineInfo = ROOMY, run: PlannedRun = RUN) -> list[Finding]:
    return [finding for check in checks.CHECKS for finding in check(machine, run)]


WANTED = 64 + 6 * 8 + 32  # open files: for the agent itself, 8 workers, 32 nodes
SHORT = "more processes may be started, in {}; 8 workers and 3 processes of the launcher are needed"
FEW = "more processes and threads may be started, in {}, for 8 workers"
MOST = "at most {} files may be open (ulimit -Hn), and the agent may need 144"
PORTS = "a proxy of {} is in this pod: it listens on ports {} and {}"
PIDS = "/sys/fs/cgroup/pids.max"
QUOTA = CgroupLimit(7.5, 0, "/sys/fs/cgroup/cpu.max")
NARROW = {"locked_memory": ResourceLimit(8 * MIB, 8 * MIB)}
MOVES = "workers are bound to CPUs, and the kernel moves their memory too (kernel.numa_balancing is 1)"
PROXIES = {"HTTPS_PROXY": "http://me:hunter2@proxy", "no_proxy": "localhost", "http_proxy": ""}
POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
TOLD = {**POD, "LAUNCHER_POD_GRACE": "45"}
GRACE = "the pod has 45 s to stop (LAUNCHER_POD_GRACE), workers have {} s (--shutdown-timeout)"
UNREAD = "the kernel does not let py-spy read workers"
UNTOLD = "this is a pod whose grace period is unknown; the default is 30 s"


def shm(*values: Any) -> dict[str, Any]:
    return {"shared_memory": DiskSpace("/dev/shm", *values)}


def logs(*values: Any) -> dict[str, Any]:
    return {"logs": DiskSpace("/l", *values)}


def pids(left: int) -> dict[str, Any]:
    return {"process_limit": CgroupLimit(1000, 1000 - left, PIDS)}


def user(left: int) -> dict[str, Any]:
    return {"user_processes": ResourceLimit(left, left)}


def files(soft: int, hard: int) -> dict[str, Any]:
    return {"open_files": ResourceLimit(soft, hard)}


def ports(*numbers: int) -> dict[str, Any]:
    return {"listening_ports": frozenset(numbers)}


@pytest.mark.parametrize(
    ("check", "level", "seen", "machine", "run"),
    [
        ("shared-memory", "hurt", "/dev/shm has 64 MiB, of which 60 MiB are free", shm(64 * MIB, 60 * MIB), {}),
        ("shared-memory", "hurt", "/dev/shm is full: 15 MiB of 8 GiB are free", shm(8 * GIB, 15 * MIB), {}),
        ("shared-memory", "hurt", "/dev/shm cannot be used: it is a file", shm(0, 0, None, "it is a file"), {}),
        ("oom-group", "hurt", "memory.oom.group is 1 in /sys/fs/a/b", {"oom_groups": ("/sys/fs/a/b", "/sys/fs/a")}, {}),
        ("cpu-quota", "hurt", f"a quota of 7.5 CPUs for 8 workers, in {QUOTA.origin}", {"cpu_quota": QUOTA}, {}),
        ("cpus", "hurt", "this process may run on 4 CPUs, for 8 workers", {"cpu_count": 4}, {}),
        ("memory-limit", "hurt", "of 8 GiB of memory 4 GiB are left, 512 MiB per worker, in m",
         {"memory_limit": CgroupLimit(8 * GIB, 4 * GIB, "m")}, {}),
        ("process-limit", "stop", f"10 {SHORT.format(PIDS)}", pids(10), {}),
        ("process-limit", "hurt", f"11 {FEW.format(PIDS)}", pids(11), {}),
        ("process-limit", "hurt", f"511 {FEW.format(PIDS)}", pids(511), {}),
        ("user-processes", "stop", f"10 {SHORT.format('ulimit -u')}", user(10), {}),
        ("open-files", "stop", MOST.format(27), files(27, 27), {}),
        ("open-files", "hurt", MOST.format(143), files(28, WANTED - 1), {}),
        ("open-files", "hurt", "a worker may have 1,023 files open (ulimit -n)", files(1023, 4096), {}),
        ("locked-memory", "hurt", "8 MiB of memory may be locked (ulimit -l), but mlx5_0 needs more", NARROW, {}),
        ("logs", "stop", "/l cannot be written: this user may not", logs(GIB, GIB, 9, "this user may not"), {}),
        ("logs", "stop", "/l is full: 1 MiB are free", logs(100 * GIB, MIB, 9), {}),
        ("logs", "stop", "/l is full: no more files can be created", logs(100 * GIB, 50 * GIB, 0), {}),
        ("logs", "hurt", "/l is nearly full: 90 MiB of 100 GiB are free", logs(100 * GIB, 90 * MIB, 9), {}),
        ("numa-balancing", "note", MOVES, {"balances_numa": True}, {"is_bound": True}),
        ("sidecar", "hurt", PORTS.format("Istio", 15001, 15006), ports(15001, 15006), {}),
        ("sidecar", "hurt", PORTS.format("Linkerd", 4140, 4143), ports(4140, 4143, 22), {}),
        ("sidecar", "hurt", PORTS.format("Envoy", 9901, 15001), ports(9901, 15001), {}),
        ("sidecar", "hurt", "a proxy of Istio is in this pod: ISTIO_META_ID is set",
         {}, {"environ": {"ISTIO_META_ID": "x"}}),
        ("sidecar", "hurt", "a proxy of Linkerd is in this pod: LINKERD2_PROXY_LOG is set",
         {}, {"environ": {"LINKERD2_PROXY_LOG": "x"}}),
        ("proxy-variables", "note", "workers inherit HTTPS_PROXY, no_proxy", {}, {"environ": PROXIES}),
        ("proxy-variables", "hurt", "workers inherit HTTPS_PROXY, no_proxy",
         {}, {"environ": PROXIES, "frameworks": ("torch", "jax")}),
        ("pod-grace", "note", GRACE.format(40), {}, {"environ": TOLD, "shutdown_timeout_s": 40}),
        ("pod-grace", "hurt", GRACE.format(60), {}, {"environ": TOLD, "shutdown_timeout_s": 60}),
        ("pod-grace", "note", UNTOLD, {}, {"environ": POD}),
        ("stacks", "note", "py-spy is not installed for the agent's Python", {"has_stack_reader": False}, {}),
        ("stacks", "note", f"{UNREAD} (kernel.yama.ptrace_scope=2)", {"trace_refusal": 2}, {}),
    ],
)  # fmt: skip
def test_what_a_machine_lacks_is_found_with_harm_and_remedy(
    check: str, level: str, seen: str, machine: dict[str, Any], run: dict[str, Any]
) -> None:
    (finding,) = found(replace(ROOMY, **machine), replace(RUN, **run))
    assert finding[:3] == (check, level, seen)
    assert finding.harm
    assert finding.remedy
    assert "hunter2" not in str(finding)


@pytest.mark.parametrize(
    ("machine", "run"),
    [
        ({}, {}),
        (shm(64 * MIB + 1, 64 * MIB), {}),  # one byte more than the default of containers
        ({"cpu_quota": replace(QUOTA, most=8.0)}, {}),
        ({"cpu_count": 4}, {"accelerators": frozenset()}),
        ({"memory_limit": CgroupLimit(8 * GIB, 0, "m")}, {}),
        (pids(512), {}), (user(512), {}), (files(1024, WANTED), {}),
        ({**NARROW, "may_lock": True}, {}), ({**NARROW, "rdma_devices": ()}, {}),
        (logs(10 * MIB, 9 * MIB, None), {}), ({"logs": None}, {}),
        ({"balances_numa": True}, {}),
        ({"balances_numa": True, "numa_nodes": {0: "0-63"}}, {"is_bound": True}),
        ({}, {"environ": {"NO_PROXY": "h1"}}),
        ({}, {"environ": TOLD}), ({}, {"environ": POD, "shutdown_timeout_s": 15}),
    ],
)  # fmt: skip
def test_nothing_is_said_of_a_machine_that_has_enough(machine: dict[str, Any], run: dict[str, Any]) -> None:
    assert found(replace(ROOMY, **machine), replace(RUN, **run)) == []


def test_a_short_grace_has_its_remedy_and_a_silent_kernel_no_word() -> None:
    (finding,) = found(run=replace(RUN, environ={"LAUNCHER_POD_GRACE": "long"}))
    assert finding.seen == "LAUNCHER_POD_GRACE='long' is not a number of seconds"
    (finding,) = found(run=replace(RUN, environ=TOLD, shutdown_timeout_s=60))
    assert finding.remedy == "set terminationGracePeriodSeconds: 75, or a shorter --shutdown-timeout"
    assert found(MachineInfo(), PlannedRun()) == []


def test_sizes_are_written_as_people_read_them_and_the_worst_comes_first() -> None:
    words = ["0 bytes", "1,023 bytes", "64 MiB", "1.5 GiB"]
    assert [format_bytes(count) for count in (-1, 1023, 64 * MIB, 1.5 * GIB)] == words
    assert format_number(20000) == "20,000"
    note, hurt, stop = (Finding(level, level, level) for level in ("note", "hurt", "stop"))
    assert sort_findings([note, hurt, stop, hurt]) == [stop, hurt, hurt, note]
    starts = "a job would start here"
    assert describe_verdict([]) == describe_verdict([note]) == f"{starts}; no problem was found"
    assert describe_verdict([hurt]) == f"{starts}; 1 problem may hurt it"
    assert describe_verdict([hurt, hurt]) == f"{starts}; 2 problems may hurt it"
    assert describe_verdict([stop]) == "1 problem would stop a job here"
    assert describe_verdict([stop, stop, hurt]) == "2 problems would stop a job here, 1 may hurt it"
