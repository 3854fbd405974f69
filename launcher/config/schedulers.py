"""Detects a scheduler's environment: the number of nodes, this one's rank, and where they meet.

torchrun needs options for all that; Slurm, SkyPilot, Kubernetes and controllers on it set variables, each in its own
format. The detected values rank between the user's, by flag or variable, and the defaults.

The risk is to wait for nodes that do not exist. So a scheduler is recognised only by variables that it sets for the
very command it starts, and that are complete; a shell in an allocation, a worker of another launcher or incomplete
variables yield nothing, and `reason` says why. `list_schedulers`, at the end, names them; those of Kubernetes are an
extension's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import islice

from msgspec import Struct
from msgspec.structs import replace

from launcher import extensions
from launcher.config.options.network import SERVED_PORT
from launcher.config.options.readers import Value, is_host, parse_integer
from launcher.config.options.table import BY_NAME
from launcher.model.errors import sanitize
from rendezvous.stores.addresses import join_address, split_address

# A command that finds one of these was started by another launcher or a server inside the job, not by the scheduler.
_NESTED_LAUNCHERS = {
    "TORCHELASTIC_RUN_ID": "a worker of a launcher",
    "OMPI_COMM_WORLD_RANK": "a task of mpirun",
    "MPI_LOCALRANKID": "a task of mpiexec",
    "MV2_COMM_WORLD_RANK": "a task of mpirun",
    "RAY_JOB_ID": "a task of Ray",
    "JPY_PARENT_PID": "a notebook",
    "LAUNCHER_ROUND": "a worker of a launcher",  # without torch
}


class Detection(Struct, frozen=True):
    """A scheduler that was recognised."""

    controller: str
    """Such as "Slurm step 7.0"."""
    known_by: tuple[str, ...]
    """The variables by which it was recognised."""
    reason: str
    """What this node is, or why nothing is used."""
    values: Mapping[str, Value] = {}
    """Name of an option to its value; empty if none can be used."""
    missing: str = ""
    """What a job on several nodes still needs from the user, "" if nothing."""
    must_report: bool = False
    """Whether to show the reason although nothing is used, because the user may have expected otherwise."""
    outcome: str = "this node runs alone"
    """With `must_report`, what happens instead."""
    with_others: str = ""
    """The same where the user has set the number of nodes; "" if nothing is amiss then."""
    hint: str = ""
    """"" if there is none."""
    own_variables: tuple[str, ...] = ()
    """Variables of options that the controller sets in every pod, so no choice of the user's."""


class ResolvedOptions(Struct, frozen=True):
    """The options with the detected values."""

    values: dict[str, Value]
    detection: Detection | None
    unused: Mapping[str, str]
    """Of the detected options those that are not used, with the reason."""
    notes: tuple[str, ...] = ()
    """For the user."""
    missing: str = ""
    """What a job of several nodes still needs from the user."""


# docs/internals/decisions/0019-job-size-from-scheduler-variables.md
def resolve(values: Mapping[str, Value], environ: Mapping[str, str], hostname: str = "") -> ResolvedOptions:
    """Resolve the options, with the scheduler's values between the user's, `values`, and the defaults."""
    given = dict(values)
    found = detect(environ, hostname)
    if found is None:
        return ResolvedOptions(given, None, {})
    note = f"{found.controller}: {found.reason}"
    own = {name: value for name, value in given.items() if value.origin in found.own_variables}
    given |= {name: replace(value, is_detected=True) for name, value in own.items()}
    if not found.values:
        outcome = found.outcome if given["nnodes"].is_default else found.with_others
        must_report = found.must_report and bool(outcome) and not explain_alone(given)
        lines = (f"{note}; {outcome}", *([f"hint: {found.hint}"] if found.hint else []))
        return ResolvedOptions(given, found, {}, lines if must_report else ())
    used, unused, has_master = _merge(found.values, given)
    return ResolvedOptions(
        {**given, **{name: value for name, value in used.items() if given[name].is_default}},
        found,
        unused,
        (note,) if "nnodes" in used else (),
        "" if has_master else found.missing,
    )


