"""The messages of agent and supervisor: the order to start a worker, and the reports of what became of it."""

from __future__ import annotations

from collections.abc import Mapping

from rendezvous.errors import EXIT_FENCED
from rendezvous.values import NamedTuple

POLL_LIMIT_S = 86400.0  # poll() counts milliseconds in 31 bits
# A killed process may hang in a driver. After this long it need only be unable to run its own code.
STUCK_LIMIT_S = 3.0
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# The names in ps: none contains a word of the agent's command line.
KEEPER_NAME = "mr-keeper"
SUPERVISOR_NAME = "mr-supervisor"


class WorkerSpec(NamedTuple):
    """One process to start.

    `argv[0]` is searched on the PATH of its environment when it has no slash. Its environment is the one the
    supervisor was forked with, less `unset`, with `env` on top. `stdout` and `stderr` are descriptors to write to,
    which the handle closes after sending; None leaves it the agent's own. `affinity`: the CPUs to which it is bound;
    `memory`: the NUMA nodes whose memory it prefers, none for Linux's default. `warm`: what a fork of the fork server
    runs as `__main__` in place of `argv`: "script", "module", "path" or "code", then the arguments; empty where only an
    exec is possible.
    """

    local_rank: int
    argv: tuple[str, ...]
    env: Mapping[str, str]
    unset: tuple[str, ...]
    stdout: int | None
    stderr: int | None
    affinity: frozenset[int] | None = None
    memory: tuple[int, ...] = ()
    fork_argv: tuple[str, ...] = ()


class ForkServerSpec(NamedTuple):
    """The fork server to start: a process that imports `modules` once and forks workers that have them.

    `argv`, `env`, `unset` and `affinity` are as for a worker; `env` is what all workers of every round have in common,
    since libraries read it when they are loaded. `standby`: the number of standby workers besides those of a round.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    unset: tuple[str, ...]
    affinity: frozenset[int] | None
    modules: tuple[str, ...]
    standby: int = 0


class Spawned(NamedTuple):
    """The worker runs its program."""

    round: int
    local_rank: int
    pid: int


class SpawnFailed(NamedTuple):
    """The worker could not be forked, or its program could not be run."""

    round: int
    local_rank: int
    sentence: str
    error_number: int


class Exited(NamedTuple):
    """A worker ended and was reaped at `at` (time.time()); `exit_code` is negative for a signal.

    `pid` is 0 for one that was signalled before the fork server had forked it: it never ran.
    """

    round: int
    local_rank: int
    pid: int
    exit_code: int
    at: float


class RoundSwept(NamedTuple):
    """No process of the round is left, what workers started included.

    One that the kernel does not release (asleep in a driver, frozen) counts as ended once it can run no code of its
    own; its Exited then follows when it is released.
    """

    round: int


class WorkersFenced(NamedTuple):
    """The watchdog expired: the supervisor kills the round, or did not start it. RoundSwept follows."""

    round: int


class Preloading(NamedTuple):
    """The fork server runs and imports. Workers that it is to fork wait for it without a limit."""

    pid: int


class Preloaded(NamedTuple):
    """The fork server has imported everything, in `seconds`; `remarks` are sentences for the user."""

    pid: int
    seconds: float
    remarks: tuple[str, ...]


class PreloadRefused(NamedTuple):
    """The fork server's modules cannot be imported, or a process with them cannot be forked: no worker will start.

    Workers that wait for it stay unstarted until their round is swept: this node has to leave.
    """

    sentence: str
    hint: str


class SupervisorStarted(NamedTuple):
    """The supervisor runs; for the handle alone, whose own child is the keeper."""

    pid: int


class StandbyReady(NamedTuple):
    """A worker has been forked for a later round; for the handle alone, which must know what a sweep spares."""

    pid: int


class ForkServerLost(NamedTuple):
    """The fork server has ended, or was killed: the sentence gives the reason and the consequence."""

    sentence: str


class SupervisorLost(NamedTuple):
    """Supervisor or keeper ended unexpectedly. Workers end with them; kill_orphans() kills the rest.

    Where the machine refuses what they need they report it, and that the agent should end with EXIT_TEMPORARY.
    """

    sentence: str
    exit_code: int = EXIT_FENCED


InternalReport = SupervisorStarted | StandbyReady
PreloadReport = Preloading | Preloaded | PreloadRefused | ForkServerLost
Report = Spawned | SpawnFailed | Exited | RoundSwept | WorkersFenced | PreloadReport | SupervisorLost

REPORTS: dict[str, type[Report | InternalReport]] = {
    kind.__name__: kind
    for kind in (
        SupervisorStarted,
        Spawned,
        SpawnFailed,
        Exited,
        RoundSwept,
        WorkersFenced,
        Preloading,
        Preloaded,
        PreloadRefused,
        StandbyReady,
        ForkServerLost,
        SupervisorLost,
    )
}


def describe_exit(exit_code: int) -> str:
    """Describe an exit code: "exited with code 1" or "was killed by SIGKILL"."""
    if exit_code >= 0:
        return f"exited with code {exit_code}"
    import signal

    known = {int(signum): signum.name for signum in signal.Signals}  # but for most real-time signals
    return f"was killed by {known.get(-exit_code, f'signal {-exit_code}')}"


def encode_worker_spec(spec: WorkerSpec) -> list[object]:
    """Encode a spec; each descriptor, which travels separately, is replaced by whether there is one."""
    affinity = None if spec.affinity is None else sorted(spec.affinity)
    streams = (spec.stdout is not None, spec.stderr is not None)
    return [spec.local_rank, spec.argv, dict(spec.env), spec.unset, *streams, affinity, spec.memory, spec.fork_argv]


def decode_worker_spec(fields: list[Any], descriptors: tuple[int, ...]) -> WorkerSpec:
    """Decode the spec, with the descriptors as this process numbers them."""
    local_rank, argv, env, unset, has_stdout, has_stderr, cpus, memory, warm = fields
    given = iter(descriptors)
    stdout = next(given) if has_stdout else None
    stderr = next(given) if has_stderr else None
    affinity = None if cpus is None else frozenset(cpus)
    return WorkerSpec(local_rank, argv, env, unset, stdout, stderr, affinity, tuple(memory), tuple(warm))


def encode_fork_server_spec(spec: ForkServerSpec) -> list[object]:
    """Encode the spec of a fork server."""
    affinity = None if spec.affinity is None else sorted(spec.affinity)
    return [spec.argv, dict(spec.env), spec.unset, affinity, spec.modules, spec.standby]


def decode_fork_server_spec(fields: list[Any]) -> ForkServerSpec:
    """Decode what `encode_fork_server_spec` returned."""
    argv, env, unset, cpus, modules, standby = fields
    affinity = None if cpus is None else frozenset(cpus)
    return ForkServerSpec(tuple(argv), env, tuple(unset), affinity, tuple(modules), standby)
