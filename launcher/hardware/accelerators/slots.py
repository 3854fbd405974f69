"""From devices to slots: the number of workers on a node, and the devices of each.

torchrun's values keep their meaning: a number is used as it is, `gpu` requires GPUs, `cpu` counts CPUs, `auto` uses
accelerators where there are any, another word is a device type that torch counts. Without a value torchrun starts
one worker; we start one per accelerator. `--devices` selects the accelerators (`named`). Two kinds of accelerators on
a node are refused, because the job's kind is then unknown.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from launcher import extensions
from launcher.config.config import DeviceOptions, WorkerOptions
from launcher.config.frameworks import choose_environments
from launcher.hardware.accelerators import contract
from launcher.hardware.accelerators.contract import Detector, Inventory
from launcher.model.errors import UsageError
from launcher.model.node import Device, Slot, format_workers

FLAG = "--nproc-per-node"
GPU_KINDS = ("nvidia", "amd")  # what torchrun means by gpu: torch.cuda, on either
NO_CANDIDATES = "no sign of a GPU or TPU"
_VISIBLE_VARIABLES = (
    "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK", "TPU_VISIBLE_CHIPS",
    "TPU_VISIBLE_DEVICES",
)  # fmt: skip
_COUNTS_FROM_DEVICES = (None, "auto", "gpu")  # the number of devices decides the number of workers


def make_node_slots(
    options: DeviceOptions, workers: WorkerOptions, environ: Mapping[str, str]
) -> tuple[tuple[Slot, ...], str, bool]:
    """Return the slots of this node under these options, a sentence that explains their number, and if they are usual.

    That is: all devices are used, none by two; or the CPU is asked for, or any number on a machine without devices that
    is alone.
    Raises UsageError if the devices cannot be divided like that, or are of two kinds.
    """
    found, reason, is_usual = _assign_devices(options, workers, environ)
    if len(found) > 1 and not isinstance(options.worker_count, int):
        from launcher.hardware.linux.cgroup_limits import explain_quota

        if shortage := explain_quota(len(found)):
            return found, reason + shortage, False
    return found, reason, is_usual


def _assign_devices(
    options: DeviceOptions, workers: WorkerOptions, environ: Mapping[str, str]
) -> tuple[tuple[Slot, ...], str, bool]:
    count, width, request = options.worker_count, options.devices_per_worker, options.request
    cpu = contract.CpuDetector()
    if request is not None and request.kind == "cpu" and not request.variable:
        count = request.number if count is None else count
        return (*_assign_cpus(count, width, cpu.detect(environ)), True)
    inventory = _find_inventory(options, workers, environ)
    if inventory.devices:
        width = width or _choose_width(inventory.devices, workers, environ)
        slots, reason = _assign_accelerators(count, width, inventory)
        used = [device for slot in slots for device in slot.devices]
        return slots, reason, len(used) == len(inventory.devices)
    is_usual = count == "cpu" or (isinstance(count, int) and workers.is_alone and inventory.reason == NO_CANDIDATES)
    return (*_assign_cpus(count, width, cpu.detect(environ), inventory.reason), is_usual)


def _find_inventory(options: DeviceOptions, workers: WorkerOptions, environ: Mapping[str, str]) -> Inventory:
    """Return the accelerators to use; none where workers run on the CPU. Raises UsageError."""
    worker_count, origin = options.worker_count, options.origins["worker_count"]
    isolates_workers = workers.device_binding == "visible"
    if options.request is not None:
        from launcher.hardware.accelerators import named

        return named.detect_requested(options.request, environ, isolates_workers=isolates_workers)
    if worker_count == "cpu":
        return Inventory((), "not looked for")
    if isinstance(worker_count, str) and worker_count not in ("auto", "gpu"):
        count_devices = extensions.load_entry(extensions.TORCH_DEVICES)
        inventory: Inventory = count_devices(worker_count, workers.python, environ).single_line
        contract.refuse_mistake(inventory)
        if not inventory.devices:
            raise UsageError(f"{origin}={worker_count}: {inventory.reason}", f"set {origin} to cpu, auto or a number")
        return inventory
    kinds = GPU_KINDS if worker_count == "gpu" else tuple(contract.KINDS)
    inventory = find_devices(list_candidates(kinds, environ, isolates_workers), environ)
    if inventory.unresponsive_count and worker_count in _COUNTS_FROM_DEVICES:
        raise contract.make_unresponsive_error(inventory)
    if not inventory.devices and not inventory.mistake:
        inventory = _check_form(environ, _VISIBLE_VARIABLES) or inventory
    contract.refuse_mistake(inventory)
    if not inventory.devices and worker_count == "gpu":
        raise UsageError(
            f"{origin}=gpu, but no GPU was found: {inventory.reason}", f"set {origin} to cpu, auto or a number"
        )
    return inventory


def _check_form(environ: Mapping[str, str], variables: Sequence[str]) -> Inventory | None:
    """Return an inventory with the mistake, if one of these variables cannot be meant; else None.

    Where no device is found nothing else reads them, and a list that CUDA cannot read looks like a machine without one.
    """
    for variable in variables:
        entries = environ.get(variable, "").split(",")
        if all(entry.isascii() and entry.isdecimal() for entry in entries) and len(set(entries)) == len(entries):
            continue  # what nearly every list is: nothing is imported for it
        if variable in environ:
            from launcher.hardware.accelerators.visible_list import examine

            if mistaken := examine(environ, (variable,)):
                return mistaken.single_line
    return None


def list_candidates(kinds: Iterable[str], environ: Mapping[str, str], isolates_workers: bool) -> tuple[Detector, ...]:
    """Return the detectors of those kinds of which this machine shows a sign: a driver's file, or a variable."""
    likely = [
        kind
        for kind in kinds
        if any(map(os.path.exists, contract.KINDS[kind].driver_paths))
        or any(word in environ for word in contract.KINDS[kind].variables)
    ]
    if not likely:
        return ()
    from launcher.hardware.accelerators.named import make_detector

    return tuple(make_detector(kind, isolates_workers=isolates_workers) for kind in likely)