def detect(environ: Mapping[str, str], hostname: str = "") -> Detection | None:
    """Return the scheduler that started this command; None if the environment shows none. `hostname`: this node's."""
    for controller, detect_by, variables in list_schedulers():
        found = None
        if all(environ.get(variable) for variable in variables):
            found = detect_by(controller, variables, environ, hostname)
        if found is not None:
            own = () if detect_by is not _detect_skypilot or environ.get(_RAY_WORKER) else ("RAY_JOB_ID",)
            between = find_nesting(environ, but_not=own)
            if (found.values or found.must_report) and between:
                why = f"this is {_NESTED_LAUNCHERS[between]}, which is not what the controller started"
                found = Detection(found.controller, found.known_by, f"{between} is set: {why}")
            # Both contain text of variables, which may be anything.
            return replace(found, controller=sanitize(found.controller), reason=sanitize(found.reason))
    return None


def find_nesting(environ: Mapping[str, str], *, but_not: tuple[str, ...] = ()) -> str:
    """Return the variable that shows another launcher, or a server, between the scheduler and this command; else ""."""
    return next((name for name in _NESTED_LAUNCHERS if name not in but_not and environ.get(name)), "")


# --- what the user has set, and what the scheduler says ---


def _merge(found: Mapping[str, Value], options: Mapping[str, Value]) -> tuple[dict[str, Value], dict[str, str], bool]:
    """Return which of a detection's values are used, why the others are not, and whether a needed address is known.

    `options`: the user's.

    A number of nodes, an endpoint and a rank belong together, so an option that is set disables others. With
    --standalone, one node or an address of this machine alone, the environment's other nodes do not count. With another
    number of nodes the user means other nodes, which still meet at the scheduler's endpoint. With an endpoint or a
    backend, the scheduler's endpoint is unused; its number and rank still apply.
    """
    is_counted = "nnodes" in found or not options["nnodes"].is_default
    if why := explain_alone(options) or ("" if is_counted else "the number of nodes is not known"):
        return {}, dict.fromkeys(found, why), True
    unused = {name: f"{options[name]} is given" for name in found if not options[name].is_default}
    values = {name: value for name, value in found.items() if name not in unused}
    has_master = not (options["master-addr"].is_default and options["rdzv-endpoint"].is_default)
    is_static, why = _choose_rendezvous(values, options)
    lacks_master = False
    if why:
        place = values.pop("rdzv-endpoint", None)
        values.pop("rdzv-backend", None)
        unused |= {name: why for name in ("rdzv-backend", "rdzv-endpoint") if name in found and name not in unused}
        if is_static and place is not None and not has_master:
            values |= make_values({"master-addr": (split_address(place.text)[0], place.origin)})
    if "node-rank" in values:
        if is_static:
            lacks_master = "master-addr" not in values and not has_master
            why = "the address of node 0 is not known" if lacks_master else ""
        else:
            why = "" if "rdzv-endpoint" in values else "the order of the nodes is determined in the store"
        if why:
            del values["node-rank"]
            unused["node-rank"] = why
    count = values.get("nnodes")
    if count is not None and not is_static and not options["mesh"].is_default:
        # The mesh decides what is valid: all present nodes at the start, and fewer when some are lost.
        values |= make_values({"nnodes": (f"1:{count.text}", count.origin)})
        if options["target-nodes"].is_default:
            values |= make_values({"target-nodes": (count.text, count.origin)})
    return values, unused, not lacks_master


def explain_alone(options: Mapping[str, Value]) -> str:
    """Return the option that excludes other nodes, as a reason; "" if none does."""
    nodes = options["nnodes"]
    if options["standalone"].text == "1":
        return f"{options['standalone']} means one node"
    if not nodes.is_default:
        return f"{nodes} means one node" if set(nodes.text.replace(" ", "").split(":")) == {"1"} else ""
    for value in (options["rdzv-endpoint"], options["master-addr"]):
        if not value.is_default and all(map(is_local_address, value.text.rpartition("://")[2].split(","))):
            return f"{value} is an address of this machine only"
    return ""


def is_local_address(text: str) -> bool:
    """Whether the address is only this machine's: loopback, or a port that no other node can know."""
    host, colon, port = text.strip().rpartition(":")
    if not colon or (":" in host and not host.endswith("]")):  # no port after it
        host, port = text.strip(), ""
    host = host.strip("[]")
    return port == "0" or host in ("localhost", "::1") or host.startswith("127.")


def _choose_rendezvous(values: Mapping[str, Value], options: Mapping[str, Value]) -> tuple[bool, str]:
    """Whether the nodes use torchrun's static rendezvous; and why not at the endpoint in `values`, "" if they do."""
    backend, endpoint = options["rdzv-backend"], options["rdzv-endpoint"]
    is_static = backend.text == "static"
    if not endpoint.is_default:
        return is_static and "://" not in endpoint.text, f"{endpoint} is given"
    if not backend.is_default:
        return is_static, "" if backend.text == "c10d" else f"{backend} is given"
    for value in (options["master-addr"], options["master-port"]):
        if not value.is_default:
            return True, f"{value} is given"
    return "rdzv-endpoint" not in values, ""


