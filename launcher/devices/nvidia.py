"""NVIDIA GPUs: which ones a worker started here would see, in its order.

CUDA itself is never asked: that would load hundreds of megabytes and create a context. The driver's own
library NVML answers if nvidia-ml-py is installed; else the driver's files under /proc do, or, where a
sandbox hides those, the PCI bus. Then CUDA_VISIBLE_DEVICES is applied as CUDA and torch apply it.

A machine without the driver pays for two failed look-ups and imports nothing.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from launcher.devices import Inventory
from launcher.node import Device

VISIBLE = "CUDA_VISIBLE_DEVICES"
_PCI_VENDOR = "0x10de"
_PCI_CLASS_DISPLAY = "0x03"  # VGA and 3D controllers; the same vendor's audio and bridge functions have others
_ORDINAL = re.compile(r"[+-]?[0-9]+")


class Gpu(NamedTuple):
    """`ordinal`: the driver's number, which is what an integer in CUDA_VISIBLE_DEVICES means. `migs`: MIG ids on it."""

    ordinal: int
    uuid: str
    migs: tuple[str, ...] = ()


class Found(NamedTuple):
    """`source`: who was asked. `silent`: how many GPUs the driver lists that do not answer."""

    gpus: tuple[Gpu, ...]
    source: str
    silent: int = 0


class Detector:
    """`root`: where /proc, /dev and /sys hang, and `nvml`: what stands in for nvidia-ml-py's module, for tests."""

    kind = "nvidia"

    def __init__(self, *, root: str = "/", nvml: Any = None) -> None:
        self._root = root
        self._nvml = nvml

    def detect(self, environ: Mapping[str, str]) -> Inventory:
        if not any(os.path.exists(self._path(path)) for path in ("proc/driver/nvidia", "dev/nvidiactl")):
            return Inventory((), "no NVIDIA driver")
        asked = environ.get(VISIBLE)
        if asked is not None and _is_none(asked):
            return Inventory((), f"{VISIBLE}={asked!r} hides every GPU")
        found = self._from_nvml() or self._from_proc() or self._from_pci()
        reason = f"{len(found.gpus)} found by {found.source}"
        if found.silent:
            reason += f", {found.silent} more {'does' if found.silent == 1 else 'do'} not answer"
        if asked is None:
            # Whether CUDA counts a silent GPU is not documented; then ids are the only sure names.
            chosen = [(gpu.uuid, gpu.uuid if found.silent else str(gpu.ordinal)) for gpu in found.gpus]
        else:
            chosen = choose(asked, found.gpus)
            reason += f", {len(chosen)} left by {VISIBLE}={asked}"
            if asked.startswith("MIG-") and "," in asked:
                reason += " as CUDA gives a process one MIG instance"
        devices = tuple(
            Device(kind=self.kind, index=index, id=uuid, visible=visible)
            for index, (uuid, visible) in enumerate(chosen)
        )
        return Inventory(devices, reason)

    def _path(self, path: str) -> str:
        return os.path.join(self._root, path)

    def _from_nvml(self) -> Found | None:
        """What NVML lists; None if its Python module or the driver's library is missing or refuses."""
        nvml = self._nvml
        if nvml is None:
            try:
                nvml = __import__("pynvml")  # by name: the distribution nvidia-ml-py is optional and untyped
            except ImportError:
                return None
        try:
            nvml.nvmlInit()
        except nvml.NVMLError:
            return None
        try:
            asked = [_gpu(nvml, ordinal) for ordinal in range(nvml.nvmlDeviceGetCount())]
            gpus = tuple(gpu for gpu in asked if gpu)
            return Found(gpus, "NVML", len(asked) - len(gpus))
        except nvml.NVMLError:
            return None
        finally:
            with contextlib.suppress(nvml.NVMLError):
                nvml.nvmlShutdown()

    def _from_proc(self) -> Found | None:
        """What the driver says of itself: one folder per GPU, named by PCI address, which is also NVML's order."""
        folder = self._path("proc/driver/nvidia/gpus")
        nodes = self._device_nodes()
        uuids: list[str] = []
        for address in _listed(folder):
            fields = dict(
                line.split(":", 1) for line in _read(f"{folder}/{address}/information").splitlines() if ":" in line
            )
            minor = fields.get("Device Minor", "").strip()
            # A container or batch system may grant fewer than are listed; the others are somebody else's.
            if nodes is None or minor in nodes:
                uuid = fields.get("GPU UUID", "").strip()
                uuids.append(uuid if uuid.startswith("GPU-") and "?" not in uuid else f"pci-{address}")
        return Found(_numbered(uuids), "/proc/driver/nvidia") if uuids else None

    def _from_pci(self) -> Found:
        """What is on the PCI bus, at most as many as we may open: the bus shows everybody all of them."""
        folder = self._path("sys/bus/pci/devices")
        addresses = [
            address
            for address in _listed(folder)
            if _read(f"{folder}/{address}/vendor").strip() == _PCI_VENDOR
            and _read(f"{folder}/{address}/class").startswith(_PCI_CLASS_DISPLAY)
        ]
        nodes = self._device_nodes()
        if nodes is not None:
            del addresses[len(nodes) :]
        return Found(_numbered([f"pci-{address}" for address in addresses]), "the PCI bus")

    def _device_nodes(self) -> set[str] | None:
        """The numbers N of the /dev/nvidiaN that we may open; None where the driver has not made any yet.

        access(2) asks the device cgroup too, and unlike open(2) it does not wake a GPU.
        """
        numbers = [name[6:] for name in _listed(self._path("dev")) if re.fullmatch("nvidia[0-9]+", name)]
        if not numbers:
            return None
        return {number for number in numbers if os.access(self._path(f"dev/nvidia{number}"), os.R_OK | os.W_OK)}


