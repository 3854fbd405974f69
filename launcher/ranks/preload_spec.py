"""The environment and CPUs of the fork server: those that all workers of this node have in common.

Libraries read some variables when they are loaded, OMP_NUM_THREADS above all, and OpenMP counts its CPUs then. What a
worker gets after the fork comes too late for them. So the fork server gets every variable that is the same for all
workers in all rounds. There is no list of these: the workers' own environments are computed for several assignments
that have nothing in common, and the variables that come out the same are the fork server's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from launcher.config.config import WorkerOptions
from launcher.config.frameworks import choose_environments, has_package
from launcher.config.scrub import list_unset_variables
from launcher.model.errors import UsageError
from launcher.model.mesh import Mesh
from launcher.model.node import Slot
from launcher.ranks import spec_builder
from launcher.ranks.environments.contract import Environment, WorkerAssignment
from launcher.supervisor.fork_server import fork_server
from launcher.supervisor.messages import ForkServerSpec

_THREADS_VARIABLE = "OMP_NUM_THREADS"


def predict_slots(count: int | str | None, options: WorkerOptions, parent: Mapping[str, str]) -> tuple[Slot, ...]:
    """Return the slots of this node as far as the fork server depends on them, before devices are detected.

    Empty if they cannot be predicted. `count`: --nproc-per-node.
    """
    if not isinstance(count, int) or count < 2 or options.numa_binding is not None:
        return ()
    if options.framework != "torch" and (
        options.framework != "auto" or has_package("jax", options.python, parent) is not False
    ):
        return ()  # TPU chips would change the workers
    return tuple(Slot(index=index, devices=()) for index in range(count))


def make_fork_server_spec(
    options: WorkerOptions, mesh: Mesh, run_id: str | None, slots: Sequence[Slot], parent: Mapping[str, str]
) -> ForkServerSpec:
    """Return the spec of the fork server for the workers of these slots. `parent`: the environment that they inherit.

    Raises UsageError if workers cannot be bound to CPUs.
    """
    devices = [device for slot in slots for device in slot.devices]
    choice = choose_environments(options.framework, devices, options.python, parent)
    environments = spec_builder.make_environments(choice, options, parent)
    bindings = spec_builder.bind_workers(options.numa_binding, slots)
    sample_variables = []
    for number in range(max(2, len(slots))):
        slot = slots[number % len(slots)]
        place = _make_sample_place(options, mesh, run_id or f"run {number}", number, slot, len(slots))
        threads = spec_builder.make_thread_variables(bindings, slot.index, parent)
        sample_variables.append(_make_variables(environments, place, parent) | threads)
    variables = dict(set.intersection(*(set(one.items()) for one in sample_variables)))
    is_jax = "jax" in choice.names
    if not is_jax:
        variables |= spec_builder.make_recorder_variables("", {device.kind for device in devices}, parent)
    if counts := [int(one[_THREADS_VARIABLE]) for one in sample_variables if one.get(_THREADS_VARIABLE, "").isdigit()]:
        variables[_THREADS_VARIABLE] = str(min(counts))  # one number for all: more threads than cores are slow
    return ForkServerSpec(
        argv=make_fork_server_argv(options, is_jax=is_jax),
        env=variables,
        unset=list_unset_variables(parent, options.unset),
        affinity=frozenset[int]().union(*(one.cpus for one in bindings)) if bindings else None,
        modules=options.preload,
        standby=options.standby * len(slots),
    )


def make_fork_server_argv(options: WorkerOptions, *, is_jax: bool) -> tuple[str, ...]:
    """Return the command of the process that imports and forks: its own name, then a worker's mode and arguments.

    It becomes that worker's command itself, so only arguments behind the script's name may differ among workers.
    """
    mode, argv = options.launch_mode, spec_builder.make_argv(options, 0, is_jax=is_jax)
    python = argv[: spec_builder.find_program_index(mode, argv)]
    return (*python, fork_server.__file__, *spec_builder.make_fork_argv(mode, argv))


def _make_variables(
    environments: Iterable[Environment], place: WorkerAssignment, parent: Mapping[str, str]
) -> dict[str, str]:
    variables: dict[str, str] = {}
    for environment in environments:
        with suppress(UsageError):  # an impossible assignment; those that workers get may be valid
            variables |= environment.variables(place, parent)
    return variables


def _make_sample_place(
    options: WorkerOptions, mesh: Mesh, run_id: str, number: int, slot: Slot, slot_count: int
) -> WorkerAssignment:
    """Return an assignment that shares with those of other numbers only what all assignments of this node share."""
    return WorkerAssignment(
        run_id=run_id,
        round=number + 1,
        restart_count=number,
        max_restarts=options.max_restarts,
        rank=number,
        world_size=slot_count + number,
        local_rank=slot.index,
        local_world_size=slot_count,
        group_rank=number,
        group_world_size=number + 1,
        role=options.role,
        role_rank=number,
        role_world_size=slot_count + number,
        master_addr=f"192.0.2.{number + 1}",  # RFC 5737: an address without a host
        master_port=number + 1,
        mesh_axes=tuple(axis.name for axis in mesh.axes),
        mesh_shape=(number + 1,) * len(mesh.axes),
        mesh_coordinates=(number,) * len(mesh.axes),
        slot=slot,
        error_file=f"/{number}",
        slice_index=number,
        slice_count=slot_count + number,
    )
