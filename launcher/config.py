"""What the user asked for, checked once and trusted afterwards.

`resolve` turns the words of the command line and the environment into one frozen `Config`. A value comes from
the first of: the flag, LAUNCHER_<NAME>, PET_<NAME>, the default; `Config.origins` remembers which. Whatever
cannot work is refused here in one sentence that names the flag or the variable it came from; what is accepted
but changes nothing is said in `Config.notes`. No file is looked at and no device counted: the same words give
the same Config on any machine. The rules of torchrun's rendezvous options are in `meeting`.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from launcher import mesh as meshes
from launcher.errors import UsageError
from launcher.meeting import host, meet, printable, whole_number
from launcher.mesh import Mesh
from launcher.options import DEMANDS, Given, Words, did_you_mean, gather

LaunchMode = Literal["script", "module", "program", "path"]
DeviceWord = Literal["auto", "gpu", "cpu"]

_SECONDS_MAX = 1e9  # the kernel's timers count further, a slip of the pen is more likely
_WORKERS_MAX = 10_000  # before a wrong number makes this machine unusable


class Streams(NamedTuple):
    """Which streams of which workers, in torchrun's code: 0 none, 1 stdout, 2 stderr, 3 both.

    `by_rank` goes by local rank, and a rank it does not name has none; without it `every` holds for all.
    """

    every: int = 0
    by_rank: Mapping[int, int] | None = None

    def of(self, local_rank: int) -> tuple[bool, bool]:
        """Whether (stdout, stderr) of this worker are meant."""
        code = self.every if self.by_rank is None else self.by_rank.get(local_rank, 0)
        return bool(code & 1), bool(code & 2)


@dataclass(frozen=True, kw_only=True)
class Config:
    """One run of the command on this node. Times are in seconds.

    `nodes_max` is 1 also for 1:N, since only this machine can join. `worker_count` None was not given: one worker
    per accelerator if there are any, else 1. `mesh` None: one elastic axis, dp. `demands`: those of
    `options.DEMANDS` that were given, name -> text, which `demand` reads when the mesh is known. `log_dir` None: a
    temporary directory. `local_ranks_filter` None: all. `run_id` None: the agent draws one. `master_addr` None:
    `local_addr` if given, else loopback; `master_port` None: a free one for every round. `lease_ttl_s` None: no
    leash. `python` is the interpreter of the workers. `notes` are lines to print once, before the first worker
    starts. `origins`: field, or name of an option of `demands` -> "--flag", the variable's name, or "default".
    """

    script: str
    script_args: tuple[str, ...]
    launch_mode: LaunchMode
    nodes_min: int
    nodes_max: int
    worker_count: int | DeviceWord | None
    devices_per_worker: int | Literal["all"]
    mesh: Mesh | None
    demands: Mapping[str, str]
    max_restarts: int = 0
    monitor_interval_s: float
    role: str = "default"
    log_dir: str | None
    redirects: Streams
    tee: Streams
    local_ranks_filter: frozenset[int] | None
    shutdown_timeout_s: float = 30
    signals_to_handle: tuple[str, ...]
    virtual_local_rank: bool
    run_id: str | None
    standalone: bool
    rdzv_backend: str
    rdzv_endpoint: str | None
    rdzv_conf: Mapping[str, str]
    node_rank: int
    master_addr: str | None
    master_port: int | None
    local_addr: str | None
    lease_ttl_s: float | None
    python: str
    notes: tuple[str, ...]
    origins: Mapping[str, str]


# Fields that are not called as their option is.
_FIELDS: Mapping[str, tuple[str, ...]] = {
    "nnodes": ("nodes_min", "nodes_max"),
    "nproc-per-node": ("worker_count",),
    "monitor-interval": ("monitor_interval_s",),
    "shutdown-timeout": ("shutdown_timeout_s",),
    "rdzv-id": ("run_id",),
    "lease-ttl": ("lease_ttl_s",),
    "module": (),  # these three make `launch_mode`
    "no-python": (),
    "run-path": (),
    **{name: (name,) for name in DEMANDS},
}


def resolve(words: Words, environ: Mapping[str, str], python: str) -> Config:
    """The Config that these words mean in this environment. Raises UsageError for what cannot work.

    `python`: the interpreter for the workers.
    """
    given = gather(words.values, environ)
    if words.script is None:
        raise UsageError("no script given", "meshrun [options] SCRIPT [arguments of the script]; meshrun -h explains")
    notes: list[str] = []
    launch_mode, launch_origin = _launch_mode(given, notes)
    nodes_min = _nodes_min(given["nnodes"], notes)
    worker_count = _worker_count(given["nproc-per-node"])
    mesh = _mesh(given["mesh"])
    if mesh is not None and isinstance(worker_count, int):
        meshes.require_fit(mesh, worker_count)
    if not given["monitor-interval"].is_default:
        notes.append(f"{given['monitor-interval']} has no effect: nothing polls, a worker's end is seen at once")
    meeting = meet(given, notes, standalone=_flag(given["standalone"]), node_rank=_count(given["node-rank"]))
    return Config(
        script=words.script,
        script_args=words.script_args,
        launch_mode=launch_mode,
        nodes_min=nodes_min,
        nodes_max=1,
        worker_count=worker_count,
        devices_per_worker=_devices_per_worker(given["devices-per-worker"]),
        mesh=mesh,
        demands={name: given[name].text for name in DEMANDS if not given[name].is_default},
        max_restarts=_count(given["max-restarts"]),
        monitor_interval_s=_seconds(given["monitor-interval"]),
        role=printable(given["role"]),
        log_dir=given["log-dir"].text_if_given,
        redirects=_streams(given["redirects"]),
        tee=_streams(given["tee"]),
        local_ranks_filter=_local_ranks(given["local-ranks-filter"]),
        shutdown_timeout_s=_seconds(given["shutdown-timeout"]),
        signals_to_handle=_signals(given["signals-to-handle"], notes),
        virtual_local_rank=_flag(given["virtual-local-rank"]),
        run_id=meeting.run_id,
        standalone=meeting.standalone,
        rdzv_backend=meeting.backend,
        rdzv_endpoint=meeting.endpoint,
        rdzv_conf=meeting.conf,
        node_rank=0,
        master_addr=meeting.master_addr,
        master_port=meeting.master_port,
        local_addr=None if given["local-addr"].is_default else host(given["local-addr"], given["local-addr"].text),
        lease_ttl_s=_lease_ttl(given["lease-ttl"]),
        python=python,
        notes=tuple(notes),
        origins=_origins(given, launch_origin),
    )


def _origins(given: Mapping[str, Given], launch_origin: str) -> dict[str, str]:
    origins = {"launch_mode": launch_origin}
    for name, value in given.items():
        if value.option.state != "not yet":
            origins.update(dict.fromkeys(_FIELDS.get(name, (name.replace("-", "_"),)), value.origin))
    return origins


def _flag(given: Given) -> bool:
    if given.text not in ("0", "1"):
        raise UsageError(f"{given} is neither 0 nor 1")
    return given.text == "1"


def _count(given: Given) -> int:
    count = whole_number(given.text)
    if count is None or count < 0:
        raise UsageError(f"{given} is not a whole number of at least 0")
    return count


def _seconds(given: Given) -> float:
    try:
        seconds = float(given.text)
    except ValueError:
        seconds = float("nan")
    if not 0 <= seconds < float("inf"):
        raise UsageError(f"{given} is not a number of seconds")
    if seconds > _SECONDS_MAX:
        raise UsageError(f"{given} is more than {_SECONDS_MAX:.0f} s, thirty years")
    return seconds


def _launch_mode(given: Mapping[str, Given], notes: list[str]) -> tuple[LaunchMode, str]:
    """What the script is, and where that was said. torchrun's order: --run-path wins over the other two."""
    module, program, path = given["module"], given["no-python"], given["run-path"]
    is_module, is_program = _flag(module), _flag(program)
    if _flag(path):
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


