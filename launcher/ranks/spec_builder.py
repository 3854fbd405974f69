"""From a node's assignment to processes: command, environment and streams of every worker of a round.

There is a command for an exec, and one for a process that the fork server forks:

    exec                                        fork
    python -u as_main.py script train.py -x     ("script", "as_main.py", "script", "train.py", "-x")
    python -u train.py -x                       ("script", "train.py", "-x")
    python -u -m train.main                     ("module", "train.main")
    python -u -c TEXT train.py                  ("code", TEXT, "train.py")

The first, in which `as_main` leaves the script's exception for the agent, is for workers in the agent's own Python and
for all of JAX; the others are for another Python, and for the function of a `launch`. The right column is derived from
the left one, so a forked worker runs what an exec would have run.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from importlib.machinery import SourceFileLoader
from typing import TYPE_CHECKING

from msgspec.structs import replace

from launcher import extensions
from launcher.config.config import LaunchMode, OutputOptions, PlacementOptions, WorkerOptions
from launcher.config.frameworks import EnvironmentChoice, choose_environments, detect_mpi
from launcher.config.scrub import list_unset_variables
from launcher.hardware.linux.shared_page import SharedPage
from launcher.logs.layout import LogLayout
from launcher.logs.routes import STREAMS, OutputRoutes, format_line_prefix
from launcher.model.console import log
from launcher.model.errors import make_shortage_error
from launcher.model.mesh import Mesh
from launcher.model.node import Slot, format_workers
from launcher.placement.adapter.description import NodeAssignment, decode_assignment
from launcher.ranks.environments.contract import DeviceEnvironment, Environment, WorkerAssignment
from launcher.ranks.environments.torch import TorchEnvironment
from launcher.supervisor.messages import WorkerSpec
from rendezvous.errors import RecordError

if TYPE_CHECKING:
    from launcher.config.options.readers import NumaMode
    from launcher.hardware.cpu_binding import CpuBinding
    from launcher.logs.pump import OutputPump, StreamName
    from launcher.logs.sinks import LineFilter
    from launcher.worker.grid import WorkerMesh

_RUN_PATH = "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
_AS_MAIN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "as_main.py")
_HOOK = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "diagnosis", "hook")
RECORDER_VARIABLE = "LAUNCHER_RECORDER_SOCKET"  # of launcher.worker.recorder, whose package is not needed here
_LINE_PREFIX_VARIABLE = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"


class WorkerSpecBuilder:
    """Builds the specs of one job's workers on this node; `parent` is the environment that they inherit."""

    def __init__(
        self,
        *,
        workers: WorkerOptions,
        output: OutputOptions,
        placement: PlacementOptions,
        slots: Sequence[Slot],
        host: str,
        layout: LogLayout,
        parent: Mapping[str, str],
        shared_page: SharedPage | None = None,
        extra_variables: Mapping[str, str] | None = None,
    ) -> None:
        self._workers = workers
        self._filters = (output.duplicate_stdout_filters, output.duplicate_stderr_filters)
        self._mesh = placement.grid
        self._traffic = placement.texts.get("traffic", "")
        self._slots = slots
        self._host = host
        self._layout = layout
        self._parent = parent
        unset = list_unset_variables(parent, workers.unset)
        self._unset = (*unset, *{RECORDER_VARIABLE}.intersection(parent))
        self._extra_variables = extra_variables or {}
        self._shared_page = shared_page
        devices = [device for slot in slots for device in slot.devices]
        self.choice = choose_environments(workers.framework, devices, workers.python, parent)
        self._environments = make_environments(self.choice, workers, parent)
        self._routes = OutputRoutes(output, layout, len(slots))
        self._cpu_bindings = bind_workers(workers.numa_binding, slots)
        self._has_fork_server = bool(workers.preload or workers.standby)
        self._recorder_sockets: list[str] = []  # by local rank
        _keep_compiled()

    @property
    def is_jax(self) -> bool:
        """Whether workers run JAX: they swallow SIGTERM, and abort when another has ended."""
        return "jax" in self.choice.names

    def read_assignment(self, assignment: str, coordinator: str = "") -> NodeAssignment:
        """Return this node's assignment, with the port of `coordinator`, HOST:PORT.

        That port was offered by launcher/ranks/ports.py and chosen in rendezvous/leader/commit.py.
        Raises RecordError if no leader with this job's command can have meant it.
        """
        share = decode_assignment(assignment, coordinator)
        if (count := len(share.ranks)) > len(self._slots):
            raise RecordError(f"it wants {format_workers(count)} of this node, which has {len(self._slots)}")
        if not self._mesh.has_shape(share.shape):
            raise RecordError(f"it has a grid of {share.shape}, which does not fit {self._mesh}")
        return share

    def make_pump(self) -> OutputPump | None:
        """Return the pump for the workers' output; None if no stream of any goes through the agent."""
        if not self._routes.captures:
            return None
        from launcher.logs.pump import OutputPump

        return OutputPump(warn=log)

    def list_unpumped(self, worker_count: int) -> frozenset[int]:
        """Return the local ranks of which, in this round, some output does not go through the pump."""
        routes = ((rank, self._routes.find_route(rank, stream)) for rank in range(worker_count) for stream in STREAMS)
        return frozenset(rank for rank, route in routes if not (route.path or route.to_console))

    def list_remarks(self) -> list[str]:
        """Return sentences for the start: the workers' environments, the outputs, the CPUs to which they are bound."""
        sentences: list[str] = []
        for environment in self._environments:
            sentences += environment.remarks(self._slots, self._parent, not self._workers.is_alone)
        sentences += self._routes.list_remarks()
        if mode := self._workers.numa_binding:
            from launcher.hardware.cpu_binding import describe_bindings

            sentences.append(describe_bindings(mode, self._cpu_bindings))
        return sentences

    def enter_job(self, job: str) -> None:
        """Settle where the log files lie. `job`: as in `LogLayout.enter_job`."""
        if (place := self._layout.enter_job(job)) and self._routes.has_files:
            log(f"log files are in {place}")

    def make_specs(
        self, round: int, restart_count: int, share: NodeAssignment, pump: OutputPump | None
    ) -> list[WorkerSpec]:
        """Return one spec per rank of the share.

        Raises UsageError for an impossible environment, TemporaryError if the streams cannot be opened: a ShortageError
        if that may work later. Then nothing of them is left open.
        """
        if ":" in share.master_addr:
            from launcher.ranks.master_name import find_master_name

            share = replace(share, master_addr=find_master_name(share.master_addr))
        places = [self._place_worker(round, restart_count, share, local_rank) for local_rank in range(len(share.ranks))]
        variables = [self._make_variables(place) for place in places]
        self._recorder_sockets = [each.get(RECORDER_VARIABLE, "") for each in variables]
        self._routes.begin(round, restart_count)
        filters = self._open_filters(pump)
        opened: dict[tuple[int, str], int | None] = {}
        try:
            for place in places:
                for stream in STREAMS:
                    opened[place.local_rank, stream] = self._open_stream(stream, place, filters, pump)
        except OSError as error:
            for descriptor in opened.values():
                if descriptor is not None:
                    os.close(descriptor)  # with which the pump's end of it ends
            raise make_shortage_error(f"cannot prepare {format_workers(len(places))}", error) from error
        return [self._make_spec(*each, opened) for each in zip(places, variables, strict=True)]

    def make_worker_mesh(self, share: NodeAssignment) -> WorkerMesh:
        """Return the mesh of the round, as its first rank here sees it."""
        from launcher.worker.grid import WorkerMesh

        axes = tuple(axis.name for axis in self._mesh.axes)
        rank = share.ranks[0] if share.ranks else 0
        return WorkerMesh(axes, share.shape, rank, (*axes, *_list_groups(self._traffic, self._mesh)))

    def find_recorder_socket(self, local_rank: int) -> str:
        """Return where a worker's flight recorder would listen in the round that was made last; "" for nowhere."""
        return self._recorder_sockets[local_rank]

    def list_log_files(self, share: NodeAssignment) -> dict[tuple[int, str], str]:
        """Return the files that keep the output of the round that was made last, by rank and stream."""
        ways = {
            (rank, stream): self._routes.find_route(local_rank, stream).path
            for local_rank, rank in enumerate(share.ranks)
            for stream in STREAMS
        }
        return {key: path for key, path in ways.items() if path}

    def find_log_file(self, local_rank: int) -> str:
        """Return the file that keeps a worker's stderr in the round that was made last; "" without one."""
        return self._routes.find_route(local_rank, "stderr").path or ""

    def describe_rank(self, share: NodeAssignment, rank: int) -> str:
        """Return the coordinates of a rank, "pp=1,tp=0"; "" where a mesh has one axis, along which ranks count."""
        names = [axis.name for axis in self._mesh.axes]
        places = self._mesh.find_coordinates(rank, share.shape)
        return ",".join(f"{name}={place}" for name, place in zip(names, places, strict=True)) if names[1:] else ""

    def _make_spec(
        self, place: WorkerAssignment, variables: dict[str, str], opened: Mapping[tuple[int, str], int | None]
    ) -> WorkerSpec:
        binding = self._cpu_bindings[place.local_rank] if self._cpu_bindings else None
        argv = make_argv(self._workers, place.local_rank, is_jax=self.is_jax)
        return WorkerSpec(
            local_rank=place.local_rank,
            argv=argv,
            env=variables,
            unset=self._unset,
            stdout=opened[place.local_rank, "stdout"],
            stderr=opened[place.local_rank, "stderr"],
            affinity=binding.cpus if binding else None,
            fork_argv=make_fork_argv(self._workers.launch_mode, argv) if self._has_fork_server else (),
        )

    def _make_variables(self, place: WorkerAssignment) -> dict[str, str]:
        variables: dict[str, str] = {}
        for environment in self._environments:
            variables |= environment.variables(place, self._parent)
        if not self.is_jax:
            is_off = self._workers.hang_evidence == "0"
            path = "" if is_off else self._layout.make_recorder_path(place.round, place.local_rank)
            variables |= make_recorder_variables(path, {device.kind for device in place.slot.devices}, self._parent)
            if self._workers.hang_evidence == "1":
                variables["PYTHONPATH"] = os.pathsep.join(filter(None, (_HOOK, self._parent.get("PYTHONPATH"))))
        variables |= self._extra_variables
        if self._shared_page is not None:
            variables.update(self._shared_page.list_variables(place.local_rank))
        return variables | make_thread_variables(self._cpu_bindings, place.local_rank, self._parent)

    def _place_worker(self, round: int, restart_count: int, share: NodeAssignment, local_rank: int) -> WorkerAssignment:
        rank = share.ranks[local_rank]
        return WorkerAssignment(
            run_id=self._layout.run_id,
            round=round,
            restart_count=restart_count,
            max_restarts=self._workers.max_restarts,
            rank=rank,
            world_size=share.world_size,
            local_rank=local_rank,
            local_world_size=len(share.ranks),
            group_rank=share.group_rank,
            group_world_size=share.group_world_size,
            role=self._workers.role,
            role_rank=share.role_ranks[local_rank],
            role_world_size=share.role_world_size,
            master_addr=share.master_addr,
            master_port=share.master_port,
            mesh_axes=tuple(axis.name for axis in self._mesh.axes),
            mesh_shape=share.shape,
            mesh_coordinates=self._mesh.find_coordinates(rank, share.shape),
            mesh_groups=_list_groups(self._traffic, self._mesh),
            slot=self._slots[local_rank],
            error_file=self._layout.make_error_path(round, restart_count, local_rank),
            slice_index=share.slice_index,
            slice_count=share.slice_count,
        )

    def _open_filters(self, pump: OutputPump | None) -> dict[str, LineFilter]:
        """Open by stream the filter for the lines that are also kept separately."""
        filters: dict[str, LineFilter] = {}
        for stream, texts in zip(STREAMS, self._filters, strict=True):
            if pump is not None and texts and (path := self._routes.find_filter_file(stream)):
                filters[stream] = pump.open_filter(path, texts)
        return filters

    def _open_stream(
        self, stream: StreamName, place: WorkerAssignment, filters: Mapping[str, LineFilter], pump: OutputPump | None
    ) -> int | None:
        """Return the descriptor to which this worker writes, or None for the agent's own."""
        way = self._routes.find_route(place.local_rank, stream)
        if way.inherits:
            return None
        if pump is None or not (way.path or way.to_console):
            return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        return pump.open_stream(
            stream=stream,
            local_rank=place.local_rank,
            rank=place.rank,
            path=way.path,
            prefix=self._make_prefix(place) if way.to_console else None,
            line_filter=filters.get(stream),
        )

    def _make_prefix(self, place: WorkerAssignment) -> bytes:
        return format_line_prefix(
            role=place.role,
            local_rank=place.local_rank,
            rank=place.rank,
            host=self._host if place.group_world_size > 1 else None,
            template=self._parent.get(_LINE_PREFIX_VARIABLE),
        )


