"""The checks of `meshctl doctor`: functions of a machine and of the run that is planned there, without I/O.

Containers have default limits, and some of those do not suit training; a service mesh puts a proxy beside every pod.
None of this keeps an agent from starting; it shows hours later, as a worker that is killed, or one that waits. A
warning that only names a setting does not help at three in the morning, so each has an observation, its harm and a
remedy; and one of three severities: a run would not start or would not last; a run may be harmed; and a note.

Where the numbers come from: 64 MiB of /dev/shm is the default of Docker and of container runtimes under Kubernetes; a
process that has imported torch 2.13 takes 220 MB (measured, CPU build). NVIDIA's NCCL user guide, "Troubleshooting",
names shared memory and locked memory. Since Kubernetes 1.28 the kubelet lets kernels kill a container as a whole
(kubernetes/kubernetes#117793), and 1.32 has a setting against it (#126096). The ports of proxies are those of Istio
(istio.io, "Application requirements") and Linkerd (linkerd.io, "Protocol detection" and the proxy's configuration);
both of a proxy must be open, since either alone may be another program's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from msgspec import Struct

from launcher.config.files import FREE_BYTES_MIN, FREE_FRACTION_MIN
from launcher.hardware.linux.cgroup_limits import CgroupLimit
from launcher.meshctl.doctor.machine import MachineInfo
from launcher.model.node import format_workers
from launcher.model.text import format_bytes, format_count, format_number
from rendezvous.errors import MeshrunError

MIB = 1 << 20
SHARED_MEMORY_SMALL = 64 * MIB
SHARED_MEMORY_FULL = 16 * MIB  # less than this free, and the next DataLoader fails
MEMORY_PER_WORKER = 1024 * MIB
LOCKED_MEMORY_SMALL = 1024 * MIB
CPU_SHARERS = 2  # workers without accelerators that a trial may put on one CPU
LAUNCHER_PROCESSES = 3  # agent, keeper and supervisor
THREADS_PER_WORKER = 64  # a worker of torch has threads for autograd, for every data loader, for NCCL
FILES_MIN = {False: 9, True: 28}  # with one worker (measured); True: with all connections to other nodes
FILES_OF_AGENT = 64
FILES_PER_WORKER = 6  # two pipes and two log files, and for a moment the pipes' other ends
FILES_OF_WORKER = 1024  # the usual soft limit
LOGS_NEARLY_FULL, LOGS_NEARLY_FULL_FRACTION = 100 * MIB, 0.05
POD_GRACE = "LAUNCHER_POD_GRACE"
"""A pod cannot read its terminationGracePeriodSeconds; the author of the one can set the other."""
POD_GRACE_DEFAULT_S = 30.0
POD_GRACE_MARGIN_S = 15.0  # for what comes after the workers: their last output, the store, the runtime's own steps
IN_KUBERNETES = "KUBERNETES_SERVICE_HOST"
# Its name, the ports that it listens on for traffic in and out, the prefix of its own variables, the remedy.
_SIDECARS = (
    ("Istio", (15001, 15006), "ISTIO_META_", 'set the label sidecar.istio.io/inject: "false" on the pod'),
    ("Linkerd", (4140, 4143), "LINKERD2_PROXY_", "set the annotation linkerd.io/inject: disabled on the pod"),
    ("Envoy", (9901, 15001), None, "run the pod without it"),
)

Severity = Literal["stop", "hurt", "note"]
LEVEL_LABELS: dict[Severity, str] = {"stop": "would stop a job", "hurt": "may hurt", "note": "note"}


class Finding(NamedTuple):
    """`check` names what was checked, for programs. `harm` and `remedy` are empty where `seen` is sufficient."""

    check: str
    level: Severity
    seen: str
    harm: str = ""
    remedy: str = ""


def make_stop(check: str, error: MeshrunError, harm: str = "") -> Finding:
    """Return the error of a run's step as what would stop a job."""
    return Finding(check, "stop", str(error), harm, error.hint or "")


class PlannedRun(Struct, frozen=True, kw_only=True):
    """What would run here."""

    worker_count: int = 1
    """0: none could start."""
    accelerators: frozenset[str] = frozenset()
    """Kinds of device that workers get."""
    node_count: int = 1
    """How many nodes there may be, as far as that is known."""
    frameworks: tuple[str, ...] = ()
    """Frameworks whose variables workers get, jax for instance."""
    shutdown_timeout_s: float = 30
    is_bound: bool = False
    health_check: str = ""
    """The option or variable that sets one, "" without."""
    environ: Mapping[str, str] = {}
    """What the agent inherits."""


