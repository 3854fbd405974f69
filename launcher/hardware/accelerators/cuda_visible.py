"""CUDA_VISIBLE_DEVICES: which GPUs it leaves, in which order, and whether it contains a mistake.

CUDA programming guide, "CUDA environment variables": entries are numbers, GPU ids or unique beginnings of one, or ids
of MIG instances; the first invalid entry hides itself and all that follow; a process gets one MIG instance. torch adds
(torch/cuda/__init__.py, _parse_visible_devices) that a repeated entry leaves none, that the kinds do not mix, and that
a number is read as strtoul reads it.

Whether an entry can name a GPU at all is checked before (`visible_list`). One that names a GPU which is not there, or a
GPU for the second time, is a mistake, and a job that silently ran on fewer GPUs would take hours to show it; so it is
reported.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

VARIABLE = "CUDA_VISIBLE_DEVICES"
_DIGITS_MAX = 18  # more than any number of a GPU has, and Python reads no number of thousands
_LIST_ENDS = ", and such an entry hides itself and all that follow"


class NvidiaGpu(Struct, frozen=True):
    """A GPU as its driver shows it."""

    ordinal: int
    """The driver's number, to which an integer in the list refers."""
    uuid: str
    mig_ids: tuple[str, ...] = ()
    """Ids of its MIG instances."""
    numa_node: int | None = None
    domain: str = ""
    model: str = ""


class CudaDevice(Struct, frozen=True):
    """One device: its id, the entry that selects it, and its GPU, None where the entry cannot be verified."""

    id: str
    entry: str
    gpu: NvidiaGpu | None


class CudaSelection(Struct, frozen=True):
    devices: tuple[CudaDevice, ...]
    mistake: str = ""


def apply_visible(value: str, gpus: Sequence[NvidiaGpu], *, isolates_workers: bool = False) -> CudaSelection:
    """Apply a value of the variable to the GPUs of this machine, in enumeration order. Its form is right.

    `isolates_workers`: every worker will be given one entry for itself, so that several MIG instances can be used.
    """
    entries = [entry.strip() for entry in value.rstrip(", \t").split(",")]
    are_migs = is_mig(entries[0])
    setting = f"{VARIABLE}={','.join(entries) if are_migs else value}"
    chosen: dict[str, CudaDevice] = {}
    for entry in entries if isolates_workers or not are_migs else entries[:1]:
        if entry == "-1":  # ends the list on purpose
            break
        found, problem = _find_mig_device(entry, gpus) if are_migs else _find_gpu(entry, gpus, len(chosen))
        if found is None:
            return CudaSelection(tuple(chosen.values()), f"{setting}{problem}{_LIST_ENDS}")
        if found.id in chosen:
            first = chosen[found.id].entry
            twice = f"{first} twice" if first == entry else f"one GPU twice, as {first} and as {entry}"
            return CudaSelection((), f"{setting} names {twice}, which leaves no GPU")
        chosen[found.id] = found
    return CudaSelection(tuple(chosen.values()))


def is_mig(entry: str) -> bool:
    return entry.startswith("MIG-")


def _is_id(entry: str) -> bool:
    return entry.startswith("GPU-")


def _find_gpu(entry: str, gpus: Sequence[NvidiaGpu], chosen_count: int) -> tuple[CudaDevice | None, str]:
    """Return the GPU of an entry; else None and why."""
    if not _is_id(entry):
        number = int(entry[:_DIGITS_MAX])
        found = [gpu for gpu in gpus if gpu.ordinal == number]
        problem = f": no GPU {number} exists (found: {', '.join(str(gpu.ordinal) for gpu in gpus) or 'none'})"
    elif any(_is_id(gpu.uuid) for gpu in gpus):
        found = [gpu for gpu in gpus if gpu.uuid.startswith(entry)]
        problem = f": {len(found)} GPU ids begin with {entry}" if found else f": no GPU is called {entry}"
    elif chosen_count < len(gpus):
        return CudaDevice(entry, entry, None), ""  # the ids are unknown
    else:
        return None, f": no GPU is called {entry}"
    return (CudaDevice(found[0].uuid, entry, found[0]), "") if len(found) == 1 else (None, problem)


def _find_mig_device(entry: str, gpus: Sequence[NvidiaGpu]) -> tuple[CudaDevice | None, str]:
    """Return the instance that "MIG-<uuid>" or the older "MIG-GPU-<uuid>/<gi>/<ci>" names; else None and why.

    Only NVML knows instances; without it the entry is accepted unverified.
    """
    problem = f": no MIG instance is called {entry}"
    if entry.startswith("MIG-GPU-"):
        owner = next((gpu for gpu in gpus if gpu.uuid == entry.removeprefix("MIG-").split("/")[0]), None)
        is_known = any(_is_id(gpu.uuid) for gpu in gpus)
        return (None, problem) if is_known and owner is None else (CudaDevice(entry, entry, owner), "")
    instances = [(mig, gpu) for gpu in gpus for mig in gpu.mig_ids]
    if not instances:
        return CudaDevice(entry, entry, None), ""
    matches = [CudaDevice(mig, entry, gpu) for mig, gpu in instances if mig.startswith(entry)]
    return (matches[0], "") if len(matches) == 1 else (None, problem)
