"""Options of the workers of a node: their number, devices, CPUs, output streams and signals.

`python -m torch.distributed.launch`, from before torchrun, gives every script its local rank as an argument, unless
--use-env says that the script reads LOCAL_RANK; here that is the default, and --legacy-local-rank the exception. The
start method has an effect for functions only. torchrun's agent also reads variables that none of its options
names. An option without effect is reported in one line and never refused.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping

from launcher.config.options.command_line import Value, sanitize, suggest
from launcher.config.options.readers import make_choice_parser, parse_flag, parse_integer, parse_seconds
from launcher.model.errors import UsageError
from rendezvous.values import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    NumaMode = Literal["node", "socket", "exclusive", "core-complex"]

_NUMA_MODES: tuple[NumaMode, ...] = ("node", "socket", "exclusive", "core-complex")

_WORKERS_MAX = 10_000  # so that a wrong number does not make this machine unusable
_WORKER_KEYWORDS = {"auto": "auto", "gpu": "gpu", "cpu": "cpu", "xpu": "xpu", "cuda": "gpu"}


class DeviceRequest(NamedTuple):
    """The request of --devices. `number` None: all present. `shape`: the type of a TPU, such as v5e-16.

    `variable`: makes the devices visible, from --visible-env; nothing is detected then.
    """

    kind: str
    number: int | None = None
    shape: str = ""
    variable: str = ""

    def __str__(self) -> str:
        rest = self.shape or self.number
        return f"--devices {self.kind}" + (f":{rest}" if rest else "")


def parse_worker_count(value: Value) -> int | str | None:
    """Parse a number, or auto, gpu, cpu or a possible device type; None if not set. Raises UsageError."""
    if value.is_default:
        return None
    count = parse_integer(value.text)
    if count is not None:
        if count < 1:
            raise UsageError(f"{value}: at least 1 worker is needed")
        if count > _WORKERS_MAX:
            raise UsageError(f"{value}: more than {_WORKERS_MAX} workers on one machine")
        return count
    if _WORKER_KEYWORDS.get(value.text) == value.text:
        return value.text
    # An extension of torch may register a device type of any name, which only torch knows (accelerators/from_torch.py).
    question = suggest(value.text, _WORKER_KEYWORDS)
    if question or not (value.text.isascii() and value.text.isidentifier()):
        raise UsageError(f"{value} is neither a number nor auto, gpu, cpu or a type of device", question)
    return value.text


def parse_devices_per_worker(value: Value) -> int | Literal["all"] | None:
    """A number of at least 1, or all; None if not given. Raises UsageError."""
    if value.is_default:
        return None
    if value.text == "all":
        return "all"
    count = parse_integer(value.text)
    if count is None or count < 1:
        raise UsageError(f"{value} is neither a number of at least 1 nor all")
    return count


def parse_devices(values: Mapping[str, Value]) -> DeviceRequest | None:
    """Parse --devices and --visible-env; None if they are not set. Raises UsageError."""
    option, variable = values["devices"], values["visible-env"]
    if option.is_default:
        if not variable.is_default:
            raise UsageError(f"{variable}: of which devices?", "--devices NAME:COUNT says so")
        return None
    kind, colon, rest = (part.strip() for part in option.text.partition(":"))
    if not (kind.isascii() and kind.replace("-", "_").isidentifier()):
        raise UsageError(f"{option} is no kind of device", "write it like nvidia, amd:4, tpu:v5e-16 or NAME:COUNT")
    count, shape = parse_integer(rest), ""
    if colon and count is None and kind == "tpu" and rest:
        shape = rest
    elif colon and (count is None or count < 1):
        raise UsageError(f"{option} has no number of devices behind its colon", f"--devices {kind} takes all there are")
    if count is not None and count > _WORKERS_MAX:
        raise UsageError(f"{option}: more than {_WORKERS_MAX} devices of one machine")
    request = DeviceRequest(kind, count, shape, _parse_visible_variable(variable))
    if request.variable and count is None:
        raise UsageError(f"{option} and {variable}: how many are there?", f"--devices {kind}:COUNT says so")
    workers = values["nproc-per-node"]
    if workers.text not in ("auto", "gpu", "cpu") and parse_integer(workers.text) is None and not workers.is_default:
        raise UsageError(f"{option} and {workers} both say what to count", "leave out one of them")
    if (workers.text == "cpu" and kind != "cpu") or (workers.text == "gpu" and kind in ("cpu", "tpu")):
        raise UsageError(f"{option} and {workers} exclude each other", "leave out one of them")
    return request


def _parse_visible_variable(value: Value) -> str:
    if value.is_default:
        return ""
    if not (value.text.isascii() and value.text.isidentifier()):
        raise UsageError(f"{value} is no name of a variable", "write it like CUDA_VISIBLE_DEVICES")
    return value.text


def parse_health_check(values: Mapping[str, Value], notes: list[str]) -> str | None:
    """Parse the command that tests whether this node is fit; None if there is none. Raises UsageError."""
    command, limit = values["health-check"], values["health-timeout"]
    if not limit.is_default and command.is_default:
        notes.append(f"{limit} has no effect without --health-check")
    if command.is_default:
        return None
    if not command.text.strip() or "\0" in command.text:
        raise UsageError(f"{command} is no command", "leave it out to check nothing of your own")
    if parse_seconds(limit) == 0:
        raise UsageError(f"{limit}: no check ends in no time")
    return command.text


def parse_numa_binding(value: Value) -> NumaMode | None:
    """One of torchrun's modes; None if not given. Raises UsageError."""
    for mode in _NUMA_MODES:
        if value.text == mode:
            return mode
    if value.is_default:
        return None
    raise UsageError(
        f"{value} is neither {', '.join(_NUMA_MODES[:-1])} nor {_NUMA_MODES[-1]}", "leave it out to bind nothing"
    )


