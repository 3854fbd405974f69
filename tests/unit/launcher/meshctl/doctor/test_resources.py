"""What `meshctl doctor` warns of, check by check, on machines made up for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from launcher.meshctl.doctor import resources, sidecars
from launcher.meshctl.doctor.findings import Finding, can_start, describe_verdict, sort_findings
from launcher.meshctl.doctor.machine import CgroupLimit, DiskSpace, MachineInfo, PlannedRun, ResourceLimit
from launcher.model.text import format_bytes, format_number

MIB, GIB = 1 << 20, 1 << 30
ROOMY = MachineInfo(
    cpu_count=64,
    memory=512 * GIB,
    memory_limit=CgroupLimit(256 * GIB, GIB, "/sys/fs/cgroup/memory.max"),
    process_limit=CgroupLimit(100_000, 100, "/sys/fs/cgroup/pids.max"),
    shared_memory=DiskSpace("/dev/shm", 256 * GIB, 256 * GIB),
    logs=DiskSpace("/logs", 100 * GIB, 50 * GIB, 1_000_000),
    open_files=ResourceLimit(1024, 1_048_576),
    user_processes=ResourceLimit(500_000, 500_000),
    locked_memory=ResourceLimit(None, None),
    rdma_devices=("mlx5_0",),
    numa_nodes={0: "0-31", 1: "32-63"},
    listening_ports=frozenset({22, 15001}),
)
RUN = PlannedRun(worker_count=8, accelerators=frozenset({"nvidia"}), node_count=32, frameworks=("torch",))


def found(machine: MachineInfo = ROOMY, run: PlannedRun = RUN) -> list[Finding]:
    checks = (*resources.CHECKS, *sidecars.CHECKS)
    return [finding for check in checks for finding in check(machine, run)]


def only(machine: MachineInfo = ROOMY, run: PlannedRun = RUN) -> Finding:
    findings = found(machine, run)
    assert len(findings) == 1, findings
    assert findings[0].harm
    assert findings[0].remedy
    return findings[0]


def test_nothing_is_said_of_a_machine_that_has_enough() -> None:
    assert found() == []
    assert found(MachineInfo(), PlannedRun()) == []  # nor of one whose kernel says nothing


@pytest.mark.parametrize(
    ("space", "seen"),
    [
        (DiskSpace("/dev/shm", 64 * MIB, 60 * MIB), "/dev/shm has 64 MiB, of which 60 MiB are free"),
        (DiskSpace("/dev/shm", 8 * GIB, 15 * MIB), "/dev/shm is full: 15 MiB of 8 GiB are free"),
        (DiskSpace("/dev/shm", 0, 0, None, "it is not there"), "/dev/shm cannot be used: it is not there"),
    ],
)
def test_shared_memory_that_is_small_full_or_missing_may_hurt(space: DiskSpace, seen: str) -> None:
    finding = only(replace(ROOMY, shared_memory=space))
    assert (finding.check, finding.level, finding.seen) == ("shared-memory", "hurt", seen)


def test_one_byte_more_than_the_default_of_containers_is_enough() -> None:
    assert found(replace(ROOMY, shared_memory=DiskSpace("/dev/shm", 64 * MIB + 1, 64 * MIB))) == []


def test_a_group_that_is_killed_as_a_whole_is_named_once() -> None:
    finding = only(replace(ROOMY, oom_groups=("/sys/fs/cgroup/job", "/sys/fs/cgroup")))
    assert (finding.level, finding.seen) == ("hurt", "memory.oom.group is 1 in /sys/fs/cgroup/job")


def test_a_quota_below_the_number_of_workers_may_hurt() -> None:
    quota = CgroupLimit(7.5, 0, "/sys/fs/cgroup/cpu.max")
    finding = only(replace(ROOMY, cpu_quota=quota))
    assert (finding.check, finding.level) == ("cpu-quota", "hurt")
    assert finding.seen == "a quota of 7.5 CPUs for 8 workers, in /sys/fs/cgroup/cpu.max"
    assert found(replace(ROOMY, cpu_quota=quota._replace(most=8.0))) == []


def test_fewer_cpus_than_workers_may_hurt_only_with_accelerators() -> None:
    machine = replace(ROOMY, cpu_count=4)
    assert only(machine).seen == "this process may run on 4 CPUs, for 8 workers"
    assert found(machine, replace(RUN, accelerators=frozenset())) == []


def test_little_memory_per_worker_may_hurt() -> None:
    finding = only(replace(ROOMY, memory_limit=CgroupLimit(8 * GIB, 4 * GIB, "/sys/fs/cgroup/memory.max")))
    assert finding.seen == "of 8 GiB of memory 4 GiB are left, 512 MiB per worker, in /sys/fs/cgroup/memory.max"
    assert found(replace(ROOMY, memory_limit=CgroupLimit(8 * GIB, 0, "m"))) == []


@pytest.mark.parametrize(("left", "level"), [(10, "stop"), (11, "hurt"), (511, "hurt"), (512, "")])
def test_too_low_a_process_limit_stops_a_job_and_a_low_one_may_hurt(left: int, level: str) -> None:
    findings = found(replace(ROOMY, process_limit=CgroupLimit(1000, 1000 - left, "/sys/fs/cgroup/pids.max")))
    assert [finding.level for finding in findings] == [level] * bool(level)
    findings = found(replace(ROOMY, user_processes=ResourceLimit(left, left)))
    assert [(finding.check, finding.level) for finding in findings] == [("user-processes", level)] * bool(level)


def test_the_agents_files_are_counted_with_workers_and_nodes() -> None:
    wanted = resources.FILES_OF_AGENT + 6 * 8 + 32
    assert only(replace(ROOMY, open_files=ResourceLimit(27, 27))).level == "stop"
    assert only(replace(ROOMY, open_files=ResourceLimit(28, wanted - 1))).level == "hurt"
    assert found(replace(ROOMY, open_files=ResourceLimit(1024, wanted))) == []
    assert only(replace(ROOMY, open_files=ResourceLimit(1023, 4096))).level == "hurt"


def test_locked_memory_matters_only_for_unprivileged_infiniband() -> None:
    small = replace(ROOMY, locked_memory=ResourceLimit(8 * MIB, 8 * MIB))
    assert only(small).seen == "8 MiB of memory may be locked (ulimit -l), and mlx5_0 is there"
    assert found(replace(small, may_lock=True)) == []
    assert found(replace(small, rdma_devices=())) == []


@pytest.mark.parametrize(
    ("space", "level", "seen"),
    [
        (DiskSpace("/l", GIB, GIB, 9, "this user may not"), "stop", "/l cannot be written: this user may not"),
        (DiskSpace("/l", 100 * GIB, MIB, 9), "stop", "/l is full: 1 MiB are free"),
        (DiskSpace("/l", 100 * GIB, 50 * GIB, 0), "stop", "/l is full: no more files can be made there"),
        (DiskSpace("/l", 100 * GIB, 90 * MIB, 9), "hurt", "/l is nearly full: 90 MiB of 100 GiB are free"),
        (DiskSpace("/l", 10 * MIB, 9 * MIB, None), "", ""),
        (None, "", ""),
    ],
)
def test_logs_need_a_place(space: DiskSpace | None, level: str, seen: str) -> None:
    assert [finding[1:3] for finding in found(replace(ROOMY, logs=space))] == [(level, seen)] * bool(level)


def test_numa_balancing_is_noted_where_workers_are_bound() -> None:
    machine = replace(ROOMY, balances_numa=True)
    assert only(machine, replace(RUN, is_bound=True)).level == "note"
    assert found(machine) == []
    assert found(replace(machine, numa_nodes={0: "0-63"}), replace(RUN, is_bound=True)) == []


@pytest.mark.parametrize(
    ("ports", "environ", "sign"),
    [
        ({15001, 15006}, {}, "a proxy of Istio is in this pod: it listens on ports 15001 and 15006"),
        ({4140, 4143, 22}, {}, "a proxy of Linkerd is in this pod: it listens on ports 4140 and 4143"),
        ({9901, 15001}, {}, "a proxy of Envoy is in this pod: it listens on ports 9901 and 15001"),
        (set(), {"ISTIO_META_MESH_ID": "x"}, "a proxy of Istio is in this pod: ISTIO_META_MESH_ID is set"),
        (set(), {"LINKERD2_PROXY_LOG": "x"}, "a proxy of Linkerd is in this pod: LINKERD2_PROXY_LOG is set"),
    ],
)
def test_a_sidecar_is_known_by_both_its_ports_or_by_its_variables(
    ports: set[int], environ: dict[str, str], sign: str
) -> None:
    finding = only(replace(ROOMY, listening_ports=frozenset(ports)), replace(RUN, environ=environ))
    assert (finding.check, finding.level, finding.seen) == ("sidecar", "hurt", sign)


def test_proxy_variables_are_named_without_their_values_and_hurt_jax() -> None:
    environ = {"HTTPS_PROXY": "http://me:hunter2@proxy", "no_proxy": "localhost", "http_proxy": ""}
    finding = only(run=replace(RUN, environ=environ))
    assert (finding.level, finding.seen) == ("note", "workers inherit HTTPS_PROXY, no_proxy")
    assert "hunter2" not in "".join(map(str, finding))
    assert only(run=replace(RUN, environ=environ, frameworks=("torch", "jax"))).level == "hurt"
    assert found(run=replace(RUN, environ={"NO_PROXY": "h1"})) == []


POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}


def test_the_grace_of_a_pod_is_compared_with_the_workers_where_it_is_told() -> None:
    told = {**POD, "LAUNCHER_POD_GRACE": "45"}
    assert found(run=replace(RUN, environ=told)) == []
    finding = only(run=replace(RUN, environ=told, shutdown_timeout_s=60))
    assert finding.level == "hurt"
    assert finding.seen == ("the pod has 45 s to stop (LAUNCHER_POD_GRACE), workers have 60 s (--shutdown-timeout)")
    assert finding.remedy == "terminationGracePeriodSeconds: 75, or a shorter --shutdown-timeout"
    assert only(run=replace(RUN, environ=told, shutdown_timeout_s=40)).level == "note"


def test_a_pod_that_does_not_tell_its_grace_is_asked_to() -> None:
    assert only(run=replace(RUN, environ=POD)).level == "note"
    assert found(run=replace(RUN, environ=POD, shutdown_timeout_s=15)) == []
    nonsense = found(run=replace(RUN, environ={"LAUNCHER_POD_GRACE": "long"}))
    assert [finding.seen for finding in nonsense] == ["LAUNCHER_POD_GRACE='long' is no number of seconds"]


def test_the_worst_comes_first_and_the_verdict_counts() -> None:
    note, hurt, stop = (Finding(level, level, level) for level in ("note", "hurt", "stop"))
    assert sort_findings([note, hurt, stop, hurt]) == (stop, hurt, hurt, note)
    assert (
        describe_verdict([])
        == describe_verdict([note])
        == "a job would start here, and nothing was seen that would hurt it"
    )
    assert describe_verdict([hurt]) == "a job would start here; 1 thing may hurt it"
    assert describe_verdict([hurt, hurt]) == "a job would start here; 2 things may hurt it"
    assert describe_verdict([stop]) == "1 thing would stop a job here"
    assert describe_verdict([stop, stop, hurt]) == "2 things would stop a job here, 1 may hurt it"
    assert can_start([note, hurt])
    assert not can_start([stop])


@pytest.mark.parametrize(
    ("count", "words"),
    [(0, "0 bytes"), (1023, "1,023 bytes"), (64 * MIB, "64 MiB"), (1.5 * GIB, "1.5 GiB"), (-1, "0 bytes")],
)
def test_sizes_are_written_as_people_read_them(count: float, words: str) -> None:
    assert format_bytes(count) == words
    assert format_number(20000) == "20,000"
