"""TPU chips: those that a worker started here may open, in libtpu's order.

libtpu itself is never loaded, because it takes the chips for itself. Older models have a file /dev/accelN for each
chip. Newer ones use VFIO: a file /dev/vfio/N for every IOMMU group, whose content is listed in /sys. Other devices use
the same files, so the vendor is checked. The files are not opened: only an attempt to take a chip in use would get
"busy". For the slice that the machine belongs to see `slice_identity`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from msgspec import Struct

from launcher.config.options.readers import DeviceRequest
from launcher.hardware import slice_identity, slice_types
from launcher.hardware.accelerators.contract import Inventory
from launcher.hardware.accelerators.visible_list import examine
from launcher.hardware.linux.sysfs import FileTree, get_pci_folder
from launcher.hardware.metadata_server import LINK_LOCAL
from launcher.hardware.slice_identity import SKIP, TYPE, fetch_metadata
from launcher.model.errors import UsageError
from launcher.model.node import Device

VISIBLE = ("TPU_VISIBLE_CHIPS", "TPU_VISIBLE_DEVICES")
"""The variable that selects chips, and its older name."""
VISIBLE_PATHS = "TPU_VISIBLE_DEVICE_PATHS"

MODELS_BY_PCI_ID = {
    "0x0027": "v2/v3",
    "0x0056": "TPU",  # a chip without a public name, which JAX and torch_xla count
    "0x005e": "v4",
    "0x0062": "v5p",
    "0x0063": "v5e",
    "0x006f": "v6e",
    "0x0076": "tpu7x",
}
"""As in JAX (_src/hardware_utils.py)."""

_PCI_VENDOR = "0x1ae0"  # Google; its virtual network cards have it too, so a chip is known by both ids
_NO_CHIPS = frozenset({"0x001f", "0x0042"})  # Google's NVMe and network card, which may be passed through as well


class Chip(Struct, frozen=True):
    """A TPU chip."""

    path: str
    """The file in /dev that opens it."""
    address: str
    """On the PCI bus, "" if unknown."""
    model: str


class Detector:
    """`root`: the directory above /dev and /sys, `metadata`: the metadata server's address, for tests."""

    kind = "tpu"

    def __init__(self, *, root: str = "/", metadata: tuple[str, int] = LINK_LOCAL) -> None:
        self._files = FileTree(root)
        self._metadata = metadata

    def detect(self, environ: Mapping[str, str]) -> Inventory:
        chips = self._list_accel_chips() or self._list_vfio_chips()
        if not chips:
            return Inventory((), self._explain_absence(environ))
        folder = "/dev/vfio" if chips[0].path.startswith("/dev/vfio/") else "/dev"
        reason = f"{len(chips)} found in {folder}{self._describe_type(environ)}"
        chosen, mistake = list(range(len(chips))), ""
        variable = next((name for name in (*VISIBLE, VISIBLE_PATHS) if name in environ), "")
        if variable:
            if mistaken := examine(environ, (variable,)):
                return mistaken
            chosen, mistake = _apply_visible(variable, environ[variable], chips)
            reason += f", {len(chosen)} left by {variable}={environ[variable]}"
        devices = tuple(self._make_device(index, ordinal, chips[ordinal]) for index, ordinal in enumerate(chosen))
        return Inventory(devices, reason, mistake)

    def _make_device(self, index: int, ordinal: int, chip: Chip) -> Device:
        return Device(
            kind=self.kind, index=index, id=chip.address or os.path.basename(chip.path), visible=str(ordinal),
            numa_node=self._files.read_numa_node(get_pci_folder(chip.address)), model=chip.model,
        )  # fmt: skip

    def _list_accel_chips(self) -> list[Chip]:
        """List the /dev/accelN that we may open; the folder /dev/accel is of NVIDIA's drivers, and of others."""
        chips: list[Chip] = []
        for number in self._files.list_openable("/dev/accel"):
            path = f"/dev/accel{number}"
            if not self._files.is_directory(path):
                link = self._files.resolve(f"/sys/class/accel/accel{number}/device")
                address = os.path.basename(os.readlink(link)) if os.path.islink(link) else ""
                chips.append(Chip(path, address, self._read_model(get_pci_folder(address))))
        return chips

    def _list_vfio_chips(self) -> list[Chip]:
        """List the chips of the IOMMU groups that we may open. A group may contain several, or another device."""
        chips: list[Chip] = []
        for group in self._files.list_openable("/dev/vfio/"):
            folder = f"/sys/kernel/iommu_groups/{group}/devices"
            for address in self._files.list_names(folder):
                is_chip = self._files.read_text(f"{folder}/{address}/device") not in _NO_CHIPS
                if is_chip and self._is_google(f"{folder}/{address}"):
                    chips.append(Chip(f"/dev/vfio/{group}", address, self._read_model(f"{folder}/{address}")))
        return chips

    def _explain_absence(self, environ: Mapping[str, str]) -> str:
        """Explain chips that are present but cannot be opened."""
        devices = [get_pci_folder(address) for address in self._files.list_names("/sys/bus/pci/devices")]
        on_bus = sum(self._is_google(device) and self._read_model(device) != "" for device in devices)
        if on_bus:
            return f"{on_bus} TPU chip{'s' * (on_bus > 1)} on the PCI bus, and no file in /dev to open one"
        if environ.get(TYPE):
            return f"{TYPE}={environ[TYPE]}, but no TPU chip"
        return "no TPU chip"

    def _describe_type(self, environ: Mapping[str, str]) -> str:
        """Return ", v5litepod-16 by TPU_ACCELERATOR_TYPE", or why the type is unknown."""
        if environ.get(TYPE):
            return f", {environ[TYPE]} by {TYPE}"
        answer = fetch_metadata(environ, self._metadata)
        if TYPE in answer.variables:
            return f", {answer.variables[TYPE]} {answer.reason}"
        return "" if environ.get(SKIP) else f" ({answer.reason})"

    def _is_google(self, device: str) -> bool:
        return self._files.read_text(f"{device}/vendor") == _PCI_VENDOR

    def _read_model(self, device: str) -> str:
        return MODELS_BY_PCI_ID.get(self._files.read_text(f"{device}/device"), "")