# docs/internals/decisions/0030-one-device-kind-per-node.md
def find_devices(detectors: Sequence[Detector], environ: Mapping[str, str]) -> Inventory:
    """Return what the one successful detector found; else the reasons of all of them.

    Raises UsageError if two kinds of devices are found.
    """
    inventories = [detector.detect(environ).single_line for detector in detectors]
    found = [inventory for inventory in inventories if inventory.devices]
    if len(found) > 1:
        these = " and ".join(
            f"{_describe_devices(inventory.devices)} of kind {inventory.devices[0].kind} ({inventory.reason})"
            for inventory in found
        )
        flags = " or ".join(f"--devices {inventory.devices[0].kind}" for inventory in found)
        raise UsageError(f"this node has {these}, but a job uses devices of one kind", f"set {flags}")
    if found:
        return found[0]
    mistakes = [inventory.mistake for inventory in inventories if inventory.mistake]
    hint = next((inventory.hint for inventory in inventories if inventory.mistake), "")
    reason = "; ".join(inventory.reason for inventory in inventories) or NO_CANDIDATES
    silent_count = sum(inventory.unresponsive_count for inventory in inventories)
    return Inventory((), reason, "; ".join(mistakes), silent_count, hint)


def _assign_cpus(
    worker_count: int | str | None,
    devices_per_worker: int | Literal["all"] | None,
    cpus: Inventory,
    absence: str | None = None,
) -> tuple[tuple[Slot, ...], str]:
    """Assign CPUs. `absence`: why there are no accelerators; None where the CPU was asked for."""
    why = "the CPU is asked for" if absence is None else f"no accelerator was found: {absence}"
    if devices_per_worker not in (None, 1, "all"):
        raise UsageError(f"--devices-per-worker is {devices_per_worker}, but {why}")
    if worker_count is None:
        why = why if absence is None else f"no accelerator found: {absence}"
        return _make_slots(1, cpus.devices), f"1 worker on the CPU ({why})"
    if isinstance(worker_count, int):
        sentence = f"{format_workers(worker_count)} on the CPU, as asked"
        return _make_slots(worker_count, cpus.devices), f"{sentence} ({cpus.reason if absence is None else absence})"
    if devices_per_worker == "all":
        return (Slot(index=0, devices=cpus.devices),), f"1 worker on {_describe_devices(cpus.devices)} ({cpus.reason})"
    found = _make_slots(len(cpus.devices), cpus.devices)
    return found, f"{format_workers(len(found))}, one per CPU ({cpus.reason})"


def _assign_accelerators(
    worker_count: int | str | None, devices_per_worker: int | Literal["all"], inventory: Inventory
) -> tuple[tuple[Slot, ...], str]:
    devices, reason = inventory.devices, inventory.reason
    name = _describe_kind(devices)
    can_share = devices[0].kind != "tpu"  # libtpu takes its chips for one process
    if isinstance(worker_count, int):
        width = len(devices) // worker_count if devices_per_worker == "all" else devices_per_worker
        if width == 1 and worker_count > len(devices) and can_share:
            # torchrun starts them too; the workers decide how they share.
            sentence = f"{format_workers(worker_count)} as asked, more than the {_describe_devices(devices)}"
            return _make_slots(worker_count, devices), f"{sentence} they share ({reason})"
    else:
        width = len(devices) if devices_per_worker == "all" else devices_per_worker
        worker_count = len(devices) // width
    used = worker_count * width
    if not 0 < used <= len(devices):
        worker_total, each_one = max(worker_count, 1), max(width, 1)
        raise UsageError(
            f"{format_workers(worker_total)} with {each_one} {name}{'s' * (each_one > 1)} each: "
            f"{worker_total * each_one} {name}s are needed, {len(devices)} are present ({reason})",
            f"use {FLAG}={max(worker_total, 2)} without --devices-per-worker to let workers share devices"
            if can_share
            else "request fewer: a TPU chip serves one process",
        )
    found = tuple(
        Slot(index=index, devices=devices[index * width : (index + 1) * width]) for index in range(worker_count)
    )
    each = f", one per {name}" if width == 1 else f" with {width} {name}s each"
    rest = "" if used == len(devices) else f", on {used} of {_describe_devices(devices)}"
    return found, f"{format_workers(worker_count)}{each}{rest} ({reason})"


def _choose_width(
    devices: Sequence[Device], workers: WorkerOptions, environ: Mapping[str, str]
) -> int | Literal["all"]:
    """Return one device per worker; for JAX on TPUs all chips of the host, the usual way to run JAX there."""
    if devices[0].kind != "tpu":
        return 1
    choice = choose_environments(workers.framework, devices, workers.python, environ)
    return "all" if "jax" in choice.names else 1


def _make_slots(count: int, devices: Sequence[Device]) -> tuple[Slot, ...]:
    """Return `count` slots of one device; beyond the last device they start again at the first."""
    return tuple(Slot(index=index, devices=(devices[index % len(devices)],)) for index in range(count))


def _describe_kind(devices: Sequence[Device]) -> str:
    """Return the usual noun for one of these."""
    kind = devices[0].kind
    return contract.KINDS[kind].noun if kind in contract.KINDS else "CPU" if kind == "cpu" else kind


def _describe_devices(devices: Sequence[Device]) -> str:
    return f"{len(devices)} {_describe_kind(devices)}{'s' * (len(devices) > 1)}"
