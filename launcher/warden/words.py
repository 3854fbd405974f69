"""What agent and warden say to each other: the order to start a worker, and the reports of what became of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class WorkerSpec(NamedTuple):
    """One process to start.

    `argv[0]` is searched on the PATH of its environment when it has no slash. Its environment is the one the
    warden was forked with, less `unset`, with `env` on top. `stdout` and `stderr` are descriptors to write to,
    which the handle closes after sending; None leaves it the agent's own. `affinity`: the CPUs it is kept to;
    `memory`: the NUMA nodes whose memory it prefers, none for as Linux does.
    """

    local_rank: int
    argv: tuple[str, ...]
    env: Mapping[str, str]
    unset: tuple[str, ...]
    stdout: int | None
    stderr: int | None
    affinity: frozenset[int] | None = None
    memory: tuple[int, ...] = ()


class Spawned(NamedTuple):
    """The worker runs its program."""

    round: int
    local_rank: int
    pid: int


class SpawnFailed(NamedTuple):
    """The worker could not be forked, or its program not be run."""

    round: int
    local_rank: int
    sentence: str
    error_number: int


class Exited(NamedTuple):
    """A worker ended and was reaped at `at` (time.time()); `exit_code` is negative for a signal."""

    round: int
    local_rank: int
    pid: int
    exit_code: int
    at: float


class Gone(NamedTuple):
    """No process of the round is left, what workers started included.

    One that the kernel does not let go (asleep in a driver, frozen) counts as gone once it can run no code of its
    own; its Exited then follows when it is released.
    """

    round: int


class LeashExpired(NamedTuple):
    """The leash ran out: the warden kills the round, or did not start it. Gone follows."""

    round: int


class WardenLost(NamedTuple):
    """The warden ended without being asked to. The kernel kills its workers; kill_orphans() sees to the rest."""

    sentence: str


Report = Spawned | SpawnFailed | Exited | Gone | LeashExpired | WardenLost

REPORTS: dict[str, type[Spawned | SpawnFailed | Exited | Gone | LeashExpired]] = {
    kind.__name__: kind for kind in (Spawned, SpawnFailed, Exited, Gone, LeashExpired)
}


def written(spec: WorkerSpec) -> list[object]:
    """A spec as it is sent: in the place of each descriptor, which travels apart, stands whether there is one."""
    affinity = None if spec.affinity is None else sorted(spec.affinity)
    streams = (spec.stdout is not None, spec.stderr is not None)
    return [spec.local_rank, spec.argv, dict(spec.env), spec.unset, *streams, affinity, spec.memory]


def received(fields: list[Any], descriptors: tuple[int, ...]) -> WorkerSpec:
    """The spec that was `written`, with the descriptors as this process numbers them."""
    local_rank, argv, env, unset, has_stdout, has_stderr, cpus, memory = fields
    given = iter(descriptors)
    stdout = next(given) if has_stdout else None
    stderr = next(given) if has_stderr else None
    affinity = None if cpus is None else frozenset(cpus)
    return WorkerSpec(local_rank, argv, env, unset, stdout, stderr, affinity, tuple(memory))
