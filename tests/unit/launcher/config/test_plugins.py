"""Plug-ins of other packages: found by name, and blamed by name for whatever they do wrong."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.config import plugins
from launcher.config.options.readers import DeviceRequest
from launcher.hardware.accelerators.contract import format_visible_variable
from launcher.model.errors import UsageError
from tests.support.distributions import install
from tests.support.sections import assign_devices

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
    return f"{reason} {format_visible_variable(slots[-1].devices)}"


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
        ("import sys; sys.exit(3)", "cannot be loaded: SystemExit: 3"),
        ("other = 1", "cannot be loaded: AttributeError: module 'beads_of_the_test' has no attribute 'Detector'"),
        ("Detector = 1", "cannot be loaded: TypeError: 'int' object is not callable"),
        ("class Detector:\n    pass", "has no method detect()"),
        (ABACUS.format(detect="raise OSError('the frame is\\n broken')"), "failed: OSError: 'the frame is\\n broken'"),
        (ABACUS.format(detect="raise SystemExit(2)"), "failed: SystemExit: 2"),
        (ABACUS.format(detect="return None"), "detect() must return Inventory, not NoneType"),
        (ABACUS.format(detect="return [1, 2]"), "detect() must return Inventory, not list"),
        (ABACUS.format(detect="return Inventory((1,), '')"),
         "detect() returned an Inventory whose devices are not a tuple of Device"),
        (ABACUS.format(detect="return Inventory((), None)"),
         "detect() returned an Inventory or a variable that is not text"),
        (ABACUS.format(detect="return Inventory((Device(kind='a', index=0, id='a', visible=''),) * 2, '')"),
         "detect() returned the same device twice"),
        (ABACUS.format(detect="return Inventory((Device(kind='a', index=1, id='a', visible=''),), '')"),
         "detect() returned devices that are not numbered from 0"),
    ],
)  # fmt: skip
def test_what_a_plug_in_does_wrong_is_one_sentence_with_its_name(package: Install, source: str, sentence: str) -> None:
    package(source)
    text, _ = refusal()
    assert text.replace("beads 1.0:", "beads 1.0") == f"the plug-in abacus of beads 1.0 {sentence}"
    assert "\n" not in text


def test_a_plug_in_without_devices_says_why(package: Install) -> None:
    package(ABACUS.format(detect="return Inventory((), 'no beads')"))
    text, hint = refusal()
    assert text == "--devices abacus: no such device found (no beads)"
    assert hint == "set --visible-env VARIABLE to use a number of devices that are not detected"


def test_a_plug_in_that_is_not_installed_is_refused_with_those_that_are(package: Install) -> None:
    package(ABACUS.format(detect=ROWS))
    text, hint = refusal("sundial")
    assert text == "--devices sundial: no installed package has a plug-in sundial (meshrun.devices)"
    assert hint is not None
    assert hint.startswith("use one of abacus")
    assert hint.endswith("; set --visible-env VARIABLE to use a number of devices without a plug-in")
    assert refusal("abakus")[1] == "did you mean abacus?"
    assert refusal("nvidai")[1] == "did you mean nvidia?"
    with pytest.raises(UsageError) as caught:
        plugins.load("meshrun.nothing", "abacus", "--somewhere abacus")
    assert caught.value.hint == "install the package that has it, for the agent's Python"


def test_a_package_with_unreadable_entry_points_is_named_in_the_refusal(package: Install, tmp_path: Path) -> None:
    package(ABACUS.format(detect=ROWS))
    (tmp_path / "beads/beads-1.0.dist-info/entry_points.txt").write_bytes(b"\xff")
    text, _ = refusal()
    assert text.startswith("--devices abacus: cannot read the installed packages: UnicodeDecodeError")


def test_two_packages_with_plug_ins_of_one_name_are_refused(package: Install) -> None:
    package(ABACUS.format(detect=ROWS))
    package(ABACUS.format(detect=ROWS), name="pearls", module="pearls_of_the_test")
    assert refusal()[0] == "--devices abacus: 2 packages provide a plug-in named abacus: beads 1.0, pearls 1.0"