def make_values(rows: Mapping[str, tuple[str, str]]) -> dict[str, Value]:
    """Return values of options: name -> text, and the variable that it is from."""
    return {name: Value(BY_NAME[name], text, origin, is_detected=True) for name, (text, origin) in rows.items()}


def make_job(
    controller: str, known_by: tuple[str, ...], count: int, rank: int, first: str, endpoint: str, run_id: str,
    origins: tuple[str, str, str, str],
) -> Detection:  # fmt: skip
    """Return a job whose nodes meet at `endpoint`, on `first`. `origins`: of count, rank, endpoint and run id."""
    by_count, by_rank, by_endpoint, by_id = origins
    values = {
        "nnodes": (str(count), by_count),
        "node-rank": (str(rank), by_rank),
        "rdzv-backend": ("c10d", by_endpoint),
        "rdzv-endpoint": (endpoint, by_endpoint),
        "rdzv-id": (run_id, by_id),
    }
    reason = f"this is node {rank} of {count}" + (f", and node 0 is {first}" if rank else "")
    return Detection(controller, known_by, reason, make_values(values))


# --- Slurm ---

# Below the kernel's ephemeral ports, 32768 and up, and away from torchrun's 29400 and 29500.
_PORT_FIRST, _PORT_COUNT = 20480, 8192
_STEP = ("SLURM_STEP_ID", "SLURM_PROCID", "SLURM_STEP_NUM_NODES", "SLURM_STEP_NODELIST")
_STEP_MAX = 0xFFFF_FFF0  # numbers above mean scripts of sbatch and interactive steps, see slurm.h
_NODES_MAX = 100_000  # Slurm's own limit is 65,533
_WIDTH_MAX = 18  # digits of a number in a host's name; none has more


def _detect_slurm(_: str, variables: tuple[str, ...], environ: Mapping[str, str], __: str) -> Detection:
    """Detect a Slurm step with one task on each node: a job of that many nodes, the first of which serves the store.

        srun --nodes 4 --ntasks-per-node 1 meshrun --nproc-per-node 8 train.py

    Only a command that srun has started is a step.
    """
    job = environ["SLURM_JOB_ID"]
    if missing := [name for name in _STEP if not environ.get(name)]:
        # The script of sbatch and the shell of salloc see the job's variables too, and a command there runs once. That
        # is usual where the job has one node, however many tasks (SLURM_NTASKS); where it has more, the others idle.
        controller, task_count = f"Slurm job {job}", _count_max_tasks(environ, _count_job_nodes(environ)) or 1
        if task_count > 1 and _is_task(environ):
            return _leave_tasks_alone(controller, task_count)
        why = f"no {missing[0]}: srun has not started this command"
        return _leave_shell_alone(controller, variables, why, environ)
    step, rank, count = (parse_integer(environ[name]) for name in _STEP[:3])
    nodes, controller = environ["SLURM_STEP_NODELIST"], f"Slurm step {job}.{environ['SLURM_STEP_ID']}"

    def leave_alone(reason: str, *, must_report: bool = False) -> Detection:
        return Detection(controller, _STEP, reason, must_report=must_report)

    if step is None or step < 0 or rank is None or rank < 0 or count is None or count < 1:
        found = ", ".join(f"{name}={environ[name]!r}" for name in _STEP[:3])
        return leave_alone(f"its variables cannot be read: {found}")
    if step > _STEP_MAX or environ.get("SLURM_PTY_PORT"):
        return _leave_shell_alone(controller, _STEP, "it is interactive: a command in it runs once", environ)
    if count == 1:
        task_count = _count_max_tasks(environ, 1) or 1
        return _leave_tasks_alone(controller, task_count) if task_count > 1 else leave_alone("it has one node")
    if parse_integer(environ.get("SLURM_HET_SIZE", "1")) != 1:
        return leave_alone("the job is heterogeneous: set --nnodes and --rdzv-endpoint", must_report=True)
    # Several tasks on a node may be many small runs side by side, which torchrun allows.
    tasks = _count_max_tasks(environ, count)
    if tasks is None:
        return leave_alone("the number of tasks per node is not known")
    if tasks > 1:
        return _leave_tasks_alone(controller, tasks)
    try:
        first = next(expand_hostlist(nodes))
    except ValueError as error:
        return leave_alone(f"SLURM_STEP_NODELIST cannot be read: {error}", must_report=True)
    if not is_host(first):
        return leave_alone(f"SLURM_STEP_NODELIST begins with {first!r}, which is not a host", must_report=True)
    whole = environ.get("SLURM_JOB_NODELIST", "")
    with suppress(ValueError):  # as far as it can be parsed
        if whole and first not in islice(expand_hostlist(whole), _NODES_MAX):  # sbatch exports its own environment
            return leave_alone(f"{first} is not one of the job's nodes: its variables are left from another job")
    here = environ.get("SLURMD_NODENAME", "")
    if rank >= count or (here and (here == first) != (rank == 0)):
        reason = f"task {rank} of {count} is on {here or 'this node'}, and the first node of {nodes} is {first}"
        return leave_alone(f"{reason}: set --nnodes and --rdzv-endpoint", must_report=True)
    # Two steps may share a node.
    port = _PORT_FIRST + ((parse_integer(job) or 0) * 31 + step) % _PORT_COUNT
    origins = ("SLURM_STEP_NUM_NODES", "SLURM_PROCID", "SLURM_STEP_NODELIST", "SLURM_STEP_ID")
    return make_job(controller, _STEP, count, rank, first, f"{first}:{port}", f"{job}.{step}", origins)


