"""Counting devices over made-up machines: a file tree in tmp_path, and a stand-in for nvidia-ml-py."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from launcher.devices import Inventory
from launcher.devices import cpu as cpu_devices
from launcher.devices.choose import worker_devices
from launcher.devices.nvidia import Detector, Gpu, choose
from launcher.errors import UsageError
from launcher.node import Device

UUIDS = ("GPU-aa11-0", "GPU-aa22-1", "GPU-bb33-2", "GPU-cc44-3")


class FakeNvml:
    """The functions of nvidia-ml-py that we call. `lost`: ordinals that do not answer; `migs`: ordinal -> MIG ids."""

    class NVMLError(Exception):
        pass

    def __init__(
        self,
        uuids: Sequence[str] = UUIDS,
        *,
        lost: Sequence[int] = (),
        migs: dict[int, Sequence[str | None]] | None = None,
        is_broken: bool = False,
    ) -> None:
        self.uuids = uuids
        self.lost = lost
        self.migs = migs or {}
        self.is_broken = is_broken
        self.is_open = False

    def nvmlInit(self) -> None:
        if self.is_broken:
            raise self.NVMLError
        self.is_open = True

    def nvmlShutdown(self) -> None:
        self.is_open = False

    def nvmlDeviceGetCount(self) -> int:
        return len(self.uuids)

    def nvmlDeviceGetHandleByIndex(self, ordinal: int) -> Any:
        if ordinal in self.lost:
            raise self.NVMLError
        return ordinal

    def nvmlDeviceGetUUID(self, handle: Any) -> str:
        return handle if isinstance(handle, str) else self.uuids[handle]

    def nvmlDeviceGetMigMode(self, handle: int) -> list[int]:
        if not self.migs:
            raise self.NVMLError  # NOT_SUPPORTED on GPUs without MIG
        return [int(handle in self.migs)] * 2

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: int) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: int, place: int) -> str:
        migs = self.migs[handle]
        mig = migs[place] if place < len(migs) else None
        if mig is None:
            raise self.NVMLError
        return mig


def write(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def machine(tmp_path: Path) -> str:
    """A machine with the driver, and no other trace of a GPU."""
    write(tmp_path / "dev/nvidiactl")
    return str(tmp_path)


def add_proc(root: str, address: str, uuid: str, minor: int) -> None:
    write(
        Path(root, f"proc/driver/nvidia/gpus/{address}/information"),
        f"Model: \t\t Fast One\nIRQ:   \t\t 35\nGPU UUID: \t {uuid}\nBus Type: \t PCIe\nBus Location: \t {address}\n"
        f"Device Minor: \t {minor}\n",
    )


def ids(inventory: Inventory) -> list[str]:
    return [device.id for device in inventory.devices]


# CUDA_VISIBLE_DEVICES

GPUS = tuple(Gpu(ordinal, uuid) for ordinal, uuid in enumerate(UUIDS))
WITH_MIG = (*GPUS, Gpu(4, "GPU-mig0-4", ("MIG-1111-a", "MIG-1122-b", "MIG-3333-c")))


@pytest.mark.parametrize(
    ("asked", "ordinals"),
    [
        ("0", [0]),
        ("3,1", [3, 1]),
        (" 2 , 0 ", [2, 0]),
        ("0,1,-1,2", [0, 1]),
        ("1,9,0", [1]),
        ("1,,0", [1]),
        ("0,NoDevFiles", [0]),
        ("1gpu2,2ampere", [1, 2]),
        ("+1", [1]),
        ("0,1,0", []),
        ("0,9,0", []),
        ("GPU-bb", [2]),
        ("GPU-cc44-3,GPU-aa11", [3, 0]),
        ("GPU-aa", []),
        ("GPU-bb,GPU-aa,GPU-cc", [2]),
        ("GPU-bb,GPU-zz,GPU-cc", [2]),
        ("GPU-bb,GPU-bb33", []),
        ("GPU-bb,GPU-zz,GPU-bb", []),
        ("GPU-bb,0", [2]),
        ("0,GPU-bb", [0]),
        ("0,MIG-1111-a", [0]),
    ],
)
def test_cuda_visible_devices_is_read_as_cuda_and_torch_read_it(asked: str, ordinals: list[int]) -> None:
    chosen = choose(asked, WITH_MIG)
    assert [uuid for uuid, _ in chosen] == [UUIDS[ordinal] for ordinal in ordinals]
    entries = [entry.strip() for entry in asked.split(",")]
    assert [visible for _, visible in chosen] == entries[: len(ordinals)]


@pytest.mark.parametrize(
    ("asked", "gpus", "uuids"),
    [
        ("MIG-1122-b", WITH_MIG, ["MIG-1122-b"]),
        ("MIG-33", WITH_MIG, ["MIG-3333-c"]),
        ("MIG-11", WITH_MIG, []),
        ("MIG-9999", WITH_MIG, []),
        ("MIG-1111-a,MIG-1122-b", WITH_MIG, ["MIG-1111-a"]),
        ("MIG-GPU-mig0-4/1/0", WITH_MIG, ["MIG-GPU-mig0-4/1/0"]),
        ("MIG-GPU-nobody/1/0", WITH_MIG, []),
        ("MIG-9999", GPUS, ["MIG-9999"]),  # the instances are unknown without NVML
    ],
)
def test_a_process_gets_one_mig_instance(asked: str, gpus: Sequence[Gpu], uuids: list[str]) -> None:
    assert [uuid for uuid, _ in choose(asked, gpus)] == uuids


def test_ids_are_believed_where_none_can_be_read() -> None:
    gpus = [Gpu(0, "pci-0000:01:00.0"), Gpu(1, "pci-0000:02:00.0")]
    assert [uuid for uuid, _ in choose("GPU-aa,GPU-bb,GPU-cc", gpus)] == ["GPU-aa", "GPU-bb"]
    assert [uuid for uuid, _ in choose("1", gpus)] == ["pci-0000:02:00.0"]


# Sources


def test_a_machine_without_the_driver_is_asked_nothing_more(tmp_path: Path) -> None:
    nvml = FakeNvml()
    write(tmp_path / "sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de\n")
    write(tmp_path / "sys/bus/pci/devices/0000:01:00.0/class", "0x030200\n")
    assert Detector(root=str(tmp_path), nvml=nvml).detect({}) == Inventory((), "no NVIDIA driver")
    before = set(sys.modules)
    Detector(root=str(tmp_path)).detect({})
    assert set(sys.modules) == before


def test_nvml_is_asked_first_and_closed_again(machine: str) -> None:
    add_proc(machine, "0000:01:00.0", "GPU-other", 0)
    nvml = FakeNvml()
    inventory = Detector(root=machine, nvml=nvml).detect({})
    assert inventory.devices[1] == Device(kind="nvidia", index=1, id=UUIDS[1], visible="1")
    assert ids(inventory) == list(UUIDS)
    assert inventory.reason == "4 found by NVML"
    assert not nvml.is_open


def test_the_order_of_the_variable_is_the_order_of_the_devices(machine: str) -> None:
    inventory = Detector(root=machine, nvml=FakeNvml()).detect({"CUDA_VISIBLE_DEVICES": "3, 1"})
    assert inventory.devices == (
        Device(kind="nvidia", index=0, id=UUIDS[3], visible="3"),
        Device(kind="nvidia", index=1, id=UUIDS[1], visible="1"),
    )
    assert inventory.reason == "4 found by NVML, 2 left by CUDA_VISIBLE_DEVICES=3, 1"


@pytest.mark.parametrize("asked", ["", "-1", "-1,0", "NoDevFiles", " "])
def test_a_variable_that_hides_all_gpus_needs_no_look(machine: str, asked: str) -> None:
    nvml = FakeNvml(is_broken=True)
    inventory = Detector(root=machine, nvml=nvml).detect({"CUDA_VISIBLE_DEVICES": asked})
    assert inventory == Inventory((), f"CUDA_VISIBLE_DEVICES={asked!r} hides every GPU")


def test_a_gpu_that_does_not_answer_is_left_out_and_mentioned(machine: str) -> None:
    inventory = Detector(root=machine, nvml=FakeNvml(lost=[1])).detect({})
    assert ids(inventory) == [UUIDS[0], UUIDS[2], UUIDS[3]]
    assert [device.visible for device in inventory.devices] == ids(inventory)
    assert inventory.reason == "3 found by NVML, 1 more does not answer"


def test_mig_instances_come_from_nvml(machine: str) -> None:
    nvml = FakeNvml(migs={0: ["MIG-1", None, "MIG-2"]})
    inventory = Detector(root=machine, nvml=nvml).detect({"CUDA_VISIBLE_DEVICES": "MIG-2,MIG-1"})
    assert ids(inventory) == ["MIG-2"]
    assert inventory.reason.endswith(
        "1 left by CUDA_VISIBLE_DEVICES=MIG-2,MIG-1 as CUDA gives a process one MIG instance"
    )


def test_the_drivers_own_files_answer_without_nvml(machine: str) -> None:
    add_proc(machine, "0000:81:00.0", "GPU-b", 1)
    add_proc(machine, "0000:01:00.0", "GPU-a", 0)
    add_proc(machine, "0000:a1:00.0", "GPU-????????-????", 2)
    inventory = Detector(root=machine, nvml=FakeNvml(is_broken=True)).detect({})
    assert ids(inventory) == ["GPU-a", "GPU-b", "pci-0000:a1:00.0"]
    assert inventory.reason == "3 found by /proc/driver/nvidia"


def test_a_gpu_whose_device_file_is_missing_belongs_to_somebody_else(machine: str) -> None:
    for minor in range(3):
        add_proc(machine, f"0000:0{minor}:00.0", f"GPU-{minor}", minor)
    write(Path(machine, "dev/nvidia2"))
    assert ids(Detector(root=machine, nvml=FakeNvml(is_broken=True)).detect({})) == ["GPU-2"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may open any file")
def test_a_gpu_whose_device_file_may_not_be_opened_belongs_to_somebody_else(machine: str) -> None:
    for minor in range(2):
        add_proc(machine, f"0000:0{minor}:00.0", f"GPU-{minor}", minor)
        write(Path(machine, f"dev/nvidia{minor}"))
    Path(machine, "dev/nvidia0").chmod(0)
    assert ids(Detector(root=machine, nvml=FakeNvml(is_broken=True)).detect({})) == ["GPU-1"]


def test_the_pci_bus_answers_where_the_drivers_files_are_hidden(machine: str) -> None:
    functions = {
        "0000:01:00.0": ("0x10de", "0x030200"),  # 3D controller
        "0000:01:00.1": ("0x10de", "0x040300"),  # the same card's audio
        "0000:02:00.0": ("0x1002", "0x030000"),  # another vendor
        "0000:03:00.0": ("0x10de", "0x030000"),
        "0000:04:00.0": ("0x10de", "0x030000"),
    }
    for address, (vendor, kind) in functions.items():
        write(Path(machine, f"sys/bus/pci/devices/{address}/vendor"), f"{vendor}\n")
        write(Path(machine, f"sys/bus/pci/devices/{address}/class"), f"{kind}\n")
    detector = Detector(root=machine, nvml=FakeNvml(is_broken=True))
    assert ids(detector.detect({})) == ["pci-0000:01:00.0", "pci-0000:03:00.0", "pci-0000:04:00.0"]
    assert detector.detect({}).reason == "3 found by the PCI bus"
    write(Path(machine, "dev/nvidia0"))
    write(Path(machine, "dev/nvidia-uvm"))
    assert ids(detector.detect({})) == ["pci-0000:01:00.0"]


def test_no_framework_is_imported_to_count_devices(machine: str) -> None:
    before = set(sys.modules)
    Detector(root=machine).detect({})
    assert {"torch", "jax", "numpy"}.isdisjoint(set(sys.modules) - before)


def test_cpus_are_those_this_process_may_run_on() -> None:
    inventory = cpu_devices.Detector(affinity={5, 2}).detect({})
    assert [(device.index, device.id, device.visible) for device in inventory.devices] == [
        (0, "cpu2", "2"),
        (1, "cpu5", "5"),
    ]
    assert len(cpu_devices.Detector().detect({}).devices) == len(os.sched_getaffinity(0))


# Workers and their devices


class Fixed:
    def __init__(self, kind: str, count: int) -> None:
        self.kind = kind
        devices = (Device(kind=kind, index=i, id=f"{kind}{i}", visible=str(i)) for i in range(count))
        self.inventory = Inventory(tuple(devices), f"{count} found" if count else "no NVIDIA driver")

    def detect(self, environ: object) -> Inventory:
        return self.inventory


def share(worker_count: Any, devices_per_worker: Any, *, gpus: int, cpus: int = 2) -> tuple[list[list[int]], str]:
    slots, reason = worker_devices(
        worker_count, devices_per_worker, {}, accelerators=[Fixed("nvidia", gpus)], cpu=Fixed("cpu", cpus)
    )
    assert [slot.index for slot in slots] == list(range(len(slots)))
    kinds = {device.kind for slot in slots for device in slot.devices}
    assert kinds == {"nvidia" if gpus and worker_count != "cpu" else "cpu"}
    return [[device.index for device in slot.devices] for slot in slots], reason


@pytest.mark.parametrize(
    ("worker_count", "devices_per_worker", "gpus", "slots", "reason"),
    [
        (None, None, 2, [[0], [1]], "2 workers, one per GPU (2 found)"),
        (None, 1, 1, [[0]], "1 worker, one per GPU (1 found)"),
        (None, None, 0, [[0]], "1 worker on the CPU (no accelerator found: no NVIDIA driver)"),
        ("auto", 1, 2, [[0], [1]], "2 workers, one per GPU (2 found)"),
        ("auto", 1, 0, [[0], [1]], "2 workers, one per CPU (2 found)"),
        ("gpu", 1, 2, [[0], [1]], "2 workers, one per GPU (2 found)"),
        ("cpu", 1, 4, [[0], [1]], "2 workers, one per CPU (2 found)"),
        ("cpu", "all", 0, [[0, 1]], "1 worker on 2 CPUs (2 found)"),
        (2, 1, 4, [[0], [1]], "2 workers, one per GPU, on 2 of 4 GPUs (4 found)"),
        (3, 1, 0, [[0], [1], [0]], "3 workers on the CPU, as asked (no NVIDIA driver)"),
        (3, 1, 2, [[0], [1], [0]], "3 workers as asked, more than the 2 GPUs they share (2 found)"),
        (None, 2, 4, [[0, 1], [2, 3]], "2 workers with 2 GPUs each (4 found)"),
        (None, 3, 4, [[0, 1, 2]], "1 worker with 3 GPUs each, on 3 of 4 GPUs (4 found)"),
        (None, "all", 4, [[0, 1, 2, 3]], "1 worker with 4 GPUs each (4 found)"),
        (2, "all", 4, [[0, 1], [2, 3]], "2 workers with 2 GPUs each (4 found)"),
        (1, 2, 4, [[0, 1]], "1 worker with 2 GPUs each, on 2 of 4 GPUs (4 found)"),
    ],
)
def test_devices_are_shared_out_among_the_workers(
    worker_count: Any, devices_per_worker: Any, gpus: int, slots: list[list[int]], reason: str
) -> None:
    assert share(worker_count, devices_per_worker, gpus=gpus) == (slots, reason)


@pytest.mark.parametrize(
    ("worker_count", "devices_per_worker", "gpus", "sentence"),
    [
        ("gpu", 1, 0, "--nproc-per-node=gpu, but no GPU was found: no NVIDIA driver"),
        (None, 2, 0, "--devices-per-worker is 2, but no accelerator was found: no NVIDIA driver"),
        (3, 2, 4, "3 workers with 2 GPUs each: 6 GPUs are needed, 4 are present (4 found)"),
        (5, "all", 4, "5 workers with 1 GPU each: 5 GPUs are needed, 4 are present (4 found)"),
        ("auto", 8, 4, "1 worker with 8 GPUs each: 8 GPUs are needed, 4 are present (4 found)"),
    ],
)
def test_what_cannot_be_shared_out_is_said(
    worker_count: Any, devices_per_worker: Any, gpus: int, sentence: str
) -> None:
    with pytest.raises(UsageError) as caught:
        share(worker_count, devices_per_worker, gpus=gpus)
    assert str(caught.value) == sentence
