"""The line for an agent that runs alone where its environment, or its command line, speaks of others.

Every one of four tasks of mpirun, or of two pods, that starts an agent without a number of nodes trains a whole model
as rank 0 of 1, and all of them write to one place: hours pass before it is seen. Nothing is refused, since small runs
side by side are started like that, too. Where a scheduler's variables say everything they make one job (`schedulers`,
which also speaks for Slurm); here are those that say less: how many there are, or that this is not the first.

No line for who has asked for one node (--standalone, --nnodes 1, an address of this machine alone), nor inside the
worker of a launcher, a task of Ray or a notebook: what they inherit was said to somebody else.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from msgspec import Struct

from launcher.config.options.network import SERVED_PORT
from launcher.config.options.readers import Value, is_host, parse_integer
from launcher.config.schedulers import explain_alone, find_nesting, is_local_address
from launcher.model.errors import sanitize
from rendezvous.stores.addresses import join_address


def _count_commas(text: str) -> int | None:
    return len([entry for entry in text.split(",") if entry.strip()])


def _count_json_list(text: str) -> int | None:
    try:
        hosts = json.loads(text)
    except ValueError:
        return None
    return len(hosts) if isinstance(hosts, list) else None


def _count_cluster(text: str) -> int | None:
    """Count the tasks of TensorFlow's TF_CONFIG, which Vertex AI sets for every framework."""
    try:
        cluster = json.loads(text)["cluster"]
        return sum(len(hosts) for role, hosts in cluster.items() if role != "evaluator")
    except (ValueError, TypeError, LookupError, AttributeError):
        return None


class _NodeGroup(Struct, frozen=True):
    """Variables of one kind. All of `needs` are set where one is: `count` alone may be a name of the user's."""

    count: str
    """Says how many there are."""
    these: str
    """"2 pods", without the number."""
    needs: tuple[str, ...] = ()
    host: str = ""
    """Names the first of them, where a store could be."""
    read: Callable[[str], int | None] = parse_integer


class _TaskLauncher(Struct, frozen=True):
    """Variables that a launcher of processes sets for each of them."""

    launcher: str
    count: str
    rank: str
    local_count: str
    one_per_node: str
    """The option that starts one on each node."""


