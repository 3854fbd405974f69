"""The frameworks whose variables the workers get: torchrun's always, and those of the framework that they use.

A launcher does not know which framework a script imports, only which it could import: where JAX is installed and torch
is not, it will be JAX, and where Paddle is installed and neither of them, Paddle. The packages are searched the way
Python does it, without importing any. Workers may run in another Python than this one (PYTHON_EXEC); starting that only
to query it might start a profiler or a container as well, so then the package directories of such a Python are
searched.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from msgspec import Struct

from launcher.model.node import Device


class EnvironmentChoice(Struct, frozen=True):
    """The environments that make up the workers', in order; each may override the variables of earlier ones.

    `reason` is a sentence for the start, "" for torchrun's plain variables and for those that were asked for.
    """

    names: tuple[str, ...]
    reason: str


def choose_environments(
    framework: str, devices: Sequence[Device], python: str, environ: Mapping[str, str]
) -> EnvironmentChoice:
    """Resolve --framework. `python`: the workers'."""
    tpu: tuple[str, ...] = ("tpu",) if any(device.kind == "tpu" for device in devices) else ()

    def finds(name: str) -> bool | None:
        return has_package(name, python, environ)

    own, reason = "", ""
    if framework != "auto":
        own = framework if framework != "torch" else ""
    elif tpu and finds("torch_xla"):
        own, reason = "xla", "torch_xla: there are TPU chips"
    elif tpu and finds("jax"):
        own, reason = "jax", "JAX: there are TPU chips, and no torch_xla"
    elif not tpu and finds("torch") is False and finds("jax"):
        own, reason = "jax", "JAX: Python finds jax and no torch"
    elif not tpu and finds("torch") is False and finds("jax") is False and finds("paddle"):
        own, reason = "paddle", "Paddle: Python finds paddle, no torch and no jax"
    names = ("torch", own, *tpu) if own else ("torch", *tpu)
    return EnvironmentChoice(names, f"workers get the variables of {reason}" if reason else "")


def detect_mpi(python: str, environ: Mapping[str, str]) -> str:
    """Return why workers may use MPI, for messages; "" without a sign of it.

    That a script will import mpi4py cannot be known, only that it can.
    """
    if environ.get("JAX_CPU_COLLECTIVES_IMPLEMENTATION") == "mpi":
        return "JAX_CPU_COLLECTIVES_IMPLEMENTATION is mpi"
    return "mpi4py is installed" if has_package("mpi4py", python, environ) else ""


def has_package(name: str, python: str, environ: Mapping[str, str]) -> bool | None:
    """Whether the workers' Python finds this package; None if its package directories are unknown."""
    if python == sys.executable:
        return _has_own_package(name)
    folders = _list_package_folders(python, environ)
    if not folders:
        return None
    return any(
        os.path.isfile(os.path.join(folder, name, "__init__.py")) or os.path.isfile(os.path.join(folder, f"{name}.py"))
        for folder in folders
    )


def _has_own_package(name: str) -> bool:
    """As importlib.util.find_spec, which would have to be imported; a directory without code in it is no package."""
    for finder in sys.meta_path:
        try:
            spec = finder.find_spec(name, None)
        except Exception:  # an installer's own finder that does not work
            continue
        if spec is not None:
            return spec.has_location
    return False


def _list_package_folders(python: str, environ: Mapping[str, str]) -> list[str]:
    """Return the package directories of a Python, as far as files show them; empty if this is no Python's prefix."""
    import glob
    import shutil

    path = shutil.which(python, path=environ.get("PATH"))
    if path is None or not os.path.basename(path).startswith("python"):
        return []
    home = os.path.dirname(os.path.dirname(os.path.abspath(path)))
    homes = [home]
    try:
        with open(os.path.join(home, "pyvenv.cfg")) as file:
            settings = {name.strip(): value.strip() for name, _, value in (line.partition("=") for line in file)}
        if settings.get("include-system-site-packages", "").lower() == "true":
            homes.append(os.path.dirname(settings.get("home", "")))
    except (OSError, ValueError):  # no virtual environment, so perhaps a link into the real prefix
        homes.append(os.path.dirname(os.path.dirname(os.path.realpath(path))))
    if "/usr" in homes:
        homes.append("/usr/local")  # Debian's Python searches there, too
    found = [folder for one in homes for folder in glob.glob(f"{glob.escape(one)}/lib*/python3*/*-packages")]
    given = environ.get("PYTHONPATH", "").split(os.pathsep)
    return [*filter(None, given), *found] if found else []
