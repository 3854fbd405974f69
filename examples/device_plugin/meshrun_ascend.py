"""Huawei Ascend NPUs, as a plug-in of meshrun: `--devices ascend`.

Every processor has a file /dev/davinciN (ray, accelerators/npu.py). ASCEND_RT_VISIBLE_DEVICES holds their numbers, in
ascending order, separated by commas only; what follows an invalid entry is not read (CANN, "Environment
variables", ASCEND_RT_VISIBLE_DEVICES). A container counts those that it was given from 0. Not tried on hardware.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from launcher.hardware.accelerators import Device, Inventory

DEV = "ASCEND_DEV"
"""Another directory than /dev to look in: for tests, and for a try on a machine without such devices."""


class Detector:
    """Counts the processors; each worker is shown its own by `variable`."""

    kind = "ascend"
    variable = "ASCEND_RT_VISIBLE_DEVICES"

    def detect(self, environ: Mapping[str, str]) -> Inventory:
        folder = environ.get(DEV, "/dev")
        found = _list_openable(folder)
        if not found:
            return Inventory((), f"no {folder}/davinciN that may be opened here")
        reason = f"{len(found)} found in {folder}"
        chosen, mistake, hint = list(range(len(found))), "", ""
        if self.variable in environ:
            value = environ[self.variable]
            chosen, mistake = _read_list(value, len(found))
            reason += f", {len(chosen)} left by {self.variable}={value}"
        if mistake:
            mistake = f"{self.variable}={value}: {mistake}"
            hint = f"list numbers from 0 to {len(found) - 1} in ascending order, separated by commas"
        devices = tuple(
            Device(kind=self.kind, index=index, id=f"davinci{found[number]}", visible=str(number))
            for index, number in enumerate(chosen)
        )
        return Inventory(devices, reason, mistake, hint=hint)


def _list_openable(folder: str) -> list[int]:
    """Return the N of the files davinciN that this process may open, ascending; a driver has others, too."""
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    numbers = [name.removeprefix("davinci") for name in names if name.startswith("davinci")]
    return sorted(
        int(number)
        for number in numbers
        if number.isdecimal() and os.access(f"{folder}/davinci{number}", os.R_OK | os.W_OK)
    )


def _read_list(value: str, count: int) -> tuple[list[int], str]:
    """Return the numbers that the runtime reads in the variable, and what is wrong with the next; "" if nothing is."""
    chosen: list[int] = []
    for entry in value.split(",") if value else ():
        if not (entry.isascii() and entry.isdecimal()) or int(entry) >= count:
            return chosen, f"{entry!r} is not the number of one of {count} devices"
        if chosen and int(entry) <= chosen[-1]:
            return chosen, f"{entry} must be greater than {chosen[-1]}, the number before it"
        chosen.append(int(entry))
    return chosen, ""
