"""What is in an sdist and a wheel, and which commit a meshrun that was built from one names."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from launcher.views.version import find_commit
from rendezvous import __version__

ROOT = Path(__file__).parents[2]
NAME = f"meshrun-{__version__}"
PACKAGES = ("launcher", "rendezvous")
BUILD = "import sys; from setuptools import build_meta; getattr(build_meta, 'build_' + sys.argv[1])(sys.argv[2])"
IDENTITY = ("-c", "user.name=n", "-c", "user.email=n@example.com", "-c", "commit.gpgsign=false")
LIMIT_S = 120.0


def call(*words: str, cwd: Path, environ: Mapping[str, str] | None = None) -> str:
    inherited = {name: text for name, text in os.environ.items() if not name.startswith(("GIT_", "PYTHON", "MESHRUN_"))}
    environ = {**inherited, "PYTHONDONTWRITEBYTECODE": "1", **(environ or {})}
    done = subprocess.run(
        words, cwd=cwd, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def git(place: Path, *words: str) -> str:
    return call("git", *IDENTITY, *words, cwd=place)


def build(kind: str, sources: Path, target: Path, environ: Mapping[str, str] | None = None) -> Path:
    """Build an "sdist" or a "wheel" of these sources and unpack it; where its packages are."""
    call(sys.executable, "-c", BUILD, kind, str(target), cwd=sources, environ=environ)
    (packed,) = target.iterdir()
    place = target / "unpacked"
    if kind == "wheel":
        zipfile.ZipFile(packed).extractall(place)
        return place
    with tarfile.open(packed) as file:
        file.extractall(place, filter="data")
    return place / NAME


def list_files(place: Path) -> set[str]:
    return {str(path.relative_to(place)) for path in place.rglob("*") if path.is_file()}


def list_sources(place: Path) -> set[str]:
    """The files of the packages, as they are in the checkout."""
    found = {f"{package}/{name}" for package in PACKAGES for name in list_files(place / package)}
    return {name for name in found if "__pycache__" not in name} | {"meshrun.py"}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with what the packages are built of, as it is now, in one commit, and a test."""
    place = tmp_path_factory.mktemp("checkout")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, place / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in (
        ".gitattributes",
        ".gitignore",
        "LICENSE",
        "MANIFEST.in",
        "README.md",
        "meshrun.py",
        "pyproject.toml",
        "setup.py",
    ):
        shutil.copy(ROOT / name, place / name)
    (place / "tests").mkdir()
    (place / "tests" / "test_nothing.py").touch()
    git(place, "init", "--quiet")
    git(place, "add", "--all")
    git(place, "commit", "--quiet", "--message", "all")
    return place


