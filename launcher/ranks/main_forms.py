"""The forms of a program that are no plain script: a module, a directory, an archive, byte code, and --run-path; and
what cannot be read.

`as_main` loads this file for them, by path, in the workers' Python.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any, NoReturn


def refuse(file: str, error: OSError) -> NoReturn:
    """End as Python does when it cannot open the script; the agent gets the line, too."""
    leaving = SystemExit(2)
    leaving.args = (f"{sys.executable}: can't open file {file!r}: [Errno {error.errno}] {error.strerror}",)
    print(leaving, file=sys.stderr)
    raise leaving from None


def prepare(
    how: str, words: list[str], main_module: ModuleType, has_directory: bool
) -> tuple[Callable[..., object], tuple[Any, ...]]:
    """Set up arguments and path as Python does. Returns what to call, with which arguments.

    `has_directory`: whether the first place on the path is the program's.
    """
    path = words[0]
    file = path if path[:1] == "/" else os.path.join(os.getcwd(), path)  # not normalised
    sys.argv = ["-m", *words[1:]] if how == "module" else words
    if how == "script" and path.endswith(".pyc") and os.path.isfile(path):
        from importlib.machinery import SourcelessFileLoader

        if has_directory:
            sys.path[0] = os.path.dirname(os.path.realpath(path))
        loader = SourcelessFileLoader("__main__", file)
        vars(main_module).update(__file__=file, __loader__=loader)
        return exec, (loader.get_code("__main__"), vars(main_module))
    import runpy

    if how == "script":
        sys.path[: 1 if has_directory else 0] = [file]
        return runpy._run_module_as_main, ("__main__", False)  # type: ignore[attr-defined]  # Python's own way
    if has_directory:
        sys.path[0] = os.getcwd() if how == "module" else ""
    if how == "module":
        return runpy._run_module_as_main, (path,)  # type: ignore[attr-defined]  # what -m calls
    return runpy.run_path, (path, None, "__main__")
