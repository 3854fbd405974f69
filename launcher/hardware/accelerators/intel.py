"""Intel GPUs: the discrete ones that a worker started here would see through Level Zero, in its order.

The kernel drivers xe and i915 list them on the PCI bus. Graphics inside a CPU has the same vendor, class and driver;
Intel's processors have it at one fixed address, device 2 of bus 0 ("Processor Graphics" in their datasheets), where no
card can be. It is no training device and counts only where Intel's devices are requested by name. A GPU that we may
not open belongs to another user.

A large GPU is made of tiles. ZE_FLAT_DEVICE_HIERARCHY says what a device is: every tile (FLAT, which drivers take by
default since late 2023, and COMBINED), or every GPU (COMPOSITE). ZE_AFFINITY_MASK then chooses among these: "0,3", and
with COMPOSITE also tiles, "0.1". An entry that names nothing is ignored, and the order is the driver's, not the
mask's (Level Zero specification, core programming guide, "Affinity Mask"; compute-runtime,
execution_environment.cpp). ONEAPI_DEVICE_SELECTOR, which narrows SYCL alone, is not read. Not tried on hardware.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from launcher.hardware.accelerators.contract import KINDS, Inventory
from launcher.hardware.linux.sysfs import list_names, list_numbers, may_open, read_numa_node, read_text, resolve_path
from launcher.model.node import Device

MASK = "ZE_AFFINITY_MASK"
HIERARCHY = "ZE_FLAT_DEVICE_HIERARCHY"
_PCI_VENDOR = "0x8086"
_PCI_CLASS_DISPLAY = "0x03"  # the driver's NPUs and switches have others
_INTEGRATED = re.compile(r"0000:00:02\.[0-7]")
_ENTRY = re.compile(r"([0-9]+)(?:\.([0-9]+))?")


class IntelGpu(NamedTuple):
    address: str
    tiles: int
    numa_node: int | None
    model: str


class ZeDevice(NamedTuple):
    """A device in Level Zero's sense: `entry` selects it in the mask. `tile` None: the whole GPU."""

    gpu: IntelGpu
    entry: str
    tile: int | None


class Detector:
    """`root`: the directory above /sys and /dev, for tests. `with_integrated`: whether graphics inside a CPU counts."""

    kind = "intel"

    def __init__(self, *, root: str = "/", with_integrated: bool = False) -> None:
        self._root = root
        self._with_integrated = with_integrated

    def detect(self, environ: Mapping[str, str]) -> Inventory:
        addresses = {
            address
            for driver in KINDS[self.kind].driver_paths
            for address in list_names(resolve_path(self._root, driver))
            if self._is_display(address)
        }
        discrete = sorted(address for address in addresses if not _INTEGRATED.fullmatch(address))
        taken = sorted(addresses) if self._with_integrated else discrete
        gpus = [self._read_gpu(address) for address in taken if self._may_open(address)]
        reasons = [f"{len(gpus)} found by Intel's drivers"]
        if len(gpus) < len(taken):
            reasons.append(f"{len(taken) - len(gpus)} may not be opened here")
        if len(taken) < len(addresses):
            reasons.append("graphics inside a CPU left out")
        is_composite = environ.get(HIERARCHY, "").upper() == "COMPOSITE"
        parts, mistake = _apply_mask(environ.get(MASK, ""), gpus, is_composite)
        if any(gpu.tiles > 1 for gpu in gpus):
            reasons.append(f"{sum(gpu.tiles for gpu in gpus)} tiles" + (" (COMPOSITE)" if is_composite else ""))
        if environ.get(MASK) and gpus:
            reasons.append(f"{len(parts)} left by {MASK}={environ[MASK]}")
        reasons += filter(None, [mistake])
        devices = tuple(self._make_device(index, part) for index, part in enumerate(parts))
        return Inventory(devices, ", ".join(reasons) if addresses else "no Intel GPU", mistake)

    def _make_device(self, index: int, part: ZeDevice) -> Device:
        gpu = part.gpu
        identifier = f"pci-{gpu.address}" + (f"/tile{part.tile}" if part.tile is not None and gpu.tiles > 1 else "")
        return Device(
            kind=self.kind, index=index, id=identifier, visible=part.entry, numa_node=gpu.numa_node, model=gpu.model
        )  # fmt: skip

    def _resolve_folder(self, address: str) -> str:
        return resolve_path(self._root, f"/sys/bus/pci/devices/{address}")

    def _is_display(self, address: str) -> bool:
        folder = self._resolve_folder(address)
        return read_text(f"{folder}/vendor") == _PCI_VENDOR and read_text(f"{folder}/class").startswith(
            _PCI_CLASS_DISPLAY
        )

    def _may_open(self, address: str) -> bool:
        nodes = list_numbers(f"{self._resolve_folder(address)}/drm", "renderD")
        return any(may_open(resolve_path(self._root, f"/dev/dri/renderD{node}")) for node in nodes)

    def _read_gpu(self, address: str) -> IntelGpu:
        folder = self._resolve_folder(address)
        tiles = len(list_numbers(folder, "tile"))  # xe; i915 has a folder gt for each
        for card in list_numbers(f"{folder}/drm", "card"):
            tiles = tiles or len(list_numbers(f"{folder}/drm/card{card}/gt", "gt"))
        device = read_text(f"{folder}/device").removeprefix("0x")
        return IntelGpu(
            address, max(1, tiles), read_numa_node(self._root, address), f"Intel {device}" if device else ""
        )


def _apply_mask(mask: str, gpus: Sequence[IntelGpu], is_composite: bool) -> tuple[list[ZeDevice], str]:
    """Return the devices that the mask leaves, in the driver's order, and what is wrong with it."""
    if is_composite:
        every = [ZeDevice(gpu, str(index), None) for index, gpu in enumerate(gpus)]
    else:
        tiles = [(gpu, tile) for gpu in gpus for tile in range(gpu.tiles)]
        every = [ZeDevice(gpu, str(index), tile) for index, (gpu, tile) in enumerate(tiles)]
    if mask in ("", "default"):
        return every, ""
    tiles_by_device: dict[int, set[int] | None] = {}  # tiles of a device, None: all of it
    unknown = []
    for entry in (entry.strip() for entry in mask.split(",")):
        found = _ENTRY.fullmatch(entry)
        index, tile = (int(found[1]), found[2]) if found else (-1, None)
        if not 0 <= index < len(every) or (tile and not (is_composite and int(tile) < every[index].gpu.tiles)):
            unknown.append(entry)
        elif tile is None:
            tiles_by_device[index] = None
        elif (named_tiles := tiles_by_device.setdefault(index, set())) is not None:
            named_tiles.add(int(tile))
    parts = [_select_tiles(every[index], tiles_by_device[index]) for index in sorted(tiles_by_device)]
    if not unknown:
        return parts, ""
    them = f"{', '.join(map(repr, unknown))} name{'s' * (len(unknown) == 1)} no device"
    if not is_composite and any("." in entry for entry in unknown):
        them += f" (every tile is a device with a number of its own, unless {HIERARCHY}=COMPOSITE)"
    return parts, f"{MASK}={mask}: {them}"


def _select_tiles(part: ZeDevice, tiles: set[int] | None) -> ZeDevice:
    """Return a device of which the mask may have named some tiles only."""
    if tiles is None:
        return part
    entry = ",".join(f"{part.entry}.{tile}" for tile in sorted(tiles))
    return ZeDevice(part.gpu, entry, min(tiles) if len(tiles) == 1 else None)
