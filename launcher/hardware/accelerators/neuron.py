"""AWS Trainium and Inferentia, as a plug-in: `--devices neuron`.

Every chip has a file /dev/neuronN, and cores, which are what a process takes: NEURON_RT_VISIBLE_CORES holds their
numbers over all chips, as "0", "0-3" or "0,2-3" (AWS Neuron documentation, "Neuron Runtime configuration"). A device
here is a core, as torch-neuronx starts one worker for each. The driver shows how many a chip has at
/sys/devices/virtual/neuron_device/neuronN/core_count, and as folders neuron_coreM ("Neuron Sysfs User Guide"). These
are physical cores. Processes get logical ones: NEURON_LOGICAL_NC_CONFIG says how many physical cores make one,
and from Trainium2 on the default is two ("Logical NeuronCore configuration"). Not tried on hardware.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from launcher.hardware.accelerators.contract import Inventory, describe_left, make_inventory
from launcher.hardware.accelerators.visible_list import examine, hides_all
from launcher.hardware.linux.sysfs import FileTree
from launcher.model.node import Device

_LOGICAL_SIZE = "NEURON_LOGICAL_NC_CONFIG"
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
_SYSFS = "/sys/devices/virtual/neuron_device/neuron"
_PAIRED_MODELS = ("Trainium2", "Trainium3")


class Detector:
    """`root`: the directory above /dev and /sys, for tests."""

    kind = "neuron"
    variable = "NEURON_RT_VISIBLE_CORES"

    def __init__(self, root: str = "/") -> None:
        self._files = FileTree(root)

    def detect(self, environ: Mapping[str, str]) -> Inventory:
        chips = self._files.list_openable("/dev/neuron")
        if not chips:
            return Inventory((), "no /dev/neuronN that may be opened here")
        models = {chip: self._files.read_text(f"{_SYSFS}{chip}/info/architecture/device_name") for chip in chips}
        default = 2 if models[chips[0]] in _PAIRED_MODELS else 1
        size = {"1": 1, "2": 2}.get(environ.get(_LOGICAL_SIZE, ""), default)
        cores = [(chip, core) for chip in chips for core in range(self._count_cores(chip) // size)]
        reason = f"{len(chips)} chip{'s' * (len(chips) > 1)} found in /dev, {len(cores)} cores"
        reason += f" of {size} physical ones each" if size > 1 else ""
        if not cores:
            return Inventory((), f"{reason}: the driver's files do not say how many cores a chip has")
        if mistaken := examine(environ, (self.variable,)):
            return mistaken
        chosen, mistake = self._apply_visible(environ.get(self.variable), len(cores))
        devices = (
            Device(
                kind=self.kind, index=index, id=f"neuron{cores[core][0]}/{cores[core][1]}", visible=str(core),
                model=models[cores[core][0]],
            )
            for index, core in enumerate(chosen)
        )  # fmt: skip
        left = describe_left(len(chosen), self.variable, environ)
        return make_inventory(devices, reason, left, mistake=mistake)

    def _apply_visible(self, value: str | None, count: int) -> tuple[list[int], str]:
        """Return the cores that a list of numbers and ranges names, each once, and what is wrong with it."""
        if value is None:
            return list(range(count)), ""
        chosen: list[int] = []
        for part in () if hides_all(value) else value.split(","):
            found = _RANGE.fullmatch(part.strip())
            if found is None:
                return chosen, f"{self.variable}={value}: {part!r} is neither a core nor a range of cores"
            cores = range(int(found[1]), int(found[2] or found[1]) + 1)
            if not cores or cores[-1] >= count:
                return chosen, f"{self.variable}={value}: {part.strip()} is not within the cores, 0 to {count - 1}"
            chosen += [core for core in cores if core not in chosen]
        return chosen, ""

    def _count_cores(self, chip: int) -> int:
        count = self._files.read_number(f"{_SYSFS}{chip}/core_count")
        return count or len(self._files.list_numbers(f"{_SYSFS}{chip}/neuron_core"))
