"""NVIDIA GPUs of made-up machines: who is asked, what is read of each, and what CUDA_VISIBLE_DEVICES leaves."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.hardware.accelerators import nvidia
from launcher.hardware.accelerators.contract import Inventory
from launcher.hardware.accelerators.cuda_visible import NvidiaGpu, apply_visible
from launcher.hardware.accelerators.nvidia import Detector
from launcher.model.node import Device
from tests.support.hardware.devices import CLUSTER, UUIDS, FakeNvml, add_nvidia, add_pci, write


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A machine with the driver, and no other trace of a GPU."""
    write(tmp_path / "dev/nvidiactl")
    return tmp_path


def detect(machine: Path, stand_in: FakeNvml | None = None, asked: str | None = None, **how: bool) -> Inventory:
    environ = {} if asked is None else {"CUDA_VISIBLE_DEVICES": asked}
    return Detector(root=str(machine), nvml=stand_in or FakeNvml(is_broken=True), **how).detect(environ)


def ids(inventory: Inventory) -> list[str]:
    return [device.id for device in inventory.devices]


# CUDA_VISIBLE_DEVICES

GPUS = tuple(NvidiaGpu(ordinal, uuid) for ordinal, uuid in enumerate(UUIDS))
WITH_MIG = (*GPUS, NvidiaGpu(4, "GPU-mig0-4", ("MIG-1111-a", "MIG-1122-b", "MIG-3333-c")))
ENDS = ", and such an entry hides itself and all that follow"


@pytest.mark.parametrize(
    ("asked", "ordinals", "mistake"),
    [
        ("0", [0], ""),
        ("3,1", [3, 1], ""),
        ("0,1,-1,2", [0, 1], ""),
        ("0,1,", [0, 1], ""),
        ("+1", [1], ""),
        ("GPU-bb", [2], ""),
        ("1,9,0", [1], f"1,9,0: no GPU 9 exists (found: 0, 1, 2, 3, 4){ENDS}"),
        ("9" * 5000, [], f"{'9' * 5000}: no GPU {'9' * 18} exists (found: 0, 1, 2, 3, 4){ENDS}"),
        ("0,1,0", [], "0,1,0 names 0 twice, which leaves no GPU"),
        ("GPU-aa", [], f"GPU-aa: 2 GPU ids begin with GPU-aa{ENDS}"),
        ("GPU-bb,GPU-zz,GPU-cc", [2], f"GPU-bb,GPU-zz,GPU-cc: no GPU is called GPU-zz{ENDS}"),
        ("GPU-bb,GPU-bb", [], "GPU-bb,GPU-bb names GPU-bb twice, which leaves no GPU"),
        ("GPU-bb,GPU-bb33", [], "GPU-bb,GPU-bb33 names one GPU twice, as GPU-bb and as GPU-bb33, which leaves no GPU"),
    ],
)
def test_cuda_visible_devices_is_read_as_cuda_and_torch_read_it(asked: str, ordinals: list[int], mistake: str) -> None:
    choice = apply_visible(asked, WITH_MIG)
    assert [chosen.id for chosen in choice.devices] == [UUIDS[ordinal] for ordinal in ordinals]
    entries = [entry.strip() for entry in asked.split(",")]
    assert [chosen.entry for chosen in choice.devices] == entries[: len(ordinals)]
    assert choice.mistake == (f"CUDA_VISIBLE_DEVICES={mistake}" if mistake else "")


LISTS = st.one_of(
    st.lists(st.sampled_from(["0", "1", "2", "7", "-1"]), min_size=1),
    st.lists(st.sampled_from(["GPU-aa", "GPU-bb", "GPU-bb33", "GPU-cc44-3", "-1"]), min_size=1),
)


@settings(max_examples=60)
@given(LISTS)
def test_what_is_chosen_is_the_beginning_of_the_list_and_each_gpu_once(entries: list[str]) -> None:
    choice = apply_visible(",".join(entries), GPUS, isolates_workers=True)
    chosen = [device.entry for device in choice.devices]
    assert chosen == entries[: len(chosen)]
    assert len({device.id for device in choice.devices}) == len(chosen)
    # Less than was named is either a mistake that is told, or a list that ends where it says so.
    rest = entries[len(chosen) :]
    assert not any(rest) or choice.mistake or rest[0] == "-1"


