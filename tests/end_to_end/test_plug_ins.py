"""Devices that no driver of this machine knows, with real workers: the package of the guide, and that of the examples.

Their files are installed as a package is: its module, and the entry points of its pyproject.toml as metadata, in a
directory that Python searches.
"""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.documents.pages import ROOT, SERVED, blocks, is_shown
from tests.support.network.namespaces import free_port

PAGE = ROOT / "docs/reference/plug-ins.md"
EXAMPLE = ROOT / "examples/device_plugin"
LIMIT_S = 60.0


def install(directory: Path, project: str, module: str, source: str) -> Path:
    """What `pip install .` makes of a pyproject.toml and a module. Returns the directory."""
    entry_points = [
        f"[{table[1]}]\n{table[2]}"
        for table in re.finditer(r'^\[project\.entry-points\."(.+)"\]\n(.+)$', project, re.MULTILINE)
    ]
    assert entry_points
    name, version = (re.search(rf'^{key} = "(.+)"$', project, re.MULTILINE) for key in ("name", "version"))
    assert name
    assert version
    assert f'py-modules = ["{module}"]' in project
    metadata = directory / f"{name[1].replace('-', '_')}-{version[1]}.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name[1]}\nVersion: {version[1]}\n")
    (metadata / "entry_points.txt").write_text("\n".join(entry_points).replace('"', "") + "\n")
    (directory / f"{module}.py").write_text(source)
    return directory


def test_the_package_of_the_guide_does_what_the_guide_says(tmp_path: Path) -> None:
    files = {block.file: block.text for block in blocks(PAGE) if block.file}
    packages = install(tmp_path / "packages", files["pyproject.toml"], "abacus", files["abacus.py"])
    assert (packages / "meshrun_abacus-1.0.dist-info/entry_points.txt").read_text().count("abacus = abacus:") == 3
    (tmp_path / "train.py").write_text(files["train.py"])
    run_block_of(PAGE, packages, tmp_path)


def run_block_of(page: Path, packages: Path, directory: Path) -> None:
    """Run the block that the page leaves to this file, and compare what it prints with what the page shows."""
    (block,) = (block for block in blocks(page) if Path(__file__).name in block.not_run)
    script = block.script.replace(SERVED, f"127.0.0.1:{free_port('127.0.0.1')}")
    done = subprocess.run(
        ["bash", "-eu", "-o", "pipefail", "-c", script],
        cwd=directory,
        env={"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "PYTHONPATH": str(packages)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=LIMIT_S,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    assert is_shown(block.output, done.stdout), done.stdout


def test_the_plug_in_of_the_examples_does_what_its_readme_says(tmp_path: Path) -> None:
    module = "meshrun_ascend"
    project, source = (EXAMPLE / "pyproject.toml").read_text(), (EXAMPLE / f"{module}.py").read_text()
    run_block_of(EXAMPLE / "README.md", install(tmp_path / "packages", project, module, source), tmp_path)


@pytest.mark.parametrize(
    ("value", "visible", "mistake"),
    [
        ("0,2", ["0", "2"], ""),
        ("", [], ""),
        ("1,3", ["1"], "'3' is not the number of one of 3 devices"),
        ("0,,1", ["0"], "'' is not the number of one of 3 devices"),
        ("0-2", [], "'0-2' is not the number of one of 3 devices"),
        ("2,1", ["2"], "1 must be greater than 2, the number before it"),
        ("1,1", ["1"], "1 must be greater than 1, the number before it"),
    ],
)
def test_the_plug_in_of_the_examples_reads_the_variable_of_its_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str, visible: list[str], mistake: str
) -> None:
    monkeypatch.syspath_prepend(EXAMPLE)
    detector = importlib.import_module("meshrun_ascend").Detector()
    for name in ("davinci2", "davinci10", "davinci_manager", "davinci3"):
        (tmp_path / name).touch()
    found = detector.detect({"ASCEND_DEV": str(tmp_path), detector.variable: value})
    assert [device.visible for device in found.devices] == visible
    assert found.mistake == (f"{detector.variable}={value}: {mistake}" if mistake else "")
    assert bool(found.hint) is bool(mistake)
