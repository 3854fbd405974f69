"""The few packages that a job of one machine needs, carried to a machine that can fetch nothing.

`python -m tests.support.gpu.packages` fills build/gpu where pip reaches an index: one folder per package and kind of
wheel, about 15 MB for five versions of Python. On the machine with the GPU `choose` puts those on the path that its
Python lacks, so that what is installed there is used as it is. torch, JAX and numpy are the machine's own.

A copy of the tree may come without its repository, so the commit is written down too, with a digest of the files that
are tried: after a change, or in another tree, it is not believed.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "build" / "gpu"
COMMIT_FILE = "commit.json"
TRIED = ("launcher", "rendezvous", "tests/support")
COMPILED = "msgspec"
"""The one package that has a wheel for each version of Python."""
ANY = ("click", "nvidia-ml-py", "psutil", "py-spy")
"""Pure, of the stable ABI, or a program."""
NEEDED = ("msgspec",)
"""Without it no job starts; the others are asked for by single checks."""
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
PLATFORMS = ("manylinux_2_28", "manylinux_2_17", "manylinux2014", "manylinux_2_12", "manylinux2010", "manylinux1")
LEAST = {"msgspec": (0, 20), "click": (8, 1), "psutil": (5, 9), "nvidia-ml-py": (12,), "py-spy": (0, 4)}


def fetch() -> None:
    """Fill FOLDER for this kind of processor. Raises CalledProcessError if pip finds no wheel."""
    wanted = [(COMPILED, python) for python in PYTHONS] + [(name, PYTHONS[0]) for name in ANY]
    for name, python in wanted:
        target = FOLDER / folder_name(name, python)
        platforms = [f"--platform={kind}_{platform.machine()}" for kind in PLATFORMS]
        words = [
            "--quiet",
            "--no-deps",
            "--no-compile",
            "--only-binary=:all:",
            "--implementation=cp",
            f"--python-version={python}",
        ]
        command = [sys.executable, "-m", "pip", "install", "--upgrade", f"--target={target}", *words, *platforms]
        subprocess.run([*command, "--constraint", str(ROOT / "constraints.txt"), name], check=True)
    commit, is_dirty = ask_git()
    known = {"commit": commit, "is_dirty": is_dirty, "digest": make_digest()}
    (FOLDER / COMMIT_FILE).write_text(json.dumps(known))


def folder_name(name: str, python: str) -> str:
    return f"{name}-{python}" if name == COMPILED else name


def choose() -> list[str]:
    """Put on the path, for this process and for those it starts, what this Python lacks; return what is still missing.

    The folders come last in this process and first after this repository in others: no package is in two places.
    """
    added, missing = [], []
    for name in (COMPILED, *ANY):
        folder = FOLDER / folder_name(name, PYTHON)
        if not is_installed(name):
            (added if folder.is_dir() else missing).append(str(folder) if folder.is_dir() else name)
    sys.path += added
    importlib.invalidate_caches()
    before = [word for word in os.environ.get("PYTHONPATH", "").split(":") if word and word not in (str(ROOT), *added)]
    os.environ["PYTHONPATH"] = ":".join([str(ROOT), *added, *before])
    programs = [folder for folder in (f"{path}/bin" for path in added) if os.path.isdir(folder)]
    os.environ["PATH"] = ":".join([*programs, os.environ.get("PATH", os.defpath)])
    return missing


def is_installed(name: str) -> bool:
    """Whether this Python has the package, and not an older one than meshrun takes."""
    try:
        numbers = [int(part) for part in version(name).split(".") if part.isdigit()]
    except PackageNotFoundError:
        return False
    return tuple(numbers) >= LEAST[name]


def find_commit() -> tuple[str | None, bool]:
    """The commit that is tried, and whether the files differ from it; None, and true, if nobody knows."""
    commit, is_dirty = ask_git()
    if commit:
        return commit, is_dirty
    try:
        known = json.loads((FOLDER / COMMIT_FILE).read_text())
        same = known["digest"] == make_digest()
        return known["commit"], bool(known["is_dirty"]) or not same
    except (OSError, ValueError, KeyError, TypeError):
        return None, True


def ask_git() -> tuple[str | None, bool]:
    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True, timeout=20)
        return done.stdout.strip()

    try:
        if Path(git("rev-parse", "--show-toplevel")) != ROOT:
            return None, True  # a copy inside another repository
        return git("rev-parse", "HEAD"), bool(git("status", "--porcelain", "--", *TRIED))
    except (OSError, subprocess.SubprocessError):
        return None, True


def make_digest() -> str:
    """Of the names and contents of the files that are tried."""
    found = hashlib.sha256()
    files = (file for folder in TRIED for file in (ROOT / folder).rglob("*") if file.is_file())
    for file in sorted(file for file in files if "__pycache__" not in file.parts):
        found.update(f"{file.relative_to(ROOT)}\0{file.stat().st_size}\0".encode() + file.read_bytes())
    return found.hexdigest()


if __name__ == "__main__":
    fetch()
