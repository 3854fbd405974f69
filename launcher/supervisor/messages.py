"""The messages of agent and supervisor: the order to start a worker, and the reports of what became of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from launcher.model.value import PlainValue
from rendezvous.errors import EXIT_FENCED

TYPE_CHECKING = False  # typing's constant without importing typing; type checkers know the name
if TYPE_CHECKING:
    from typing import Any

POLL_LIMIT_S = 86400.0  # poll() counts milliseconds in 31 bits
# A killed process may hang in a driver. After this long it need only be unable to run its own code.
STUCK_LIMIT_S = 3.0
# How often a sweep checks while the processes it killed have not ended yet. Each end wakes it as well, so this is for
# what outlives its parent while another one takes long to end: those with much memory or a GPU need more than 20 ms.
SWEEP_INTERVAL_S = 0.1

# The names in ps: none contains a word of the agent's command line.
KEEPER_NAME = "mr-keeper"
SUPERVISOR_NAME = "mr-supervisor"
EXAMINER_NAME = "mr-examiner"


class WorkerSpec(PlainValue):
    """One process to start. Its environment is the one the supervisor was forked with, less `unset`, plus `env`."""

    local_rank: int
    argv: Sequence[str]
    """The first is searched on the PATH of its environment when it has no slash."""
    env: Mapping[str, str]
    unset: Collection[str]
    stdout: int | None
    """A descriptor to write to, which the handle closes after sending; None leaves it the agent's own."""
    stderr: int | None
    """As `stdout`."""
    affinity: Collection[int] | None = None
    """The CPUs to which it is bound."""
    fork_argv: Sequence[str] = ()
    """What a fork of the fork server runs as `__main__` in place of `argv`: "script", "module", "path" or "code", then
    the arguments; empty where only an exec is possible.
    """


class ForkServerSpec(PlainValue):
    """The fork server to start: a process that imports `modules` once and forks workers that have them."""

    argv: Sequence[str]
    """As for a worker."""
    env: Mapping[str, str]
    """What all workers of every round have in common, since libraries read it when they are loaded."""
    unset: Collection[str]
    affinity: Collection[int] | None
    modules: Sequence[str]
    standby: int = 0
    """Standby workers besides those of a round."""


class Report(PlainValue):
    """What the supervisor tells the agent."""


class Spawned(Report):
    """The worker runs its program."""

    round: int
    local_rank: int
    pid: int


class SpawnFailed(Report):
    """The worker could not be forked, or its program could not be run; `error_number` is 0 if there is none."""

    round: int
    local_rank: int
    sentence: str
    error_number: int


class Exited(Report):
    """A worker ended and was reaped at `at` (time.time()); `exit_code` is negative for a signal.

    `pid` is 0 for one that was signalled before the fork server had forked it: it never ran.
    """

    round: int
    local_rank: int
    pid: int
    exit_code: int
    at: float


class RoundSwept(Report):
    """No process of the round is left, what workers started included.

    One that the kernel does not release (asleep in a driver, frozen) counts as ended once it can run no code of its
    own; its Exited then follows when it is released.
    """

    round: int


class WorkersFenced(Report):
    """The watchdog expired: the supervisor kills the round, or did not start it. RoundSwept follows."""

    round: int


class Preloading(Report):
    """The fork server runs and imports. Workers that it is to fork wait for it without a limit."""

    pid: int


class Preloaded(Report):
    """The fork server has imported everything, in `seconds`; `remarks` are sentences for the user."""

    pid: int
    seconds: float
    remarks: tuple[str, ...]


class PreloadRefused(Report):
    """The fork server's modules cannot be imported, or a process with them cannot be forked: no worker will start.

    Workers that wait for it stay unstarted until their round is swept: this node has to leave.
    """

    sentence: str
    hint: str


class SupervisorStarted(Report):
    """The supervisor runs; for the handle alone, whose own child is the keeper."""

    pid: int


class StandbyReady(Report):
    """A worker has been forked for a later round; for the handle alone, which must know what a sweep spares."""

    pid: int


class ForkServerLost(Report):
    """The fork server has ended, or was killed: the sentence gives the reason and the consequence."""

    sentence: str


class SupervisorLost(Report):
    """Supervisor or keeper ended unexpectedly. Workers end with them; kill_orphans() kills the rest.

    Where the machine refuses what they need they report it, and that the agent should end with EXIT_TEMPORARY.
    """

    sentence: str
    exit_code: int = EXIT_FENCED


REPORTS: dict[str, Callable[..., Report]] = {kind.__name__: kind for kind in Report.__subclasses__()}


def name_signal(signum: int) -> str:
    import signal

    try:
        return signal.Signals(signum).name
    except ValueError:  # most real-time signals
        first = 34  # SIGRTMIN of the C library, which uses the kernel's first two itself
        return f"SIGRTMIN+{signum - first}" if signum >= first else f"signal {signum}"


def find_signal_name(exit_code: int) -> str | None:
    """Return the name of the signal that an exit code represents, None when it is a real exit code."""
    return name_signal(-exit_code) if exit_code < 0 else None


def describe_exit(exit_code: int) -> str:
    """Describe an exit code: "exited with code 1" or "was killed by SIGKILL"."""
    name = find_signal_name(exit_code)
    return f"was killed by {name}" if name else f"exited with code {exit_code}"


def encode_spec(spec: WorkerSpec | ForkServerSpec) -> list[object]:
    """Encode a spec; each descriptor, which travels separately, is replaced by whether there is one."""
    fields = {**spec.as_dict(), "env": dict(spec.env)}
    fields["affinity"] = None if spec.affinity is None else sorted(spec.affinity)
    fields.update((name, fields[name] is not None) for name in ("stdout", "stderr") if name in fields)
    return [*fields.values()]


def decode_worker_spec(fields: list[Any], descriptors: Iterable[int]) -> WorkerSpec:
    """Decode the spec, with the descriptors as this process numbers them."""
    spec, given = WorkerSpec(*fields), iter(descriptors)
    stdout = next(given) if spec.stdout else None
    return spec.replace(stdout=stdout, stderr=next(given) if spec.stderr else None)