def _nodes_min(given: Given, notes: list[str]) -> int:
    bounds = [whole_number(part) for part in given.text.split(":")]
    least, most = bounds[0], bounds[-1]
    if len(bounds) > 2 or least is None or most is None:
        raise UsageError(f"{given} is neither a number of nodes nor MIN:MAX", "on one machine leave it out")
    if least < 1:
        raise UsageError(f"{given}: at least 1 node is needed")
    if least > most:
        raise UsageError(f"{given}: the least, {least}, is more than the most, {most}")
    if least > 1:
        raise UsageError(f"{given}: a job on several machines is not possible yet", "--nnodes 1 runs it on this one")
    if most > 1:
        notes.append(f"{given}: only this machine can join yet, the job starts at once on 1 node")
    return least


def _worker_count(given: Given) -> int | DeviceWord | None:
    if given.is_default:
        return None
    count = whole_number(given.text)
    if count is not None:
        if count < 1:
            raise UsageError(f"{given}: at least 1 worker is needed")
        if count > _WORKERS_MAX:
            raise UsageError(f"{given}: more than {_WORKERS_MAX} workers on one machine")
        return count
    words: tuple[DeviceWord, ...] = ("auto", "gpu", "cpu")
    for word in words:
        if given.text == word:
            return word
    if given.text == "xpu":
        raise UsageError(f"{given} does not work yet", "give the number of workers")
    raise UsageError(f"{given} is neither a number nor auto, gpu or cpu")


