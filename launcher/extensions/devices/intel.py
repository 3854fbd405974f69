"""Intel GPUs: the discrete ones that a worker started here would see through Level Zero, in its order.

The kernel drivers xe and i915 list them on the PCI bus. Graphics inside a CPU has the same vendor, class and driver;
Intel's processors have it at one fixed address, device 2 of bus 0 ("Processor Graphics" in their datasheets), where no
card can be. It is no training device and counts only where Intel's devices are requested by name. A GPU that we may
not open belongs to another user.

A large GPU is made of tiles. ZE_FLAT_DEVICE_HIERARCHY says what a device is: every tile (FLAT, the usual one, and
COMBINED), or every GPU (COMPOSITE). ZE_AFFINITY_MASK then chooses among these: "0,3". Tiles of a GPU with COMPOSITE,
"0.1", are refused: FLAT numbers them. ONEAPI_DEVICE_SELECTOR, which narrows SYCL alone, is not read. Not tried on
hardware.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from msgspec import Struct

from launcher.hardware.accelerators.contract import KINDS, Inventory, describe_left, make_inventory
from launcher.hardware.accelerators.visible_list import examine, hides_all
from launcher.hardware.linux.sysfs import FileTree, get_pci_folder
from launcher.model.node import Device

MASK = "ZE_AFFINITY_MASK"
HIERARCHY = "ZE_FLAT_DEVICE_HIERARCHY"
_PCI_VENDOR = "0x8086"
_INTEGRATED = re.compile(r"0000:00:02\.[0-7]")


class IntelGpu(Struct, frozen=True):
    address: str
    tiles: int
    numa_node: int | None
    model: str


class ZeDevice(Struct, frozen=True):
    """A device in Level Zero's sense: `number` selects it in the mask. `tile` None: the whole GPU."""

    gpu: IntelGpu
    number: int
    tile: int | None


class Detector:
    """`root`: the directory above /sys and /dev, for tests. `with_integrated`: whether graphics inside a CPU counts."""

    kind = "intel"

    def __init__(self, *, root: str = "/", with_integrated: bool = False) -> None:
        self._files = FileTree(root)
        self._with_integrated = with_integrated

    def detect(self, environ: Mapping[str, str]) -> Inventory:
        names = {name for folder in KINDS[self.kind].driver_paths for name in self._files.list_names(folder)}
        addresses = sorted(name for name in names if self._files.is_display(get_pci_folder(name), _PCI_VENDOR))
        if not addresses:
            return Inventory((), "no Intel GPU")
        counted = [one for one in addresses if self._with_integrated or not _INTEGRATED.fullmatch(one)]
        gpus = [self._read_gpu(address) for address in counted if self._may_open(address)]
        is_composite = environ.get(HIERARCHY, "").upper() == "COMPOSITE"
        if mistaken := examine(environ, (MASK,)):
            return mistaken
        parts, mistake = _apply_mask(environ.get(MASK, ""), gpus, is_composite)
        tiles = f"{sum(gpu.tiles for gpu in gpus)} tiles{' (COMPOSITE)' if is_composite else ''}"
        return make_inventory(
            (self._make_device(index, part) for index, part in enumerate(parts)),
            f"{len(gpus)} found by Intel's drivers",
            f"{len(counted) - len(gpus)} may not be opened here" if len(gpus) < len(counted) else "",
            "graphics inside a CPU left out" if len(counted) < len(addresses) else "",
            tiles if any(gpu.tiles > 1 for gpu in gpus) else "",
            describe_left(len(parts), MASK, environ) if environ.get(MASK) and gpus else "",
            mistake=mistake,
        )

    def _make_device(self, index: int, part: ZeDevice) -> Device:
        gpu = part.gpu
        tile = f"/tile{part.tile}" if part.tile is not None and gpu.tiles > 1 else ""
        return Device(
            kind=self.kind, index=index, id=f"pci-{gpu.address}{tile}", visible=str(part.number),
            numa_node=gpu.numa_node, model=gpu.model,
        )  # fmt: skip

    def _may_open(self, address: str) -> bool:
        nodes = self._files.list_numbers(f"{get_pci_folder(address)}/drm/renderD")
        return any(self._files.may_open(f"/dev/dri/renderD{node}") for node in nodes)

    def _read_gpu(self, address: str) -> IntelGpu:
        folder = get_pci_folder(address)
        tiles = len(self._files.list_numbers(f"{folder}/tile"))  # xe; i915 has a folder gt for each
        for card in self._files.list_numbers(f"{folder}/drm/card"):
            tiles = tiles or len(self._files.list_numbers(f"{folder}/drm/card{card}/gt/gt"))
        device = self._files.read_text(f"{folder}/device").removeprefix("0x")
        model = f"Intel {device}" if device else ""
        return IntelGpu(address, max(1, tiles), self._files.read_numa_node(folder), model)


def _apply_mask(mask: str, gpus: Sequence[IntelGpu], is_composite: bool) -> tuple[list[ZeDevice], str]:
    """Return the devices that the mask leaves, in the driver's order, and what is wrong with it."""
    units: list[tuple[IntelGpu, int | None]] = [(gpu, None) for gpu in gpus]
    if not is_composite:
        units = [(gpu, tile) for gpu in gpus for tile in range(gpu.tiles)]
    every = [ZeDevice(gpu, number, tile) for number, (gpu, tile) in enumerate(units)]
    if mask in ("", "default"):
        return every, ""
    if hides_all(mask):
        return [], ""
    by_entry = {str(part.number): part for part in every}
    entries = [entry.strip().lstrip("0") or "0" for entry in mask.rstrip(", ").split(",")]
    unknown = [entry for entry in entries if entry not in by_entry]
    mistake = f"{MASK}={mask}: {', '.join(map(repr, unknown))} name{'s' * (len(unknown) == 1)} no device"
    return [part for entry, part in by_entry.items() if entry in entries], mistake if unknown else ""
