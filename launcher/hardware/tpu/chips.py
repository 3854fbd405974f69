"""TPU chips: those that a worker started here may open, in libtpu's order.

libtpu itself is never loaded, because it takes the chips for itself. Older models have a file /dev/accelN for each
chip. Newer ones use VFIO: a file /dev/vfio/N for every IOMMU group, whose content is listed in /sys. Other devices use
the same files, so the vendor is checked. The files are not opened: only an attempt to take a chip in use would get
"busy".

For the slice that the machine belongs to see `slice_identity`.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from launcher.hardware.accelerators.contract import Inventory
from launcher.hardware.tpu import cloud_metadata, slice_types
from launcher.hardware.tpu.slice_identity import TYPE
from launcher.model.node import Device

VISIBLE = ("TPU_VISIBLE_CHIPS", "TPU_VISIBLE_DEVICES")
"""The variable that selects chips, and its older name."""
VISIBLE_PATHS = "TPU_VISIBLE_DEVICE_PATHS"

_PCI = "sys/bus/pci/devices"
_NO_CHIPS = frozenset({"0x001f", "0x0042"})  # Google's NVMe and network card, which may be passed through as well


class Chip(NamedTuple):
    """`path`: the file in /dev that opens it; `address`: on the PCI bus, "" where unknown."""

    path: str
    address: str
    model: str


class Detector:
    """`root`: the directory above /dev and /sys, `metadata`: the metadata server's address, for tests."""

    kind = "tpu"

    def __init__(self, *, root: str = "/", metadata: tuple[str, int] = cloud_metadata.ADDRESS) -> None:
        self._root = root
        self._metadata = metadata

    def detect(self, environ: Mapping[str, str]) -> Inventory:
        chips = self._list_accel_chips() or self._list_vfio_chips()
        if not chips:
            return Inventory((), self._explain_absence(environ))
        reason = (
            f"{len(chips)} found in "
            f"{_find_folder(chips)}{self._describe_type(environ)}{_describe_mismatch(environ, len(chips))}"
        )
        variable = next((name for name in (*VISIBLE, VISIBLE_PATHS) if name in environ), "")
        chosen, mistake = (
            _apply_visible(variable, environ[variable], chips) if variable else (list(range(len(chips))), "")
        )
        if variable:
            reason += f", {len(chosen)} left by {variable}={environ[variable]}"
        devices = tuple(
            Device(
                kind=self.kind,
                index=index,
                id=chips[ordinal].address or os.path.basename(chips[ordinal].path),
                visible=str(ordinal),
                numa_node=self._read_numa_node(chips[ordinal].address),
                model=chips[ordinal].model,
            )
            for index, ordinal in enumerate(chosen)
        )
        return Inventory(devices, reason, mistake)

    def _list_accel_chips(self) -> list[Chip]:
        """List the /dev/accelN that we may open; the folder /dev/accel is of NVIDIA's drivers, and of others."""
        names = [name for name in self._list_names("dev") if re.fullmatch("accel[0-9]+", name)]
        chips = []
        for name in sorted(names, key=lambda name: int(name[5:])):
            path = self._resolve_path(f"dev/{name}")
            if not os.path.isdir(path) and os.access(path, os.R_OK | os.W_OK):
                address = self._read_link(f"sys/class/accel/{name}/device")
                chips.append(Chip(f"/dev/{name}", address, self._read_model(f"{_PCI}/{address}") if address else ""))
        return chips

    def _list_vfio_chips(self) -> list[Chip]:
        """List the chips of the IOMMU groups that we may open. A group may contain several, or another device."""
        groups = [name for name in self._list_names("dev/vfio") if name.isascii() and name.isdigit()]
        chips = []
        for group in sorted(groups, key=int):
            if not os.access(self._resolve_path(f"dev/vfio/{group}"), os.R_OK | os.W_OK):
                continue
            folder = f"sys/kernel/iommu_groups/{group}/devices"
            for address in self._list_names(folder):
                device = f"{folder}/{address}"
                if self._read_text(f"{device}/vendor") == slice_types.PCI_VENDOR:
                    if self._read_text(f"{device}/device") in _NO_CHIPS:
                        continue
                    chips.append(Chip(f"/dev/vfio/{group}", address, self._read_model(device)))
        return chips

    def _explain_absence(self, environ: Mapping[str, str]) -> str:
        """Explain chips that are present but cannot be opened."""
        on_bus = sum(
            self._read_text(f"{_PCI}/{address}/vendor") == slice_types.PCI_VENDOR
            and bool(self._read_model(f"{_PCI}/{address}"))
            for address in self._list_names(_PCI)
        )
        if on_bus:
            return f"{on_bus} TPU chip{'s' * (on_bus > 1)} on the PCI bus, and no file in /dev to open one"
        if environ.get(TYPE):
            return f"{TYPE}={environ[TYPE]}, but no TPU chip"
        return "no TPU chip"

    def _describe_type(self, environ: Mapping[str, str]) -> str:
        """Return ", v5litepod-16 by TPU_ACCELERATOR_TYPE", or why the type is unknown."""
        if environ.get(TYPE):
            return f", {environ[TYPE]} by {TYPE}"
        answer = cloud_metadata.fetch_metadata(environ, self._metadata)
        if TYPE in answer.variables:
            return f", {answer.variables[TYPE]} {answer.reason}"
        return "" if environ.get(cloud_metadata.SKIP) else f" ({answer.reason})"

    def _read_model(self, device: str) -> str:
        return slice_types.find_by_pci_id(self._read_text(f"{device}/device"))

    def _read_numa_node(self, address: str) -> int | None:
        text = self._read_text(f"{_PCI}/{address}/numa_node") if address else ""
        return int(text) if text.isascii() and text.isdigit() else None  # -1 where the machine does not say

    def _resolve_path(self, path: str) -> str:
        return os.path.join(self._root, path)

    def _list_names(self, folder: str) -> list[str]:
        try:
            return sorted(os.listdir(self._resolve_path(folder)))
        except OSError:
            return []

    def _read_link(self, link: str) -> str:
        """Return the last part of a link's target; "" if it is no link."""
        try:
            return os.path.basename(os.readlink(self._resolve_path(link)))
        except OSError:
            return ""

    def _read_text(self, path: str) -> str:
        try:
            with open(self._resolve_path(path)) as file:
                return file.read(64).strip()
        except (OSError, ValueError):
            return ""