class Streams(NamedTuple):
    """Which streams of which workers, in torchrun's code: 0 none, 1 stdout, 2 stderr, 3 both.

    `by_rank` is by local rank, and a rank that it does not name has none; without it `all_ranks` applies to all.
    """

    all_ranks: int = 0
    by_rank: Mapping[int, int] | None = None

    def select(self, local_rank: int) -> tuple[bool, bool]:
        """Whether (stdout, stderr) of this worker are selected."""
        code = self.all_ranks if self.by_rank is None else self.by_rank.get(local_rank, 0)
        return bool(code & 1), bool(code & 2)


def parse_streams(value: Value) -> Streams:
    """torchrun's 0-3, or RANK:0-3 with commas; here the rank may have several digits."""
    if value.text in ("0", "1", "2", "3"):
        return Streams(all_ranks=int(value.text))
    by_rank: dict[int, int] = {}
    for part in value.text.split(","):
        rank, _, code = part.partition(":")
        if not (rank.isascii() and rank.isdigit()) or code not in ("0", "1", "2", "3"):
            raise UsageError(
                f"{value} is neither a code nor RANK:CODE,...",
                "codes: 0 nothing, 1 stdout, 2 stderr, 3 both; 0:3,1:2 is both of local rank 0 and stderr of 1",
            )
        by_rank[int(rank)] = int(code)
    return Streams(by_rank=by_rank)


def parse_local_ranks(value: Value) -> frozenset[int] | None:
    """0,1,2; None, which is all, if not given. Raises UsageError."""
    if value.is_default:
        return None
    ranks = frozenset(parse_integer(part) for part in value.text.split(","))
    valid = frozenset(rank for rank in ranks if rank is not None and rank >= 0)
    if valid != ranks:
        raise UsageError(f"{value} is not a list of local ranks", "write it like 0,1,2")
    return valid


def parse_texts(value: Value) -> tuple[str, ...]:
    """Parse texts separated by commas; two commas are one inside a text. An empty text matches all and is dropped."""
    parts = [part.replace("\0", ",") for part in value.text.replace(",,", "\0").split(",")]
    return tuple(dict.fromkeys(part for part in parts if part))


_UNHANDLEABLE = ("SIGKILL", "SIGSTOP", "SIGCHLD", "SIGCLD")


def parse_signals(value: Value, notes: list[str]) -> tuple[str, ...]:
    """Parse signals that can be handled. As in torchrun an unknown name is a warning: it may exist elsewhere."""
    names = list(dict.fromkeys(name.strip() for name in value.text.split(",") if name.strip()))
    signals = signal.Signals.__members__
    for name in list(names):
        why = ""
        if name not in signals:
            question = suggest(name.upper().removeprefix("SIG"), {known[3:]: known for known in signals})
            why = "there is no such signal" + (f", {question}" if question else "")
        elif name in ("SIGKILL", "SIGSTOP"):
            why = "no process can handle it"
        elif signals[name] == signal.SIGCHLD:  # SIGCLD is the same
            why = "it tells the agent that a worker has ended"
        if why:
            notes.append(f"{value.origin}: {sanitize(name)} is left out: {why}")
            names.remove(name)
    return tuple(names)


def parse_preemption_signal(value: Value) -> str | None:
    """One signal that can be handled; None if not given. Raises UsageError."""
    if value.is_default:
        return None
    known = signal.Signals.__members__
    text = value.text.strip()
    if text not in known or text in _UNHANDLEABLE:
        question = suggest(text.upper().removeprefix("SIG"), {name[3:]: name for name in known})
        raise UsageError(f"{value} is no signal that can be handled", question or "SIGUSR1 is usual")
    return text


# Variable -> the value that has an effect under torchrun ("": any), and why it has none here.
_UNREAD_VARIABLES: Mapping[str, tuple[str, str]] = {
    "TORCHELASTIC_HEALTH_CHECK_PORT": ("", "nothing listens there, nor does anything of the public torch"),
    "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT": ("", "a worker that sleeps in the kernel is not looked for"),
    "TORCH_ELASTIC_WORKER_IDENTICAL": ("1", "ranks come with the round, nodes exchange nothing for them"),
}


def needs_local_rank(values: Mapping[str, Value], notes: list[str]) -> bool:
    """Whether the script gets --local-rank=N as its first argument. Raises UsageError."""
    start_method, use_env, wanted = values["start-method"], values["use-env"], values["legacy-local-rank"]
    make_choice_parser("spawn", "fork", "forkserver")(start_method)
    if not start_method.is_default:
        notes.append(f"{start_method} has no effect: workers are programs, each is started afresh")
    if not parse_flag(wanted):
        if parse_flag(use_env):
            notes.append(f"{use_env} has no effect: LOCAL_RANK is always in the environment")
        return False
    if parse_flag(use_env):
        raise UsageError(f"{use_env} and {wanted} contradict each other", "give one of them")
    if parse_flag(values["no-python"]) and not parse_flag(values["run-path"]):
        raise UsageError(f"{values['no-python']} and {wanted} exclude each other", "a program reads LOCAL_RANK")
    return True


def list_unread_variables(environ: Mapping[str, str]) -> list[str]:
    """A remark for every variable that torchrun's agent would act on and this one does not."""
    return [
        f"{name}={environ[name]} has no effect: {why}"
        for name, (value, why) in _UNREAD_VARIABLES.items()
        if environ.get(name, "") and value in ("", environ[name])
    ]
