"""How much memory of a node's NVIDIA devices is in use, by the driver's own library.

A failing driver may never answer, and a call into it cannot be interrupted. So a thread of its own asks, for all
devices at once; who wants a number waits for it a moment, once, and gets none until the driver answers again. Nothing
is imported before the first question, and nothing where no slot has such a device.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import Any

from launcher.model.concurrency import start_thread
from launcher.model.node import Slot

KIND = "nvidia"
FRESH_S = 1.0
PATIENCE_S = 1.0
OLD_S = 10.0
"""When a number that was not read again counts no more."""
UNKNOWN = (-1, -1)


class DeviceMemory:
    """Of the devices with these ids, by name. `module`: a substitute for nvidia-ml-py's, for tests."""

    def __init__(self, ids: dict[str, str], module: Any = None) -> None:
        self._ids = ids
        self._module = module
        self._is_missing = False
        self._thread: threading.Thread | None = None
        self._asked_at = 0.0
        self._found: tuple[float, dict[str, tuple[int, int]]] = (0.0, {})  # when, and by name

    def read(self, names: Collection[str]) -> tuple[int, int]:
        """Return the bytes in use and in all of these devices together; `UNKNOWN` unless all are known."""
        self._refresh(time.monotonic())
        read_at, found = self._found
        if not names or not found.keys() >= set(names) or time.monotonic() - read_at > OLD_S:
            return UNKNOWN
        return sum(found[name][0] for name in names), sum(found[name][1] for name in names)

    def _refresh(self, now: float) -> None:
        if self._is_missing or (self._asked_at and now - self._asked_at < FRESH_S):
            return
        if self._thread is not None and self._thread.is_alive():  # the driver has not answered for a second
            return
        self._asked_at = now
        self._thread = start_thread(self._query, "NVML memory")
        if self._thread is not None:
            self._thread.join(PATIENCE_S)

    def _query(self) -> None:
        found = {}
        try:
            nvml = self._module = self._module or __import__("pynvml")  # nvidia-ml-py is optional and untyped
            try:
                nvml.nvmlInit()  # a second one is counted, and does nothing else
            except nvml.NVMLError:
                return
            for name, id in self._ids.items():
                with suppress(nvml.NVMLError):  # this one is lost, or is not known by that id
                    memory = nvml.nvmlDeviceGetMemoryInfo(nvml.nvmlDeviceGetHandleByUUID(id))
                    found[name] = int(memory.used), int(memory.total)
        except Exception:  # none, or not what its name says: a thread must not end with a traceback
            self._is_missing = True
            return
        self._found = time.monotonic(), found


def make_device_memory(slots: Iterable[Slot]) -> DeviceMemory | None:
    """Return what reads the memory of these slots' devices; None if none is NVIDIA's."""
    devices = [device for slot in slots for device in slot.devices if device.kind == KIND]
    return DeviceMemory({f"{device.kind}{device.index}": device.id for device in devices}) if devices else None