@pytest.fixture(scope="module")
def sdist(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("sdist", checkout, tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built of the sdist, as `python -m build` and pip do it."""
    return build("wheel", sdist, tmp_path_factory.mktemp("wheel"))


def test_a_wheel_has_the_packages_and_nothing_else(wheel: Path) -> None:
    about = f"{NAME}.dist-info"
    notes = {f"{about}/{name}" for name in ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "top_level.txt")}
    assert list_files(wheel) == list_sources(ROOT) | notes | {f"{about}/licenses/LICENSE"}
    assert {name for name in list_sources(ROOT) if not name.endswith(".py")} == {
        "launcher/commit.txt", "launcher/extensions/hints/words.txt", "launcher/extensions/page/live.html",
        "launcher/py.typed", "rendezvous/py.typed",
    }  # fmt: skip
    hooks = {name for name in list_files(wheel) if name.endswith("/sitecustomize.py")}
    assert hooks == {f"launcher/{name}/hook/sitecustomize.py" for name in ("diagnosis", "supervisor/fork_server")}
    told = (wheel / about / "METADATA").read_text()
    assert f"Version: {__version__}\n" in told
    assert "License-Expression: Apache-2.0\n" in told


def test_an_sdist_has_what_a_wheel_is_built_of_and_no_tests(sdist: Path) -> None:
    files = {name for name in list_files(sdist) if not name.startswith(("build/", "meshrun.egg-info/"))}
    more = {"LICENSE", "MANIFEST.in", "PKG-INFO", "README.md", "pyproject.toml", "setup.cfg", "setup.py"}
    assert files == list_sources(ROOT) | more


def test_the_version_names_the_commit_of_an_archive_an_sdist_and_a_wheel(
    checkout: Path, sdist: Path, wheel: Path, tmp_path: Path
) -> None:
    commit = git(checkout, "rev-parse", "HEAD")
    git(checkout, "archive", "--output", str(tmp_path / "archive.tar"), "HEAD")
    with tarfile.open(tmp_path / "archive.tar") as file:
        file.extractall(tmp_path / "archive", filter="data")
    direct = build("wheel", checkout, tmp_path / "wheel")
    places = (checkout, tmp_path / "archive", sdist, wheel, direct)
    assert [find_commit(str(place)) for place in places] == [commit] * len(places)
    told = f"{__version__} (commit {commit[:12]})"
    assert call(sys.executable, "-m", "meshrun", "--version", cwd=wheel) == f"meshrun {told}"
    assert call(sys.executable, "-m", "launcher.meshctl.main", "--version", cwd=wheel) == f"meshctl {told}"
    assert git(checkout, "status", "--porcelain") == ""  # a build of the sdist has left the placeholder


def test_a_changed_checkout_is_dirty_and_so_is_what_is_built_of_it(checkout: Path, tmp_path: Path) -> None:
    place = tmp_path / "changed"
    git(checkout, "worktree", "add", "--quiet", str(place))  # .git is a file there
    commit = git(place, "rev-parse", "HEAD")
    assert find_commit(str(place)) == commit
    (place / "README.md").write_text("changed\n")
    assert find_commit(str(place)) == commit
    (place / "launcher" / "new.py").touch()
    assert find_commit(str(place)) == f"{commit}-dirty"
    built = build("wheel", place, tmp_path / "wheel")
    assert (find_commit(str(built)), (built / "launcher/new.py").exists()) == (f"{commit}-dirty", True)
    (place / "launcher" / "new.py").unlink()
    built = build("wheel", place, tmp_path / "next")  # nothing of the earlier one is left in it
    assert (find_commit(str(built)), (built / "launcher/new.py").exists()) == (commit, False)


def test_the_build_of_an_image_has_all_it_needs_and_names_the_commit(
    checkout: Path, wheel: Path, tmp_path: Path
) -> None:
    """From what docker is given: no repository, and only the files that .dockerignore lets through."""
    lent = (ROOT / "examples/kubernetes/Dockerfile.dockerignore").read_text().splitlines()
    place = tmp_path / "sources"
    place.mkdir()
    for name in (line[1:] for line in lent if line.startswith("!")):
        copy = shutil.copytree if (checkout / name).is_dir() else shutil.copy
        copy(checkout / name, place / name)
    built = build("wheel", place, tmp_path / "named", {"MESHRUN_COMMIT": "0123456789" * 4})
    assert find_commit(str(built)) == "0123456789" * 4
    assert list_files(built) == list_files(wheel)
    for given in ({"MESHRUN_COMMIT": ""}, {"MESHRUN_COMMIT": "v1 of ours"}):
        assert find_commit(str(build("wheel", place, tmp_path / f"unnamed{len(given['MESHRUN_COMMIT'])}", given))) == ""


def test_another_projects_commit_is_not_named(checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "project" / "packages"
    shutil.copytree(checkout, place, ignore=shutil.ignore_patterns(".git"))
    git(place.parent, "init", "--quiet")
    git(place.parent, "add", "--all")
    git(place.parent, "commit", "--quiet", "--message", "with meshrun in it")
    assert find_commit(str(place)) == ""
    monkeypatch.setenv("GIT_DIR", str(place.parent / ".git"))
    assert find_commit(str(place)) == ""
    assert find_commit(str(checkout)) == git(checkout, "rev-parse", "HEAD")
    (place / ".git").mkdir()  # of no use
    assert find_commit(str(place)) == ""


def test_without_git_the_version_stands_alone(checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_commit(str(checkout)) == ""
    (tmp_path / "git").write_text("#!/bin/sh\nprintf '\\377'\n")
    (tmp_path / "git").chmod(0o755)
    assert find_commit(str(checkout)) == ""