def _list_groups(traffic: str, mesh: Mesh) -> tuple[str, ...]:
    """Return the groups over several axes that --traffic declares."""
    if "+" not in traffic:
        return ()
    from launcher.model.traffic import parse

    return tuple(dict.fromkeys(one.name for one in parse(traffic, mesh) if len(one.axes) > 1))


def bind_workers(mode: NumaMode | None, slots: Sequence[Slot]) -> Sequence[CpuBinding]:
    """Return the CPUs of every worker; none if they are not bound. Raises UsageError if they cannot be."""
    if mode is None:
        return ()
    from launcher.hardware import node_binding

    return node_binding.bind_node(mode, slots)


def make_thread_variables(
    cpu_bindings: Sequence[CpuBinding], local_rank: int, parent: Mapping[str, str]
) -> dict[str, str]:
    """Return the number of threads of a worker that has cores of its own, unless the user has set it."""
    if not cpu_bindings or "OMP_NUM_THREADS" in parent:
        return {}
    return {"OMP_NUM_THREADS": str(cpu_bindings[local_rank].core_count)}


def make_recorder_variables(path: str, kinds: Collection[str], parent: Mapping[str, str]) -> dict[str, str]:
    """Return what makes torch's flight recorder readable at `path`, "" for nowhere; what the user has set stays.

    It is on by default, with 2,000 entries, but some of its ways out open only if that is written down. The variable's
    older name makes every rank print a warning, so it is never set.
    """
    size = parent.get("TORCH_FR_BUFFER_SIZE") or parent.get("TORCH_NCCL_TRACE_BUFFER_SIZE")
    variables = {} if size else {"TORCH_FR_BUFFER_SIZE": "2000"}
    if path and size != "0":
        variables[RECORDER_VARIABLE] = path
    if "nvidia" in kinds and "TORCH_NCCL_DUMP_ON_TIMEOUT" not in parent:
        variables["TORCH_NCCL_DUMP_ON_TIMEOUT"] = "1"
    return variables