def _is_task(environ: Mapping[str, str]) -> bool:
    """Whether srun has started this command, as far as incomplete variables show: a script of sbatch is task 0."""
    step, rank = parse_integer(environ.get("SLURM_STEP_ID", "")), parse_integer(environ.get("SLURM_PROCID", ""))
    is_step = step is not None and 0 <= step <= _STEP_MAX and rank is not None
    return not environ.get("SLURM_PTY_PORT") and (is_step or (rank is not None and rank > 0))


def _count_job_nodes(environ: Mapping[str, str]) -> int:
    return max(1, parse_integer(environ.get("SLURM_JOB_NUM_NODES") or environ.get("SLURM_NNODES") or "") or 1)


def _leave_tasks_alone(controller: str, tasks: int) -> Detection:
    return Detection(
        controller, _STEP, f"it has {tasks} tasks on a node", must_report=True,
        outcome="each of them runs alone, as rank 0 of a job of its own",
        hint="start one task on each node with srun --ntasks-per-node=1, which makes one job of them",
    )  # fmt: skip


def _leave_shell_alone(
    controller: str, variables: tuple[str, ...], reason: str, environ: Mapping[str, str]
) -> Detection:
    """Return a command that runs once in an allocation: with a sentence where that has other nodes."""
    count = _count_job_nodes(environ)
    if count < 2:
        return Detection(controller, variables, reason)
    return Detection(
        controller, variables, f"{reason}, and the job has {count} nodes", must_report=True,
        outcome="this one runs alone", with_others="the other nodes need an agent, too",
        hint="start one agent on each node with srun --ntasks-per-node=1",
    )  # fmt: skip


