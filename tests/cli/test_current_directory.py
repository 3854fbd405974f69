"""A user's files do not stand in for modules that the agent needs, as far as Python lets us decide."""

from __future__ import annotations

import json
import os
import sys
import sysconfig
from pathlib import Path

import launcher
from tests.cli.running import run

REPOSITORY = Path(launcher.__file__).parents[1]

# Imported by Python itself before any line of ours: by runpy under `python -m`, by the start script that pip writes
# (it imports `re`), and our own package's name.
BEFORE_US = (
    "launcher",
    "types",
    "re",
    "enum",
    "functools",
    "contextlib",
    "collections",
    "warnings",
    "operator",
    "copyreg",
)
NEEDED_BY_US = (
    "queue", "rendezvous", "click", "dataclasses", "inspect", "typing", "signal", "socket", "select", "struct", "json",
    "difflib", "msgspec", "textwrap", "threading", "traceback", "math", "ast", "weakref", "copy",
)  # fmt: skip


def lay_traps(place: Path, names: tuple[str, ...]) -> None:
    for name in names:
        (place / f"{name}.py").write_text(f"raise SystemExit('imported the {name}.py of the current directory')\n")


EXPECTED = "meshrun: error: script nosuch.nowhere does not exist\n"


def test_meshrun_takes_no_module_from_the_current_directory(tmp_path: Path) -> None:
    lay_traps(tmp_path, (*BEFORE_US, *NEEDED_BY_US))
    assert run("meshrun", "nosuch.nowhere", cwd=tmp_path).err.startswith(EXPECTED)
    assert run("meshrun", "-h", cwd=tmp_path).code == 0
    assert run("meshctl", "doctor", cwd=tmp_path).code == 0


def test_python_m_launcher_takes_none_but_what_runpy_needs(tmp_path: Path) -> None:
    lay_traps(tmp_path, NEEDED_BY_US)
    assert run("python", "-m", "launcher", "nosuch.nowhere", cwd=tmp_path).err.startswith(EXPECTED)
    assert run("python", "-m", "launcher", "-h", cwd=tmp_path).code == 0
    assert run("python", "-m", "launcher.meshctl.main", "doctor", cwd=tmp_path).code == 0


def test_a_whole_job_runs_among_such_files_and_its_workers_do_see_them(tmp_path: Path) -> None:
    lay_traps(tmp_path, (*BEFORE_US, *NEEDED_BY_US))
    (tmp_path / "train.py").write_text("import sys; print(sys.path[0])\nimport queue")
    outcome = run("meshrun", "--nproc-per-node=1", "--tee=3", "train.py", cwd=tmp_path)
    assert outcome.out == f"[default0]:{tmp_path}\n"
    assert "[default0]:imported the queue.py of the current directory\n" in outcome.err
    assert "bug in meshrun" not in outcome.err
    assert outcome.code == 1


def test_a_python_path_that_names_the_current_directory_changes_nothing(tmp_path: Path) -> None:
    lay_traps(tmp_path, NEEDED_BY_US)
    for entry in (".", str(tmp_path), f"/nowhere:{tmp_path}/"):
        environ = {"PYTHONPATH": entry}
        assert run("meshrun", "nosuch.nowhere", cwd=tmp_path, environ=environ).err.startswith(EXPECTED)
        assert run("python", "-m", "launcher", "nosuch.nowhere", cwd=tmp_path, environ=environ).err.startswith(EXPECTED)


def test_other_directories_of_the_python_path_come_after_the_library(tmp_path: Path) -> None:
    lay_traps(tmp_path, NEEDED_BY_US)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    outcome = run("meshrun", "nosuch.nowhere", cwd=elsewhere, environ={"PYTHONPATH": str(tmp_path)})
    assert outcome.err.startswith(EXPECTED)


SHOW_PATH = """
import json, os, sys
from launcher import cli
cli.protect_imports()
print(json.dumps([sys.path, os.environ["PYTHONPATH"]]))
"""


def path_after(cwd: Path, python_path: str) -> list[str]:
    """sys.path of a `python -c` in `cwd`, whose first entry is "", after protect_imports."""
    outcome = run("python", "-c", SHOW_PATH, cwd=cwd, environ={"PYTHONPATH": python_path})
    assert outcome.code == 0, outcome.err
    path, kept = json.loads(outcome.out)
    assert kept == python_path, "the workers need it as it was"
    return [str(entry) for entry in path]


def test_the_current_directory_goes_and_the_rest_of_the_path_stays(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (tmp_path / "link").symlink_to(tmp_path)
    path = path_after(tmp_path, f"{other}:{tmp_path}/link:.")
    library = os.path.dirname(os.__file__)
    assert path.index(library) == 0
    assert str(other) in path
    assert not {"", ".", str(tmp_path), f"{tmp_path}/link"}.intersection(path)


def test_a_source_checkout_runs_from_its_own_directory() -> None:
    # -S: no .pth file is read, so the package can only come from the current directory.
    libraries = {"PYTHONPATH": sysconfig.get_path("platlib")}
    outcome = run("python", "-S", "-m", "launcher", "nosuch.nowhere", cwd=REPOSITORY, environ=libraries)
    assert outcome.err.startswith(EXPECTED)
    path = path_after(REPOSITORY, str(REPOSITORY))
    assert path.index(str(REPOSITORY)) > path.index(os.path.dirname(os.__file__))


def test_a_current_directory_that_is_gone_stops_nothing(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    command = os.path.join(os.path.dirname(sys.executable), "meshrun")
    code = f"import os, sys; os.rmdir(os.getcwd()); os.execv({command!r}, ['meshrun', '--version'])"
    assert run("python", "-c", code, cwd=gone).out.startswith("meshrun 0.")
