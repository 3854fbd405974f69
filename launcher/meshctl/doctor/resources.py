"""Checks of a machine's resources: CPUs, memory, processes, files, space for shared memory and for logs.

Containers have default limits, and some of those do not suit training. None of this keeps an agent from starting; it
shows hours later, as a worker that is killed, or one that waits for a CPU.

Where the numbers come from: 64 MiB of /dev/shm is the default of Docker and of container runtimes under Kubernetes; a
process that has imported torch 2.13 takes 220 MB (measured, CPU build). NVIDIA's NCCL user guide, "Troubleshooting",
names shared memory and locked memory. Since Kubernetes 1.28 the kubelet lets kernels kill a container as a whole
(kubernetes/kubernetes#117793), and 1.32 has a setting against it (#126096).
"""

from __future__ import annotations

from collections.abc import Iterator

from launcher.logs.reports.round_log import format_workers
from launcher.meshctl.doctor.findings import Finding
from launcher.meshctl.doctor.machine import CgroupLimit, DiskSpace, MachineInfo, PlannedRun
from launcher.model.text import format_bytes, format_number

MIB = 1 << 20
SHARED_MEMORY_SMALL = 64 * MIB
SHARED_MEMORY_FULL = 16 * MIB  # less than this free, and the next DataLoader fails
MEMORY_PER_WORKER = 1024 * MIB
LOCKED_MEMORY_SMALL = 1024 * MIB
LAUNCHER_PROCESSES = 3  # agent, keeper and supervisor
THREADS_PER_WORKER = 64  # a worker of torch has threads for autograd, for every data loader, for NCCL
FILES_MIN = {False: 9, True: 28}  # with one worker (measured); True: with all connections to other nodes
FILES_OF_AGENT = 64
FILES_PER_WORKER = 6  # two pipes and two log files, and for a moment the pipes' other ends
FILES_OF_WORKER = 1024  # the usual soft limit
LOGS_FULL, LOGS_FULL_FRACTION = 16 * MIB, 0.01  # a node with less does not join, see launcher.agent.node_main
LOGS_NEARLY_FULL = 100 * MIB
LOGS_NEARLY_FULL_FRACTION = 0.05


def check_shared_memory(machine: MachineInfo, run: PlannedRun) -> Iterator[Finding]:
    space = machine.shared_memory
    if space is None:
        return
    size, free = format_bytes(space.size), format_bytes(space.free)
    if space.amiss:
        yield Finding("shared-memory", "hurt", f"/dev/shm cannot be used: {space.amiss}", _SHARED_HARM, _SHARED_REMEDY)
    elif space.size <= SHARED_MEMORY_SMALL:
        seen = f"/dev/shm has {size}, of which {free} are free"
        yield Finding("shared-memory", "hurt", seen, _SHARED_HARM, _SHARED_REMEDY)
    elif space.free < SHARED_MEMORY_FULL:
        yield Finding(
            "shared-memory",
            "hurt",
            f"/dev/shm is full: {free} of {size} are free",
            _SHARED_HARM,
            "look for what killed jobs have left: ls -l /dev/shm",
        )


_SHARED_HARM = "torch's data loaders and NCCL pass data through it; a worker that finds it full dies of SIGBUS"
_SHARED_REMEDY = (
    "docker run --ipc=host or --shm-size=16g; in Kubernetes mount an emptyDir with medium: Memory at /dev/shm"
)


def check_oom_group(machine: MachineInfo, run: PlannedRun) -> Iterator[Finding]:
    for path in machine.oom_groups[:1]:
        yield Finding(
            "oom-group",
            "hurt",
            f"memory.oom.group is 1 in {path}",
            "if one process here is killed for want of memory, all are, the agent too: nobody restarts or reports",
            "Kubernetes from 1.32 on: singleProcessOOMKill: true in the kubelet's configuration; systemd: "
            "OOMPolicy=continue",
        )


def check_cpus(machine: MachineInfo, run: PlannedRun) -> Iterator[Finding]:
    quota, workers = machine.cpu_quota, run.worker_count
    if quota is not None and quota.most < workers:
        yield Finding(
            "cpu-quota",
            "hurt",
            f"a quota of {format_number(quota.most)} CPUs for {format_workers(workers)}, in {quota.origin}",
            "the kernel stops all of them for the rest of each period once it is used up, and peers wait for them",
            "give the container at least one CPU per worker, better several",
        )
    elif machine.cpu_count < workers and run.accelerators:
        yield Finding(
            "cpus",
            "hurt",
            f"this process may run on {format_number(machine.cpu_count)} CPUs, for {format_workers(workers)}",
            "workers take turns, and all wait for the slowest",
            "give the job more CPUs, or start fewer workers",
        )


def check_memory(machine: MachineInfo, run: PlannedRun) -> Iterator[Finding]:
    limit, workers = machine.memory_limit, run.worker_count
    if limit is None or not workers:
        return
    each = max(0.0, limit.most - limit.used) / workers
    if each < MEMORY_PER_WORKER:
        yield Finding(
            "memory-limit",
            "hurt",
            f"of {format_bytes(limit.most)} of memory {format_bytes(limit.most - limit.used)} are left, "
            f"{format_bytes(each)} per worker, in {limit.origin}",
            "a process that has imported torch takes 220 MB before its first tensor; what is over the limit is killed",
            "raise the container's memory limit, or start fewer workers",
        )