@pytest.mark.parametrize(
    ("asked", "gpus", "uuids"),
    [
        ("MIG-1122-b", WITH_MIG, ["MIG-1122-b"]),
        ("MIG-33", WITH_MIG, ["MIG-3333-c"]),
        ("MIG-11", WITH_MIG, []),
        ("MIG-9999", WITH_MIG, []),
        ("MIG-1111-a,MIG-1122-b", WITH_MIG, ["MIG-1111-a"]),
        ("MIG-GPU-mig0-4/1/0", WITH_MIG, ["MIG-GPU-mig0-4/1/0"]),
        ("MIG-9999", GPUS, ["MIG-9999"]),  # the instances are unknown without NVML
    ],
)
def test_a_process_gets_one_mig_instance(asked: str, gpus: Sequence[NvidiaGpu], uuids: list[str]) -> None:
    choice = apply_visible(asked, gpus)
    assert [chosen.id for chosen in choice.devices] == uuids
    assert bool(choice.mistake) == (not uuids)


# Sources


def test_a_machine_without_the_driver_is_asked_nothing_more(tmp_path: Path) -> None:
    add_pci(tmp_path, "0000:01:00.0", "0x10de", "0x030200")
    assert detect(tmp_path, FakeNvml()) == Inventory((), "no NVIDIA driver")
    before = set(sys.modules)
    Detector(root=str(tmp_path)).detect({})
    assert set(sys.modules) == before


def test_nvml_is_asked_first_and_closed_again(machine: Path) -> None:
    add_nvidia(machine, "0000:01:00.0", "GPU-other", 0)
    add_pci(machine, "0000:02:00.0", "0x10de", "0x030200", numa_node=1)
    nvml = FakeNvml()
    inventory = detect(machine, nvml)
    second = Device(kind="nvidia", index=1, id=UUIDS[1], visible="1", numa_node=1, model="Fast One")
    assert inventory.devices[1] == second
    assert ids(inventory) == list(UUIDS)
    assert inventory.reason == "4 found by NVML"
    assert not nvml.is_open


@pytest.mark.parametrize("asked", ["", "-1", "-1,0", "NoDevFiles", " ", "none", "void", "10000"])
def test_a_variable_that_hides_all_gpus_needs_no_look(machine: Path, asked: str) -> None:
    assert detect(machine, None, asked) == Inventory((), f"CUDA_VISIBLE_DEVICES={asked!r} hides every GPU")


def test_a_gpu_that_does_not_answer_is_left_out_and_mentioned(machine: Path) -> None:
    inventory = detect(machine, FakeNvml(lost=[1]))
    assert ids(inventory) == [UUIDS[0], UUIDS[2], UUIDS[3]]
    assert [device.visible for device in inventory.devices] == ids(inventory)
    assert (inventory.reason, inventory.unresponsive_count) == ("3 found by NVML, 1 more does not answer", 1)
    # It is missed where a list wants more than are found.
    assert detect(machine, FakeNvml(lost=[1]), "0,1,2,3").unresponsive_count == 1
    assert detect(machine, FakeNvml(lost=[1]), "0,2,3").unresponsive_count == 0
    assert detect(machine, FakeNvml(), "0,1,2,9").unresponsive_count == 0


