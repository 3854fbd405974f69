"""The configuration of a run, validated once and trusted afterwards.

`resolve` turns the command line and the environment into one frozen `Config`. A value comes from the first of: the
flag, LAUNCHER_<NAME>, PET_<NAME>, a scheduler's environment (`schedulers`), the default; `Config.origins` records
which. Invalid values are refused here in one sentence that names the flag or the variable; a value that is accepted
but has no effect is noted in `Config.notes`. No file is read and no device counted: the same input gives the same
Config on any machine. The rules of torchrun's rendezvous options are in `options/rendezvous.py`.
"""

from __future__ import annotations

from collections.abc import Mapping

from launcher.config.options import worker_options
from launcher.config.options.command_line import ParsedArgs, Value, resolve_values
from launcher.config.options.network import StoreConfig
from launcher.config.options.readers import (
    make_choice_parser,
    parse_count,
    parse_flag,
    parse_host,
    parse_node_name,
    parse_port_range,
    parse_printable,
    parse_seconds,
    parse_short_text,
)
from launcher.config.options.rendezvous import (
    SETTINGS_OPTIONS,
    Setting,
    is_local_endpoint,
    parse_lease_ttl,
    parse_node_range,
    parse_settings,
    parse_standalone_settings,
    require_one_node,
    resolve_rendezvous,
)
from launcher.config.options.table import PLACEMENT_OPTIONS
from launcher.config.options.worker_options import (
    Streams,
    list_unread_variables,
    needs_local_rank,
    parse_devices_per_worker,
    parse_health_check,
    parse_local_ranks,
    parse_numa_binding,
    parse_preemption_signal,
    parse_signals,
    parse_streams,
    parse_texts,
    parse_worker_count,
)
from launcher.model import mesh as meshes
from launcher.model.errors import UsageError
from launcher.model.mesh import Mesh
from rendezvous.values import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    from launcher.config.options.locality import LocalityFields
    from launcher.config.options.warm import Warm
    from launcher.config.options.worker_options import NumaMode

    LaunchMode = Literal["script", "module", "program", "path"]