def check_processes(machine: MachineInfo, run: PlannedRun) -> Iterator[Finding]:
    limit = machine.process_limit
    if limit is not None:
        yield from _check_process_limit(
            "process-limit", limit, limit.origin, run, "raise the container's limit of pids"
        )
    soft = machine.user_processes.soft
    if soft is not None:
        bound = CgroupLimit(soft, 0, "ulimit -u")
        yield from _check_process_limit("user-processes", bound, "ulimit -u", run, "raise ulimit -u")


def _check_process_limit(
    check: str, limit: CgroupLimit, origin: str, run: PlannedRun, remedy: str
) -> Iterator[Finding]:
    left, workers = int(limit.most - limit.used), run.worker_count
    if left < workers + LAUNCHER_PROCESSES:
        wanted = f"{format_workers(workers)} and the launcher's {LAUNCHER_PROCESSES} are wanted"
        seen = f"{max(left, 0)} more processes may be started, in {origin}; {wanted}"
        yield Finding(check, "stop", seen, "not all of them can be started", remedy)
    elif left < workers * THREADS_PER_WORKER:
        yield Finding(
            check,
            "hurt",
            f"{format_number(left)} more processes and threads may be started, in {origin}, for "
            f"{format_workers(workers)}",
            "a worker may have many threads: data loaders, autograd, NCCL; one that gets none dies",
            remedy,
        )


def check_open_files(machine: MachineInfo, run: PlannedRun) -> Iterator[Finding]:
    soft, hard = machine.open_files
    wanted = FILES_OF_AGENT + FILES_PER_WORKER * run.worker_count + run.node_count
    if hard is not None and hard < wanted:
        yield Finding(
            "open-files",
            "stop" if hard < FILES_MIN[run.node_count > 1] else "hurt",
            f"at most {format_number(hard)} files may be open (ulimit -Hn), and the agent may need "
            f"{format_number(wanted)}",
            f"it has up to {FILES_PER_WORKER} for each worker, as with --tee, and as the leader one for each node",
            "raise ulimit -n",
        )
    elif soft is not None and soft < FILES_OF_WORKER:
        yield Finding(
            "open-files",
            "hurt",
            f"a worker may have {format_number(soft)} files open (ulimit -n)",
            "data loaders pass tensors as open files; 'Too many open files' ends one",
            f"ulimit -n {hard or 65536}",
        )


def check_locked_memory(machine: MachineInfo, run: PlannedRun) -> Iterator[Finding]:
    soft = machine.locked_memory.soft
    if not machine.rdma_devices or machine.may_lock or soft is None or soft >= LOCKED_MEMORY_SMALL:
        return
    yield Finding(
        "locked-memory",
        "hurt",
        f"{format_bytes(soft)} of memory may be locked (ulimit -l), and {', '.join(machine.rdma_devices)} is there",
        "InfiniBand and its like lock what they send and receive; NCCL fails with 'Cannot allocate memory'",
        "docker run --ulimit memlock=-1; Slurm: PropagateResourceLimitsExcept=MEMLOCK; systemd: LimitMEMLOCK=infinity",
    )


def check_log_space(machine: MachineInfo, run: PlannedRun) -> Iterator[Finding]:
    space = machine.logs
    if space is None:
        return
    elsewhere = "--log-dir names another place"
    if space.amiss:
        yield Finding(
            "logs", "stop", f"{space.path} cannot be written: {space.amiss}", "log files lie there", elsewhere
        )
    elif _is_full(space):
        seen = f"{space.path} is full: {format_bytes(space.free)} are free"
        if space.inodes_free == 0:
            seen = f"{space.path} is full: no more files can be made there"
        yield Finding("logs", "stop", seen, "a run makes a directory for its logs there", elsewhere)
    elif space.free < min(LOGS_NEARLY_FULL, space.size * LOGS_NEARLY_FULL_FRACTION):
        yield Finding(
            "logs",
            "hurt",
            f"{space.path} is nearly full: {format_bytes(space.free)} of {format_bytes(space.size)} are free",
            "log files lie there, and what does not fit is lost",
            f"make room, or {elsewhere}",
        )


def _is_full(space: DiskSpace) -> bool:
    return space.free < min(LOGS_FULL, space.size * LOGS_FULL_FRACTION) or space.inodes_free == 0


def check_numa_balancing(machine: MachineInfo, run: PlannedRun) -> Iterator[Finding]:
    """Linux, Documentation/admin-guide/sysctl/kernel.rst, numa_balancing: for bound work it should be off."""
    if machine.balances_numa and len(machine.numa_nodes) > 1 and run.is_bound:
        yield Finding(
            "numa-balancing",
            "note",
            "workers are bound to CPUs, and the kernel moves their memory too (kernel.numa_balancing is 1)",
            "it unmaps pages to see who uses them, which bound workers have no use for",
            "sysctl kernel.numa_balancing=0",
        )


CHECKS = (
    check_shared_memory,
    check_oom_group,
    check_cpus,
    check_memory,
    check_processes,
    check_open_files,
    check_locked_memory,
    check_log_space,
    check_numa_balancing,
)
