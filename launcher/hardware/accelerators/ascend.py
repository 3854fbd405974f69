"""Huawei Ascend NPUs, as a plug-in: `--devices ascend`. An example of the contract on one page.

Every processor has a file /dev/davinciN (ray, accelerators/npu.py). ASCEND_RT_VISIBLE_DEVICES holds their numbers, in
ascending order, separated by commas only; what follows an invalid entry is not read (CANN, "Environment
variables", ASCEND_RT_VISIBLE_DEVICES). A container counts those that it was given from 0. Not tried on hardware.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from launcher.hardware.accelerators.contract import Inventory, describe_left, make_inventory
from launcher.hardware.accelerators.visible_list import examine, hides_all
from launcher.hardware.linux.sysfs import FileTree
from launcher.model.node import Device

_NUMBER = re.compile("[0-9]{1,9}")


class Detector:
    """`root`: the directory above /dev, for tests."""

    kind = "ascend"
    variable = "ASCEND_RT_VISIBLE_DEVICES"

    def __init__(self, root: str = "/") -> None:
        self._files = FileTree(root)

    def detect(self, environ: Mapping[str, str]) -> Inventory:
        files = self._files.list_openable("/dev/davinci")
        if not files:
            return Inventory((), "no /dev/davinciN that may be opened here")
        if mistaken := examine(environ, (self.variable,)):
            return mistaken
        chosen, mistake = self._apply_visible(environ.get(self.variable), len(files))
        devices = (
            Device(kind=self.kind, index=index, id=f"davinci{files[number]}", visible=str(number))
            for index, number in enumerate(chosen)
        )
        left = describe_left(len(chosen), self.variable, environ)
        return make_inventory(devices, f"{len(files)} found in /dev", left, mistake=mistake)

    def _apply_visible(self, value: str | None, count: int) -> tuple[list[int], str]:
        """Return the numbers that are read, and what is wrong with the others."""
        if value is None:
            return list(range(count)), ""
        chosen: list[int] = []
        for entry in () if hides_all(value) else value.rstrip(",").split(","):
            if not _NUMBER.fullmatch(entry) or int(entry) >= count:
                ends = f"{entry!r} is none of 0 to {count - 1}, and what follows is not read"
                return chosen, f"{self.variable}={value}: {ends}"
            if chosen and int(entry) <= chosen[-1]:
                return chosen, f"{self.variable}={value}: {entry} does not follow {chosen[-1]}, and must"
            chosen.append(int(entry))
        return chosen, ""
