"""Whose variables the workers get: what is asked, what can be imported, and what the devices are."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from launcher.config import frameworks
from launcher.config.frameworks import EnvironmentChoice, choose_environments, detect_mpi, has_package
from launcher.model.node import Device

CPU = Device(kind="cpu", index=0, id="cpu0", visible="")
TPU = Device(kind="tpu", index=0, id="0000:00:04.0", visible="0")


def choice(framework: str, device: Device, *installed: str, unknown: bool = False) -> EnvironmentChoice:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frameworks, "has_package", lambda name, *_: None if unknown else name in installed)
        return choose_environments(framework, [device], sys.executable, {})


@pytest.mark.parametrize(
    ("device", "installed", "names"),
    [
        (CPU, ("torch",), ("torch",)),
        (CPU, ("torch", "jax"), ("torch",)),
        (CPU, ("jax",), ("torch", "jax")),
        (CPU, (), ("torch",)),
        (CPU, ("paddle",), ("torch", "paddle")),
        (CPU, ("paddle", "jax"), ("torch", "jax")),
        (CPU, ("paddle", "torch"), ("torch",)),
        (TPU, ("paddle",), ("torch", "tpu")),
        (TPU, ("torch",), ("torch", "tpu")),
        (TPU, ("torch", "jax"), ("torch", "jax", "tpu")),
        (TPU, ("torch", "jax", "torch_xla"), ("torch", "xla", "tpu")),
    ],
)
def test_auto_takes_what_can_be_imported(device: Device, installed: tuple[str, ...], names: tuple[str, ...]) -> None:
    found = choice("auto", device, *installed)
    assert found.names == names
    assert bool(found.reason) == bool({"jax", "xla", "paddle"} & set(names))


def test_jax_is_not_taken_where_nobody_can_see_whether_torch_is_there() -> None:
    assert choice("auto", CPU, unknown=True) == EnvironmentChoice(("torch",), "")


@pytest.mark.parametrize("framework", ["torch", "jax", "paddle", "xla", "mine"])
def test_what_is_asked_for_is_not_looked_for(framework: str) -> None:
    own = () if framework == "torch" else (framework,)
    assert choice(framework, CPU).names == ("torch", *own)
    assert choice(framework, TPU).names == ("torch", *own, "tpu")


def test_a_package_is_found_without_being_imported_and_a_directory_without_code_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert has_package("xmlrpc", sys.executable, {}) is True  # a package of the library that nobody imports here
    assert "xmlrpc" not in sys.modules
    assert has_package("no_such_package", sys.executable, {}) is False
    (tmp_path / "torchlike").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert has_package("torchlike", sys.executable, {}) is False


def python_home(home: Path, *packages: str) -> str:
    """A directory that looks like the home of a Python, which cannot be started; the path of that Python."""
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "python3").write_text("")
    (home / "bin" / "python3").chmod(0o755)
    folder = home / "lib" / "python3.12" / "site-packages"
    folder.mkdir(parents=True)
    for package in packages:
        (folder / package).mkdir()
        (folder / package / "__init__.py").write_text("")
    return str(home / "bin" / "python3")


def test_another_python_is_looked_at_and_not_started(tmp_path: Path) -> None:
    python = python_home(tmp_path / "other", "jax")
    assert (has_package("jax", python, {}), has_package("torch", python, {})) == (True, False)
    assert choose_environments("auto", [CPU], python, {}).names == ("torch", "jax")
    (tmp_path / "bin").mkdir()
    os.symlink(python, tmp_path / "bin" / "python")  # a link has its target's packages
    assert has_package("jax", str(tmp_path / "bin" / "python"), {}) is True


def test_another_python_has_what_it_inherits_and_what_the_path_adds(tmp_path: Path) -> None:
    base = python_home(tmp_path / "base", "torch")
    own = python_home(tmp_path / "own")
    for word, is_there in (("false", False), ("true", True)):
        settings = f"home = {os.path.dirname(base)}\ninclude-system-site-packages = {word}\n"
        (tmp_path / "own" / "pyvenv.cfg").write_text(settings)
        assert has_package("torch", own, {}) is is_there
    (tmp_path / "jax.py").write_text("")
    assert has_package("jax", own, {"PYTHONPATH": str(tmp_path)}) is True


@pytest.mark.parametrize("name", ["wrapper.sh", "python-in-container"])
def test_nobody_sees_into_a_program_around_python(tmp_path: Path, name: str) -> None:
    script = tmp_path / "tools" / name
    script.parent.mkdir()
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    assert has_package("torch", str(script), {}) is None
    assert has_package("torch", str(tmp_path / "nowhere" / "python"), {}) is None


def test_mpi_is_in_use_where_it_can_be_imported_or_is_asked_for(tmp_path: Path) -> None:
    assert detect_mpi(python_home(tmp_path / "with", "mpi4py"), {}) == "mpi4py is installed"
    without = python_home(tmp_path / "without")
    assert detect_mpi(without, {}) == ""
    assert "mpi" in detect_mpi(without, {"JAX_CPU_COLLECTIVES_IMPLEMENTATION": "mpi"})
    assert detect_mpi(without, {"JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo"}) == ""
