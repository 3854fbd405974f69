"""The configuration of a run, validated once and trusted afterwards.

`resolve` turns the command line and the environment into one frozen `Config`. A value comes from the first of: the
flag, LAUNCHER_<NAME>, PET_<NAME>, a scheduler's environment (`schedulers`), the default; `Section.origins` records
which. Each option's row in the table says how its value is read, and which field of which section it sets; here are
the sections, and the rules between options. Invalid values are refused in one sentence that names the flag or the
variable; a value that is accepted but has no effect is noted in `Config.notes`. No file is read and no device counted:
the same input gives the same Config on any machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from launcher import extensions
from launcher.config.options.command_line import ParsedArgs, resolve_values
from launcher.config.options.readers import DeviceRequest, HangLimits, Streams, Value, explain_signal, parse_integer
from launcher.config.options.rendezvous import resolve_rendezvous, resolve_settings
from launcher.config.options.table import BY_NAME, FAMILIES, ROWS
from launcher.config.scrub import CALL_VARIABLE
from launcher.model import mesh as meshes
from launcher.model.errors import UsageError, sanitize
from launcher.model.mesh import Mesh
from rendezvous.settings import DEFAULTS

if TYPE_CHECKING:
    from launcher.config.options.network import StoreConfig
    from launcher.config.options.readers import NumaMode
    from launcher.config.options.rendezvous import Setting

LaunchMode = Literal["script", "module", "program", "path"]

# Without any of these there is no scheduler to detect.
SCHEDULER_VARIABLES = (
    "JAX_COORDINATOR_ADDRESS", "JOB_COMPLETION_INDEX", "LWS_GROUP_SIZE", "PET_NNODES", "PROCESS_ID",
    "SKYPILOT_NODE_RANK", "SLURM_JOB_ID", "VC_TASK_INDEX", "WORLD_SIZE",
)  # fmt: skip
# One is set where the environment may speak of others that nothing makes one job of (`alone`).
SIGNS_OF_OTHERS = frozenset((
    "AWS_BATCH_JOB_NUM_NODES", "AZUREML_NODE_COUNT", "CLOUD_TPU_TASK_ID", "FLUX_JOB_SIZE", "HOROVOD_SIZE",
    "JAX_NUM_PROCESSES", "JOB_COMPLETION_INDEX", "JSM_NAMESPACE_SIZE", "LWS_GROUP_SIZE",
    "MEGASCALE_NUM_SLICES", "MLP_WORKER_NUM", "MV2_COMM_WORLD_SIZE", "NNODES", "NUM_NODES", "NUM_PROCESSES",
    "OMPI_COMM_WORLD_SIZE", "PADDLE_TRAINERS_NUM", "PMIX_RANK", "PMI_SIZE", "SM_HOSTS",
    "TF_CONFIG", "TPU_WORKER_HOSTNAMES", "VC_TASK_INDEX", "WORLD_SIZE",
))  # fmt: skip
# A text without any of them hides no mistake that nothing else would show (`odd_text`).
ODD_LETTERS = frozenset("$\r\"'`{")
# Those of torchrun that are not read here.
UNREAD_VARIABLES = frozenset((
    "TORCHELASTIC_ENABLE_FILE_TIMER", "TORCHELASTIC_HEALTH_CHECK_PORT",
    "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT", "TORCH_ELASTIC_WORKER_IDENTICAL",
))  # fmt: skip


class Section(Struct, frozen=True):
    """The options of one part of an agent. Times are in seconds. A field named after an option holds its value."""

    origins: Mapping[str, str]
    """Field, or key of a field that is a mapping, to "--flag", the variable's name, or "default"."""


class WorkerOptions(Section, frozen=True):
    """What the workers of this node run, and how."""

    script: str
    script_args: tuple[str, ...]
    launch_mode: LaunchMode
    python: str
    """The interpreter of the workers."""
    legacy_local_rank: bool
    role: str
    framework: str
    device_binding: str
    virtual_local_rank: bool
    numa_binding: NumaMode | None
    max_restarts: int
    signals_to_handle: tuple[str, ...]
    """Those of `ShutdownOptions`, for scripts that use torch.elastic."""
    interface: str | None
    """That of `RendezvousOptions`, for gloo and NCCL."""
    is_alone: bool
    """Whether no other node can join."""
    unset: tuple[str, ...]
    """Variables that they do not inherit, because of options of extensions."""
    preload: tuple[str, ...]
    """Modules to import once, for workers that are forked with them."""
    standby: int
    """Sets of standby workers."""
    hang_evidence: str

    @property
    def program(self) -> str:
        """What every worker executes."""
        return self.script if self.launch_mode == "program" else self.python


