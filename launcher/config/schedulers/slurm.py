"""A Slurm step with one task on each node is a job of that many nodes; the first of them serves the store.

    srun --nodes 4 --ntasks-per-node 1 meshrun --nproc-per-node 8 train.py

Only a command that srun has started is a step. The script of sbatch and the shell of salloc see the job's variables
too, and a command there runs once; so does one in an interactive step, whose other tasks are idle shells. A step with
several tasks on a node may be many small runs side by side, and torchrun allows that; it is left alone, with a
sentence in case the user expected otherwise.

The agents meet on a port derived from the numbers of job and step, because two steps may share a node.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

from launcher.config.options.command_line import DetectedValue
from launcher.config.options.readers import is_host, parse_integer
from launcher.config.schedulers.contract import Detection, describe_node
from launcher.config.schedulers.hostlist import expand_hostlist

# Below the kernel's ephemeral ports, 32768 and up, and away from torchrun's 29400 and 29500.
_PORT_FIRST, _PORT_COUNT = 20480, 8192
_STEP = ("SLURM_STEP_ID", "SLURM_PROCID", "SLURM_STEP_NUM_NODES", "SLURM_STEP_NODELIST")
_STEP_MAX = 0xFFFF_FFF0  # numbers above mean scripts of sbatch and interactive steps, see slurm.h
_NODES_MAX = 100_000  # Slurm's own limit is 65,533
_HINT = "srun --ntasks-per-node=1 makes one job of them"


def detect(environ: Mapping[str, str]) -> Detection:
    """Detect by the variables of a Slurm job; `SLURM_JOB_ID` is one of them."""
    job = environ["SLURM_JOB_ID"]
    missing = [name for name in _STEP if not environ.get(name)]
    if missing:
        return _make_unused(
            f"Slurm job {job}", ("SLURM_JOB_ID",), f"no {missing[0]}: srun has not started this command"
        )
    step_id, rank, count = (parse_integer(environ[name]) for name in _STEP[:3])
    controller = f"Slurm step {job}.{environ['SLURM_STEP_ID']}"
    if step_id is None or step_id < 0 or rank is None or rank < 0 or count is None or count < 1:
        found = ", ".join(f"{name}={environ[name]!r}" for name in _STEP[:3])
        return _make_unused(controller, _STEP, f"its variables cannot be read: {found}")
    if step_id > _STEP_MAX or environ.get("SLURM_PTY_PORT"):
        return _make_unused(controller, _STEP, "it is interactive: a command in it runs once")
    if count == 1:
        return _make_unused(controller, _STEP, "it has one node")
    if parse_integer(environ.get("SLURM_HET_SIZE", "1")) != 1:
        return _make_unused(
            controller, _STEP, "the job is heterogeneous: say --nnodes and --rdzv-endpoint", must_report=True
        )
    tasks = _count_max_tasks(environ, count)
    if tasks is None:
        return _make_unused(controller, _STEP, "nothing says how many tasks a node has")
    if tasks > 1:
        reason = f"it has {tasks} tasks on a node, and each runs alone: {_HINT}"
        return _make_unused(controller, _STEP, reason, must_report=True)
    return _detect_step(environ, controller, job, step_id, rank, count)


def _detect_step(
    environ: Mapping[str, str], controller: str, job: str, step_id: int, rank: int, count: int
) -> Detection:
    nodes = environ["SLURM_STEP_NODELIST"]
    try:
        first = next(expand_hostlist(nodes))
    except ValueError as error:
        return _make_unused(controller, _STEP, f"SLURM_STEP_NODELIST cannot be read: {error}", must_report=True)
    if not is_host(first):
        return _make_unused(controller, _STEP, f"SLURM_STEP_NODELIST begins with {first!r}, no host", must_report=True)
    if not _has_host(environ.get("SLURM_JOB_NODELIST", ""), first):  # sbatch exports its own environment
        reason = f"{first} is not one of the job's nodes: its variables are left from another job"
        return _make_unused(controller, _STEP, reason)
    here = environ.get("SLURMD_NODENAME", "")
    if rank >= count or (here and (here == first) != (rank == 0)):
        reason = f"task {rank} of {count} is on {here or 'this node'}, and the first node of {nodes} is {first}"
        return _make_unused(controller, _STEP, f"{reason}: say --nnodes and --rdzv-endpoint", must_report=True)
    number = parse_integer(job) or 0
    port = _PORT_FIRST + (number * 31 + step_id) % _PORT_COUNT
    return Detection(
        controller=controller,
        known_by=_STEP,
        reason=describe_node(rank, count, first),
        values={
            "nnodes": DetectedValue(str(count), "SLURM_STEP_NUM_NODES"),
            "node-rank": DetectedValue(str(rank), "SLURM_PROCID"),
            "rdzv-backend": DetectedValue("c10d", "SLURM_STEP_NODELIST"),
            "rdzv-endpoint": DetectedValue(f"{first}:{port}", "SLURM_STEP_NODELIST"),
            "rdzv-id": DetectedValue(f"{job}.{step_id}", "SLURM_STEP_ID"),
        },
    )


def _has_host(nodes: str, name: str) -> bool:
    """Whether the list contains this host, as far as it can be parsed."""
    try:
        return not nodes or name in islice(expand_hostlist(nodes), _NODES_MAX)
    except ValueError:
        return True


def _count_max_tasks(environ: Mapping[str, str], node_count: int) -> int | None:
    """Return the largest number of tasks on a node of the step; None if no variable says."""
    text = environ.get("SLURM_STEP_TASKS_PER_NODE", "")  # 2(x3),1
    counts = [parse_integer(part.partition("(")[0]) for part in text.split(",")] if text else []
    if counts and None not in counts:
        return max(count for count in counts if count is not None)
    total = parse_integer(environ.get("SLURM_STEP_NUM_TASKS") or environ.get("SLURM_NTASKS") or "")
    return None if total is None else -(-total // node_count)


def _make_unused(controller: str, known_by: tuple[str, ...], reason: str, *, must_report: bool = False) -> Detection:
    return Detection(controller=controller, known_by=known_by, reason=reason, must_report=must_report)
