"""CUDA_VISIBLE_DEVICES: which GPUs it leaves, in which order, and whether it contains a mistake.

CUDA programming guide, "CUDA environment variables": entries are numbers, GPU ids or unique beginnings of one, or ids
of MIG instances; the first invalid entry hides itself and all that follow; a process gets one MIG instance. torch adds
(torch/cuda/__init__.py, _parse_visible_devices) that a repeated entry leaves none, that the kinds do not mix, and that
a number is read as strtoul reads it.

A list may hide GPUs on purpose: empty, or ended by -1 or a word such as NoDevFiles. An entry that names no GPU, or one
twice, is a mistake, and a job that silently ran on fewer GPUs would take hours to show it; so it is reported.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

VARIABLE = "CUDA_VISIBLE_DEVICES"
_ORDINAL = re.compile(r"[+-]?[0-9]+")
_DIGITS_MAX = 18  # more than any number of a GPU has, and Python reads no number of thousands


class NvidiaGpu(NamedTuple):
    """`ordinal`: the driver's number, to which an integer in the list refers. `mig_ids`: ids of its MIG instances."""

    ordinal: int
    uuid: str
    mig_ids: tuple[str, ...] = ()
    numa_node: int | None = None
    domain: str = ""
    model: str = ""


class CudaDevice(NamedTuple):
    """One device: its id, the entry that selects it, and its GPU, None where the entry cannot be verified."""

    id: str
    entry: str
    gpu: NvidiaGpu | None


class CudaSelection(NamedTuple):
    devices: tuple[CudaDevice, ...]
    mistake: str = ""


def apply_visible(value: str, gpus: Sequence[NvidiaGpu], *, isolates_workers: bool = False) -> CudaSelection:
    """Apply a value of the variable to the GPUs of this machine, in enumeration order.

    `isolates_workers`: every worker will be given one entry for itself, so that several MIG instances can be used.
    """
    entries = [entry.strip() for entry in value.split(",")]
    if is_mig(entries[0]):
        return _apply_mig_entries(entries, gpus, isolates_workers)
    by_id = _is_id(entries[0])
    chosen: dict[str, CudaDevice] = {}
    are_ids_known = any(_is_id(gpu.uuid) for gpu in gpus)
    for entry in entries:
        key = _parse_entry(entry)
        if key is None or isinstance(key, str) is not by_id:
            return CudaSelection(tuple(chosen.values()), _describe_odd_entry(value, entry, by_id))
        if by_id and not are_ids_known:
            found: list[NvidiaGpu | None] = [None] if len(chosen) < len(gpus) else []
        else:
            found = [gpu for gpu in gpus if (gpu.ordinal == key if isinstance(key, int) else gpu.uuid.startswith(key))]
        if len(found) != 1:
            return CudaSelection(
                tuple(chosen.values()), f"{_format_setting(value)}: {_describe_missing(key, entry, gpus, len(found))}"
            )
        identifier = found[0].uuid if found[0] else entry
        if identifier in chosen:
            return CudaSelection(
                (),
                f"{_format_setting(value)} names {_describe_repeated(chosen[identifier].entry, entry)}, "
                "which leaves no GPU",
            )
        chosen[identifier] = CudaDevice(identifier, entry, found[0])
    return CudaSelection(tuple(chosen.values()))


def hides_all(value: str) -> bool:
    """Whether the value selects no GPU, so that the search can be skipped: empty, -1, NoDevFiles, ..."""
    first = value.split(",")[0].strip()
    return not is_mig(first) and _parse_entry(first) is None


def is_mig(entry: str) -> bool:
    return entry.startswith("MIG-")


def _is_id(entry: str) -> bool:
    return entry.startswith("GPU-")


def _parse_entry(entry: str) -> str | int | None:
    """Return what an entry selects by: the beginning of an id, or a number as strtoul reads it ("1gpu" is 1)."""
    if _is_id(entry):
        return entry
    found = _ORDINAL.match(entry)
    number = int(found.group()[:_DIGITS_MAX]) if found else -1
    return number if number >= 0 else None


def _apply_mig_entries(entries: Sequence[str], gpus: Sequence[NvidiaGpu], isolates_workers: bool) -> CudaSelection:
    """Return the MIG instances that are named; only the first where all workers see the same list."""
    value = ",".join(entries)
    chosen: dict[str, CudaDevice] = {}
    for entry in entries if isolates_workers else entries[:1]:
        found = _find_mig_device(entry, gpus) if is_mig(entry) else None
        if found is None:
            return CudaSelection(
                tuple(chosen.values()), f"{_format_setting(value)}: no MIG instance is called {entry}{_LIST_ENDS}"
            )
        if found.id in chosen:
            return CudaSelection(
                (),
                f"{_format_setting(value)} names {_describe_repeated(chosen[found.id].entry, entry)}, which leaves "
                "none",
            )
        chosen[found.id] = found
    return CudaSelection(tuple(chosen.values()))


def _find_mig_device(entry: str, gpus: Sequence[NvidiaGpu]) -> CudaDevice | None:
    """Return the instance that "MIG-<uuid>" or the older "MIG-GPU-<uuid>/<gi>/<ci>" names.

    Only NVML knows instances; without it the entry is accepted unverified.
    """
    if entry.startswith("MIG-GPU-"):
        owner = entry[len("MIG-") :].split("/")[0]
        owners = [gpu for gpu in gpus if gpu.uuid == owner]
        is_known = any(_is_id(gpu.uuid) for gpu in gpus)
        return CudaDevice(entry, entry, owners[0] if owners else None) if owners or not is_known else None
    instances = [(mig, gpu) for gpu in gpus for mig in gpu.mig_ids]
    if not instances:
        return CudaDevice(entry, entry, None)
    matches = [(mig, gpu) for mig, gpu in instances if mig.startswith(entry)]
    return CudaDevice(matches[0][0], entry, matches[0][1]) if len(matches) == 1 else None


_LIST_ENDS = ", and an entry that names none hides itself and all that follow"


def _format_setting(value: str) -> str:
    return f"{VARIABLE}={value}"


def _describe_odd_entry(value: str, entry: str, by_id: bool) -> str:
    """Describe an entry that ends the list without naming anything; "" if it may end it on purpose."""
    if entry and (is_mig(entry) or _parse_entry(entry) is not None):
        kind = "GPU ids" if by_id else "numbers"
        return f"{_format_setting(value)}: {entry} is of another kind than the {kind} before it{_LIST_ENDS}"
    return "" if entry else f"{_format_setting(value)} has an empty entry{_LIST_ENDS}"


def _describe_missing(key: str | int, entry: str, gpus: Sequence[NvidiaGpu], count: int) -> str:
    if count > 1:
        return f"{entry} is how {count} GPU ids begin{_LIST_ENDS}"
    if isinstance(key, str):
        return f"no GPU is called {entry}{_LIST_ENDS}"
    there = ", ".join(str(gpu.ordinal) for gpu in gpus) or "none"
    return f"there is no GPU {key} (there are: {there}){_LIST_ENDS}"


def _describe_repeated(first: str, second: str) -> str:
    return f"{first} twice" if first == second else f"one GPU twice, as {first} and as {second}"