def choose(asked: str, gpus: Sequence[Gpu]) -> list[tuple[str, str]]:
    """Apply a value of CUDA_VISIBLE_DEVICES: (hardware id, the entry that selects it) in enumeration order.

    CUDA programming guide, "CUDA environment variables": the first invalid entry hides itself and all that
    follow; a process gets one MIG instance. torch adds that a repeated entry empties the list.
    """
    entries = [entry.strip() for entry in asked.split(",")]
    if entries[0].startswith("MIG-"):
        return [(uuid, entries[0]) for uuid in [_mig(entries[0], gpus)] if uuid is not None]
    kind = type(_key(entries[0]))
    keys: list[str | int] = []
    for entry in entries:
        key = _key(entry)
        if key is None or type(key) is not kind:
            break
        if key in keys:
            return []
        keys.append(key)
    if kind is str and not any(gpu.uuid.startswith("GPU-") for gpu in gpus):
        return [(entry, entry) for entry in entries[: min(len(keys), len(gpus))]]  # ids unknown here: believed
    selected: dict[str, str] = {}
    for key, entry in zip(keys, entries, strict=False):
        matches = [
            gpu.uuid for gpu in gpus if (gpu.ordinal == key if isinstance(key, int) else gpu.uuid.startswith(key))
        ]
        if len(matches) != 1:
            break
        if matches[0] in selected:
            return []
        selected[matches[0]] = entry
    return list(selected.items())


def _key(entry: str) -> str | int | None:
    """What an entry selects by: the beginning of an id, or a number as strtoul reads it ("1gpu" is 1)."""
    if entry.startswith("GPU-"):
        return entry
    number = _ORDINAL.match(entry)
    return int(number.group()) if number and int(number.group()) >= 0 else None


def _is_none(asked: str) -> bool:
    """Whether no GPU can be meant, so that none need be looked for: empty, -1, NoDevFiles, ..."""
    first = asked.split(",")[0].strip()
    return not first.startswith("MIG-") and _key(first) is None


def _mig(entry: str, gpus: Sequence[Gpu]) -> str | None:
    """The MIG instance that "MIG-<uuid>" or the older "MIG-GPU-<uuid>/<gi>/<ci>" names.

    Only NVML knows instances; without it the entry is believed.
    """
    if entry.startswith("MIG-GPU-"):
        owner = entry[len("MIG-") :].split("/")[0]
        known = [gpu.uuid for gpu in gpus if gpu.uuid.startswith("GPU-")]
        return entry if not known or owner in known else None
    migs = [mig for gpu in gpus for mig in gpu.migs]
    if not migs:
        return entry
    matches = [mig for mig in migs if mig.startswith(entry)]
    return matches[0] if len(matches) == 1 else None


def _gpu(nvml: Any, ordinal: int) -> Gpu | None:
    """One GPU; None if it has fallen off the bus, which the driver goes on listing until the next boot."""
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(ordinal)
        return Gpu(ordinal, nvml.nvmlDeviceGetUUID(handle), _migs(nvml, handle))
    except nvml.NVMLError:
        return None


def _migs(nvml: Any, handle: Any) -> tuple[str, ...]:
    """The ids of a GPU's MIG instances; none for a GPU without MIG."""
    try:
        if not nvml.nvmlDeviceGetMigMode(handle)[0]:
            return ()
        places = range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle))
    except nvml.NVMLError:
        return ()
    return tuple(mig for mig in (_mig_at(nvml, handle, place) for place in places) if mig)


def _mig_at(nvml: Any, handle: Any, place: int) -> str | None:
    try:
        mig: str = nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place))
    except nvml.NVMLError:
        return None  # places may be empty
    return mig


def _numbered(uuids: Sequence[str]) -> tuple[Gpu, ...]:
    return tuple(Gpu(ordinal, uuid) for ordinal, uuid in enumerate(uuids))


def _listed(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""
