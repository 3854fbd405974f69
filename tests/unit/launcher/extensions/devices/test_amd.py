"""GPUs of AMD on made-up machines: what the kernel's files say, and what the runtimes' variables leave."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.extensions.devices.amd import Detector
from launcher.hardware.accelerators.contract import Inventory, format_visible_variable
from tests.support.hardware.devices import add_kfd, add_pci, write

IDS = ("GPU-000000000000a1b2", "GPU-000000000000a1ff", "GPU-00000000000000c3")


@pytest.fixture
def instinct(tmp_path: Path) -> Path:
    """Two CPUs, and three GPUs of one XGMI hive."""
    for node in range(2):
        add_kfd(tmp_path, node, cpu_cores_count=64)
    for node, unique in enumerate((0xA1B2, 0xA1FF, 0xC3), 2):
        add_kfd(
            tmp_path, node, simd_count=912, unique_id=unique, hive_id=0x5EED, drm_render_minor=126 + node,
            numa_node=node // 4,
        )  # fmt: skip
    return tmp_path


def amd(root: Path, with_integrated: bool = False, **environ: str) -> Inventory:
    return Detector(root=str(root), with_integrated=with_integrated).detect(environ)


def ids(inventory: Inventory) -> list[str]:
    return [device.id for device in inventory.devices]


def test_a_machine_without_amds_driver_is_asked_nothing_more(tmp_path: Path) -> None:
    add_pci(tmp_path, "0000:01:00.0", "0x1002", "0x030000")
    assert amd(tmp_path) == Inventory((), "no AMD compute driver")


def test_processors_with_simd_units_are_gpus_and_named_as_their_card_is(instinct: Path) -> None:
    inventory = amd(instinct)
    assert ids(inventory) == list(IDS)
    assert [device.numa_node for device in inventory.devices] == [0, 0, 1]
    assert {device.domain for device in inventory.devices} == {"0000000000005eed"}
    assert {device.model for device in inventory.devices} == {"gfx942"}
    assert inventory.reason == "3 found by AMD's compute driver"
    assert format_visible_variable(inventory.devices[1:]) == ("HIP_VISIBLE_DEVICES", "1,2")
    write(instinct / "sys/bus/pci/devices/0000:02:00.0/product_name", "AMD Instinct MI300X\n")
    assert amd(instinct).devices[0].model == "AMD Instinct MI300X"


@pytest.mark.parametrize(
    ("environ", "chosen", "entries", "mistake"),
    [
        ({"ROCR_VISIBLE_DEVICES": "2,0"}, [2, 0], "0,1", ""),
        ({"ROCR_VISIBLE_DEVICES": "gpu-000000000000A1B2, 2"}, [0, 2], "0,1", ""),
        ({"ROCR_VISIBLE_DEVICES": ""}, [], "", ""),
        ({"ROCR_VISIBLE_DEVICES": "-1"}, [], "", ""),
        ({"ROCR_VISIBLE_DEVICES": "none"}, [], "", ""),
        ({"ROCR_VISIBLE_DEVICES": "1,2,", "HIP_VISIBLE_DEVICES": "1,"}, [2], "1", ""),
        ({"ROCR_VISIBLE_DEVICES": "1,7,2"}, [1], "0", "no GPU 7 exists, and the entries after it are hidden, too"),
        ({"HIP_VISIBLE_DEVICES": "2,1"}, [2, 1], "2,1", ""),
        ({"HIP_VISIBLE_DEVICES": "2, 1"}, [], "",  # HIP does not take the space away
         "' 1' is not the number or the id of a GPU"),
        ({"CUDA_VISIBLE_DEVICES": "1"}, [1], "1", ""),
        ({"CUDA_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "0"}, [0], "0", ""),
        ({"CUDA_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": ""}, [1], "1", ""),
        ({"HIP_VISIBLE_DEVICES": IDS[2]}, [2], IDS[2], ""),
        ({"HIP_VISIBLE_DEVICES": "3"}, [], "", "no GPU 3 exists, and the entries after it are hidden, too"),
        ({"HIP_VISIBLE_DEVICES": "0,,1"}, [], "", "an entry is empty"),
        ({"HIP_VISIBLE_DEVICES": "0,-1,1"}, [0], "0", ""),
        ({"HIP_VISIBLE_DEVICES": "gpu0"}, [], "", "'gpu0' is not the number or the id of a GPU"),
        ({"ROCR_VISIBLE_DEVICES": "2,1", "HIP_VISIBLE_DEVICES": "1"}, [1], "1", ""),
        ({"ROCR_VISIBLE_DEVICES": "2,1", "HIP_VISIBLE_DEVICES": "2"}, [], "",
         "no GPU 2 exists, and the entries after it are hidden, too"),
    ],
)  # fmt: skip
def test_two_variables_choose_one_after_the_other(
    instinct: Path, environ: dict[str, str], chosen: list[int], entries: str, mistake: str
) -> None:
    inventory = amd(instinct, **environ)
    assert ids(inventory) == [IDS[place] for place in chosen]
    assert (format_visible_variable(inventory.devices) or ("", ""))[1] == entries
    assert inventory.mistake.endswith(mistake)
    assert bool(inventory.mistake) == bool(mistake)


def test_gpus_of_another_container_cannot_be_read_and_are_not_numbered(instinct: Path) -> None:
    (instinct / "sys/class/kfd/kfd/topology/nodes/2/properties").unlink()
    inventory = amd(instinct, HIP_VISIBLE_DEVICES="1")
    assert ids(inventory) == [IDS[2]]
    (instinct / "dev/dri/renderD130").unlink()
    inventory = amd(instinct)
    assert (ids(inventory), inventory.unresponsive_count) == ([IDS[1]], 0)
    assert inventory.reason == "2 found by AMD's compute driver, 1 may not be opened here"
    (instinct / "dev/kfd").unlink()
    assert amd(instinct).reason == "2 found by AMD's compute driver, but /dev/kfd cannot be opened here"


def test_parts_of_one_gpu_are_devices_of_their_own(tmp_path: Path) -> None:
    for node in range(2):
        add_kfd(
            tmp_path, node, simd_count=112, unique_id=0xA1, bus=1, drm_render_minor=128 + node, location_id=256 + node
        )
    assert ids(amd(tmp_path)) == ["GPU-00000000000000a1", "GPU-00000000000000a1/1"]


def test_graphics_inside_a_cpu_counts_only_where_amd_is_asked_for(tmp_path: Path) -> None:
    add_kfd(tmp_path, 0, cpu_cores_count=16)
    add_kfd(tmp_path, 1, simd_count=4, gfx_target_version=100306, drm_render_minor=128)
    assert amd(tmp_path) == Inventory((), "1 found by AMD's compute driver, 1 inside a CPU left out")
    assert [device.model for device in amd(tmp_path, with_integrated=True).devices] == ["gfx1036"]
    assert ids(amd(tmp_path, with_integrated=True)) == ["pci-0000:01:00.0"]
