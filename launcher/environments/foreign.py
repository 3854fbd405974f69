"""What another launcher has told its own task, and a worker must not hear.

An agent started by srun or mpirun is one task of that launcher's step. Its workers are not: they would all
read the agent's SLURM_PROCID or OMPI_COMM_WORLD_RANK. JAX then joins with one process id for all, and
libraries that ask MPI first do the same. What describes the job rather than the step (SLURM_JOB_ID and its
like) stays.
"""

from __future__ import annotations

from collections.abc import Iterable

_PREFIXES = (
    "SLURM_STEP",  # SLURM_STEPID, SLURM_STEP_NODELIST, ...
    "SLURM_SRUN_COMM_",
    "OMPI_COMM_WORLD_",
    "OMPI_MCA_ess_",
    "OMPI_MCA_orte_",  # orte_hnp_uri is how JAX recognises mpirun
    "OMPI_UNIVERSE_",
    "PMI_",
    "PMIX_",
)
_NAMES = frozenset(
    {
        "SLURM_GTIDS",
        "SLURM_LAUNCH_NODE_IPADDR",
        "SLURM_LOCALID",
        "SLURM_NODEID",
        "SLURM_NPROCS",
        "SLURM_NTASKS",
        "SLURM_PROCID",
        "SLURM_TASKS_PER_NODE",
        "SLURM_TASK_PID",
    }
)


def step_variables(parent: Iterable[str]) -> tuple[str, ...]:
    """Of the names in `parent`, those that belong to a foreign launcher's step and are to be unset; sorted."""
    return tuple(sorted(name for name in parent if name in _NAMES or name.startswith(_PREFIXES)))
