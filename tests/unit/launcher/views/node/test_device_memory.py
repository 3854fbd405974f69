"""Memory of NVIDIA devices, with a driver that answers, loses a device, or hangs."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from launcher.model.node import Device, Slot
from launcher.views.node import device_memory
from launcher.views.node.device_memory import OLD_S, UNKNOWN, DeviceMemory, make_device_memory
from tests.support.hardware.devices import UUIDS, FakeNvml
from tests.support.threads import no_threads

IDS = {"nvidia0": UUIDS[0], "nvidia1": UUIDS[1]}


def make_slot(kind: str, index: int) -> Slot:
    device = Device(kind=kind, index=index, id=UUIDS[index], visible=str(index))
    return Slot(index=index, devices=(device,))


@pytest.mark.parametrize("lost", [[], [0]])
def test_devices_of_a_worker_are_added_up_unless_one_is_lost(lost: list[int]) -> None:
    memory = DeviceMemory(IDS, FakeNvml(lost=lost))
    assert memory.read(["nvidia1"]) == (20, 100)
    assert memory.read(["nvidia0", "nvidia1"]) == (UNKNOWN if lost else (30, 200))
    assert memory.read([]) == UNKNOWN


@pytest.mark.parametrize("nvml", [FakeNvml(is_broken=True), FakeNvml(uuids=())])
def test_a_driver_that_knows_nothing_leaves_it_unknown(nvml: FakeNvml) -> None:
    assert DeviceMemory(IDS, nvml).read(["nvidia0"]) == UNKNOWN


def test_without_the_library_or_another_vendors_device_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)
    assert DeviceMemory(IDS).read(["nvidia0"]) == UNKNOWN
    assert make_device_memory([make_slot("amd", 0)]) is None
    assert make_device_memory([]) is None
    assert make_device_memory([make_slot("nvidia", 1)]) is not None


def test_a_driver_that_hangs_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()

    class HangingNvml(FakeNvml):
        asked = 0

        def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:
            self.asked += 1
            gate.wait(20)
            return super().nvmlDeviceGetMemoryInfo(handle)

    monkeypatch.setattr(device_memory, "PATIENCE_S", 0.01)
    monkeypatch.setattr(device_memory, "FRESH_S", 0.0)
    nvml = HangingNvml()
    memory = DeviceMemory(IDS, nvml)
    assert [memory.read(["nvidia0"]) for _ in range(50)] == [UNKNOWN] * 50
    assert nvml.asked == 1
    gate.set()
    assert memory._thread is not None
    memory._thread.join()
    monkeypatch.setattr(device_memory, "PATIENCE_S", 20)
    assert memory.read(["nvidia0"]) == (10, 100)


def test_an_old_number_counts_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = DeviceMemory(IDS, FakeNvml())
    assert memory.read(["nvidia0"]) != UNKNOWN
    monkeypatch.setattr(memory, "_refresh", lambda now: None)
    later = time.monotonic() + OLD_S + 1
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert memory.read(["nvidia0"]) == UNKNOWN


def test_without_a_thread_nothing_is_known_until_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_memory, "FRESH_S", 0.0)
    monkeypatch.setattr(device_memory, "PATIENCE_S", 20)
    memory = DeviceMemory(IDS, FakeNvml())
    with no_threads():
        assert memory.read(["nvidia0"]) == UNKNOWN
    assert memory.read(["nvidia0"]) == (10, 100)
