"""Plug-ins of other packages: found by name, and blamed by name for whatever they do wrong; and our own three."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.config import plugins
from launcher.config.options.readers import DeviceRequest
from launcher.hardware.accelerators.ascend import Detector as Ascend
from launcher.hardware.accelerators.contract import Inventory, format_visible_variable
from launcher.hardware.accelerators.habana import Detector as Habana
from launcher.hardware.accelerators.neuron import Detector as Neuron
from launcher.hardware.accelerators.slots import assign_devices
from launcher.model.errors import UsageError
from tests.support.distributions import install
from tests.support.hardware.devices import write

Install = Callable[..., None]
ABACUS = """
from launcher.hardware.accelerators.contract import Inventory
from launcher.model.node import Device
class Detector:
    kind = "abacus"
    variable = "ABACUS_ROWS"
    def detect(self, environ):
        {detect}
"""
ROWS = """
        device = lambda index: Device(kind="abacus", index=index, id=f"row{index}", visible=str(index + 1))
        return Inventory(tuple(map(device, range(3))), "3 rows counted")
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Installs a package whose plug-in `abacus` has this source."""

    def install_one(source: str, name: str = "beads", module: str = "beads_of_the_test") -> None:
        monkeypatch.delitem(sys.modules, module, raising=False)
        offers = {"abacus": f"{module}:Detector"}
        monkeypatch.syspath_prepend(
            install(tmp_path / name, group="meshrun.devices", offers=offers, modules={module: source})
        )

    return install_one


def workers(kind: str = "abacus", number: int | None = None) -> str:
    slots, reason = assign_devices(None, None, {}, request=DeviceRequest(kind, number))
    return f"{reason} {format_visible_variable(slots[-1].devices, {})}"


def refusal(kind: str = "abacus") -> tuple[str, str | None]:
    with pytest.raises(UsageError) as caught:
        workers(kind)
    return str(caught.value), caught.value.hint


def test_a_plug_in_counts_its_devices_and_names_their_variable(package: Install) -> None:
    package(ABACUS.format(detect=ROWS))
    assert workers() == "3 workers, one per abacus (3 rows counted) ('ABACUS_ROWS', '3')"
    assert workers(number=2) == "2 workers, one per abacus (3 rows counted) ('ABACUS_ROWS', '2')"


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("import no_such_module", "cannot be loaded: ModuleNotFoundError: No module named 'no_such_module'"),
        ("import sys; sys.exit(3)", "cannot be loaded: it exits with 3"),
        ("other = 1", "cannot be loaded: AttributeError: module 'beads_of_the_test' has no attribute 'Detector'"),
        ("Detector = 1", "cannot be loaded: TypeError: 'int' object is not callable"),
        ("class Detector:\n    pass", "has no method detect()"),
        (ABACUS.format(detect="raise OSError('the frame is\\n broken')"), "failed: OSError: the frame is broken"),
        (ABACUS.format(detect="raise SystemExit(2)"), "failed: it exits with 2"),
        (ABACUS.format(detect="return None"), "detect() returned nothing, not an Inventory"),
        (ABACUS.format(detect="return [1, 2]"), "detect() returned a list, not an Inventory"),
        (ABACUS.format(detect="return Inventory((1,), '')"),
         "detect() returned an Inventory whose devices are not a tuple of Device"),
        (ABACUS.format(detect="return Inventory((), None)"),
         "detect() returned an Inventory, or has a variable, that is no text"),
        (ABACUS.format(detect="return Inventory((Device(kind='a', index=0, id='a', visible=''),) * 2, '')"),
         "detect() returned the same device twice"),
        (ABACUS.format(detect="return Inventory((Device(kind='a', index=1, id='a', visible=''),), '')"),
         "detect() returned devices that are not numbered from 0"),
    ],
)  # fmt: skip
def test_what_a_plug_in_does_wrong_is_one_sentence_that_names_its_package(
    package: Install, source: str, sentence: str
) -> None:
    package(source)
    text, _ = refusal()
    assert text.replace("beads 1.0:", "beads 1.0") == f"the plug-in abacus of beads 1.0 {sentence}"
    assert "\n" not in text


def test_a_plug_in_without_devices_says_why(package: Install) -> None:
    package(ABACUS.format(detect="return Inventory((), 'no beads')"))
    text, hint = refusal()
    assert text == "--devices abacus: none is there (no beads)"
    assert hint == "with --visible-env VARIABLE a number of them is believed, and nothing is looked for"


def test_a_plug_in_that_is_not_installed_is_refused_with_those_that_are(package: Install) -> None:
    package(ABACUS.format(detect=ROWS))
    text, hint = refusal("sundial")
    assert text == "--devices sundial: no installed package has a plug-in sundial (meshrun.devices)"
    assert hint is not None
    assert hint.startswith("there are: abacus")
    assert hint.endswith("; with --visible-env VARIABLE a number of any devices is believed")
    assert refusal("abakus")[1] == "did you mean abacus?"
    assert refusal("nvidai")[1] == "did you mean nvidia?"
    with pytest.raises(UsageError) as caught:
        plugins.load("meshrun.nothing", "abacus", "--somewhere abacus")
    assert caught.value.hint == "install the package that has it, for the agent's Python"


def test_a_package_with_unreadable_entry_points_is_named_in_the_refusal(package: Install, tmp_path: Path) -> None:
    package(ABACUS.format(detect=ROWS))
    (tmp_path / "beads/beads-1.0.dist-info/entry_points.txt").write_bytes(b"\xff")
    text, _ = refusal()
    assert text.startswith("--devices abacus: the installed packages cannot be read: UnicodeDecodeError")


def test_two_packages_with_plug_ins_of_one_name_are_refused(package: Install) -> None:
    package(ABACUS.format(detect=ROWS))
    package(ABACUS.format(detect=ROWS), name="pearls", module="pearls_of_the_test")
    assert refusal()[0] == "--devices abacus: 2 packages provide a plug-in named abacus: beads 1.0, pearls 1.0"


# Our own


def chosen(inventory: Inventory) -> list[tuple[str, str]]:
    return [(device.id, device.visible) for device in inventory.devices]


def test_ascend_counts_the_files_that_may_be_opened(tmp_path: Path) -> None:
    for name in ("davinci2", "davinci3", "davinci10", "davinci_manager"):
        write(tmp_path / "dev" / name)
    inventory = Ascend(str(tmp_path)).detect({})
    assert chosen(inventory) == [("davinci2", "0"), ("davinci3", "1"), ("davinci10", "2")]
    assert inventory.reason == "3 found in /dev"
    assert Ascend(str(tmp_path / "nothing")).detect({}) == Inventory((), "no /dev/davinciN that may be opened here")


@pytest.mark.parametrize(
    ("asked", "numbers", "mistake"),
    [
        ("0,2", ["0", "2"], ""),
        ("", [], ""),
        ("0, 1", [], "' 1' is not the number of a device"),
        ("0,1,", ["0", "1"], ""),
        ("none", [], ""),
        ("1,3", ["1"], "'3' is none of 0 to 2, and what follows is not read"),
        ("2,1", ["2"], "1 does not follow 2, and must"),
    ],
)
def test_ascends_variable_is_ascending_numbers_and_nothing_else(
    tmp_path: Path, asked: str, numbers: list[str], mistake: str
) -> None:
    for number in range(3):
        write(tmp_path / f"dev/davinci{number}")
    inventory = Ascend(str(tmp_path)).detect({"ASCEND_RT_VISIBLE_DEVICES": asked})
    assert [device.visible for device in inventory.devices] == numbers
    assert inventory.mistake == (f"ASCEND_RT_VISIBLE_DEVICES={asked}: {mistake}" if mistake else "")


def gaudi(root: Path, modules: dict[int, int | None]) -> Habana:
    for index, module in modules.items():
        write(root / f"dev/accel/accel{index}")
        write(root / f"dev/accel/accel_controlD{index}")
        if module is not None:
            write(root / f"sys/class/accel/accel{index}/device/module_id", f"{module}\n")
            write(root / f"sys/class/accel/accel{index}/device/numa_node", f"{index // 2}\n")
    return Habana(str(root))


def test_habana_selects_by_module_ids(tmp_path: Path) -> None:
    detector = gaudi(tmp_path, {0: 5, 1: 4, 2: 7, 3: 6})
    write(tmp_path / "dev/accel/accel9")  # somebody else's accelerator: no file of the second name
    assert chosen(detector.detect({})) == [("accel1", "4"), ("accel0", "5"), ("accel3", "6"), ("accel2", "7")]
    assert [device.numa_node for device in detector.detect({}).devices] == [0, 0, 1, 1]
    inventory = detector.detect({"HABANA_VISIBLE_MODULES": "7,4,1"})
    assert chosen(inventory) == [("accel1", "4"), ("accel2", "7")]
    assert inventory.mistake == "HABANA_VISIBLE_MODULES=7,4,1: there is no module 1"


def test_habana_without_module_ids_knows_only_whole_boards(tmp_path: Path) -> None:
    detector = gaudi(tmp_path, dict.fromkeys(range(4)))
    assert detector.detect({}) == Inventory((), "4 found in /dev/accel, but their module ids cannot be read")
    assert len(gaudi(tmp_path, dict.fromkeys(range(8))).detect({}).devices) == 8
    assert Habana(str(tmp_path / "nothing")).detect({}).devices == ()


def test_from_trainium2_on_two_physical_cores_are_one_by_default(tmp_path: Path) -> None:
    write(tmp_path / "dev/neuron0")
    write(tmp_path / "sys/devices/virtual/neuron_device/neuron0/core_count", "8\n")
    write(tmp_path / "sys/devices/virtual/neuron_device/neuron0/info/architecture/device_name", "Trainium2\n")
    assert len(Neuron(str(tmp_path)).detect({}).devices) == 4
    assert len(Neuron(str(tmp_path)).detect({"NEURON_LOGICAL_NC_CONFIG": "1"}).devices) == 8


def test_neuron_counts_cores(tmp_path: Path) -> None:
    for chip in range(2):
        write(tmp_path / f"dev/neuron{chip}")
        write(tmp_path / f"sys/devices/virtual/neuron_device/neuron{chip}/core_count", "2\n")
        write(tmp_path / f"sys/devices/virtual/neuron_device/neuron{chip}/info/architecture/device_name", "Trainium1\n")
    detector = Neuron(str(tmp_path))
    inventory = detector.detect({})
    assert chosen(inventory) == [("neuron0/0", "0"), ("neuron0/1", "1"), ("neuron1/0", "2"), ("neuron1/1", "3")]
    assert (inventory.reason, inventory.devices[0].model) == ("2 chips found in /dev, 4 cores", "Trainium1")
    assert [device.visible for device in detector.detect({"NEURON_RT_VISIBLE_CORES": "3,0-1"}).devices] == list("301")
    wrong = detector.detect({"NEURON_RT_VISIBLE_CORES": "1,2-4"})
    assert wrong.mistake == "NEURON_RT_VISIBLE_CORES=1,2-4: 2-4 is not within the cores, 0 to 3"
    assert detector.detect({"NEURON_RT_VISIBLE_CORES": "all"}).mistake.endswith(
        "'all' is not the number of a core or a range of them"
    )
    joined = detector.detect({"NEURON_LOGICAL_NC_CONFIG": "2"})
    assert (len(joined.devices), joined.reason) == (2, "2 chips found in /dev, 2 cores of 2 physical ones each")
    assert Neuron(str(tmp_path / "nothing")).detect({}).devices == ()