def _devices_per_worker(given: Given) -> int | Literal["all"]:
    if given.text == "all":
        return "all"
    count = whole_number(given.text)
    if count is None or count < 1:
        raise UsageError(f"{given} is neither a number of at least 1 nor all")
    return count


def _mesh(given: Given) -> Mesh | None:
    if given.is_default:
        return None
    try:
        return meshes.parse(given.text)
    except UsageError as error:
        if given.is_flag:
            raise
        raise UsageError(f"{given.origin}: {error}", error.hint) from None


def _lease_ttl(given: Given) -> float | None:
    if given.is_default:
        return None
    seconds = _seconds(given)
    if seconds == 0:
        raise UsageError(f"{given}: a lease of no length cannot be kept", "leave it out to run without")
    return seconds


def _streams(given: Given) -> Streams:
    """torchrun's 0-3, or RANK:0-3 with commas; here the rank may have several digits."""
    if given.text in ("0", "1", "2", "3"):
        return Streams(every=int(given.text))
    by_rank: dict[int, int] = {}
    for part in given.text.split(","):
        rank, _, code = part.partition(":")
        if not (rank.isascii() and rank.isdigit()) or code not in ("0", "1", "2", "3"):
            raise UsageError(
                f"{given} is neither a code nor RANK:CODE,...",
                "codes: 0 nothing, 1 stdout, 2 stderr, 3 both; 0:3,1:2 is both of local rank 0 and stderr of 1",
            )
        by_rank[int(rank)] = int(code)
    return Streams(by_rank=by_rank)


def _local_ranks(given: Given) -> frozenset[int] | None:
    if given.is_default:
        return None
    ranks = frozenset(whole_number(part) for part in given.text.split(","))
    valid = frozenset(rank for rank in ranks if rank is not None and rank >= 0)
    if valid != ranks:
        raise UsageError(f"{given} is not a list of local ranks", "write it like 0,1,2")
    return valid


def _signals(given: Given, notes: list[str]) -> tuple[str, ...]:
    """The signals that can be handled. As in torchrun an unknown name is a warning: it may exist elsewhere."""
    names = list(dict.fromkeys(name.strip() for name in given.text.split(",") if name.strip()))
    signals = signal.Signals.__members__
    for name in list(names):
        why = ""
        if name not in signals:
            question = did_you_mean(name.upper().removeprefix("SIG"), {known[3:]: known for known in signals})
            why = "there is no such signal" + (f", {question}" if question else "")
        elif name in ("SIGKILL", "SIGSTOP"):
            why = "no process can handle it"
        elif signals[name] == signal.SIGCHLD:  # SIGCLD is the same
            why = "it tells the agent that a worker has ended"
        if why:
            notes.append(f"{given.origin}: {name} is left out: {why}")
            names.remove(name)
    return tuple(names)
