"""Devices that no driver of this machine knows, with real workers: the package of the guide, and our own plug-in.

The guide's files are installed as a package is: its module, and the entry points of its pyproject.toml as metadata,
in a directory that Python searches.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.cli.running import run
from tests.support.documents.pages import ROOT, SERVED, blocks, is_shown
from tests.support.network.namespaces import free_port

PAGE = ROOT / "docs/guides/plug-ins.md"
LIMIT_S = 60.0
# One write, so that lines of several workers do not mix.
SHOWS = """
import os
names = ("RANK", "LOCAL_RANK", {variable!r})
os.write(1, (" ".join(os.environ[name] for name in names) + "\\n").encode())
"""
# The plug-in looks below a directory of the test; all else is the agent as ever.
ON_ANOTHER_ROOT = """
import sys
from launcher.hardware.accelerators import ascend
ascend.Detector.__init__.__defaults__ = (sys.argv.pop(1),)
from launcher.cli import main
raise SystemExit(main())
"""


def install_the_guides_package(directory: Path) -> Path:
    """What `pip install .` makes of the files of the page."""
    files = {block.file: block.text for block in blocks(PAGE) if block.file}
    project = files["pyproject.toml"]
    lines = [
        f"[{table[1]}]\n{table[2]}"
        for table in re.finditer(r'^\[project\.entry-points\."(.+)"\]\n(.+)$', project, re.M)
    ]
    assert len(lines) == 3
    name, version = (re.search(rf'^{key} = "(.+)"$', project, re.M) for key in ("name", "version"))
    assert name
    assert version
    metadata = directory / f"{name[1].replace('-', '_')}-{version[1]}.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name[1]}\nVersion: {version[1]}\n")
    (metadata / "entry_points.txt").write_text("\n".join(lines).replace('"', "") + "\n")
    (directory / "abacus.py").write_text(files["abacus.py"])
    return directory


def test_the_package_of_the_guide_does_what_the_guide_says(tmp_path: Path) -> None:
    packages = install_the_guides_package(tmp_path / "packages")
    (tmp_path / "train.py").write_text(next(block.text for block in blocks(PAGE) if block.file == "train.py"))
    (block,) = (block for block in blocks(PAGE) if Path(__file__).name in block.not_run)
    script = block.script.replace(SERVED, f"127.0.0.1:{free_port('127.0.0.1')}")
    done = subprocess.run(
        ["bash", "-eu", "-o", "pipefail", "-c", script],
        cwd=tmp_path,
        env={"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "PYTHONPATH": str(packages)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=LIMIT_S,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    assert is_shown(block.output, done.stdout), done.stdout


def test_a_plug_in_of_our_own_runs_workers_that_see_a_device_each(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SHOWS.format(variable="ASCEND_RT_VISIBLE_DEVICES"))
    (tmp_path / "dev").mkdir()
    for number in range(5):
        (tmp_path / f"dev/davinci{number}").touch()
    words = ("--devices", "ascend:4", "--device-binding", "visible", str(tmp_path / "train.py"))
    outcome = run("python", "-c", ON_ANOTHER_ROOT, str(tmp_path), *words)
    assert (outcome.code, sorted(outcome.out.splitlines())) == (0, ["0 0 0", "1 0 1", "2 0 2", "3 0 3"]), outcome.err
    assert outcome.err.splitlines()[0] == "meshrun: 4 workers, one per ascend (5 found in /dev)"
    outcome = run("python", "-c", ON_ANOTHER_ROOT, str(tmp_path / "nothing"), *words)
    assert outcome.code == 2
    assert outcome.err.startswith("meshrun: error: --devices ascend:4: none is there (no /dev/davinciN that may be")


def test_workers_share_out_what_the_variable_of_an_unknown_device_holds(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SHOWS.format(variable="FOO_VISIBLE"))
    words = ("--devices", "foo:3", "--visible-env=FOO_VISIBLE", "--device-binding=visible", str(tmp_path / "train.py"))
    outcome = run("meshrun", *words, environ={"FOO_VISIBLE": "4,7,9"})
    assert (outcome.code, sorted(outcome.out.splitlines())) == (0, ["0 0 4", "1 0 7", "2 0 9"]), outcome.err
    outcome = run("meshrun", *words, environ={"FOO_VISIBLE": "4,7"})
    assert (outcome.code, outcome.err) == (
        2, "meshrun: error: --devices foo:3: 3 are asked for, and FOO_VISIBLE=4,7 has 2\n",
    )  # fmt: skip