class DeviceOptions(Section, frozen=True):
    """How many workers this node has, and which devices each."""

    worker_count: int | str | None
    """None was not given: one worker per accelerator if there are any, else 1. A word is auto, gpu, cpu, or a type of
    device that torch may know.
    """
    devices_per_worker: int | Literal["all"] | None
    """None: one, or what is usual for the framework."""
    request: DeviceRequest | None

    @property
    def may_use_accelerators(self) -> bool:
        asked = self.request
        return self.worker_count != "cpu" and (asked is None or asked.kind != "cpu" or bool(asked.variable))


class PlacementOptions(Section, frozen=True):
    """The nodes and the grid of ranks of a job."""

    nodes_min: int
    nodes_max: int | None
    """None: any number; 1 for 1:N where only this machine can join."""
    mesh: Mesh | None
    """None: one elastic axis, dp."""
    texts: Mapping[str, str]
    """Those of the planner's options that were set, name to text; its adapter parses them when the mesh is known."""

    @property
    def grid(self) -> Mesh:
        """The mesh, or the one that holds without."""
        return self.mesh or meshes.DEFAULT_MESH


class LocalityOptions(Section, frozen=True):
    """Where this node is in the network, and who knows it."""

    locality: tuple[tuple[str, str], ...] | str
    """A path, or the name of a file with the paths of all nodes."""
    locality_sources: tuple[str, ...] | None


class RendezvousOptions(Section, frozen=True):
    """Where the nodes of a job meet, who this node is there, and the limits of their agreement."""

    run_id: str | None
    """None: the agent draws one."""
    rdzv_backend: str
    rdzv_endpoint: str | None
    rdzv_conf: Mapping[str, str]
    network: StoreConfig | None
    """None: one machine."""
    settings: Mapping[str, Setting]
    """Those of the agreement that were set, field to value."""
    start_timeout_s: float
    """The one of the agreement, whether it was set or not."""
    lease_ttl_s: float | None
    """None: on one machine no watchdog, else the agreement's default."""
    attempt: int | None
    node_name: str | None
    """None: the host's."""
    node_rank: int | None
    """None if the rounds assign the ranks; so are then `master_addr` and `master_port`."""
    master_addr: str | None
    """None: `local_addr` if set, else loopback."""
    master_port: int | None
    """None: a free one for every round."""
    local_addr: str | None
    interface: str | None
    """None if it is not needed: on one machine, and beside `local_addr`."""
    port_range: tuple[int, int] | None
    worker_port_range: tuple[int, int] | None


class ShutdownOptions(Section, frozen=True):
    """What makes this node leave, and how long its workers have to stop."""

    signals_to_handle: tuple[str, ...]
    preemption_signal: str | None
    preemption_file: str | None
    shutdown_timeout_s: float


class HealthOptions(Section, frozen=True):
    """The user's own check of a node before it joins."""

    health_check: str | None
    health_timeout_s: float


class HangOptions(Section, frozen=True):
    """When workers count as hanging."""

    heartbeat_timeout_s: float | None
    hang_limits: HangLimits | None
    on_hang: str
    progress_file: str | None


class OutputOptions(Section, frozen=True):
    """Where the lines of workers and agent go."""

    log_dir: str | None
    """None: a temporary directory."""
    redirects: Streams
    tee: Streams
    local_ranks_filter: frozenset[int] | None
    """None: all."""
    duplicate_stdout_filters: tuple[str, ...]
    duplicate_stderr_filters: tuple[str, ...]
    log_times: str


class MonitoringOptions(Section, frozen=True):
    """Who is told about the run, besides its terminal."""

    events: str
    notify: str


# docs/internals/decisions/0062-sections-of-config.md
class Config(Struct, frozen=True, kw_only=True):
    """One run of the command on this node: a section for each part of it."""

    workers: WorkerOptions
    devices: DeviceOptions
    placement: PlacementOptions
    locality: LocalityOptions
    rendezvous: RendezvousOptions
    shutdown: ShutdownOptions
    health: HealthOptions
    hangs: HangOptions
    output: OutputOptions
    monitoring: MonitoringOptions
    extensions: Mapping[str, Value]
    """Options of launcher/extensions that were set, by name. Their texts are valid."""
    notes: tuple[str, ...]
    """Lines to print once, before the first worker starts."""


SECTIONS: Mapping[str, type[Section]] = {
    name: globals()[kind] for name, kind in Config.__annotations__.items() if name not in ("extensions", "notes")
}