def sort_findings(findings: Sequence[Finding]) -> list[Finding]:
    """The worst first; within a level as they were found."""
    return sorted(findings, key=lambda finding: list(LEVEL_LABELS).index(finding.level))


def describe_verdict(findings: Sequence[Finding]) -> str:
    """Describe all of them in one short sentence."""
    stops, hurts = (sum(1 for finding in findings if finding.level == level) for level in ("stop", "hurt"))
    if stops:
        return f"{format_count(stops, 'problem')} would stop a job here" + (f", {hurts} may hurt it" if hurts else "")
    if hurts:
        return f"a job would start here; {format_count(hurts, 'problem')} may hurt it"
    return "a job would start here; no problem was found"


def check_shared_memory(machine: MachineInfo, run: PlannedRun) -> Iterator[Finding]:
    space = machine.shared_memory
    if space is None:
        return
    size, free = format_bytes(space.size), format_bytes(space.free)
    remedy = "use docker run --ipc=host or --shm-size=16g; in Kubernetes mount an emptyDir with medium: Memory"
    if space.amiss:
        seen = f"/dev/shm cannot be used: {space.amiss}"
    elif space.size <= SHARED_MEMORY_SMALL:
        seen = f"/dev/shm has {size}, of which {free} are free"
    elif space.free < SHARED_MEMORY_FULL:
        seen = f"/dev/shm is full: {free} of {size} are free"
        remedy = "remove files left by killed jobs: ls -l /dev/shm"
    else:
        return
    harm = "torch's data loaders and NCCL pass data through it; a worker that finds it full dies of SIGBUS"
    yield Finding("shared-memory", "hurt", seen, harm, remedy)


def check_oom_group(machine: MachineInfo, run: PlannedRun) -> Iterator[Finding]:
    for path in machine.oom_groups[:1]:
        seen = f"memory.oom.group is 1 in {path}"
        harm = "if memory runs out, the kernel kills all processes here, the agent too: nothing restarts or reports"
        kubelet = "set singleProcessOOMKill: true in the kubelet's configuration (Kubernetes 1.32 or later)"
        yield Finding("oom-group", "hurt", seen, harm, f"{kubelet}; with systemd set OOMPolicy=continue")


def check_cpus(machine: MachineInfo, run: PlannedRun) -> Iterator[Finding]:
    quota, workers = machine.cpu_quota, run.worker_count
    if quota is not None and quota.most < workers:
        seen = f"a quota of {format_number(quota.most)} CPUs for {format_workers(workers)}, in {quota.origin}"
        harm = "once it is used up, the kernel stops all of them for the rest of each period, and peers wait for them"
        remedy = "give the container at least one CPU per worker, preferably several"
        yield Finding("cpu-quota", "hurt", seen, harm, remedy)
    elif machine.cpu_count * (1 if run.accelerators else CPU_SHARERS) < workers:
        seen = f"this process may run on {format_number(machine.cpu_count)} CPUs, for {format_workers(workers)}"
        harm = "workers take turns, and all wait for the slowest"
        yield Finding("cpus", "hurt", seen, harm, "give the job more CPUs, or start fewer workers")


def check_memory(machine: MachineInfo, run: PlannedRun) -> Iterator[Finding]:
    limit, workers = machine.memory_limit, run.worker_count
    if limit is None or not workers or (each := max(0.0, limit.left) / workers) >= MEMORY_PER_WORKER:
        return
    left = f"{format_bytes(limit.left)} are left, {format_bytes(each)} per worker, in {limit.origin}"
    harm = "a process that has imported torch takes 220 MB before its first tensor; processes beyond it are killed"
    remedy = "raise the container's memory limit, or start fewer workers"
    yield Finding("memory-limit", "hurt", f"of {format_bytes(limit.most)} of memory {left}", harm, remedy)


def check_processes(machine: MachineInfo, run: PlannedRun) -> Iterator[Finding]:
    if (limit := machine.process_limit) is not None:
        yield from _check_process_limit("process-limit", limit, run, "raise the container's limit of pids")
    if (soft := machine.user_processes.soft) is not None:
        yield from _check_process_limit("user-processes", CgroupLimit(soft, 0, "ulimit -u"), run, "raise ulimit -u")


