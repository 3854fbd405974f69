"""Intel Gaudi accelerators (Habana), as a plug-in: `--devices habana`.

The driver makes a pair of files for each, /dev/accel/accelN and /dev/accel/accel_controlDN (Linux,
drivers/accel/habanalabs); other accelerators have no file of the second name. HABANA_VISIBLE_MODULES holds module ids,
which are those of the circuit board and in another order than N ("Multiple Workloads on a Single Docker",
docs.habana.ai): the driver shows a device's at /sys/class/accel/accelN/device/module_id. Where it does not, a machine
with a fully equipped board has every module id, and on others the ids are unknown. Not tried on hardware.
"""

from __future__ import annotations

from collections.abc import Mapping

from launcher.hardware.accelerators.contract import Inventory
from launcher.hardware.linux.sysfs import list_numbers, may_open, read_number, resolve_path
from launcher.model.node import Device

_BOARD_SIZE = 8


class Detector:
    """`root`: the directory above /dev and /sys, for tests."""

    kind = "habana"
    variable = "HABANA_VISIBLE_MODULES"

    def __init__(self, root: str = "/") -> None:
        self._root = root

    def detect(self, environ: Mapping[str, str]) -> Inventory:
        there = list_numbers(resolve_path(self._root, "/dev/accel"), "accel_controlD")
        files = [index for index in there if may_open(resolve_path(self._root, f"/dev/accel/accel{index}"))]
        if not files:
            reason = "no /dev/accel/accel_controlDN with an accelN that may be opened here"
            return Inventory((), reason)
        modules = {index: self._read_module(index) for index in files}
        if None in modules.values():
            if len(files) != _BOARD_SIZE:
                reason = f"{len(files)} found in /dev/accel, but their module ids cannot be read"
                return Inventory((), reason)
            modules = {index: index for index in files}
        reason = f"{len(files)} found in /dev/accel"
        chosen = sorted(files, key=lambda index: modules[index] or 0)
        mistake = ""
        value = environ.get(self.variable)
        if value is not None:
            entries = [entry.strip() for entry in value.split(",")] if value else []
            unknown = sorted(set(entries) - {str(module) for module in modules.values()})
            chosen = [index for index in chosen if str(modules[index]) in entries]
            reason += f", {len(chosen)} left by {self.variable}={value}"
            mistake = f"{self.variable}={value}: there is no module {', '.join(unknown)}" if unknown else ""
        devices = tuple(
            Device(
                kind=self.kind, index=place, id=f"accel{index}", visible=str(modules[index]),
                numa_node=self._read_numa_node(index),
            )
            for place, index in enumerate(chosen)
        )  # fmt: skip
        return Inventory(devices, f"{reason}, {mistake}" if mistake else reason, mistake)

    def _read_module(self, index: int) -> int | None:
        return read_number(resolve_path(self._root, f"/sys/class/accel/accel{index}/device/module_id"))

    def _read_numa_node(self, index: int) -> int | None:
        node = read_number(resolve_path(self._root, f"/sys/class/accel/accel{index}/device/numa_node"))
        return node if node is not None and node >= 0 else None
