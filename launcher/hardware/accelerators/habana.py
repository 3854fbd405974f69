"""Intel Gaudi accelerators (Habana), as a plug-in: `--devices habana`.

The driver makes a pair of files for each, /dev/accel/accelN and /dev/accel/accel_controlDN (Linux,
drivers/accel/habanalabs); other accelerators have no file of the second name. HABANA_VISIBLE_MODULES holds module ids,
which are those of the circuit board and in another order than N ("Multiple Workloads on a Single Docker",
docs.habana.ai): the driver shows a device's at /sys/class/accel/accelN/device/module_id. Where it does not, a machine
with a fully equipped board has every module id, and on others the ids are unknown. Not tried on hardware.
"""

from __future__ import annotations

from collections.abc import Mapping

from launcher.hardware.accelerators.contract import Inventory, describe_left, make_inventory
from launcher.hardware.accelerators.visible_list import examine, hides_all
from launcher.hardware.linux.sysfs import FileTree
from launcher.model.node import Device

_BOARD_SIZE = 8
_SYSFS = "/sys/class/accel/accel"


class Detector:
    """`root`: the directory above /dev and /sys, for tests."""

    kind = "habana"
    variable = "HABANA_VISIBLE_MODULES"

    def __init__(self, root: str = "/") -> None:
        self._files = FileTree(root)

    def detect(self, environ: Mapping[str, str]) -> Inventory:
        controls = self._files.list_numbers("/dev/accel/accel_controlD")
        files = [number for number in self._files.list_openable("/dev/accel/accel") if number in controls]
        if not files:
            return Inventory((), "no /dev/accel/accel_controlDN with an accelN that may be opened here")
        ids = {number: self._files.read_number(f"{_SYSFS}{number}/device/module_id") for number in files}
        modules = {module: number for number, module in ids.items() if module is not None}
        if None in ids.values():
            if len(files) != _BOARD_SIZE:
                return Inventory((), f"{len(files)} found in /dev/accel, but their module ids cannot be read")
            modules = {number: number for number in files}
        if mistaken := examine(environ, (self.variable,)):
            return mistaken
        value, mistake = environ.get(self.variable), ""
        chosen = sorted(modules)
        if value is not None:
            entries = [entry.strip() for entry in value.split(",")] if not hides_all(value) else []
            unknown = sorted(set(entries) - {str(module) for module in modules})
            mistake = f"{self.variable}={value}: there is no module {', '.join(unknown)}" if unknown else ""
            chosen = [module for module in chosen if str(module) in entries]
        devices = (
            Device(
                kind=self.kind, index=index, id=f"accel{modules[module]}", visible=str(module),
                numa_node=self._files.read_numa_node(f"{_SYSFS}{modules[module]}/device"),
            )
            for index, module in enumerate(chosen)
        )  # fmt: skip
        left = describe_left(len(chosen), self.variable, environ)
        return make_inventory(devices, f"{len(files)} found in /dev/accel", left, mistake=mistake)