def make_environments(
    choice: EnvironmentChoice, options: WorkerOptions, environ: Mapping[str, str]
) -> tuple[Environment, ...]:
    """Return the environments of this choice, in order. Raises UsageError for an unknown name."""
    found: list[Environment] = []
    for name in choice.names:
        if name == "torch":
            found.append(TorchEnvironment(options=options))
        elif name == "jax":
            from launcher.ranks.environments.jax import JaxEnvironment

            found.append(JaxEnvironment(options=options, mpi_reason=detect_mpi(options.python, environ)))
        elif name in extensions.ENVIRONMENTS:
            kind = extensions.load_entry(extensions.ENVIRONMENTS[name])
            found.append(kind(options=options) if issubclass(kind, DeviceEnvironment) else kind())
        else:
            from launcher.ranks.environments.plugin import PluginEnvironment

            found.append(PluginEnvironment(name, f"--framework {name}"))
    return tuple(found)


def _keep_compiled() -> None:
    """Have Python keep the compiled form of what each worker loads, if it is not there, and may be.

    A worker would write it at once with others, and as output of its own.
    """
    for name in ("main_start", "main_forms"):
        with suppress(Exception):
            SourceFileLoader(name, os.path.join(os.path.dirname(_AS_MAIN), f"{name}.py")).get_code(name)


