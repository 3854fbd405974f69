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

from launcher.hardware.accelerators.contract import Inventory
from launcher.hardware.linux.sysfs import list_numbers, may_open, read_number, read_text, resolve_path
from launcher.model.node import Device

_SYSFS = "/sys/devices/virtual/neuron_device"
LOGICAL = "NEURON_LOGICAL_NC_CONFIG"
_NUMBER = re.compile(r"[0-9]{1,9}")
_LOGICAL_SIZES = ("1", "2")
_PAIRED_MODELS = ("Trainium2", "Trainium3")


class Detector:
    """`root`: the directory above /dev and /sys, for tests."""

    kind = "neuron"
    variable = "NEURON_RT_VISIBLE_CORES"

    def __init__(self, root: str = "/") -> None:
        self._root = root

    def detect(self, environ: Mapping[str, str]) -> Inventory:
        there = list_numbers(resolve_path(self._root, "/dev"), "neuron")
        chips = [chip for chip in there if may_open(resolve_path(self._root, f"/dev/neuron{chip}"))]
        if not chips:
            return Inventory((), "no /dev/neuronN that may be opened here")
        models = {chip: read_text(f"{self._resolve_folder(chip)}/info/architecture/device_name") for chip in chips}
        joined = environ.get(LOGICAL, "")
        each = int(joined) if joined in _LOGICAL_SIZES else 2 if models[chips[0]] in _PAIRED_MODELS else 1
        cores = [(chip, core) for chip in chips for core in range(self._count_cores(chip) // each)]
        reason = f"{len(chips)} chip{'s' * (len(chips) > 1)} found in /dev, {len(cores)} cores"
        reason += f" of {each} physical ones each" if each > 1 else ""
        if not cores:
            return Inventory((), f"{reason}: the driver's files do not say how many cores a chip has")
        chosen, mistake = list(range(len(cores))), ""
        value = environ.get(self.variable)
        if value is not None:
            chosen, mistake = _apply_visible(self.variable, value, len(cores))
            reason += f", {len(chosen)} left by {self.variable}={value}" + (f", {mistake}" if mistake else "")
        devices = tuple(
            Device(
                kind=self.kind, index=index, id=f"neuron{cores[core][0]}/{cores[core][1]}", visible=str(core),
                model=models[cores[core][0]],
            )
            for index, core in enumerate(chosen)
        )  # fmt: skip
        return Inventory(devices, reason, mistake)

    def _count_cores(self, chip: int) -> int:
        folder = self._resolve_folder(chip)
        return read_number(f"{folder}/core_count") or len(list_numbers(folder, "neuron_core"))

    def _resolve_folder(self, chip: int) -> str:
        return resolve_path(self._root, f"{_SYSFS}/neuron{chip}")


def _apply_visible(variable: str, value: str, count: int) -> tuple[list[int], str]:
    """Return the cores that a list of numbers and ranges names, each once, and what is wrong with it."""
    chosen: list[int] = []
    for part in value.split(",") if value else ():
        first, dash, last = part.strip().partition("-")
        if not (_NUMBER.fullmatch(first) and (_NUMBER.fullmatch(last) or not dash)):
            return chosen, f"{variable}={value}: {part!r} is neither a core nor a range of cores"
        cores = range(int(first), int(last or first) + 1)
        if not cores or cores[-1] >= count:
            return chosen, f"{variable}={value}: {part.strip()} is not within the cores, 0 to {count - 1}"
        chosen += [core for core in cores if core not in chosen]
    return chosen, ""
