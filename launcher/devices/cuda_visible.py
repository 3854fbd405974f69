"""CUDA_VISIBLE_DEVICES: which GPUs it leaves, in which order, and whether it can have been meant.

CUDA programming guide, "CUDA environment variables": entries are numbers, GPU ids or unique beginnings of one, or ids
of MIG instances; the first invalid entry hides itself and all that follow; a process gets one MIG instance. torch adds
(torch/cuda/__init__.py, _parse_visible_devices) that a repeated entry leaves none, that the kinds do not mix, and that
a number is read as strtoul reads it.

A list may hide GPUs on purpose: empty, or ended by -1 or a word such as NoDevFiles. An entry that names no GPU, or one
twice, is a mistake, and a job that silently ran on fewer GPUs would take hours to show it; so it is put into words.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

VARIABLE = "CUDA_VISIBLE_DEVICES"
_ORDINAL = re.compile(r"[+-]?[0-9]+")
_DIGITS_MAX = 18  # more than any number of a GPU has, and Python reads no number of thousands


class Gpu(NamedTuple):
    """`ordinal`: the driver's number, which is what an integer in the list means. `migs`: ids of its MIG instances."""

    ordinal: int
    uuid: str
    migs: tuple[str, ...] = ()
    numa_node: int | None = None
    domain: str = ""
    model: str = ""


class Chosen(NamedTuple):
    """One device: its id, the entry that selects it, and the GPU it is or is on, None where the entry is believed."""

    id: str
    entry: str
    gpu: Gpu | None


class Choice(NamedTuple):
    devices: tuple[Chosen, ...]
    mistake: str = ""


def choose(asked: str, gpus: Sequence[Gpu], *, each_its_own: bool = False) -> Choice:
    """Apply a value of the variable to the GPUs of this machine, in enumeration order.

    `each_its_own`: every worker will be given one entry for itself, so that several MIG instances can be used.
    """
    entries = [entry.strip() for entry in asked.split(",")]
    if is_mig(entries[0]):
        return _instances(entries, gpus, each_its_own)
    by_id = _is_id(entries[0])
    chosen: dict[str, Chosen] = {}
    are_ids_known = any(_is_id(gpu.uuid) for gpu in gpus)
    for entry in entries:
        key = _key(entry)
        if key is None or isinstance(key, str) is not by_id:
            return Choice(tuple(chosen.values()), _odd_entry(asked, entry, by_id))
        if by_id and not are_ids_known:
            found: list[Gpu | None] = [None] if len(chosen) < len(gpus) else []
        else:
            found = [gpu for gpu in gpus if (gpu.ordinal == key if isinstance(key, int) else gpu.uuid.startswith(key))]
        if len(found) != 1:
            return Choice(tuple(chosen.values()), f"{_quoted(asked)}: {_missing(key, entry, gpus, len(found))}")
        id = found[0].uuid if found[0] else entry
        if id in chosen:
            return Choice((), f"{_quoted(asked)} names {_twice(chosen[id].entry, entry)}, which leaves no GPU")
        chosen[id] = Chosen(id, entry, found[0])
    return Choice(tuple(chosen.values()))


def hides_all(asked: str) -> bool:
    """Whether no GPU can be meant, so that none need be looked for: empty, -1, NoDevFiles, ..."""
    first = asked.split(",")[0].strip()
    return not is_mig(first) and _key(first) is None


def is_mig(entry: str) -> bool:
    return entry.startswith("MIG-")


def _is_id(entry: str) -> bool:
    return entry.startswith("GPU-")


def _key(entry: str) -> str | int | None:
    """What an entry selects by: the beginning of an id, or a number as strtoul reads it ("1gpu" is 1)."""
    if _is_id(entry):
        return entry
    found = _ORDINAL.match(entry)
    number = int(found.group()[:_DIGITS_MAX]) if found else -1
    return number if number >= 0 else None


def _instances(entries: Sequence[str], gpus: Sequence[Gpu], each_its_own: bool) -> Choice:
    """The MIG instances that are named; only the first where all workers see the same list."""
    asked = ",".join(entries)
    chosen: dict[str, Chosen] = {}
    for entry in entries if each_its_own else entries[:1]:
        found = _instance(entry, gpus) if is_mig(entry) else None
        if found is None:
            return Choice(tuple(chosen.values()), f"{_quoted(asked)}: no MIG instance is called {entry}{_ENDS}")
        if found.id in chosen:
            return Choice((), f"{_quoted(asked)} names {_twice(chosen[found.id].entry, entry)}, which leaves none")
        chosen[found.id] = found
    return Choice(tuple(chosen.values()))


def _instance(entry: str, gpus: Sequence[Gpu]) -> Chosen | None:
    """The instance that "MIG-<uuid>" or the older "MIG-GPU-<uuid>/<gi>/<ci>" names.

    Only NVML knows instances; without it the entry is believed.
    """
    if entry.startswith("MIG-GPU-"):
        owner = entry[len("MIG-") :].split("/")[0]
        owners = [gpu for gpu in gpus if gpu.uuid == owner]
        is_known = any(_is_id(gpu.uuid) for gpu in gpus)
        return Chosen(entry, entry, owners[0] if owners else None) if owners or not is_known else None
    instances = [(mig, gpu) for gpu in gpus for mig in gpu.migs]
    if not instances:
        return Chosen(entry, entry, None)
    matches = [(mig, gpu) for mig, gpu in instances if mig.startswith(entry)]
    return Chosen(matches[0][0], entry, matches[0][1]) if len(matches) == 1 else None


_ENDS = ", and an entry that names none hides itself and all that follow"


def _quoted(asked: str) -> str:
    return f"{VARIABLE}={asked}"


def _odd_entry(asked: str, entry: str, by_id: bool) -> str:
    """What is wrong about an entry that ends the list without naming anything; "" if it may be meant to end it."""
    if entry and (is_mig(entry) or _key(entry) is not None):
        kind = "GPU ids" if by_id else "numbers"
        return f"{_quoted(asked)}: {entry} is of another kind than the {kind} before it{_ENDS}"
    return "" if entry else f"{_quoted(asked)} has an empty entry{_ENDS}"


def _missing(key: str | int, entry: str, gpus: Sequence[Gpu], count: int) -> str:
    if count > 1:
        return f"{entry} is how {count} GPU ids begin{_ENDS}"
    if isinstance(key, str):
        return f"no GPU is called {entry}{_ENDS}"
    there = ", ".join(str(gpu.ordinal) for gpu in gpus) or "none"
    return f"there is no GPU {key} (there are: {there}){_ENDS}"


def _twice(first: str, second: str) -> str:
    return f"{first} twice" if first == second else f"one GPU twice, as {first} and as {second}"