def _apply_visible(variable: str, value: str, chips: Sequence[Chip]) -> tuple[list[int], str]:
    """Return the chips that are left, by number; and what is wrong with the text, "" if nothing is.

    libtpu does not start with a missing chip, and its behaviour for a repeated one is not documented.
    """
    numbers = {chip.path if variable == VISIBLE_PATHS else str(number): number for number, chip in enumerate(chips)}
    chosen: list[int] = []
    for entry in (part.strip() for part in value.split(",") if value.strip()):
        if entry not in numbers:
            return [], f"{variable}={value}: no TPU chip {entry!r} exists here, only {', '.join(numbers)}"
        if numbers[entry] in chosen:
            return [], f"{variable}={value} names TPU chip {entry} twice"
        chosen.append(numbers[entry])
    return chosen, ""


def count_chips(request: DeviceRequest, found: Inventory, environ: Mapping[str, str]) -> tuple[int, str]:
    """Return the number of chips that this host has in a slice of the type, and the reason extended by it.

    Raises UsageError if the slice of this host has another number of hosts.
    """
    try:
        slice_type = slice_types.parse(request.shape, len(found.devices) or None)
    except UsageError as error:
        raise UsageError(f"{request}: {error}", error.hint) from None
    identity, said = slice_identity.read_identity(environ)
    if identity is not None and identity.host_count != slice_type.hosts:
        raise UsageError(f"{request}: such a slice has {slice_type.hosts} hosts, but this host is one of {said}")
    return slice_type.chips_per_host, f"{slice_type.description}; {found.reason}"
