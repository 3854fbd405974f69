"""Huawei Ascend NPUs, as a plug-in: `--devices ascend`.

Every processor has a file /dev/davinciN (ray, accelerators/npu.py). ASCEND_RT_VISIBLE_DEVICES holds their numbers, in
ascending order, separated by commas only; what follows an invalid entry is not read (CANN, "Environment
variables", ASCEND_RT_VISIBLE_DEVICES). A container counts those that it was given from 0. Not tried on hardware.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from launcher.hardware.accelerators.contract import Inventory
from launcher.hardware.linux.sysfs import list_numbers, may_open, resolve_path
from launcher.model.node import Device

_NUMBER = re.compile("[0-9]{1,9}")


class Detector:
    """`root`: the directory above /dev, for tests."""

    kind = "ascend"
    variable = "ASCEND_RT_VISIBLE_DEVICES"

    def __init__(self, root: str = "/") -> None:
        self._root = root

    def detect(self, environ: Mapping[str, str]) -> Inventory:
        there = list_numbers(resolve_path(self._root, "/dev"), "davinci")
        files = [number for number in there if may_open(resolve_path(self._root, f"/dev/davinci{number}"))]
        if not files:
            return Inventory((), "no /dev/davinciN that may be opened here")
        chosen, mistake = list(range(len(files))), ""
        reason = f"{len(files)} found in /dev"
        value = environ.get(self.variable)
        if value is not None:
            chosen, mistake = _apply_visible(self.variable, value, len(files))
            reason += f", {len(chosen)} left by {self.variable}={value}" + (f", {mistake}" if mistake else "")
        devices = tuple(
            Device(kind=self.kind, index=index, id=f"davinci{files[number]}", visible=str(number))
            for index, number in enumerate(chosen)
        )
        return Inventory(devices, reason, mistake)


def _apply_visible(variable: str, value: str, count: int) -> tuple[list[int], str]:
    """Return the numbers that are read, and what is wrong with the others."""
    chosen: list[int] = []
    for entry in value.split(",") if value else ():
        if not _NUMBER.fullmatch(entry) or int(entry) >= count:
            return chosen, f"{variable}={value}: {entry!r} is none of 0 to {count - 1}, and what follows is not read"
        if chosen and int(entry) <= chosen[-1]:
            return chosen, f"{variable}={value}: {entry} does not follow {chosen[-1]}, and must"
        chosen.append(int(entry))
    return chosen, ""