_TASKS = (
    _TaskLauncher("mpirun", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE",
           "mpirun --map-by ppr:1:node"),
    _TaskLauncher("mpirun", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_LOCAL_SIZE", "mpirun -ppn 1"),
    _TaskLauncher("jsrun", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_LOCAL_SIZE",
           "jsrun --rs_per_host 1 --tasks_per_rs 1"),
    _TaskLauncher("horovodrun", "HOROVOD_SIZE", "HOROVOD_RANK", "HOROVOD_LOCAL_SIZE", "horovodrun -H HOST1:1,HOST2:1"),
    _TaskLauncher("flux run", "FLUX_JOB_SIZE", "FLUX_TASK_RANK", "", "flux run --tasks-per-node=1"),
    _TaskLauncher("mpiexec", "PMI_SIZE", "PMI_RANK", "MPI_LOCALNRANKS", "mpiexec -ppn 1"),
)  # fmt: skip
_GROUPS = (
    _NodeGroup("AWS_BATCH_JOB_NUM_NODES", "nodes of an AWS Batch job", ("AWS_BATCH_JOB_NODE_INDEX",),
           "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS"),
    _NodeGroup("SM_HOSTS", "hosts of a SageMaker job", read=_count_json_list),
    _NodeGroup("AZUREML_NODE_COUNT", "nodes of an Azure ML job", (), "MASTER_ADDR"),
    _NodeGroup("WORLD_SIZE", "pods or processes", ("RANK", "MASTER_ADDR"), "MASTER_ADDR"),
    _NodeGroup("LWS_GROUP_SIZE", "pods of a LeaderWorkerSet", (), "LWS_LEADER_ADDRESS"),
    _NodeGroup("JAX_NUM_PROCESSES", "JAX processes", ("JAX_PROCESS_ID",)),
    _NodeGroup("NUM_PROCESSES", "processes", ("PROCESS_ID", "COORDINATOR_ADDRESS"), "COORDINATOR_ADDRESS"),
    _NodeGroup("PADDLE_TRAINERS_NUM", "Paddle trainers", ("PADDLE_TRAINER_ID",)),
    _NodeGroup("MLP_WORKER_NUM", "nodes of a job", ("MLP_ROLE_INDEX",), "MLP_WORKER_0_HOST"),
    _NodeGroup("NNODES", "nodes", ("NODE_RANK",), "MASTER_ADDR"),
    _NodeGroup("NUM_NODES", "nodes", ("NODE_RANK",), "MASTER_ADDR"),
    _NodeGroup("MEGASCALE_NUM_SLICES", "TPU slices", ("MEGASCALE_SLICE_ID",)),
    _NodeGroup("TPU_WORKER_HOSTNAMES", "hosts of a TPU slice", ("TPU_WORKER_ID",), read=_count_commas),
    _NodeGroup("TF_CONFIG", "tasks of a cluster", read=_count_cluster),
)  # fmt: skip
# A number that is counted from 0 and has no count beside it. `config.SIGNS_OF_OTHERS` has all these names.
_INDICES = {
    "PMIX_RANK": "tasks of mpirun",
    "JOB_COMPLETION_INDEX": "pods of an Indexed Job",
    "CLOUD_TPU_TASK_ID": "hosts of a TPU slice",
}


_ALONE = "runs alone, as rank 0 of a job of its own"


def explain(values: Mapping[str, Value], environ: Mapping[str, str]) -> list[str]:
    """Return a sentence and a hint for an agent that runs alone though others are spoken of; [] if none are."""
    if explain_alone(values) or find_nesting(environ, but_not=("OMPI_COMM_WORLD_RANK", "MPI_LOCALRANKID",
                                                               "MV2_COMM_WORLD_RANK")):  # fmt: skip
        return []
    found = _explain_options(values) or _explain_tasks(environ) or _explain_groups(values, environ)
    return [found[0], f"hint: {found[1]}"] if found else []


def _explain_options(values: Mapping[str, Value]) -> tuple[str, str] | None:
    place = next((values[name] for name in ("rdzv-endpoint", "master-addr") if not values[name].is_default), None)
    if place is None or place.is_detected or place.text.startswith("/"):  # a file in which c10d meets
        return None
    backend = "" if values["rdzv-backend"].text == "c10d" else " --rdzv-backend c10d"
    return (
        f"{place}: without --nnodes this agent {_ALONE}",
        f"add --nnodes N{backend} to run on N nodes, or --standalone to run on this one",
    )


def _explain_tasks(environ: Mapping[str, str]) -> tuple[str, str] | None:
    for tasks in _TASKS:
        count, local = (parse_integer(environ.get(name, "")) for name in (tasks.count, tasks.local_count))
        if count is None or count < 2 or tasks.rank not in environ:
            continue
        sentence = f"{tasks.count}={count}: {tasks.launcher} has started {count} tasks, and each {_ALONE}"
        if local == count:
            once = f"start meshrun once, without {tasks.launcher}: --nproc-per-node {count} starts the workers"
            return sentence, once
        first = "" if local == 1 else f"start one task on each node ({tasks.one_per_node}), and "
        return sentence, f"{first}add {_format_options(str(count) if local == 1 else 'N', '')}"
    return None


def _explain_groups(values: Mapping[str, Value], environ: Mapping[str, str]) -> tuple[str, str] | None:
    for group in _GROUPS:
        count = group.read(environ.get(group.count, ""))
        if count is None or count < 2 or not all(environ.get(name) for name in group.needs):
            continue
        if group.count == "WORLD_SIZE" and _is_this_machine(values, environ, count):
            continue
        read, host = f"{group.count}={sanitize(environ[group.count].strip())}", environ.get(group.host, "")
        return _describe(read, count, group.these, host)
    counts = [name for name in environ if name.startswith("VC_") and name.endswith("_NUM")]
    numbers = [(name, parse_integer(environ[name])) for name in counts]
    total = sum(number or 0 for _, number in numbers)
    if "VC_TASK_INDEX" in environ and total > 1:
        read = ", ".join(f"{name}={environ[name]}" for name, _ in sorted(numbers))
        return _describe(sanitize(read), total, "pods of a Volcano job", "")
    for name, these in _INDICES.items():
        index = parse_integer(environ.get(name, ""))
        if index is not None and index > 0:
            return _describe(f"{name}={index}", None, these, "", least=index + 1)
    return None


def _describe(read: str, count: int | None, these: str, host: str, least: int = 0) -> tuple[str, str]:
    how_many = f"at least {least}" if count is None else str(count)
    options = _format_options("N" if count is None else str(count), host)
    sentence = f"{read}: this is one of {how_many} {these}, and each {_ALONE}"
    return sentence, f"add {options}, or --standalone if this is intended"


def _format_options(nodes: str, host: str) -> str:
    place = join_address(host, SERVED_PORT) if is_host(host) and not is_local_address(host) else "HOST"
    return f"--nnodes {nodes} --rdzv-backend c10d --rdzv-endpoint {place} to run them as one job"


def _is_this_machine(values: Mapping[str, Value], environ: Mapping[str, str], world_size: int) -> bool:
    """Whether WORLD_SIZE counts the workers that start here: left from a launcher of this machine, or set by hand.

    The master's pod of some controllers finds "localhost", too. Clouds of single machines give the address by which
    others reach this one, and the number of nodes.
    """
    if environ.get("NODE_RANK") == "0" and "1" in (environ.get("NNODES"), environ.get("NUM_NODES")):
        return True
    is_first = environ["RANK"] == "0" and "KUBERNETES_SERVICE_HOST" not in environ
    return is_first and is_local_address(environ["MASTER_ADDR"]) and values["nproc-per-node"].text == str(world_size)
