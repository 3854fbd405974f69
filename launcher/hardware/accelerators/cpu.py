"""CPUs in place of accelerators where there are none: one slot per CPU this process may run on.

The affinity set, not the machine's CPU count, is what a container, `taskset` or a batch system grants; it is
also what torchrun counts.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from launcher.hardware.accelerators.contract import Inventory
from launcher.model.node import Device


class Detector:
    """`affinity`: the CPUs to count, for tests; None asks the kernel."""

    kind = "cpu"

    def __init__(self, *, affinity: Iterable[int] | None = None) -> None:
        self._affinity = affinity

    def detect(self, environ: Mapping[str, str]) -> Inventory:
        cpus = sorted(os.sched_getaffinity(0) if self._affinity is None else self._affinity)
        devices = tuple(
            Device(kind=self.kind, index=index, id=f"cpu{cpu}", visible=str(cpu)) for index, cpu in enumerate(cpus)
        )
        return Inventory(devices, f"{len(cpus)} in this process's affinity set")
