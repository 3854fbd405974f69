"""NVIDIA GPUs: which ones a worker started here would see, in its order.

CUDA itself is never called: that would load hundreds of megabytes and create a context. The driver's own library, NVML,
answers if nvidia-ml-py is installed; else the driver's files under /proc do, or, where a sandbox hides those, the PCI
bus. Then CUDA_VISIBLE_DEVICES is applied as CUDA and torch apply it (`cuda_visible`).

All workers of a node see the same GPUs, as under torchrun, and CUDA shows a process one MIG instance and nothing else
(MIG user guide, "CUDA Device Enumeration"), so several count as one; where every worker gets a device of its own, each
instance is one.

A machine without the driver costs two failed look-ups and imports nothing.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from launcher.hardware.accelerators.contract import KINDS, Inventory, make_inventory
from launcher.hardware.accelerators.cuda_visible import (
    VARIABLE,
    CudaDevice,
    CudaSelection,
    NvidiaGpu,
    apply_visible,
    is_mig,
)
from launcher.hardware.accelerators.visible_list import examine, hides_all
from launcher.hardware.linux.sysfs import FileTree, get_pci_folder
from launcher.model.node import Device

LIMIT_S = 30.0  # a healthy driver answers within seconds, also where it has to wake its GPUs first
_PCI_VENDOR = "0x10de"
_PROC = "/proc/driver/nvidia/gpus"
_COMPLETED = 3  # NVML_GPU_FABRIC_STATE_COMPLETED
_NO_PERMISSION = 4  # NVML_ERROR_NO_PERMISSION
_STRUCTS = ("c_nvmlGpuFabricInfo_v3_t", "c_nvmlGpuFabricInfo_v2_t")  # newer drivers fill the first, older the second


class NvidiaInventory(Struct, frozen=True):
    """The GPUs that a driver shows."""

    gpus: tuple[NvidiaGpu, ...]
    source: str
    """What was queried."""
    unresponsive_count: int = 0
    """Further GPUs that the driver lists and that do not answer."""
    empty_mig_count: int = 0
    """Further GPUs that have MIG enabled but no instance."""


class Detector:
    """`root`: the directory above /proc, /dev and /sys, and `nvml`: a substitute for nvidia-ml-py's module, for tests.

    `isolates_workers`: whether every worker will be shown its own devices only.
    """

    kind = "nvidia"

    def __init__(self, *, root: str = "/", nvml: Any = None, isolates_workers: bool = False) -> None:
        self._files = FileTree(root)
        self._nvml = nvml
        self._isolates_workers = isolates_workers

    def detect(self, environ: Mapping[str, str]) -> Inventory:
        if not any(self._files.exists(sign) for sign in KINDS[self.kind].driver_paths):
            return Inventory((), "no NVIDIA driver")
        if mistaken := examine(environ, (VARIABLE,)):
            return mistaken
        value = environ.get(VARIABLE)
        if value is not None and hides_all(value):
            return Inventory((), f"{VARIABLE}={value!r} hides every GPU")
        try:
            found = query_nvml(self._files, self._nvml) or self._read_proc() or self._read_pci()
        except DriverTimeoutError:
            reason = f"NVML has not answered for {LIMIT_S:g} s"
            return Inventory((), reason, unresponsive_count=max(1, len(self._files.list_openable("/dev/nvidia"))))
        choice, remark = self._select_all(found) if value is None else self._apply_visible(value, found)
        count, empty = found.unresponsive_count, found.empty_mig_count
        return make_inventory(
            (self._make_device(index, chosen) for index, chosen in enumerate(choice.devices)),
            f"{len(found.gpus)} found by {found.source}",
            f"{count} more {'does' if count == 1 else 'do'} not answer" if count else "",
            f"{empty} more with MIG enabled but no MIG instance" if empty else "",
            remark,
            mistake=choice.mistake,
            # A list of the user's selects GPUs; if some of these are not found, they may be the unresponsive ones.
            unresponsive_count=count if value is None or choice.mistake else 0,
        )

    def _make_device(self, index: int, chosen: CudaDevice) -> Device:
        gpu = chosen.gpu or NvidiaGpu(0, chosen.id)
        return Device(
            kind=self.kind, index=index, id=chosen.id, visible=chosen.entry,
            numa_node=gpu.numa_node, domain=gpu.domain, model=gpu.model,
        )  # fmt: skip

    def _select_all(self, found: NvidiaInventory) -> tuple[CudaSelection, str]:
        """Return the devices where no variable selects among them, and a remark.

        Whether CUDA counts an unresponsive GPU is not documented, and it numbers different models by speed by default;
        then only ids are reliable names.
        """
        models = {gpu.model for gpu in found.gpus}
        are_sure = not found.unresponsive_count and not found.empty_mig_count and len(models) <= 1
        count = sum(len(gpu.mig_ids) for gpu in found.gpus)
        devices: list[CudaDevice] = []
        for gpu in found.gpus:
            entry = str(gpu.ordinal) if are_sure and not count else gpu.uuid
            devices += [CudaDevice(mig, mig, gpu) for mig in gpu.mig_ids] or [CudaDevice(gpu.uuid, entry, gpu)]
        choice = CudaSelection(tuple(devices))
        if not count:
            return choice, ""
        if self._isolates_workers:
            return choice, f"{count} MIG instances among them"
        return _limit_to_process(choice), f"with {count} MIG instances: CUDA gives a process one, and nothing else"

    def _apply_visible(self, value: str, found: NvidiaInventory) -> tuple[CudaSelection, str]:
        """Return the devices that the variable leaves, and a remark."""
        choice = apply_visible(value, found.gpus, isolates_workers=self._isolates_workers)
        named_count = value.rstrip(", \t").count(",") + 1 if is_mig(value) else len(choice.devices)
        choice = choice if self._isolates_workers else _limit_to_process(choice)
        if choice.mistake:
            return choice, ""
        remark = f"{len(choice.devices)} left by {VARIABLE}={value}"
        if len(choice.devices) < named_count:
            remark += ": CUDA gives a process one MIG instance, and nothing else"
        return choice, remark

    def _read_proc(self) -> NvidiaInventory | None:
        """Read what the driver reports: one folder per GPU, named by PCI address, which is also NVML's order."""
        nodes = self._list_device_nodes()
        gpus: list[NvidiaGpu] = []
        for address in self._files.list_names(_PROC):
            lines = self._files.read_text(f"{_PROC}/{address}/information").splitlines()
            fields = {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
            # A container or batch system may grant fewer than are listed; the others belong to other users.
            if nodes is None or fields.get("Device Minor", "") in map(str, nodes):
                uuid = fields.get("GPU UUID", "")
                uuid = uuid if uuid.startswith("GPU-") and "?" not in uuid else f"pci-{address}"
                home = self._files.read_numa_node(get_pci_folder(address))
                gpus.append(NvidiaGpu(len(gpus), uuid, numa_node=home, model=fields.get("Model", "")))
        return NvidiaInventory(tuple(gpus), "/proc/driver/nvidia") if gpus else None

    def _read_pci(self) -> NvidiaInventory:
        """Return what is on the PCI bus, at most as many as we may open: the bus shows all of them to every process."""
        every = self._files.list_names("/sys/bus/pci/devices")
        addresses = [address for address in every if self._files.is_display(get_pci_folder(address), _PCI_VENDOR)]
        nodes = self._list_device_nodes()
        gpus = [
            NvidiaGpu(ordinal, f"pci-{address}", numa_node=self._files.read_numa_node(get_pci_folder(address)))
            for ordinal, address in enumerate(addresses)
        ]
        return NvidiaInventory(tuple(gpus if nodes is None else gpus[: len(nodes)]), "the PCI bus")

    def _list_device_nodes(self) -> list[int] | None:
        """Return the numbers N of the /dev/nvidiaN that we may open; None where the driver has not created any yet."""
        return self._files.list_openable("/dev/nvidia") if self._files.list_numbers("/dev/nvidia") else None


def _limit_to_process(choice: CudaSelection) -> CudaSelection:
    """Return what CUDA shows of these to one process: all whole GPUs, or the first that is MIG or divided."""
    first = next((chosen for chosen in choice.devices if chosen.gpu and chosen.gpu.mig_ids), None)
    return replace(choice, devices=(first,)) if first else choice


# NVML answers in PCI order and ignores CUDA_VISIBLE_DEVICES. A GPU that fell off the bus stays in its list until the
# next boot and does not answer; it is counted and left out. One that may not be opened is in the list, too
# (nvmlDeviceGetCount_v2): it was granted to another user, and CUDA does not number it. MIG instances are read where MIG
# is on; a GPU that has MIG on and no instance, as after a boot, does not exist for CUDA.


class DriverTimeoutError(Exception):
    """NVML has not answered within the limit."""


_query_thread: threading.Thread | None = None  # while the driver hangs, no other query starts


def query_nvml(files: FileTree, module: Any = None) -> NvidiaInventory | None:
    """Return what NVML lists; None if its Python module or the driver's library is missing or refuses.

    A failing driver may never answer, and a call into it cannot be interrupted. So a thread of its own makes the query;
    after LIMIT_S DriverTimeoutError is raised, and the thread is left waiting. `module` replaces nvidia-ml-py's, for
    tests.
    """
    global _query_thread
    if module is None:
        try:
            module = __import__("pynvml")  # by name: the distribution nvidia-ml-py is optional and untyped
        except ImportError:
            return None
    answers: list[NvidiaInventory | Exception | None] = []

    def query() -> None:
        try:
            answers.append(_query_driver(module, files))
        except Exception as error:
            answers.append(error)

    if _query_thread is None or not _query_thread.is_alive():
        _query_thread = threading.Thread(target=query, daemon=True, name="NVML")
        _query_thread.start()
    _query_thread.join(LIMIT_S)
    if not answers:
        raise DriverTimeoutError
    if isinstance(answers[0], Exception):
        raise answers[0]
    return answers[0]


def _query_driver(module: Any, files: FileTree) -> NvidiaInventory | None:
    with contextlib.suppress(module.NVMLError):
        module.nvmlInit()
        try:
            return _list_gpus(module, files)
        finally:
            with contextlib.suppress(module.NVMLError):
                module.nvmlShutdown()
    return None


def _list_gpus(module: Any, files: FileTree) -> NvidiaInventory:
    """List the GPUs that may be opened, numbered among themselves."""
    gpus: list[NvidiaGpu] = []
    unresponsive = empty = 0
    for place in range(module.nvmlDeviceGetCount()):
        try:
            handle = module.nvmlDeviceGetHandleByIndex(place)
            uuid = _decode(module.nvmlDeviceGetUUID(handle))
        except module.NVMLError as error:
            unresponsive += getattr(error, "value", None) != _NO_PERMISSION
            continue
        migs = _list_mig_ids(module, handle)
        if migs == ():
            empty += 1
            continue
        gpus.append(
            NvidiaGpu(
                ordinal=len(gpus) + unresponsive + empty,
                uuid=uuid,
                mig_ids=migs or (),
                numa_node=_read_nvml_numa_node(module, handle, files),
                domain=_read_domain(module, handle),
                model=_ask_text(module, module.nvmlDeviceGetName, handle),
            )
        )
    return NvidiaInventory(tuple(gpus), "NVML", unresponsive, empty)


def _list_mig_ids(module: Any, handle: Any) -> tuple[str, ...] | None:
    """Return the ids of a GPU's MIG instances; None where it is not divided."""

    def find_instance(handle: Any, index: int) -> Any:
        return module.nvmlDeviceGetUUID(module.nvmlDeviceGetMigDeviceHandleByIndex(handle, index))

    try:
        if not module.nvmlDeviceGetMigMode(handle)[0]:
            return None
        count = module.nvmlDeviceGetMaxMigDeviceCount(handle)
    except module.NVMLError:
        return None
    return tuple(filter(None, (_ask_text(module, find_instance, handle, index) for index in range(count))))


def _read_nvml_numa_node(module: Any, handle: Any, files: FileTree) -> int | None:
    """Return the NUMA node of the GPU's address on the PCI bus.

    nvmlDeviceGetNumaNodeId is another thing: the node that the GPU's own memory is, on machines where it is one.
    """
    domain, _, place = _ask_text(module, lambda it: module.nvmlDeviceGetPciInfo(it).busId, handle).partition(":")
    # NVML writes the domain with eight digits, the kernel with four or more.
    return files.read_numa_node(get_pci_folder(f"{domain.lstrip('0').zfill(4)}:{place}"))


def _read_domain(module: Any, handle: Any) -> str:
    """Return the NVLink domain and the GPU's partition of it, "<clusterUuid>.<cliqueId>"; "" if it is in none.

    It comes from the fabric information, which only GPUs have whose NVLink reaches beyond one machine. It counts when
    registration has completed with success and the cluster's UUID is not zero, as XLA reads it and as GPU Feature
    Discovery labels it.
    """
    from ctypes import byref  # which nvidia-ml-py has loaded anyway

    for struct in (getattr(module, name, None) for name in _STRUCTS):
        if struct is None or not hasattr(module, "nvmlDeviceGetGpuFabricInfoV"):
            continue  # an older nvidia-ml-py
        info = struct()
        try:
            module.nvmlDeviceGetGpuFabricInfoV(handle, byref(info))
        except module.NVMLError:
            continue  # an older driver, or a GPU that has no fabric
        cluster = bytes(info.clusterUuid).hex()
        if info.state != _COMPLETED or info.status != 0 or not cluster.strip("0"):
            return ""
        parts = (cluster[:8], cluster[8:12], cluster[12:16], cluster[16:20], cluster[20:])
        return f"{'-'.join(parts)}.{info.cliqueId}"
    return ""


def _ask_text(module: Any, function: Any, *arguments: Any) -> str:
    """Return what a function of NVML says; "" if the driver cannot tell, as of an empty place for a MIG instance."""
    try:
        return _decode(function(*arguments))
    except module.NVMLError:
        return ""


def _decode(value: str | bytes) -> str:
    """Return the text; older releases of nvidia-ml-py return bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value