def make_argv(options: WorkerOptions, local_rank: int, *, is_jax: bool) -> tuple[str, ...]:
    """Return the command: `as_main` with the script, else one of torchrun's four forms.

    -u, so that output before a crash is seen.
    """
    python = options.python
    arguments = tuple(_substitute_local_rank(argument, local_rank) for argument in options.script_args)
    if options.legacy_local_rank:
        arguments = (f"--local-rank={local_rank}", *arguments)
    # Another Python may run where this installation is not, in a container for example.
    is_ours = options.launch_mode != "program" and options.script != "-" and (is_jax or python == sys.executable)
    if is_ours:
        jax = ("jax",) if is_jax else ()
        return (python, "-u", _AS_MAIN, *jax, options.launch_mode, options.script, *arguments)
    match options.launch_mode:
        case "script":
            return (python, "-u", options.script, *arguments)
        case "module":
            return (python, "-u", "-m", options.script, *arguments)
        case "path":
            return (python, "-u", "-c", _RUN_PATH, options.script, *arguments)
        case "program":
            return (options.script, *arguments)


def make_fork_argv(launch_mode: LaunchMode, argv: tuple[str, ...]) -> tuple[str, ...]:
    """Return what a fork runs in place of this command: the mode, and its arguments."""
    first, *rest = argv[find_program_index(launch_mode, argv) :]
    return {"-m": ("module", *rest), "-c": ("code", *rest)}.get(first, ("script", first, *rest))


def find_program_index(launch_mode: LaunchMode, argv: tuple[str, ...]) -> int:
    """Return the index after Python and its own options. The function of a `launch` comes with options, and as text."""
    return argv.index("-c") if launch_mode == "program" else 2


def _substitute_local_rank(argument: str, local_rank: int) -> str:
    """Substitute torchrun's only macro, ${local_rank}, by the rules of string.Template."""
    if "$" not in argument:
        return argument
    from string import Template  # rarely needed

    return Template(argument).safe_substitute(local_rank=local_rank)