def _check_process_limit(check: str, limit: CgroupLimit, run: PlannedRun, remedy: str) -> Iterator[Finding]:
    left, workers = int(limit.left), run.worker_count
    if left < workers + LAUNCHER_PROCESSES:
        wanted = f"{format_workers(workers)} and {LAUNCHER_PROCESSES} processes of the launcher are needed"
        seen = f"{max(left, 0)} more processes may be started, in {limit.origin}; {wanted}"
        yield Finding(check, "stop", seen, "not all of them can be started", remedy)
    elif left < workers * THREADS_PER_WORKER:
        more = f"{format_number(left)} more processes and threads may be started"
        seen = f"{more}, in {limit.origin}, for {format_workers(workers)}"
        harm = "a worker may have many threads: data loaders, autograd, NCCL; one that gets none dies"
        yield Finding(check, "hurt", seen, harm, remedy)


def check_open_files(machine: MachineInfo, run: PlannedRun) -> Iterator[Finding]:
    soft, hard = machine.open_files.soft, machine.open_files.hard
    wanted = FILES_OF_AGENT + FILES_PER_WORKER * run.worker_count + run.node_count
    if hard is not None and hard < wanted:
        level: Severity = "stop" if hard < FILES_MIN[run.node_count > 1] else "hurt"
        most = f"at most {format_number(hard)} files may be open (ulimit -Hn)"
        harm = f"it opens up to {FILES_PER_WORKER} for each worker (with --tee), and the leader one more for each node"
        seen = f"{most}, and the agent may need {format_number(wanted)}"
        yield Finding("open-files", level, seen, harm, "raise ulimit -n")
    elif soft is not None and soft < FILES_OF_WORKER:
        seen = f"a worker may have {format_number(soft)} files open (ulimit -n)"
        harm = "data loaders pass tensors as open files; 'Too many open files' ends one"
        yield Finding("open-files", "hurt", seen, harm, f"run ulimit -n {hard or 65536}")


def check_locked_memory(machine: MachineInfo, run: PlannedRun) -> Iterator[Finding]:
    soft = machine.locked_memory.soft
    if not machine.rdma_devices or machine.may_lock or soft is None or soft >= LOCKED_MEMORY_SMALL:
        return
    seen = f"{format_bytes(soft)} of memory may be locked (ulimit -l), but {', '.join(machine.rdma_devices)} needs more"
    harm = "InfiniBand and RoCE lock the memory that they send and receive; NCCL fails with 'Cannot allocate memory'"
    slurm = "Slurm: PropagateResourceLimitsExcept=MEMLOCK"
    remedy = f"use docker run --ulimit memlock=-1; {slurm}; systemd: LimitMEMLOCK=infinity"
    yield Finding("locked-memory", "hurt", seen, harm, remedy)


def check_log_space(machine: MachineInfo, run: PlannedRun) -> Iterator[Finding]:
    space, elsewhere = machine.logs, "set --log-dir to another directory"
    if space is None:
        return
    if space.amiss:
        seen = f"{space.path} cannot be written: {space.amiss}"
        yield Finding("logs", "stop", seen, "log files are written there", elsewhere)
    # A node with less does not join, see launcher.config.files.
    elif space.free < min(FREE_BYTES_MIN, space.size * FREE_FRACTION_MIN) or space.inodes_free == 0:
        lack = "no more files can be created" if space.inodes_free == 0 else f"{format_bytes(space.free)} are free"
        seen = f"{space.path} is full: {lack}"
        yield Finding("logs", "stop", seen, "a run creates its log directory there", elsewhere)
    elif space.free < min(LOGS_NEARLY_FULL, space.size * LOGS_NEARLY_FULL_FRACTION):
        seen = f"{space.path} is nearly full: {format_bytes(space.free)} of {format_bytes(space.size)} are free"
        harm = "log files are written there, and output that does not fit is lost"
        yield Finding("logs", "hurt", seen, harm, f"make room, or {elsewhere}")


def check_numa_balancing(machine: MachineInfo, run: PlannedRun) -> Iterator[Finding]:
    """Linux, Documentation/admin-guide/sysctl/kernel.rst, numa_balancing: for bound work it should be off."""
    if machine.balances_numa and len(machine.numa_nodes) > 1 and run.is_bound:
        seen = "workers are bound to CPUs, and the kernel moves their memory too (kernel.numa_balancing is 1)"
        harm = "it unmaps pages to find their users, which costs bound workers time without a benefit"
        yield Finding("numa-balancing", "note", seen, harm, "run sysctl kernel.numa_balancing=0")


