"""Which of two files of one name an import has found: one of the user's may hide a package, and ours one of the user's.

Python takes the first on its path: the script's directory, or under -m the current one, then PYTHONPATH, then what is
installed. Only Python's library is imported here: what hides a package may hide any of ours.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from contextlib import suppress
from importlib.machinery import PathFinder
from pathlib import Path

_OWN = ("launcher", "rendezvous")
_HOME = os.path.abspath(os.path.join(os.path.dirname(__file__), "../../.."))
_FORMS = (
    r"ModuleNotFoundError: No module named '(?P<module>\w+)\.(?P<rest>[\w.]+)'",
    r"ImportError: cannot import name '(?P<rest>\w+)' from (?:partially initialized module )?'(?P<module>\w+)'",
    r"AttributeError: (?:partially initialized )?module '(?P<module>\w+)' has no attribute '(?P<rest>\w+)'",
)
_FILE = re.compile(r'^  File "(.*)", line \d', re.MULTILINE)


def explain_import(error: ImportError) -> ImportError:
    """Return an error that names the file which hides a package that meshrun needs here, or `error` if none does."""
    top = (error.name or "").partition(".")[0]
    places = _list_places(top, sys.path)
    if len(places) < 2 or getattr(sys.modules.get(top), "__file__", "") != places[0]:
        return error
    return ImportError(f"{_name(places[0])} hides the package {top}, which meshrun needs: rename it", name=error.name)


def explain_hidden(exception: str, traceback: str, *, is_own_python: bool) -> str:
    """Return what to do about an exception of a worker that has imported another file than was meant; "" for any other.

    `is_own_python`: the worker's Python is this one, which knows what is installed for it.
    """
    found = next(filter(None, (re.match(form, exception) for form in _FORMS)), None)
    if found is None:
        return ""
    top, rest = found["module"], found["rest"]
    script_folder = _find_script_folder(traceback)
    ahead = [folder for folder in (script_folder, *os.environ.get("PYTHONPATH", "").split(os.pathsep)) if folder]
    places = _list_places(top, [_HOME] if top in _OWN else sys.path if is_own_python else ())
    first = next(iter(_list_places(top, ahead)), "")
    if top in _OWN and first in places:  # PYTHONPATH leads to this installation
        first = ""
    installed = next((place for place in places if place != first), "")
    whose = f"meshrun's own package {top}" if top in _OWN else _name(installed)
    has_it = _has(installed, rest)
    if first and has_it:
        return f"rename {_name(first)}: it hides {whose}"
    if first:
        return f"check {_name(first)}: it has no module {rest}" if exception.startswith("Module") else ""
    if has_it or not installed:
        return ""
    for folder in (os.path.join(folder, top) for folder in ahead):
        if _has(os.path.join(folder, "__init__.py"), rest):
            return f"create {folder}/__init__.py: without it Python prefers {whose}"
    if top not in _OWN:
        return f"check the version of {top}: it has no module {rest}" if exception.startswith("Module") else ""
    folders = [f"{folder}{inner}" for folder in (os.getcwd(), *Path(script_folder).parents) for inner in ("", "/src")]
    for folder in folders:
        if any(_has(place, rest) for place in _list_places(top, [folder])):
            return f"add {folder} to PYTHONPATH: the script has imported {whose}, not the one there"
    return f"check the import: the script has imported {whose}, which has no {rest}"


def _list_places(top: str, folders: Iterable[str]) -> list[str]:
    """Return the files that Python would find in these directories, in order; a directory without code is none."""
    specs = (PathFinder.find_spec(top, [folder]) for folder in folders)
    return list(dict.fromkeys(os.path.abspath(spec.origin) for spec in specs if spec and spec.origin))


def _find_script_folder(traceback: str) -> str:
    """Return what Python has put first on the path; "" if the traceback does not tell."""
    found = _FILE.search(traceback)
    if found is None:
        return ""
    is_module = found[1].endswith(("<frozen runpy>", "/runpy.py"))
    return os.getcwd() if is_module else os.path.dirname(os.path.realpath(found[1]))


def _has(place: str, name: str) -> bool:
    """Whether the package or module in this file has it: as a module, or as a word of its text."""
    path = os.path.join(os.path.dirname(place), *name.split("."))
    if place.endswith("/__init__.py") and (os.path.isdir(path) or os.path.isfile(f"{path}.py")):
        return True
    with suppress(OSError), open(place, errors="replace") as file:
        return bool(re.search(rf"\b{re.escape(name)}\b", file.read()))
    return False


def _name(place: str) -> str:
    return place.removesuffix("/__init__.py")
