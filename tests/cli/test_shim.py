"""`meshctl install-shim`: what it writes, what it leaves alone, and what a program finds that calls torchrun."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.meshctl.shim import describe_lookup, render_shim
from tests.cli.running import LIMIT_S, Outcome, run

Call = Callable[..., Outcome]
PYTHON_BIN = os.path.dirname(sys.executable)
NO_MODULES = "import sys; sys.exit('imported from beside the shim')\n"


def call_torchrun(search_path: str, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """As a program calls it that knows only its name."""
    command = shlex.join(("torchrun", *words))
    environ = {**os.environ, "PATH": f"{search_path}:/usr/bin:/bin"}
    return subprocess.run(
        ["/bin/sh", "-c", command], cwd=cwd, env=environ, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )


def make_other_torchrun(directory: Path) -> Path:
    directory.mkdir(exist_ok=True)
    other = directory / "torchrun"
    other.write_text("#!/bin/sh\necho the real one\n")
    other.chmod(0o755)
    return other


def test_a_program_that_calls_torchrun_starts_meshrun(tmp_path: Path) -> None:
    shims, other = tmp_path / "a b", make_other_torchrun(tmp_path / "other")
    shims.mkdir()
    path = f"{shims}:{other.parent}:{os.environ['PATH']}"
    done = run("meshctl", "install-shim", str(shims), environ={"PATH": path}, cwd=tmp_path)
    assert (done.code, done.err) == (0, "")
    assert f"meshctl install-shim --remove '{shims}'\n" in done.out
    (tmp_path / "launcher").mkdir()
    (tmp_path / "launcher" / "__init__.py").write_text(NO_MODULES)
    (tmp_path / "train.py").write_text("import os; print('rank', os.environ['RANK'], os.environ['MESH_AXES'])\n")
    started = call_torchrun(path, "--standalone", "--nproc_per_node=2", "--tee=3", "train.py", cwd=tmp_path)
    assert started.returncode == 0, started.stderr
    assert sorted(started.stdout.splitlines()) == ["[default0]:rank 0 dp", "[default1]:rank 1 dp"]


def test_it_is_undone_by_the_command_that_it_names(tmp_path: Path, call: Call) -> None:
    assert call("meshctl", "install-shim", str(tmp_path), cwd=tmp_path).code == 0
    assert os.listdir(tmp_path) == ["torchrun"]
    done = call("meshctl", "install-shim", "--remove", str(tmp_path), cwd=tmp_path)
    assert done == (0, f"{tmp_path}/torchrun is removed\n", "")
    assert os.listdir(tmp_path) == []
    assert call("meshctl", "install-shim", "--remove", ".", cwd=tmp_path).out == f"there is no {tmp_path}/torchrun\n"


@pytest.mark.parametrize("kind", ["file", "link to a shim", "dangling link", "directory"])
def test_a_torchrun_of_something_else_is_left_alone(tmp_path: Path, call: Call, kind: str) -> None:
    shims, path = tmp_path / "shims", tmp_path / "bin" / "torchrun"
    shims.mkdir()
    path.parent.mkdir()
    if kind == "file":
        make_other_torchrun(path.parent)
    elif kind == "link to a shim":
        assert call("meshctl", "install-shim", str(shims), cwd=tmp_path).code == 0
        path.symlink_to(shims / "torchrun")
    elif kind == "dangling link":
        path.symlink_to(tmp_path / "nowhere")
    else:
        path.mkdir()
    before = os.lstat(path)
    for option in ((), ("--remove",)):
        done = call("meshctl", "install-shim", *option, str(path.parent), cwd=tmp_path)
        assert done.code == 2
        assert done.err.startswith(
            f"meshctl: error: {path} was not written by meshctl install-shim, and is left as it is\n"
        )
    assert os.lstat(path).st_ino == before.st_ino
    assert os.listdir(path.parent) == ["torchrun"]


def test_a_shim_of_another_python_is_replaced_by_a_program(tmp_path: Path, call: Call) -> None:
    shim = tmp_path / "torchrun"
    shim.write_text(render_shim("/nowhere/python"))
    old_mask = os.umask(0o027)
    try:
        assert call("meshctl", "install-shim", str(tmp_path), cwd=tmp_path).code == 0
    finally:
        os.umask(old_mask)
    assert shim.read_text().startswith(f"#!{sys.executable}\n")
    assert shim.stat().st_mode & 0o777 == 0o750


def test_a_directory_that_takes_no_files_is_said(tmp_path: Path, call: Call) -> None:
    done = call("meshctl", "install-shim", "/proc", cwd=tmp_path)  # where root cannot write either
    assert done.code == 2
    assert done.err.startswith("meshctl: error: /proc/torchrun cannot be written: ")
    done = call("meshctl", "install-shim", "not there", cwd=tmp_path)
    assert done.err == "meshctl: error: 'not there' is not a directory\nhint: mkdir -p 'not there'\n"
    assert call("meshctl", "install-shim", "", cwd=tmp_path).err == "meshctl: error: '' is not a directory\n"


def test_a_path_of_python_that_is_not_utf_8_is_refused(
    tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "\udcff" / "python"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    monkeypatch.setattr(sys, "executable", str(python))
    done = call("meshctl", "install-shim", str(tmp_path), cwd=tmp_path)
    assert done.code == 2
    assert "would not start meshrun: exit code 1" in done.err
    assert not list(tmp_path.glob("torchrun*"))


def test_a_shim_that_would_not_start_meshrun_is_not_left_there(tmp_path: Path, call: Call) -> None:
    (tmp_path / "launcher.py").write_text(NO_MODULES)
    done = call("meshctl", "install-shim", str(tmp_path), cwd=tmp_path)
    assert done.code == 2
    assert done.err == (
        f"meshctl: error: {tmp_path}/torchrun would not start meshrun: exit code 1, imported from beside the shim\n"
        "hint: nothing was written; try another directory\n"
    )
    assert not list(tmp_path.glob("torchrun*"))


def test_a_python_that_prints_something_as_it_starts_is_none_the_worse(
    tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import os; os.write(1, b'\\xff hello\\n')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = call("meshctl", "install-shim", str(tmp_path), cwd=tmp_path)
    assert (done.code, done.out.partition(" ")[0]) == (0, f"{tmp_path}/torchrun")


def test_a_python_with_a_blank_or_a_long_path_goes_through_a_shell(tmp_path: Path) -> None:
    for name in ("with blank", "x" * 200, "with'quote and blank"):
        directory = tmp_path / name
        directory.mkdir()
        python = directory / "python"
        # A link would have no packages: a virtual environment is where its path says.
        python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
        python.chmod(0o755)
        shim = directory / "torchrun"
        shim.write_text(render_shim(str(python)))
        assert shim.read_text().startswith("#!/bin/sh\n")
        shim.chmod(0o755)
        done = subprocess.run([shim, "--version"], capture_output=True, text=True, timeout=LIMIT_S, check=False)
        assert done.stdout.startswith("meshrun "), done.stderr


def test_who_is_found_on_the_path_is_said_if_it_is_not_the_shim(tmp_path: Path) -> None:
    shims, other = tmp_path / "shims", make_other_torchrun(tmp_path / "other")
    shims.mkdir()
    (shims / "torchrun").write_text(render_shim(sys.executable))
    (shims / "torchrun").chmod(0o755)
    assert describe_lookup(str(shims), f"{shims}:{other.parent}") == ""
    late = describe_lookup(str(shims), f"{other.parent}:{shims}")
    assert late == f"torchrun is {other} in this shell: {shims} comes after that on PATH"
    absent = describe_lookup(str(shims), f"/nowhere:{other.parent}")
    assert absent == f"torchrun is {other} in this shell: {shims} is not on PATH"
    assert describe_lookup(str(shims), "/nowhere") == f"no torchrun is found in this shell: {shims} is not on PATH"
    (tmp_path / "link").symlink_to(shims)
    assert describe_lookup(str(shims), f"{tmp_path}/link:{other.parent}") == ""


def test_the_warning_is_the_line_that_helps(tmp_path: Path) -> None:
    other = make_other_torchrun(tmp_path / "other")
    shims = tmp_path / "shims"
    shims.mkdir()
    done = run("meshctl", "install-shim", str(shims), environ={"PATH": f"{other.parent}:{PYTHON_BIN}"}, cwd=tmp_path)
    assert done.code == 0
    assert done.err == (
        f"meshctl: torchrun is {other} in this shell: {shims} is not on PATH\nhint: export PATH={shims}:$PATH\n"
    )


def test_nothing_registers_entry_points_that_switch_off_those_of_torchx() -> None:
    """A package with one of them takes all built-in schedulers or components from TorchX: pytorch/torchx issue 1009."""
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    groups = [line for line in text.splitlines() if line.startswith("[project.entry-points.")]
    assert len(groups) >= 2
    assert not [group for group in groups if "torchx" in group]