def resolve(
    args: ParsedArgs, environ: Mapping[str, str], python: str, hostname: str = "", *, is_whole_job: bool = True
) -> Config:
    """Return the Config of this command line and environment. Raises UsageError for invalid values.

    `python`: the interpreter for the workers. `hostname`: this node's, which a scheduler may have chosen.
    `is_whole_job`: without a network a mesh must fit this node alone.
    """
    values, notes, missing = resolve_values(args.values, environ), list[str](), ""
    if not environ.keys().isdisjoint(SCHEDULER_VARIABLES):
        from launcher.config import schedulers  # one machine rarely has one

        resolved = schedulers.resolve(values, environ, hostname)
        values, notes, missing = resolved.values, [*resolved.notes], resolved.missing
    is_explained = bool(notes)
    if args.script is None:
        raise UsageError("no script given", extensions.ask("no script", args))
    passed = {word.partition("=")[0][2:].replace("_", "-") for word in args.script_args}
    if not passed.isdisjoint(BY_NAME) or any(name.startswith(FAMILIES) for name in environ):
        notes += extensions.ask("remarks", args, environ)
    if not environ.keys().isdisjoint(UNREAD_VARIABLES):
        notes += extensions.ask("unread", environ)
    launch_mode = _choose_launch_mode(values, notes)
    workers, mesh = values["nproc-per-node"].read(), values["mesh"].read()
    nodes = values["nnodes"].read()
    if mesh is not None and values["nnodes"].is_default:
        nodes = 1, None  # the mesh's size counts, and any number of nodes that fits it
    if missing and nodes[0] > 1:
        raise UsageError(f"{values['nnodes']}: several nodes need a rendezvous", missing)
    for value in values.values():
        if value.is_default:
            continue
        if value.option.why_ignored and value.read() is not False:
            notes.append(f"{value} has no effect: {value.option.why_ignored}")
        if not ODD_LETTERS.isdisjoint(value.text):
            notes += extensions.ask("text", value)
    empty = [name for name, text in args.values.items() if not text and name in values and values[name].is_default]
    notes += [f"--{name} '' counts as not set: a variable may be empty" for name in empty]
    script = {"script": args.script, "script_args": args.script_args, "launch_mode": launch_mode, "python": python}
    size = {"nodes_min": nodes[0], "nodes_max": nodes[1]}
    fields: dict[str, Any] = {**script, **size, **resolve_rendezvous(values, notes, nodes)}
    asked = {name: values[name] for name in extensions.OPTIONS if name in values and not values[name].is_default}
    for value in asked.values():
        value.read()
    changed = [value for value in asked.values() if value.text != value.option.default]
    is_alone = fields["network"] is None
    has_place = not all(values[name].is_default for name in ("rdzv-endpoint", "master-addr"))
    speaks_of_others = has_place or not environ.keys().isdisjoint(SIGNS_OF_OTHERS)
    if is_alone and speaks_of_others and not is_explained and values["nnodes"].is_default:
        notes += extensions.ask("alone", values, environ)
    if is_alone and is_whole_job and mesh is not None and isinstance(workers, int):
        meshes.require_fit(mesh, workers)
    texts = (option.name for option in ROWS if option.section == "placement.texts")
    settings = resolve_settings(values, fields["network"], (fields["nodes_min"], fields["nodes_max"]))
    fields |= {
        "is_alone": is_alone,
        "interface": values["interface"].read() if not is_alone and values["local-addr"].is_default else None,
        "unset": tuple(name for value in changed for name in value.option.unset),
        "texts": {name: values[name].text for name in texts if not values[name].is_default},
        "settings": settings,
        "start_timeout_s": float(settings.get("start_timeout_s", DEFAULTS.start_timeout_s)),
        "request": _resolve_devices(values),
        # The command of workers that run a function is a Python one in any case.
        "standby": _resolve_standby(values, notes, launch_mode != "program" or CALL_VARIABLE in environ, is_alone),
        "signals_to_handle": _resolve_signals(values["signals-to-handle"], notes),
        "legacy_local_rank": _resolve_local_rank(values),
    }
    if is_alone:
        useless = (value for value in values.values() if value.option.why_ignored_alone and not value.is_default)
        notes += [f"{value} has no effect{value.option.why_ignored_alone}" for value in useless]
    check, limit = values["health-check"], values["health-timeout"]
    if check.read() is not None and limit.read() == 0:
        raise UsageError(f"{limit} must be greater than 0", "set a number of seconds, such as 60")
    if check.is_default and not limit.is_default:
        notes.append(f"{limit} has no effect without --health-check")
    if values["hang-timeout"].read() is None and not values["on-hang"].is_default:
        notes.append(f"{values['on-hang']} has no effect: {values['hang-timeout']} disables hang detection")
    return Config(**_make_sections(values, fields), extensions=asked, notes=tuple(notes))


