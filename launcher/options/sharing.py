"""How a machine is shared out among workers: how many there are, what each gets, and which CPUs it is kept to."""

from __future__ import annotations

from typing import Literal, get_args

from launcher.errors import UsageError
from launcher.options import Given, did_you_mean
from launcher.options.reading import whole_number

NumaMode = Literal["node", "socket", "exclusive", "core-complex"]

_WORKERS_MAX = 10_000  # before a wrong number makes this machine unusable
_WORDS = {"auto": "auto", "gpu": "gpu", "cpu": "cpu", "xpu": "xpu", "cuda": "gpu"}


def worker_count(given: Given) -> int | str | None:
    """A number, or auto, gpu, cpu or what may be a type of device; None if not given. Raises UsageError."""
    if given.is_default:
        return None
    count = whole_number(given.text)
    if count is not None:
        if count < 1:
            raise UsageError(f"{given}: at least 1 worker is needed")
        if count > _WORKERS_MAX:
            raise UsageError(f"{given}: more than {_WORKERS_MAX} workers on one machine")
        return count
    if _WORDS.get(given.text) == given.text:
        return given.text
    # An extension of torch may bring a type of device of any name, which only torch can know (devices/from_torch.py).
    question = did_you_mean(given.text, _WORDS)
    if question or not (given.text.isascii() and given.text.isidentifier()):
        raise UsageError(f"{given} is neither a number nor auto, gpu, cpu or a type of device", question)
    return given.text


def devices_per_worker(given: Given) -> int | Literal["all"]:
    """A number of at least 1, or all. Raises UsageError."""
    if given.text == "all":
        return "all"
    count = whole_number(given.text)
    if count is None or count < 1:
        raise UsageError(f"{given} is neither a number of at least 1 nor all")
    return count


def numa_binding(given: Given) -> NumaMode | None:
    """One of torchrun's modes; None if not given. Raises UsageError."""
    modes: tuple[NumaMode, ...] = get_args(NumaMode)
    for mode in modes:
        if given.text == mode:
            return mode
    if given.is_default:
        return None
    raise UsageError(f"{given} is neither {', '.join(modes[:-1])} nor {modes[-1]}", "leave it out to bind nothing")
