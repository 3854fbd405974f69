"""How many workers a node gets, and which devices are whose.

torchrun's words keep their meaning: a number is taken as it is, `gpu` wants GPUs, `cpu` counts CPUs, `auto`
takes accelerators where there are any, another word is a type of device that torch counts. Not given, torchrun
starts one worker; we start one per accelerator.
Every answer comes with the sentence that the start line shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from launcher.devices import Detector, Inventory
from launcher.devices.cpu import Detector as CpuDetector
from launcher.devices.nvidia import Detector as NvidiaDetector
from launcher.errors import UsageError
from launcher.node import Device, Slot

FLAG = "--nproc-per-node"
_NAMES = {"nvidia": "GPU", "cpu": "CPU"}


def worker_devices(
    worker_count: int | str | None,
    devices_per_worker: int | Literal["all"] | None,
    environ: Mapping[str, str],
    *,
    python: str = "python3",
    accelerators: Sequence[Detector] | None = None,
    cpu: Detector | None = None,
) -> tuple[tuple[Slot, ...], str]:
    """The node's slots, and a sentence that says why there are so many.

    `worker_count` None: the user said nothing. `devices_per_worker` None: one. `python`: the interpreter of the
    workers. The detectors are for tests. Raises UsageError if the devices present cannot be shared out like that.
    """
    if isinstance(worker_count, str) and worker_count not in ("auto", "gpu", "cpu"):
        from launcher.devices.from_torch import Detector as TorchDetector

        inventory = _first(accelerators or (TorchDetector(worker_count, python),), environ)
        if not inventory.devices:
            raise UsageError(f"{FLAG}={worker_count}: {inventory.reason}", f"say {FLAG}=cpu, auto or a number")
        return _share_accelerators(worker_count, devices_per_worker or 1, inventory)
    inventory = Inventory((), "not looked for") if worker_count == "cpu" else _first(accelerators, environ)
    if inventory.devices:
        return _share_accelerators(worker_count, devices_per_worker or 1, inventory)
    if worker_count == "gpu":
        raise UsageError(f"{FLAG}=gpu, but no GPU was found: {inventory.reason}", f"say {FLAG}=cpu, auto or a number")
    if devices_per_worker not in (None, 1, "all"):
        raise UsageError(
            f"--devices-per-worker is {devices_per_worker}, but no accelerator was found: {inventory.reason}"
        )
    cpus = (cpu or CpuDetector()).detect(environ)
    if worker_count is None:
        return _one_each(1, cpus.devices), f"1 worker on the CPU (no accelerator found: {inventory.reason})"
    if isinstance(worker_count, int):
        slots = _one_each(worker_count, cpus.devices)
        return slots, f"{_workers(worker_count)} on the CPU, as asked ({inventory.reason})"
    if devices_per_worker == "all":
        return (Slot(index=0, devices=cpus.devices),), f"1 worker on {_some(cpus.devices)} ({cpus.reason})"
    slots = _one_each(len(cpus.devices), cpus.devices)
    return slots, f"{_workers(len(slots))}, one per CPU ({cpus.reason})"


def _first(detectors: Sequence[Detector] | None, environ: Mapping[str, str]) -> Inventory:
    """What the first detector that finds something found; else what each of them said."""
    reasons = []
    for detector in (NvidiaDetector(),) if detectors is None else detectors:
        inventory = detector.detect(environ)
        if inventory.devices:
            return inventory
        reasons.append(inventory.reason)
    return Inventory((), "; ".join(reasons))


def _share_accelerators(
    worker_count: int | str | None, devices_per_worker: int | Literal["all"], inventory: Inventory
) -> tuple[tuple[Slot, ...], str]:
    devices, reason = inventory.devices, inventory.reason
    name = _name(devices)
    if isinstance(worker_count, int):
        width = len(devices) // worker_count if devices_per_worker == "all" else devices_per_worker
        if width == 1 and worker_count > len(devices):
            # torchrun starts them too; how they share is theirs to know.
            slots = _one_each(worker_count, devices)
            return slots, f"{_workers(worker_count)} as asked, more than the {_some(devices)} they share ({reason})"
    else:
        width = len(devices) if devices_per_worker == "all" else devices_per_worker
        worker_count = len(devices) // width
    used = worker_count * width
    if not 0 < used <= len(devices):
        asked, each_one = max(worker_count, 1), max(width, 1)
        raise UsageError(
            f"{_workers(asked)} with {each_one} {name}{'s' * (each_one > 1)} each: {asked * each_one} {name}s are "
            f"needed, {len(devices)} are present ({reason})"
        )
    slots = tuple(
        Slot(index=index, devices=devices[index * width : (index + 1) * width]) for index in range(worker_count)
    )
    each = f", one per {name}" if width == 1 else f" with {width} {name}s each"
    rest = "" if used == len(devices) else f", on {used} of {_some(devices)}"
    return slots, f"{_workers(worker_count)}{each}{rest} ({reason})"


def _one_each(count: int, devices: Sequence[Device]) -> tuple[Slot, ...]:
    """`count` slots of one device; beyond the last device they start again at the first."""
    return tuple(Slot(index=index, devices=(devices[index % len(devices)],)) for index in range(count))


def _name(devices: Sequence[Device]) -> str:
    return _NAMES.get(devices[0].kind, devices[0].kind)


def _some(devices: Sequence[Device]) -> str:
    return f"{len(devices)} {_name(devices)}{'s' * (len(devices) > 1)}"


def _workers(count: int) -> str:
    return "1 worker" if count == 1 else f"{count} workers"
