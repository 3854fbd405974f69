"""How many workers a node gets, and which devices are whose.

torchrun's words keep their meaning: a number is taken as it is, `gpu` wants GPUs, `cpu` counts CPUs, `auto`
takes accelerators where there are any, another word is a type of device that torch counts. Not given, torchrun
starts one worker; we start one per accelerator. `--devices` says which accelerators are meant (`named`).

A node has one kind of accelerator. Where two are found nobody can tell which one the job is for, so it is refused.
Every answer comes with the sentence that the start line shows.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence

from launcher.devices import KINDS, Detector, Inventory
from launcher.devices.cpu import Detector as CpuDetector
from launcher.errors import UnfitError, UsageError
from launcher.node import Device, Slot

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    from launcher.config import Config
    from launcher.options.sharing import DeviceRequest

FLAG = "--nproc-per-node"
GPUS = ("nvidia", "amd")  # what torchrun's word gpu means: torch.cuda, on either
NO_SIGN = "no sign of a GPU or TPU"
_COUNTED = (None, "auto", "gpu")  # the devices say how many workers there are


def node_slots(config: Config, environ: Mapping[str, str]) -> tuple[tuple[Slot, ...], str]:
    """The slots of this node under these options, and a sentence that says why there are so many.

    Raises UsageError as `worker_devices` does.
    """
    return worker_devices(
        config.worker_count, config.devices_per_worker, environ, python=config.python, request=config.devices,
        each_its_own=config.device_binding == "visible", framework=config.framework,
    )  # fmt: skip


def worker_devices(
    worker_count: int | str | None,
    devices_per_worker: int | Literal["all"] | None,
    environ: Mapping[str, str],
    *,
    python: str = "python3",
    request: DeviceRequest | None = None,
    each_its_own: bool = False,
    framework: str = "torch",
    accelerators: Sequence[Detector] | None = None,
    cpu: Detector | None = None,
) -> tuple[tuple[Slot, ...], str]:
    """The node's slots, and a sentence that says why there are so many.

    `worker_count` None: the user said nothing. `devices_per_worker` None: one, or what is usual for `framework`.
    `python`: the interpreter of the workers. `request`: --devices. `each_its_own`: whether a worker will see its own
    devices only. The detectors are for tests. Raises UsageError if the devices present cannot be shared out like that,
    or are of two kinds.
    """

    def width(inventory: Inventory) -> int | Literal["all"]:
        return devices_per_worker or _usual_width(inventory.devices, framework, python, environ)

    if request is not None:
        if request.kind == "cpu" and not request.variable:
            worker_count = request.number if worker_count is None else worker_count
            cpus = (cpu or CpuDetector()).detect(environ)
            return _on_cpus(worker_count, devices_per_worker, cpus, cpus.reason, is_wanted=True)
        from launcher.devices import named

        inventory = named.inventory(request, environ, each_its_own=each_its_own, detectors=accelerators)
        return _share_accelerators(worker_count, width(inventory), inventory)
    if isinstance(worker_count, str) and worker_count not in ("auto", "gpu", "cpu"):
        from launcher.devices.from_torch import Detector as TorchDetector

        inventory = find(accelerators or (TorchDetector(worker_count, python),), environ)
        if not inventory.devices:
            raise UsageError(f"{FLAG}={worker_count}: {inventory.reason}", f"say {FLAG}=cpu, auto or a number")
        return _share_accelerators(worker_count, width(inventory), inventory)
    if worker_count == "cpu":
        inventory = Inventory((), "not looked for")
    else:
        kinds = GPUS if worker_count == "gpu" else tuple(KINDS)
        inventory = find(likely(kinds, environ, each_its_own) if accelerators is None else accelerators, environ)
    if inventory.silent and worker_count in _COUNTED:
        raise mute(inventory)
    if inventory.devices:
        return _share_accelerators(worker_count, width(inventory), inventory)
    if inventory.mistake and worker_count in _COUNTED:
        raise UsageError(inventory.mistake, f"{FLAG}=cpu runs on the CPU whatever it says")
    if worker_count == "gpu":
        raise UsageError(f"{FLAG}=gpu, but no GPU was found: {inventory.reason}", f"say {FLAG}=cpu, auto or a number")
    return _on_cpus(worker_count, devices_per_worker, (cpu or CpuDetector()).detect(environ), inventory.reason)


def likely(kinds: Iterable[str], environ: Mapping[str, str], each_its_own: bool = False) -> tuple[Detector, ...]:
    """The detectors of those kinds of which this machine shows a sign: a file of the driver, or a variable."""
    return tuple(
        detector(kind, each_its_own=each_its_own)
        for kind in kinds
        if any(map(os.path.exists, KINDS[kind].signs)) or any(word in environ for word in KINDS[kind].words)
    )


def detector(kind: str, *, is_asked_for: bool = False, each_its_own: bool = False) -> Detector:
    """The detector of a built-in kind. `is_asked_for`: by name, so that graphics inside a CPU counts, too."""
    match kind:
        case "nvidia":
            from launcher.devices.nvidia import Detector as NvidiaDetector

            return NvidiaDetector(each_its_own=each_its_own)
        case "amd":
            from launcher.devices.amd import Detector as AmdDetector

            return AmdDetector(with_integrated=is_asked_for)
        case "intel":
            from launcher.devices.intel import Detector as IntelDetector

            return IntelDetector(with_integrated=is_asked_for)
        case "tpu":
            from launcher.devices.tpu import Detector as TpuDetector

            return TpuDetector()
    return CpuDetector()


def find(detectors: Sequence[Detector], environ: Mapping[str, str]) -> Inventory:
    """What the one detector that finds something found; else what each of them said.

    Raises UsageError if two kinds of devices are found.
    """
    inventories = [detector.detect(environ).on_one_line for detector in detectors]
    found = [inventory for inventory in inventories if inventory.devices]
    if len(found) > 1:
        these = " and ".join(f"{_some(inventory.devices, brand=True)} ({inventory.reason})" for inventory in found)
        flags = " or ".join(f"--devices {inventory.devices[0].kind}" for inventory in found)
        raise UsageError(f"this node has {these}, and a job runs on one kind of them", f"{flags} says which")
    if found:
        return found[0]
    mistakes = [inventory.mistake for inventory in inventories if inventory.mistake]
    reason = "; ".join(inventory.reason for inventory in inventories) or NO_SIGN
    return Inventory((), reason, "; ".join(mistakes), sum(inventory.silent for inventory in inventories))


def mute(inventory: Inventory) -> UnfitError:
    """What to say where the devices are to be counted and some of them do not answer: their number is not known."""
    silent, found = inventory.silent, len(inventory.devices)
    verb = "does" if silent == 1 else "do"
    # A variable that wants one of them has hidden others behind it: then nobody can say of how many.
    these = f"{silent} device{'s' * (silent > 1)}" if inventory.mistake else f"{silent} of {silent + found} devices"
    return UnfitError(
        f"{these} {verb} not answer ({inventory.reason})",
        f"see dmesg; {FLAG}={found} goes without" if found else "see dmesg",
    )


def _on_cpus(
    worker_count: int | str | None,
    devices_per_worker: int | Literal["all"] | None,
    cpus: Inventory,
    reason: str,
    is_wanted: bool = False,
) -> tuple[tuple[Slot, ...], str]:
    """Workers on the CPU. `reason`: what is known of accelerators, or, where the CPU `is_wanted`, of CPUs."""
    why = "the CPU is asked for" if is_wanted else f"no accelerator was found: {reason}"
    if devices_per_worker not in (None, 1, "all"):
        raise UsageError(f"--devices-per-worker is {devices_per_worker}, but {why}")
    if worker_count is None:
        return _one_each(1, cpus.devices), f"1 worker on the CPU ({why.replace('was found', 'found')})"
    if isinstance(worker_count, int):
        return _one_each(worker_count, cpus.devices), f"{_workers(worker_count)} on the CPU, as asked ({reason})"
    if devices_per_worker == "all":
        return (Slot(index=0, devices=cpus.devices),), f"1 worker on {_some(cpus.devices)} ({cpus.reason})"
    found = _one_each(len(cpus.devices), cpus.devices)
    return found, f"{_workers(len(found))}, one per CPU ({cpus.reason})"


def _share_accelerators(
    worker_count: int | str | None, devices_per_worker: int | Literal["all"], inventory: Inventory
) -> tuple[tuple[Slot, ...], str]:
    devices, reason = inventory.devices, inventory.reason
    name = _name(devices)
    can_share = devices[0].kind != "tpu"  # libtpu takes its chips for one process
    if isinstance(worker_count, int):
        width = len(devices) // worker_count if devices_per_worker == "all" else devices_per_worker
        if width == 1 and worker_count > len(devices) and can_share:
            # torchrun starts them too; how they share is theirs to know.
            shared = _one_each(worker_count, devices)
            return shared, f"{_workers(worker_count)} as asked, more than the {_some(devices)} they share ({reason})"
    else:
        width = len(devices) if devices_per_worker == "all" else devices_per_worker
        worker_count = len(devices) // width
    used = worker_count * width
    if not 0 < used <= len(devices):
        asked, each_one = max(worker_count, 1), max(width, 1)
        raise UsageError(
            f"{_workers(asked)} with {each_one} {name}{'s' * (each_one > 1)} each: {asked * each_one} {name}s are "
            f"needed, {len(devices)} are present ({reason})",
            f"{FLAG}={max(asked, 2)} alone, without --devices-per-worker, lets workers share devices"
            if can_share
            else "a TPU chip serves one process",
        )
    found = tuple(
        Slot(index=index, devices=devices[index * width : (index + 1) * width]) for index in range(worker_count)
    )
    each = f", one per {name}" if width == 1 else f" with {width} {name}s each"
    rest = "" if used == len(devices) else f", on {used} of {_some(devices)}"
    return found, f"{_workers(worker_count)}{each}{rest} ({reason})"


def _usual_width(
    devices: Sequence[Device], framework: str, python: str, environ: Mapping[str, str]
) -> int | Literal["all"]:
    """One device for a worker; for JAX on TPUs all chips of the host, which is how JAX is run there."""
    if devices[0].kind == "tpu":
        from launcher.environments.choice import choose

        if "jax" in choose(framework, devices, python, environ).names:
            return "all"
    return 1


def _one_each(count: int, devices: Sequence[Device]) -> tuple[Slot, ...]:
    """`count` slots of one device; beyond the last device they start again at the first."""
    return tuple(Slot(index=index, devices=(devices[index % len(devices)],)) for index in range(count))


def _name(devices: Sequence[Device], brand: bool = False) -> str:
    """What people call one of these: "GPU", or "NVIDIA GPU" where it must be told from others."""
    kind = devices[0].kind
    if kind not in KINDS:
        return "CPU" if kind == "cpu" else kind
    noun = KINDS[kind].noun
    return noun if brand else noun.replace("NVIDIA ", "").replace("AMD ", "").replace("Intel ", "")


def _some(devices: Sequence[Device], brand: bool = False) -> str:
    return f"{len(devices)} {_name(devices, brand)}{'s' * (len(devices) > 1)}"


def _workers(count: int) -> str:
    return "1 worker" if count == 1 else f"{count} workers"
