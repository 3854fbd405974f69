"""The variables of another launcher's task, which a worker must not inherit.

An agent started by srun or mpirun is one task of that launcher's step. Its workers are not: they would all
read the agent's SLURM_PROCID or OMPI_COMM_WORLD_RANK. JAX then joins with one process id for all, and
libraries that query MPI first do the same. Variables of the job rather than the step (SLURM_JOB_ID and its
like) stay. Nor does any other process than the agent inherit its secrets (`credentials` reads them): the user's
commands get what `drop_secrets` returns.

Controllers that start one JAX process in each pod set its number. Several workers would all use it, and a single one is
right only while ranks follow pods. The variables have common names, so they are removed only where all are set.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from launcher import extensions

CALL_VARIABLE = "LAUNCHER_CALL"  # for workers that run a function: the directory of the call
END_FILE = "LAUNCHER_END_FILE"  # for the program that started this agent, see launcher.logs.reports.outcome
NAMES = ("LAUNCHER_ETCD_USER", "LAUNCHER_ETCD_PASSWORD", "LAUNCHER_STORE_TOKEN", "LAUNCHER_JOB_SECRET")
# Variables that no process inherits which the agent starts.
PRIVATE = frozenset(name + suffix for name in NAMES for suffix in ("", "_FILE"))
_PREFIXES = (
    "SLURM_STEP",  # SLURM_STEPID, SLURM_STEP_NODELIST, ...
    "SLURM_SRUN_COMM_",
    "MV2_COMM_WORLD_",  # MVAPICH
    "OMPI_COMM_WORLD_",
    "OMPI_MCA_ess_",
    "OMPI_MCA_orte_",  # orte_hnp_uri is how JAX recognises mpirun
    "OMPI_UNIVERSE_",
    "PMI_",
    "PMIX_",
)
_NAMES = frozenset(
    {
        END_FILE,
        "MPI_LOCALNRANKS",  # Hydra: MPICH, Intel MPI
        "MPI_LOCALRANKID",
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
_PROCESS_NUMBERS = frozenset({"JAX_PROCESS_ID", "NODE_RANK", "PROCESS_ID"})


def drop_secrets(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a command that the agent starts: its own, without the job's secrets."""
    return {name: text for name, text in environ.items() if name not in PRIVATE}


def list_unset_variables(parent: Iterable[str], more: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the names in `parent` that no process of this job inherits: of a foreign step, secrets, and `more`."""
    return (*list_step_variables(parent), *sorted(PRIVATE.union(more).intersection(parent)))


def list_step_variables(parent: Iterable[str]) -> tuple[str, ...]:
    """Return the names in `parent` that belong to a foreign launcher's step and are to be unset; sorted."""
    names = frozenset(parent)
    unset = {name for name in names if name in _NAMES or name in extensions.OWN_VARIABLES or name.startswith(_PREFIXES)}
    if not names.isdisjoint(_PROCESS_NUMBERS):
        from launcher.config.schedulers import list_schedulers  # only where such a variable is set

        # Of controllers that number processes. Workers may read what describes the pod itself.
        for *_, variables in list_schedulers():
            if names.issuperset(variables) and not _PROCESS_NUMBERS.isdisjoint(variables):
                unset |= {*variables, *(names & {"JAX_COORDINATOR_PORT"})}
    return tuple(sorted(unset))