def test_a_hanging_driver_makes_all_unresponsive_and_is_asked_once(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released, asked = threading.Event(), []

    class Hanging(FakeNvml):
        def nvmlInit(self) -> None:
            asked.append(1)
            released.wait(60)

    monkeypatch.setattr(nvidia, "LIMIT_S", 0.01)
    for _ in range(2):
        inventory = detect(machine, Hanging())
        assert (inventory.devices, inventory.reason) == ((), "NVML has not answered for 0.01 s")
        assert inventory.unresponsive_count >= 1
    assert asked == [1]
    released.set()
    assert nvidia._query_thread is not None
    nvidia._query_thread.join(60)
    monkeypatch.setattr(nvidia, "LIMIT_S", 60)
    assert len(detect(machine, FakeNvml()).devices) == 4


def test_a_gpu_that_this_process_may_not_use_is_not_numbered(machine: Path) -> None:
    add_pci(machine, "0000:02:00.0", "0x10de", "0x030200", numa_node=1)
    nvml = FakeNvml(denied=[0, 2])
    inventory = detect(machine, nvml)
    assert [(device.id, device.visible, device.numa_node) for device in inventory.devices] == [
        (UUIDS[1], "0", 1),
        (UUIDS[3], "1", None),
    ]
    assert (inventory.reason, inventory.unresponsive_count) == ("2 found by NVML", 0)
    assert ids(detect(machine, nvml, "1,0")) == [UUIDS[3], UUIDS[1]]


def test_a_gpu_is_found_in_a_long_pci_domain_and_told_by_its_id_beside_other_models(machine: Path) -> None:
    add_pci(machine, "10000:01:00.0", "0x10de", "0x030200", numa_node=1)
    assert detect(machine, FakeNvml(UUIDS[:1], pci_domain=0x10000)).devices[0].numa_node == 1
    inventory = detect(machine, FakeNvml(models=("Fast One", "Fast One", "Slow One", "Slow One")))
    assert [device.visible for device in inventory.devices] == list(UUIDS)
    assert [device.model for device in inventory.devices] == ["Fast One"] * 2 + ["Slow One"] * 2


@pytest.mark.parametrize(
    ("fabric", "version", "domain"),
    [
        ((3, 0, CLUSTER, 7), 3, f"{CLUSTER}.7"),
        ((3, 0, CLUSTER, 0), 2, f"{CLUSTER}.0"),
        ((2, 0, CLUSTER, 7), 3, ""),  # still registering
        ((3, 1, CLUSTER, 7), 3, ""),  # registration has failed
        ((3, 0, "0" * 32, 0), 3, ""),
        ((3, 0, CLUSTER, 7), 0, ""),  # a driver that knows neither struct
    ],
)
def test_the_nvlink_domain_is_that_of_a_completed_registration(
    machine: Path, fabric: tuple[int, int, str, int], version: int, domain: str
) -> None:
    inventory = detect(machine, FakeNvml(UUIDS[:1], fabric={0: fabric}, fabric_version=version))
    assert [device.domain for device in inventory.devices] == [domain]


def test_an_old_nvidia_ml_py_knows_no_fabric(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml(UUIDS[:1], fabric={0: (3, 0, CLUSTER, 7)})
    monkeypatch.delattr(FakeNvml, "nvmlDeviceGetGpuFabricInfoV")
    assert detect(machine, nvml).devices[0].domain == ""


# MIG


ONE_MIG = "CUDA gives a process one MIG instance, and nothing else"
ON_FIRST = {0: ["MIG-1", None, "MIG-2"]}
ON_BOTH = {0: ["MIG-1", "MIG-2"], 1: ["MIG-3"]}
ON_SECOND = {1: ["MIG-1", "MIG-2"]}


@pytest.mark.parametrize(
    ("count", "migs", "asked", "isolates_workers", "found", "reason"),
    [
        (4, ON_FIRST, "MIG-2,MIG-1", False, ["MIG-2"],
         f"4 found by NVML, 1 left by CUDA_VISIBLE_DEVICES=MIG-2,MIG-1: {ONE_MIG}"),
        (4, ON_FIRST, "MIG-2,MIG-1", True, ["MIG-2", "MIG-1"],
         "4 found by NVML, 2 left by CUDA_VISIBLE_DEVICES=MIG-2,MIG-1"),
        (4, ON_FIRST, "MIG-2,MIG-2", True, [],
         "CUDA_VISIBLE_DEVICES=MIG-2,MIG-2 names MIG-2 twice"),
        (2, ON_BOTH, None, False, ["MIG-1"],
         "2 found by NVML, with 3 MIG instances: CUDA gives a process one, and nothing else"),
        (2, ON_BOTH, None, True, ["MIG-1", "MIG-2", "MIG-3"], "2 found by NVML, 3 MIG instances among them"),
        # Beside a MIG instance CUDA shows no whole GPU.
        (4, ON_SECOND, None, False, ["MIG-1"],
         "4 found by NVML, with 2 MIG instances: CUDA gives a process one, and nothing else"),
        (4, ON_SECOND, "0,1,2", False, [UUIDS[1]],
         f"4 found by NVML, 1 left by CUDA_VISIBLE_DEVICES=0,1,2: {ONE_MIG}"),
        (4, ON_SECOND, "2,0", False, [UUIDS[2], UUIDS[0]], "4 found by NVML, 2 left by CUDA_VISIBLE_DEVICES=2,0"),
        (4, ON_SECOND, None, True, [UUIDS[0], "MIG-1", "MIG-2", *UUIDS[2:]],
         "4 found by NVML, 2 MIG instances among them"),
    ],
)  # fmt: skip
def test_mig_instances_are_one_device_unless_each_worker_gets_its_own(
    machine: Path, count: int, migs: Any, asked: str | None, isolates_workers: bool, found: list[str], reason: str
) -> None:
    inventory = detect(machine, FakeNvml(UUIDS[:count], migs=migs), asked, isolates_workers=isolates_workers)
    assert (ids(inventory), inventory.reason) == (found, reason)
    assert asked or [device.visible for device in inventory.devices] == found


def test_a_mig_instance_is_where_its_gpu_is_and_a_gpu_without_one_is_none(machine: Path) -> None:
    add_pci(machine, "0000:01:00.0", "0x10de", "0x030200", numa_node=1)
    assert detect(machine, FakeNvml(migs=ON_FIRST), "MIG-2,MIG-1").devices[0].numa_node == 1
    inventory = detect(machine, FakeNvml(migs={1: [None]}))
    assert [device.visible for device in inventory.devices] == [UUIDS[0], *UUIDS[2:]]
    assert inventory.reason == "3 found by NVML, 1 more with MIG enabled but no MIG instance"
    assert inventory.unresponsive_count == 0
    assert detect(machine, FakeNvml(UUIDS[:1], migs={0: []})).devices == ()


# The driver's files, and the bus


def test_the_drivers_files_answer_without_nvml_and_ids_are_believed_without_any(machine: Path) -> None:
    add_nvidia(machine, "0000:81:00.0", "GPU-b", 1, numa_node=1)
    add_nvidia(machine, "0000:01:00.0", "GPU-a", 0, numa_node=0)
    add_nvidia(machine, "0000:a1:00.0", "GPU-????????-????", 2)
    inventory = detect(machine)
    assert ids(inventory) == ["GPU-a", "GPU-b", "pci-0000:a1:00.0"]
    assert [device.numa_node for device in inventory.devices] == [0, 1, None]
    assert inventory.devices[0].model == "Fast One"
    assert inventory.reason == "3 found by /proc/driver/nvidia"
    gpus = [NvidiaGpu(0, "pci-0000:01:00.0"), NvidiaGpu(1, "pci-0000:02:00.0")]
    assert [chosen.id for chosen in apply_visible("GPU-aa,GPU-bb,GPU-cc", gpus).devices] == ["GPU-aa", "GPU-bb"]
    assert [chosen.id for chosen in apply_visible("1", gpus).devices] == ["pci-0000:02:00.0"]


def test_a_gpu_whose_device_file_is_missing_belongs_to_somebody_else(machine: Path) -> None:
    for minor in range(3):
        add_nvidia(machine, f"0000:0{minor}:00.0", f"GPU-{minor}", minor)
    write(machine / "dev/nvidia2")
    assert ids(detect(machine)) == ["GPU-2"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may open any file")
def test_a_gpu_whose_device_file_may_not_be_opened_is_not_counted(machine: Path) -> None:
    for minor in range(2):
        add_nvidia(machine, f"0000:0{minor}:00.0", f"GPU-{minor}", minor)
        write(machine / f"dev/nvidia{minor}")
    (machine / "dev/nvidia0").chmod(0)
    assert ids(detect(machine)) == ["GPU-1"]


def test_the_pci_bus_answers_where_the_drivers_files_are_hidden(machine: Path) -> None:
    add_pci(machine, "0000:01:00.0", "0x10de", "0x030200", numa_node=1)  # 3D controller
    add_pci(machine, "0000:01:00.1", "0x10de", "0x040300")  # the same card's audio
    add_pci(machine, "0000:02:00.0", "0x1002", "0x030000")  # another vendor
    add_pci(machine, "0000:03:00.0", "0x10de", "0x030000")
    add_pci(machine, "0000:04:00.0", "0x10de", "0x030000")
    inventory = detect(machine)
    assert ids(inventory) == ["pci-0000:01:00.0", "pci-0000:03:00.0", "pci-0000:04:00.0"]
    assert (inventory.reason, inventory.devices[0].numa_node) == ("3 found by the PCI bus", 1)
    write(machine / "dev/nvidia0")
    write(machine / "dev/nvidia-uvm")
    assert ids(detect(machine)) == ["pci-0000:01:00.0"]
