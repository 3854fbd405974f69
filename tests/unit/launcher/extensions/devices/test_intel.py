"""GPUs of Intel on made-up machines: what the kernel's files say, and what the runtime's variables leave."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.extensions.devices.intel import Detector
from launcher.hardware.accelerators.contract import Inventory
from tests.support.hardware.devices import add_intel


@pytest.fixture
def ponte_vecchio(tmp_path: Path) -> Path:
    """Two GPUs of two tiles, and graphics inside the CPU."""
    add_intel(tmp_path, "0000:00:02.0", 128)
    add_intel(tmp_path, "0000:9a:00.0", 130, tiles=2, numa_node=1)
    add_intel(tmp_path, "0000:1a:00.0", 129, tiles=2, numa_node=0)
    return tmp_path


def intel(root: Path, with_integrated: bool = False, **environ: str) -> Inventory:
    return Detector(root=str(root), with_integrated=with_integrated).detect(environ)


def ids(inventory: Inventory) -> list[str]:
    return [device.id for device in inventory.devices]


def test_every_tile_is_a_device_and_graphics_inside_the_cpu_is_none(ponte_vecchio: Path) -> None:
    inventory = intel(ponte_vecchio)
    assert [(device.id, device.visible, device.numa_node) for device in inventory.devices] == [
        ("pci-0000:1a:00.0/tile0", "0", 0),
        ("pci-0000:1a:00.0/tile1", "1", 0),
        ("pci-0000:9a:00.0/tile0", "2", 1),
        ("pci-0000:9a:00.0/tile1", "3", 1),
    ]
    assert inventory.devices[0].model == "Intel 0bd5"
    assert inventory.reason == "2 found by Intel's drivers, graphics inside a CPU left out, 4 tiles"
    assert len(intel(ponte_vecchio, with_integrated=True).devices) == 5


def test_a_laptop_has_no_training_device_and_the_older_driver_shows_tiles_elsewhere(tmp_path: Path) -> None:
    add_intel(tmp_path, "0000:00:02.0", 128, driver="i915")
    assert intel(tmp_path) == Inventory((), "0 found by Intel's drivers, graphics inside a CPU left out")
    assert ids(intel(tmp_path, with_integrated=True)) == ["pci-0000:00:02.0"]
    assert intel(tmp_path / "nothing") == Inventory((), "no Intel GPU")
    add_intel(tmp_path, "0000:1a:00.0", 128, driver="i915", tiles=2)
    assert len(intel(tmp_path).devices) == 2


def test_a_gpu_that_we_may_not_open_is_somebody_elses(ponte_vecchio: Path) -> None:
    (ponte_vecchio / "dev/dri/renderD129").unlink()
    inventory = intel(ponte_vecchio)
    assert ids(inventory) == ["pci-0000:9a:00.0/tile0", "pci-0000:9a:00.0/tile1"]
    assert (inventory.unresponsive_count, inventory.devices[0].visible) == (0, "0")


@pytest.mark.parametrize(
    ("hierarchy", "mask", "chosen", "mistake"),
    [
        ("", "0,3", ["1a/0", "9a/1"], ""),
        ("", "3,0", ["1a/0", "9a/1"], ""),  # the order is the driver's
        ("COMBINED", "2", ["9a/0"], ""),
        ("FLAT", "1,1", ["1a/1"], ""),
        ("FLAT", "4,0", ["1a/0"], "'4' names no device"),
        ("", "default", ["1a/0", "1a/1", "9a/0", "9a/1"], ""),
        ("COMPOSITE", "", ["1a", "9a"], ""),
        ("composite", "1", ["9a"], ""),
        ("COMPOSITE", "2,7,01", ["9a"], "'2', '7' name no device"),
        ("COMPOSITE", "0.1,1", [], "'0.1' is not the number of a device"),
        ("", "-1", [], ""),
        ("", "none", [], ""),
        ("", "0,1,", ["1a/0", "1a/1"], ""),
        ("", "0-1", [], "'0-1' is not the number of a device"),
    ],
)  # fmt: skip
def test_the_mask_chooses_among_what_the_hierarchy_makes_devices(
    ponte_vecchio: Path, hierarchy: str, mask: str, chosen: list[str], mistake: str
) -> None:
    inventory = intel(ponte_vecchio, ZE_FLAT_DEVICE_HIERARCHY=hierarchy, ZE_AFFINITY_MASK=mask)
    short = [id.removeprefix("pci-0000:").replace(":00.0", "").replace("tile", "") for id in ids(inventory)]
    assert short == chosen
    assert inventory.mistake == (f"ZE_AFFINITY_MASK={mask}: {mistake}" if mistake else "")