def _find_folder(chips: Sequence[Chip]) -> str:
    return "/dev/vfio" if chips[0].path.startswith("/dev/vfio/") else "/dev"


def _describe_mismatch(environ: Mapping[str, str], count: int) -> str:
    """Return GKE's statement of the chips of a host, where it differs from what was found; else ""."""
    for name in ("TPU_CHIPS_PER_HOST_BOUNDS", "TPU_CHIPS_PER_PROCESS_BOUNDS"):
        sides = environ.get(name, "").split(",")
        if len(sides) == 3 and all(map(slice_types.is_side, sides)):
            return "" if math.prod(map(int, sides)) == count else f", though {name}={environ[name]}"
    return ""


def _apply_visible(variable: str, value: str, chips: Sequence[Chip]) -> tuple[list[int], str]:
    """Return the chips that are left, by number; and what is wrong with the text, "" if nothing is.

    libtpu does not start with a missing chip, and its behaviour for a repeated one is not documented.
    """
    numbers = {chip.path if variable == VISIBLE_PATHS else str(number): number for number, chip in enumerate(chips)}
    chosen: list[int] = []
    for entry in (part.strip() for part in value.split(",") if value.strip()):
        if entry not in numbers:
            return [], f"{variable}={value}: there is no TPU chip {entry!r} here, only {', '.join(numbers)}"
        if numbers[entry] in chosen:
            return [], f"{variable}={value} names TPU chip {entry} twice"
        chosen.append(numbers[entry])
    return chosen, ""