def _count_max_tasks(environ: Mapping[str, str], node_count: int) -> int | None:
    """Return the largest number of tasks on a node of the step; None if no variable says."""
    text = environ.get("SLURM_STEP_TASKS_PER_NODE", "")  # 2(x3),1
    counts = [parse_integer(part.partition("(")[0]) for part in text.split(",")] if text else []
    if counts and None not in counts:
        return max(count for count in counts if count is not None)
    total = parse_integer(environ.get("SLURM_STEP_NUM_TASKS") or environ.get("SLURM_NTASKS") or "")
    return None if total is None else -(-total // node_count)


def expand_hostlist(text: str) -> Iterator[str]:
    """Yield the hosts of one of Slurm's compact lists, `rack[0-1]n[00-15]-ib,login1`, in order: they may be very many.

    Commas outside brackets separate the list. A bracket expands to each of its numbers or ranges; the number before the
    dash sets the width. With several brackets the last one varies fastest. Raises ValueError when it reaches an invalid
    part.
    """
    start, is_inside = 0, False
    for at, letter in enumerate(text):
        if letter in "[]":
            if is_inside == (letter == "["):
                raise ValueError(f"{text!r}: a bracket inside a bracket, or one that was never opened")
            is_inside = letter == "["
        elif letter == "," and not is_inside:
            yield from _expand_part(text[start:at])
            start = at + 1
    if is_inside:
        raise ValueError(f"{text!r}: a bracket that is never closed")
    yield from _expand_part(text[start:])


def _expand_part(part: str) -> Iterator[str]:
    head, bracket, rest = part.partition("[")
    if not bracket:
        if not head.strip() or not head.isprintable():
            raise ValueError(f"{part!r} is not a host name")
        yield head.strip()
        return
    numbers, _, tail = rest.partition("]")
    for number in _expand_numbers(numbers):
        if "[" in tail:
            yield from (f"{head}{number}{end}" for end in _expand_part(tail))
        else:
            yield f"{head}{number}{tail}".strip()


def _expand_numbers(text: str) -> Iterator[str]:
    """Expand a bracket: "08-10,12" is 08, 09, 10, 12."""
    for item in text.split(","):
        low, dash, high = item.partition("-")
        if not all(end.isascii() and end.isdigit() and len(end) <= _WIDTH_MAX for end in (low, high if dash else low)):
            raise ValueError(f"[{text}]: {item!r} is neither a number nor a range")
        if dash and int(low) > int(high):
            raise ValueError(f"[{text}]: {item} runs backwards")
        for number in range(int(low), int(high if dash else low) + 1):
            yield f"{number:0{len(low)}}"


# --- SkyPilot ---

_SKYPILOT = ("SKYPILOT_NODE_RANK", "SKYPILOT_NUM_NODES", "SKYPILOT_NODE_IPS")
_RAY_WORKER = "RAY_RAYLET_PID"


def _detect_skypilot(controller: str, _: tuple[str, ...], environ: Mapping[str, str], __: str) -> Detection:
    """Detect a node of a SkyPilot task: a job of its `num_nodes`, the first of which serves the store.

    SkyPilot runs the command as a task of its own Ray cluster. It leaves RAY_JOB_ID to it and takes RAY_RAYLET_PID away
    (`UNSET_RAY_ENV_VARS` of SkyPilot 0.14), so a command that has both is a task of a Ray that the user's command has
    started. SKYPILOT_NODE_IPS has an address on each line, in the order of the ranks.
    """

    def leave_alone(reason: str, *, must_report: bool = True) -> Detection:
        return Detection(controller, _SKYPILOT, reason, must_report=must_report)

    rank, count = (parse_integer(environ.get(name, "")) for name in _SKYPILOT[:2])
    if count == 1:
        return leave_alone("the task has one node", must_report=False)
    if missing := [name for name in _SKYPILOT if not environ.get(name)]:
        return leave_alone(f"variables are missing: {', '.join(missing)}")
    addresses = environ[_SKYPILOT[2]].split()
    if rank is None or count is None or not 0 <= rank < count:
        found = ", ".join(f"{name}={environ[name]!r}" for name in _SKYPILOT[:2])
        return leave_alone(f"its variables cannot be read: {found}")
    if bad := next((address for address in addresses if not is_host(address)), ""):
        return leave_alone(f"SKYPILOT_NODE_IPS contains {bad!r}, which is not an address")
    if len(addresses) != count:
        return leave_alone(
            f"SKYPILOT_NUM_NODES is {count}, and the addresses in SKYPILOT_NODE_IPS are {len(addresses)}"
        )
    job = parse_integer(environ.get("SKYPILOT_INTERNAL_JOB_ID", ""))  # jobs of one cluster may share nodes
    port = SERVED_PORT if job is None else _PORT_FIRST + job * 31 % _PORT_COUNT
    run_id = environ.get("SKYPILOT_TASK_ID", "")
    origin = "SKYPILOT_TASK_ID"
    if not run_id or not run_id.isprintable() or "/" in run_id:
        run_id, origin = addresses[0], _SKYPILOT[2]
    origins = (_SKYPILOT[1], _SKYPILOT[0], _SKYPILOT[2], origin)
    endpoint = join_address(addresses[0], port)
    return make_job(controller, _SKYPILOT, count, rank, addresses[0], endpoint, run_id, origins)


Detect = Callable[[str, tuple[str, ...], Mapping[str, str], str], Detection | None]
"""Gets the row's name and variables, the environment and this node's name."""
Row = tuple[str, Detect, tuple[str, ...]]
"""A scheduler, and variables that are all set where it is."""


def list_schedulers() -> Iterator[Row]:
    """Yield the schedulers, the controllers of pods last: they are imported then. The first that is detected counts."""
    yield "SkyPilot", _detect_skypilot, ("SKYPILOT_NODE_RANK",)
    yield "Slurm", _detect_slurm, ("SLURM_JOB_ID",)
    yield from extensions.load_entry(extensions.CONTROLLERS)
