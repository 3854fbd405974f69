"""What controllers of Kubernetes set in the pods of a job, as far as it tells how many there are and where they meet.

`launcher.config.schedulers` asks these where the variables of a row are set, and says what comes of an answer. The
variables have common names, so a row lists all that its controller sets.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from launcher.config.options.network import SERVED_PORT
from launcher.config.options.readers import is_host, parse_integer
from launcher.config.schedulers import Detection, Row, make_job, make_values
from rendezvous.stores.addresses import join_address

# Kubeflow Trainer sets these in every pod, so they are no choice of the user's, nor worth a remark if unused.
_TRAINER_PLACES = ("PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT")


def _detect_pods(controller: str, variables: tuple[str, ...], environ: Mapping[str, str], _: str) -> Detection:
    """Detect controllers whose variables are complete.

    LeaderWorkerSet sets them for any program. The others start one JAX process in each pod; a launcher in its place
    needs the same. Their port is left to JAX.
    """
    return _make_group(controller, variables, environ, environ[variables[0]].partition(":")[0], SERVED_PORT)


def _make_group(
    controller: str, variables: tuple[str, ...], environ: Mapping[str, str], host: str, port: int
) -> Detection:
    """Return pods, the first of which, `host`, serves the store on `port`; the run is named after it.

    The first of `variables` is its address, the last two are the number of pods and this one's index.
    """
    address_name, count_name, index_name = variables[0], *variables[-2:]
    count, index = parse_integer(environ[count_name]), parse_integer(environ[index_name])
    if count is None or index is None or not 0 <= index < count or not is_host(host):
        found = ", ".join(f"{name}={environ[name]!r}" for name in (count_name, index_name, address_name))
        return Detection(controller, variables, f"its variables cannot be read: {found}", must_report=True)
    if count == 1:
        return Detection(controller, variables, "it has one pod")
    origins = (count_name, index_name, address_name, address_name)
    return make_job(controller, variables, count, index, host, join_address(host, port), host, origins)


def _detect_kubeflow(_: str, variables: tuple[str, ...], environ: Mapping[str, str], __: str) -> Detection | None:
    """Detect Kubeflow's controllers for PyTorch, mostly to log them: they set torchrun's own PET_ variables.

    With --rdzv-backend c10d and no endpoint, as for an elastic job, the nodes of a TrainJob meet at the master's host:
    a definition cannot name it by $(PET_MASTER_ADDR), since the Trainer adds its variables behind all others, where
    Kubernetes does not expand them (pkg/apply and plugins/torch in kubeflow/trainer v2.3). PyTorchJob (v1) also sets
    RANK and WORLD_SIZE, which count pods and not workers: every worker gets its own. None for PET_ variables from
    elsewhere.
    """
    reason = "its PET_ variables contain all that is needed"
    master, endpoint = environ.get("PET_MASTER_ADDR", ""), environ.get("PET_RDZV_ENDPOINT", "").partition(":")[0]
    if "-node-0-0." in master:
        row = {"rdzv-endpoint": (join_address(master, SERVED_PORT), "PET_MASTER_ADDR")} if is_host(master) else {}
        return Detection("Kubeflow Trainer", variables, reason, make_values(row), own_variables=_TRAINER_PLACES)
    if endpoint.endswith("-worker-0") or master.endswith("-master-0"):
        return Detection("Kubeflow PyTorchJob", variables, reason)
    return None


def _detect_volcano(
    controller: str, variables: tuple[str, ...], environ: Mapping[str, str], _: str
) -> Detection | None:
    """Detect Volcano's plug-in "pytorch", which names the master's pod and counts the pods.

    The workers of any launcher also have MASTER_ADDR, WORLD_SIZE and similar variables. They describe pods only if
    Volcano lists the master among the hosts of its tasks, in variables such as VC_MASTER_HOSTS; None if not.
    """
    host, port = environ["MASTER_ADDR"], parse_integer(environ["MASTER_PORT"])
    lists = sorted(name for name in environ if name.startswith("VC_") and name.endswith("_HOSTS"))
    list_name = next((name for name in lists if host in environ[name].split(",")), "")
    if not list_name or port is None or not 0 < port < 65536:
        return None
    # The port that Volcano has opened is free: every round has a MASTER_PORT of its own.
    return replace(_make_group(controller, variables, environ, host, port), known_by=(*variables, list_name))


def _detect_volcano_task(controller: str, variables: tuple[str, ...], _: Mapping[str, str], __: str) -> Detection:
    reason = "VC_TASK_INDEX counts the pods of one task only; only the plug-in pytorch sets all that a job needs"
    return Detection(controller, variables, reason)


def _detect_indexed_job(
    controller: str, variables: tuple[str, ...], environ: Mapping[str, str], hostname: str
) -> Detection:
    """Detect an Indexed Job, also as a part of a JobSet, which numbers its pods and sets nothing else.

    No variable has their number or the name of their Service. On one node that does not matter; for a job of several,
    the index is the node's rank, and the message that asks for the rest contains it. A pod is named after the job and
    its index.
    """
    text = environ["JOB_COMPLETION_INDEX"]
    index = parse_integer(text)
    if index is None or index < 0:
        return Detection(controller, variables, f"JOB_COMPLETION_INDEX={text} is not an index", must_report=True)
    pod = hostname.partition(".")[0]
    first = f"{pod.removesuffix(text)}0" if pod.endswith(f"-{text}") else "POD-0"
    reason = f"this is pod {index}; no variable sets the number of pods and where they meet"
    missing = f"set --master-addr {first}.SERVICE: this pod of an Indexed Job has node rank {index}"
    values = make_values({"node-rank": (str(index), "JOB_COMPLETION_INDEX")})
    return Detection(controller, variables, reason, values, missing)


CONTROLLERS: tuple[Row, ...] = (
    ("LeaderWorkerSet", _detect_pods, ("LWS_LEADER_ADDRESS", "LWS_GROUP_SIZE", "LWS_WORKER_INDEX")),
    ("Kubeflow JAXJob", _detect_pods, ("COORDINATOR_ADDRESS", "COORDINATOR_PORT", "NUM_PROCESSES", "PROCESS_ID")),
    ("Kubeflow Trainer (JAX)", _detect_pods, ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")),
    ("xpk", _detect_pods, ("JAX_COORDINATOR_ADDRESS", "JAX_COORDINATOR_PORT", "NNODES", "NODE_RANK")),
    ("Kubeflow", _detect_kubeflow, ("PET_NNODES", "PET_NODE_RANK", "PET_MASTER_ADDR")),
    ("Kubeflow", _detect_kubeflow, ("PET_NNODES", "PET_RDZV_BACKEND", "PET_RDZV_ENDPOINT")),
    ("Volcano", _detect_volcano, ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK")),
    ("Volcano", _detect_volcano_task, ("VC_TASK_INDEX",)),
    ("Indexed Job", _detect_indexed_job, ("JOB_COMPLETION_INDEX",)),
)
