"""Detects a scheduler's environment: the number of nodes, this one's rank, and where they meet.

torchrun needs options for all that; Slurm, Kubernetes and controllers on it set variables, each in its own format. The
detected values rank between the user's, by flag or variable, and the defaults (`resolve_values` in
`launcher.config.options.command_line`).

The risk is to wait for nodes that do not exist. So a scheduler is recognised only by variables that it sets for the
very command it starts, and that are complete; a shell in an allocation, a worker of another launcher or incomplete
variables yield nothing, and `reason` says why. This file distinguishes the schedulers; each has a small file of its
own, which is imported only where its variables are set.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from launcher.config.options import command_line
from launcher.config.options.command_line import Value
from launcher.config.schedulers.contract import Detection

# File of a scheduler, and variables that are all set where it is. The first whose detection succeeds counts.
KNOWN_BY: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("slurm", ("SLURM_JOB_ID",)),
    ("pods", ("LWS_LEADER_ADDRESS", "LWS_GROUP_SIZE", "LWS_WORKER_INDEX")),
    ("pods", ("COORDINATOR_ADDRESS", "COORDINATOR_PORT", "NUM_PROCESSES", "PROCESS_ID")),
    ("pods", ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")),
    ("pods", ("JAX_COORDINATOR_ADDRESS", "JAX_COORDINATOR_PORT", "NNODES", "NODE_RANK")),
    ("kubeflow", ("PET_NNODES", "PET_NODE_RANK", "PET_MASTER_ADDR")),
    ("kubeflow", ("PET_NNODES", "PET_RDZV_BACKEND", "PET_RDZV_ENDPOINT")),
    ("volcano", ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK")),
    ("volcano", ("VC_TASK_INDEX",)),
    ("indexed_job", ("JOB_COMPLETION_INDEX",)),
)

# A command that finds one of these was started by another launcher or a server inside the job, not by the scheduler.
_NESTED_LAUNCHERS = {
    "TORCHELASTIC_RUN_ID": "a worker of a launcher",
    "OMPI_COMM_WORLD_RANK": "a task of mpirun",
    "MPI_LOCALRANKID": "a task of mpiexec",
    "MV2_COMM_WORLD_RANK": "a task of mpirun",
    "RAY_JOB_ID": "a task of Ray",
    "JPY_PARENT_PID": "a notebook",
}


class ResolvedOptions(NamedTuple):
    """The options with the detected values. `unused`: of those, option -> why it is not used.

    `note` is for the user, "" if there is none. `missing`: what a job of several nodes still needs from the user.
    """

    values: dict[str, Value]
    detection: Detection | None
    unused: Mapping[str, str]
    note: str = ""
    missing: str = ""


# docs/internals/decisions/0019-job-size-from-scheduler-variables.md
def resolve(values: Mapping[str, str], environ: Mapping[str, str], hostname: str = "") -> ResolvedOptions:
    """Resolve the options, with the scheduler's values between the user's and the defaults. Raises UsageError."""
    given = command_line.resolve_values(values, environ)
    found = detect(environ, hostname)
    if found is None:
        return ResolvedOptions(given, None, {})
    if not found.values:
        must_report = found.must_report and given["nnodes"].is_default and given["standalone"].text != "1"
        return ResolvedOptions(given, found, {}, f"{found.controller}: {found.reason}" if must_report else "")

    from launcher.config.schedulers.merge import NO_MASTER_ADDRESS, merge_detected

    fitting = merge_detected(found.values, given)
    return ResolvedOptions(
        command_line.resolve_values(values, environ, fitting.values),
        found,
        fitting.unused,
        f"{found.controller}: {found.reason}" if "nnodes" in fitting.values else "",
        found.missing if NO_MASTER_ADDRESS in fitting.unused.values() else "",
    )


def detect(environ: Mapping[str, str], hostname: str = "") -> Detection | None:
    """Return the scheduler that started this command; None if the environment shows none. `hostname`: this node's."""
    for name, variables in KNOWN_BY:
        if all(environ.get(variable) for variable in variables):
            found = _detect_with(name, variables, environ, hostname)
            if found is not None:
                found = _reject_nested(found, environ)
                # Both contain text of variables, which may be anything.
                return found._replace(
                    controller=command_line.sanitize(found.controller), reason=command_line.sanitize(found.reason)
                )
    return None


def _reject_nested(found: Detection, environ: Mapping[str, str]) -> Detection:
    between = next((variable for variable in _NESTED_LAUNCHERS if environ.get(variable)), "")
    if not found.values or not between:
        return found
    reason = f"{between} is set: this is {_NESTED_LAUNCHERS[between]}, which is not what the controller started"
    return Detection(controller=found.controller, known_by=found.known_by, reason=reason)


def _detect_with(name: str, variables: tuple[str, ...], environ: Mapping[str, str], hostname: str) -> Detection | None:
    if name == "slurm":
        from launcher.config.schedulers import slurm

        return slurm.detect(environ)
    if name == "pods":
        from launcher.config.schedulers import pods

        return pods.detect(environ, variables)
    if name == "kubeflow":
        from launcher.config.schedulers import kubeflow

        return kubeflow.detect(environ, variables)
    if name == "volcano":
        from launcher.config.schedulers import volcano

        return volcano.detect(environ, variables)

    from launcher.config.schedulers import indexed_job

    return indexed_job.detect(environ, hostname)