def _make_sections(values: Mapping[str, Value], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sections of the Config by name. `given`: the fields that rules between options have set."""
    fields: dict[str, dict[str, Any]] = {name: {"origins": {}} for name in SECTIONS}
    for row in ROWS:
        if field := row.field_name:
            section, _, mapping = (row.section or row.group).partition(".")
            fields[section]["origins"][row.name if mapping else field] = values[row.name].origin
            if not mapping and field not in given:
                fields[section][field] = values[row.name].read()
    return {
        name: kind(**fields[name], **{field: given[field] for field in kind.__struct_fields__ if field in given})
        for name, kind in SECTIONS.items()
    }


def _choose_launch_mode(values: Mapping[str, Value], notes: list[str]) -> LaunchMode:
    """Return the form of the script. torchrun's order: --run-path wins over the other two."""
    module, program, path = values["module"], values["no-python"], values["run-path"]
    given = [value for value in (module, program) if value.read()]
    if path.read():
        notes += [f"{other} has no effect with {path}" for other in given]
        return "path"
    if len(given) == 2:
        raise UsageError(f"{program} and {module} exclude each other", "leave out one of them")
    return "script" if not given else "module" if given == [module] else "program"


def _resolve_devices(values: Mapping[str, Value]) -> DeviceRequest | None:
    """Return what --devices, --visible-env and --nproc-per-node say together."""
    option, variable, workers = values["devices"], values["visible-env"], values["nproc-per-node"]
    request: DeviceRequest | None = option.read()
    if request is None:
        if not variable.is_default:
            raise UsageError(f"{variable}: --devices is missing", "add --devices NAME:COUNT")
        return None
    request = replace(request, variable=variable.read())
    if request.variable and request.number is None:
        raise UsageError(
            f"{option} and {variable}: the number of devices is missing", f"add it: --devices {request.kind}:COUNT"
        )
    if workers.text not in ("auto", "gpu", "cpu") and parse_integer(workers.text) is None and not workers.is_default:
        raise UsageError(f"{option} and {workers} both set the devices to count", "leave out one of them")
    if (workers.text == "cpu" and request.kind != "cpu") or (workers.text == "gpu" and request.kind in ("cpu", "tpu")):
        raise UsageError(f"{option} and {workers} exclude each other", "leave out one of them")
    return request


def _resolve_standby(values: Mapping[str, Value], notes: list[str], is_python: bool, is_alone: bool) -> int:
    """Return the number of standby sets. Raises UsageError if a program is to start warm."""
    preload, standby = values["preload"], values["standby"]
    modules, sets = preload.read(), int(standby.read())
    if not is_python and (modules or sets):
        asked = preload if modules else standby
        why = f"{values['no-python']} runs a program, but only Python scripts can start with preloaded modules"
        raise UsageError(f"{asked}: {why}", f"leave out {asked.origin}, or name the Python script itself")
    if sets and is_alone and values["max-restarts"].text == "0":
        notes.append(f"{standby} has no effect without --max-restarts: nothing is restarted here")
        return 0
    return sets


def _resolve_signals(value: Value, notes: list[str]) -> tuple[str, ...]:
    """Return the signals that can be handled, with a note for the others."""
    reasons = {name: explain_signal(name) for name in value.read()}
    notes += [f"{value.origin}: {sanitize(name)} is ignored: {why}" for name, why in reasons.items() if why]
    return tuple(name for name, why in reasons.items() if not why)


def _resolve_local_rank(values: Mapping[str, Value]) -> bool:
    """Whether the script gets --local-rank=N as its first argument.

    `python -m torch.distributed.launch`, from before torchrun, gives it to every script, unless --use-env says that the
    script reads LOCAL_RANK; here that is the default, and --legacy-local-rank the exception.
    """
    use_env, wanted = values["use-env"], values["legacy-local-rank"]
    if not wanted.read():
        return False
    if use_env.read():
        raise UsageError(f"{use_env} and {wanted} exclude each other", "leave out one of them")
    if values["no-python"].read() and not values["run-path"].read():
        raise UsageError(
            f"{values['no-python']} and {wanted} exclude each other",
            f"leave out {wanted.origin}: a program can read LOCAL_RANK",
        )
    return True