def check_sidecar(machine: MachineInfo, run: PlannedRun) -> Iterator[Finding]:
    """NCCL, gloo and JAX open connections to undeclared ports, and need them unmodified."""
    for name, ports, prefix, remedy in _SIDECARS:
        variables = sorted(variable for variable in run.environ if prefix and variable.startswith(prefix))
        if machine.listening_ports.issuperset(ports):
            sign = f"it listens on ports {' and '.join(map(str, ports))}"
        elif variables:
            sign = f"{variables[0]} is set"
        else:
            continue
        cut = "those of NCCL, gloo and JAX are cut, refused or slow"
        harm = f"it intercepts connections between pods: {cut}, and none works before it is ready or after it has ended"
        yield Finding("sidecar", "hurt", f"a proxy of {name} is in this pod: {sign}", harm, remedy)


def check_proxy_variables(machine: MachineInfo, run: PlannedRun) -> Iterator[Finding]:
    """JAX warns of such variables (jax/_src/distributed.py, 0.10.2)."""
    found = sorted(name for name, value in run.environ.items() if name.lower().endswith("_proxy") and value)
    if all(name.lower() == "no_proxy" for name in found):
        return
    jax = "JAX warns that its start may hang where such variables are set, and others may ask the proxy for their peers"
    harm = f"{jax}; meshrun itself uses no proxy to reach its store"
    remedy = "unset them for the job, or list the nodes in NO_PROXY"
    level: Severity = "hurt" if "jax" in run.frameworks else "note"
    yield Finding("proxy-variables", level, f"workers inherit {', '.join(found)}", harm, remedy)


def check_pod_grace(machine: MachineInfo, run: PlannedRun) -> Iterator[Finding]:
    workers_s, text = run.shutdown_timeout_s, run.environ.get(POD_GRACE, "")
    needed_s = workers_s + POD_GRACE_MARGIN_S
    remedy = f"terminationGracePeriodSeconds: {format_number(needed_s)}"
    try:
        grace_s = float(text or POD_GRACE_DEFAULT_S)
    except ValueError:
        seen = f"{POD_GRACE}={text!r} is not a number of seconds"
        yield Finding("pod-grace", "note", seen, "", "set it to a number, such as 45")
        return
    if not grace_s < needed_s or not (text or run.environ.get(IN_KUBERNETES)):
        return
    grace, have = f"{format_number(grace_s)} s", f"workers have {format_number(workers_s)} s"
    if text:
        level: Severity = "hurt" if grace_s <= workers_s else "note"
        late = "before the workers' time is over" if grace_s <= workers_s else "hardly later"
        seen = f"the pod has {grace} to stop ({POD_GRACE}), {have} (--shutdown-timeout)"
        harm = f"the pod is killed {late}: a checkpoint may be incomplete, and the reason is not reported"
        yield Finding("pod-grace", level, seen, harm, f"set {remedy}, or a shorter --shutdown-timeout")
    else:
        seen = f"this is a pod whose grace period is unknown; the default is {grace}"
        harm = f"{have} to stop (--shutdown-timeout), if the pod is not killed before"
        yield Finding("pod-grace", "note", seen, harm, f"set {remedy} in the pod, and {POD_GRACE} for this command")


def check_stacks(machine: MachineInfo, run: PlannedRun) -> Iterator[Finding]:
    harm = "if a job hangs, a worker has to write its stack itself: its main thread's, and only in meshrun's own Python"
    if not machine.has_stack_reader:
        yield Finding("stacks", "note", "py-spy is not installed for the agent's Python", harm, "pip install py-spy")
    elif machine.trace_refusal:
        seen = f"the kernel does not let py-spy read workers (kernel.yama.ptrace_scope={machine.trace_refusal})"
        remedy = "sysctl kernel.yama.ptrace_scope=1, or give the agent the capability SYS_PTRACE"
        yield Finding("stacks", "note", seen, harm, remedy if machine.trace_refusal < 3 else "restart the machine")


def check_health_check(machine: MachineInfo, run: PlannedRun) -> Iterator[Finding]:
    if run.health_check:
        seen = f"{run.health_check} is not run by this command"
        yield Finding("health-check", "note", seen, "a node that fails it does not join")


CHECKS = (
    check_shared_memory, check_oom_group, check_cpus, check_memory, check_processes, check_open_files,
    check_locked_memory, check_log_space, check_numa_balancing, check_sidecar, check_proxy_variables, check_pod_grace,
    check_stacks, check_health_check,
)  # fmt: skip
