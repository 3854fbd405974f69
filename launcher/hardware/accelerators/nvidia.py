"""NVIDIA GPUs: which ones a worker started here would see, in its order.

CUDA itself is never called: that would load hundreds of megabytes and create a context. The driver's own library
answers if nvidia-ml-py is installed (`nvml`); else the driver's files under /proc do, or, where a sandbox hides those,
the PCI bus. Then CUDA_VISIBLE_DEVICES is applied as CUDA and torch apply it (`cuda_visible`).

All workers of a node see the same GPUs, as under torchrun, and CUDA shows a process one MIG instance and nothing else
(MIG user guide, "CUDA Device Enumeration"), so several count as one; where every worker gets a device of its own, each
instance is one.

A machine without the driver costs two failed look-ups and imports nothing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from launcher.hardware.accelerators import nvml
from launcher.hardware.accelerators.contract import KINDS, Inventory
from launcher.hardware.accelerators.cuda_visible import (
    VARIABLE,
    CudaDevice,
    CudaSelection,
    NvidiaGpu,
    apply_visible,
    hides_all,
    is_mig,
)
from launcher.hardware.accelerators.nvml import NvidiaInventory
from launcher.hardware.linux.sysfs import list_names, list_numbers, may_open, read_numa_node, read_text, resolve_path
from launcher.model.node import Device

_PCI_VENDOR = "0x10de"
_PCI_CLASS_DISPLAY = "0x03"  # VGA and 3D controllers; the same vendor's audio and bridge functions have others
_PROC = "/proc/driver/nvidia/gpus"


class Detector:
    """`root`: the directory above /proc, /dev and /sys, and `nvml`: a substitute for nvidia-ml-py's module, for tests.

    `isolates_workers`: whether every worker will be shown its own devices only.
    """

    kind = "nvidia"

    def __init__(self, *, root: str = "/", nvml: Any = None, isolates_workers: bool = False) -> None:
        self._root = root
        self._nvml = nvml
        self._isolates_workers = isolates_workers

    def detect(self, environ: Mapping[str, str]) -> Inventory:
        if not any(os.path.exists(resolve_path(self._root, sign)) for sign in KINDS[self.kind].driver_paths):
            return Inventory((), "no NVIDIA driver")
        value = environ.get(VARIABLE)
        if value is not None and hides_all(value):
            return Inventory((), f"{VARIABLE}={value!r} hides every GPU")
        try:
            found = nvml.query_gpus(self._root, self._nvml) or self._read_proc() or self._read_pci()
        except nvml.DriverTimeoutError:
            reason = f"NVML has not answered for {nvml.LIMIT_S:g} s"
            return Inventory((), reason, unresponsive_count=max(1, len(self._list_device_nodes() or ())))
        reasons = [f"{len(found.gpus)} found by {found.source}"]
        if found.unresponsive_count:
            reasons.append(
                f"{found.unresponsive_count} more {'does' if found.unresponsive_count == 1 else 'do'} not answer"
            )
        if found.empty_mig_count:
            reasons.append(f"{found.empty_mig_count} more with MIG on and no instance")
        if value is None:
            choice, remark = _select_all(found, self._isolates_workers)
        else:
            choice = apply_visible(value, found.gpus, isolates_workers=self._isolates_workers)
            named = value.count(",") + 1 if is_mig(value) else len(choice.devices)
            choice = choice if self._isolates_workers else _limit_to_process(choice)
            remark = choice.mistake or f"{len(choice.devices)} left by {VARIABLE}={value}"
            if not choice.mistake and len(choice.devices) < named:
                remark += ": CUDA gives a process one MIG instance, and nothing else"
        reasons += filter(None, [remark])
        devices = tuple(self._make_device(index, chosen) for index, chosen in enumerate(choice.devices))
        # A list of the user's selects GPUs; if some of these are not found, they may be the unresponsive ones.
        missed = found.unresponsive_count if value is None or choice.mistake else 0
        return Inventory(devices, ", ".join(reasons), choice.mistake, missed)

    def _make_device(self, index: int, chosen: CudaDevice) -> Device:
        gpu = chosen.gpu or NvidiaGpu(0, chosen.id)
        return Device(
            kind=self.kind, index=index, id=chosen.id, visible=chosen.entry,
            numa_node=gpu.numa_node, domain=gpu.domain, model=gpu.model,
        )  # fmt: skip

    def _read_proc(self) -> NvidiaInventory | None:
        """Read what the driver reports: one folder per GPU, named by PCI address, which is also NVML's order."""
        nodes = self._list_device_nodes()
        gpus: list[NvidiaGpu] = []
        for address in list_names(resolve_path(self._root, _PROC)):
            lines = read_text(resolve_path(self._root, f"{_PROC}/{address}/information")).splitlines()
            fields = {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
            minor = fields.get("Device Minor", "")
            # A container or batch system may grant fewer than are listed; the others belong to other users.
            if nodes is None or minor in nodes:
                uuid = fields.get("GPU UUID", "")
                uuid = uuid if uuid.startswith("GPU-") and "?" not in uuid else f"pci-{address}"
                home = read_numa_node(self._root, address)
                gpus.append(NvidiaGpu(len(gpus), uuid, numa_node=home, model=fields.get("Model", "")))
        return NvidiaInventory(tuple(gpus), "/proc/driver/nvidia") if gpus else None

    def _read_pci(self) -> NvidiaInventory:
        """Return what is on the PCI bus, at most as many as we may open: the bus shows all of them to every process."""
        folder = resolve_path(self._root, "/sys/bus/pci/devices")
        addresses = [
            address
            for address in list_names(folder)
            if read_text(f"{folder}/{address}/vendor") == _PCI_VENDOR
            and read_text(f"{folder}/{address}/class").startswith(_PCI_CLASS_DISPLAY)
        ]
        nodes = self._list_device_nodes()
        if nodes is not None:
            del addresses[len(nodes) :]
        gpus = (
            NvidiaGpu(ordinal, f"pci-{address}", numa_node=read_numa_node(self._root, address))
            for ordinal, address in enumerate(addresses)
        )
        return NvidiaInventory(tuple(gpus), "the PCI bus")

    def _list_device_nodes(self) -> set[str] | None:
        """Return the numbers N of the /dev/nvidiaN that we may open; None where the driver has not created any yet."""
        numbers = list_numbers(resolve_path(self._root, "/dev"), "nvidia")
        if not numbers:
            return None
        return {str(number) for number in numbers if may_open(resolve_path(self._root, f"/dev/nvidia{number}"))}


def _select_all(found: NvidiaInventory, isolates_workers: bool) -> tuple[CudaSelection, str]:
    """Return the devices where no variable selects among them, and a remark.

    Whether CUDA counts an unresponsive GPU is not documented, and it numbers different models by speed by default;
    then only ids are reliable names.
    """
    are_sure = (
        not found.unresponsive_count and not found.empty_mig_count and len({gpu.model for gpu in found.gpus}) <= 1
    )
    count = sum(len(gpu.mig_ids) for gpu in found.gpus)
    if not count:
        return CudaSelection(tuple(_make_gpu_device(gpu, are_sure) for gpu in found.gpus)), ""
    parts = CudaSelection(tuple(chosen for gpu in found.gpus for chosen in _make_mig_devices(gpu)))
    if isolates_workers:
        return parts, f"{count} MIG instances among them"
    return _limit_to_process(parts), f"with {count} MIG instances: CUDA gives a process one, and nothing else"


def _limit_to_process(choice: CudaSelection) -> CudaSelection:
    """Return what CUDA shows of these to one process: all whole GPUs, or the first that is MIG or divided."""
    first = next((chosen for chosen in choice.devices if chosen.gpu and chosen.gpu.mig_ids), None)
    return choice._replace(devices=(first,)) if first else choice


def _make_gpu_device(gpu: NvidiaGpu, is_ordinal_sure: bool) -> CudaDevice:
    return CudaDevice(gpu.uuid, str(gpu.ordinal) if is_ordinal_sure else gpu.uuid, gpu)


def _make_mig_devices(gpu: NvidiaGpu) -> Sequence[CudaDevice]:
    return [CudaDevice(mig, mig, gpu) for mig in gpu.mig_ids] or [_make_gpu_device(gpu, False)]
