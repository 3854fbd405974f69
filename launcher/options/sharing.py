"""How a machine is shared out among workers: how many there are, what each gets, and which CPUs it is kept to."""

from __future__ import annotations

from collections.abc import Mapping

from launcher.errors import UsageError
from launcher.options import Value, suggest
from launcher.options.reading import parse_integer, parse_seconds
from rendezvous.values import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    NumaMode = Literal["node", "socket", "exclusive", "core-complex"]

_NUMA_MODES: tuple[NumaMode, ...] = ("node", "socket", "exclusive", "core-complex")

_WORKERS_MAX = 10_000  # before a wrong number makes this machine unusable
_WORKER_KEYWORDS = {"auto": "auto", "gpu": "gpu", "cpu": "cpu", "xpu": "xpu", "cuda": "gpu"}


class DeviceRequest(NamedTuple):
    """What --devices asks for. `number` None: all there are. `shape`: the type of a TPU, such as v5e-16.

    `variable`: what --visible-env says makes the devices visible; nothing is looked for then.
    """

    kind: str
    number: int | None = None
    shape: str = ""
    variable: str = ""

    def __str__(self) -> str:
        rest = self.shape or self.number
        return f"--devices {self.kind}" + (f":{rest}" if rest else "")


def parse_worker_count(value: Value) -> int | str | None:
    """A number, or auto, gpu, cpu or what may be a type of device; None if not given. Raises UsageError."""
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
    # An extension of torch may bring a type of device of any name, which only torch can know (devices/from_torch.py).
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
    """What --devices and --visible-env ask for; None if they are not given. Raises UsageError."""
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
    """The command that says whether this node is fit; None if there is none. Raises UsageError."""
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