# Without any of these there is no scheduler to detect.
SCHEDULER_VARIABLES = (
    "JAX_COORDINATOR_ADDRESS", "JOB_COMPLETION_INDEX", "LWS_GROUP_SIZE", "PET_NNODES", "PROCESS_ID", "SLURM_JOB_ID",
    "VC_TASK_INDEX", "WORLD_SIZE",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Config:
    """One run of the command on this node. Times are in seconds.

    `nodes_max` None: any number; it is 1 for 1:N where only this machine can join. `worker_count` None was not given:
    one worker per accelerator if there are any, else 1; a word is auto, gpu, cpu, or a type of device that torch may
    know. `devices_per_worker` None: one, or what is usual for the framework. `mesh` None: one elastic axis, dp.
    `placement_options`: those of PLACEMENT_OPTIONS that were set, name -> text; the planner's adapter parses them when
    the mesh is known. `settings`: those of the agreement that were set, field -> value. `network` None: one machine.
    `log_dir` None: a temporary directory. `preload`: modules to import once, for workers that are forked with them;
    `standby`: sets of standby workers. `local_ranks_filter` None: all. `run_id` None: the agent draws one. `node_name`
    None: the host's. `master_addr` None: `local_addr` if set, else loopback; `master_port` None: a free one for every
    round; if the rounds assign the ranks, `node_rank` is None and so are these two. `lease_ttl_s` None: on one machine
    no watchdog, else the agreement's default. `python` is the interpreter of the workers. `notes` are lines to print
    once, before the first worker starts. `origins`: field, or option of the two mappings above -> "--flag",
    the variable's name, or "default".
    """

    script: str
    script_args: tuple[str, ...]
    launch_mode: LaunchMode
    nodes_min: int
    nodes_max: int | None
    worker_count: int | str | None
    devices_per_worker: int | Literal["all"] | None
    devices: worker_options.DeviceRequest | None = None
    mesh: Mesh | None
    placement_options: Mapping[str, str]
    settings: Mapping[str, Setting]
    preload: tuple[str, ...] = ()
    standby: int = 0
    max_restarts: int = 0
    monitor_interval_s: float
    role: str = "default"
    log_dir: str | None
    redirects: Streams
    tee: Streams
    local_ranks_filter: frozenset[int] | None
    duplicate_stdout_filters: tuple[str, ...] = ()
    duplicate_stderr_filters: tuple[str, ...] = ()
    logs_specs: str | None = None
    event_log_handler: str = "null"
    shutdown_timeout_s: float = 30
    signals_to_handle: tuple[str, ...]
    framework: str = "auto"
    device_binding: str = "local-rank"
    virtual_local_rank: bool
    legacy_local_rank: bool = False
    numa_binding: NumaMode | None = None
    run_id: str | None
    standalone: bool
    rdzv_backend: str
    rdzv_endpoint: str | None
    rdzv_conf: Mapping[str, str]
    network: StoreConfig | None = None
    attempt: int | None = None
    node_name: str | None = None
    locality: tuple[tuple[str, str], ...] = ()
    locality_file: str | None = None
    locality_command: str | None = None
    locality_sources: tuple[str, ...] | None = None
    node_rank: int | None
    master_addr: str | None
    master_port: int | None
    local_addr: str | None
    interface: str | None = None
    port_range: tuple[int, int] | None = None
    worker_port_range: tuple[int, int] | None = None
    preemption_signal: str | None = None
    preemption_file: str | None = None
    lease_ttl_s: float | None
    heartbeat_timeout_s: float | None = None
    health_check: str | None = None
    health_timeout_s: float = 60
    python: str
    notes: tuple[str, ...]
    origins: Mapping[str, str]


# Fields whose name differs from their option's.
_FIELDS: Mapping[str, tuple[str, ...]] = {
    "nnodes": ("nodes_min", "nodes_max"),
    "nproc-per-node": ("worker_count",),
    "monitor-interval": ("monitor_interval_s",),
    "shutdown-timeout": ("shutdown_timeout_s",),
    "rdzv-id": ("run_id",),
    "lease-ttl": ("lease_ttl_s",),
    "heartbeat-timeout": ("heartbeat_timeout_s",),
    "health-timeout": ("health_timeout_s",),
    "visible-env": (),  # part of `devices`
    "module": (),  # these three determine `launch_mode`
    "no-python": (),
    "run-path": (),
    "start-method": (),
    "use-env": (),
    "rdzv-prefix": ("network",),
    "store-port": (),
    **{name: (name,) for name in (*PLACEMENT_OPTIONS, *SETTINGS_OPTIONS)},
}


def resolve(args: ParsedArgs, environ: Mapping[str, str], python: str, hostname: str = "") -> Config:
    """Return the Config of this command line and environment. Raises UsageError for invalid values.

    `python`: the interpreter for the workers. `hostname`: this node's, which a scheduler may have chosen.
    """
    values, note, missing = resolve_values(args.values, environ), "", ""
    if not environ.keys().isdisjoint(SCHEDULER_VARIABLES):
        from launcher.config.schedulers import detection  # one machine rarely has one

        resolved = detection.resolve(args.values, environ, hostname)
        values, note, missing = resolved.values, resolved.note, resolved.missing
    if args.script is None:
        raise UsageError("no script given", "meshrun [options] SCRIPT [arguments of the script]; meshrun -h explains")
    notes = [*filter(None, [note]), *list_unread_variables(environ)]
    launch_mode, launch_origin = _choose_launch_mode(values, notes)
    workers = parse_worker_count(values["nproc-per-node"])
    mesh = _parse_mesh(values["mesh"])
    nodes_min, nodes_max = parse_node_range(values["nnodes"], has_mesh=mesh is not None)
    if missing and nodes_min > 1:
        raise UsageError(f"{values['nnodes']}: the nodes need a place to meet", missing)
    if not values["monitor-interval"].is_default:
        notes.append(f"{values['monitor-interval']} has no effect: nothing polls, a worker's end is seen at once")
    rendezvous_ = resolve_rendezvous(
        values, notes, standalone=parse_flag(values["standalone"]), nodes=(nodes_min, nodes_max),
        is_alone=nodes_max == 1 or is_local_endpoint(values["rdzv-endpoint"], nodes_min),
    )  # fmt: skip
    if rendezvous_.network is None:
        nodes_max = require_one_node(values, notes, nodes_min, nodes_max)
        if mesh is not None and isinstance(workers, int):
            meshes.require_fit(mesh, workers)
    elif rendezvous_.node_count:
        nodes_min = nodes_max = rendezvous_.node_count
    return Config(
        script=args.script,
        script_args=args.script_args,
        launch_mode=launch_mode,
        nodes_min=nodes_min,
        nodes_max=nodes_max,
        worker_count=workers,
        devices_per_worker=parse_devices_per_worker(values["devices-per-worker"]),
        devices=worker_options.parse_devices(values),
        mesh=mesh,
        placement_options={name: values[name].text for name in PLACEMENT_OPTIONS if not values[name].is_default},
        settings=parse_settings(values, rendezvous_.conf, (nodes_min, nodes_max))
        if rendezvous_.network
        else parse_standalone_settings(values),
        **_resolve_warm_start(values, notes, environ, launch_mode, is_alone=rendezvous_.network is None),
        max_restarts=parse_count(values["max-restarts"]),
        monitor_interval_s=parse_seconds(values["monitor-interval"]),
        role=parse_short_text(values["role"]),
        log_dir=values["log-dir"].text_if_given,
        redirects=parse_streams(values["redirects"]),
        tee=parse_streams(values["tee"]),
        local_ranks_filter=parse_local_ranks(values["local-ranks-filter"]),
        duplicate_stdout_filters=parse_texts(values["duplicate-stdout-filters"]),
        duplicate_stderr_filters=parse_texts(values["duplicate-stderr-filters"]),
        logs_specs=None if values["logs-specs"].text == "default" else parse_printable(values["logs-specs"]),
        event_log_handler=parse_printable(values["event-log-handler"]),
        shutdown_timeout_s=parse_seconds(values["shutdown-timeout"]),
        signals_to_handle=parse_signals(values["signals-to-handle"], notes),
        framework=parse_printable(values["framework"]) or "auto",
        device_binding=make_choice_parser("local-rank", "visible")(values["device-binding"]),
        virtual_local_rank=parse_flag(values["virtual-local-rank"]),
        legacy_local_rank=needs_local_rank(values, notes),
        numa_binding=parse_numa_binding(values["numa-binding"]),
        run_id=rendezvous_.run_id,
        standalone=rendezvous_.standalone,
        rdzv_backend=rendezvous_.backend,
        rdzv_endpoint=rendezvous_.endpoint,
        rdzv_conf=rendezvous_.conf,
        network=rendezvous_.network,
        attempt=None if values["attempt"].is_default else parse_count(values["attempt"]),
        node_name=None if values["node-name"].is_default else parse_node_name(values["node-name"]),
        **_parse_locality(values, notes, is_alone=rendezvous_.network is None),
        node_rank=rendezvous_.node_rank,
        master_addr=rendezvous_.master_addr,
        master_port=rendezvous_.master_port,
        local_addr=None
        if values["local-addr"].is_default
        else parse_host(values["local-addr"], values["local-addr"].text),
        interface=values["interface"].text_if_given,
        port_range=parse_port_range(values["port-range"]),
        worker_port_range=parse_port_range(values["worker-port-range"]),
        preemption_signal=parse_preemption_signal(values["preemption-signal"]),
        preemption_file=values["preemption-file"].text_if_given,
        lease_ttl_s=parse_lease_ttl(values["lease-ttl"]),
        heartbeat_timeout_s=None
        if values["heartbeat-timeout"].is_default
        else parse_seconds(values["heartbeat-timeout"]) or None,
        health_check=parse_health_check(values, notes),
        health_timeout_s=parse_seconds(values["health-timeout"]),
        python=python,
        notes=tuple(notes),
        origins=_list_origins(values, launch_origin),
    )


def _list_origins(values: Mapping[str, Value], launch_origin: str) -> dict[str, str]:
    origins = {"launch_mode": launch_origin}
    for option, value in values.items():
        origins.update(dict.fromkeys(_FIELDS.get(option, (option.replace("-", "_"),)), value.origin))
    return origins


def _choose_launch_mode(values: Mapping[str, Value], notes: list[str]) -> tuple[LaunchMode, str]:
    """Return the form of the script, and its origin. torchrun's order: --run-path wins over the other two."""
    module, program, path = values["module"], values["no-python"], values["run-path"]
    is_module, is_program = parse_flag(module), parse_flag(program)
    if parse_flag(path):
        notes.extend(
            f"{other} has no effect beside {path}"
            for other, is_given in ((module, is_module), (program, is_program))
            if is_given
        )
        return "path", path.origin
    if is_module and is_program:
        raise UsageError(f"{program} and {module} exclude each other", "a module is run by Python")
    if is_module:
        return "module", module.origin
    return ("program", program.origin) if is_program else ("script", "default")


def _parse_mesh(value: Value) -> Mesh | None:
    if value.is_default:
        return None
    try:
        return meshes.parse(value.text)
    except UsageError as error:
        if value.is_flag:
            raise
        raise UsageError(f"{value.origin}: {error}", error.hint) from None


def _resolve_warm_start(
    values: Mapping[str, Value],
    notes: list[str],
    environ: Mapping[str, str],
    launch_mode: LaunchMode,
    *,
    is_alone: bool,
) -> Warm:
    """Return the options of workers that start warm; by default none do."""
    if values["preload"].is_default and values["standby"].is_default:
        return {}
    from launcher.config.options.warm import CALL_VARIABLE, resolve_warm_start

    return resolve_warm_start(
        values, notes, is_python=launch_mode != "program" or CALL_VARIABLE in environ, is_alone=is_alone
    )


def _parse_locality(values: Mapping[str, Value], notes: list[str], *, is_alone: bool) -> LocalityFields:
    """Return the options of this node's locality; most runs set none."""
    if all(value.is_default for name, value in values.items() if name.startswith("locality")):
        return {}
    from launcher.config.options.locality import parse_locality_options

    return parse_locality_options(values, notes, is_alone=is_alone)
