"""What to do where Python has found nothing to run, which it says in a line without a traceback."""

from __future__ import annotations

import os
import re

from launcher.model.errors import sanitize, suggest

_SCRIPT = r"can't open file .*: \[Errno (\d+)\]"
_PACKAGE = r"No module named ([\w.]+)\.__main__; '\1' is a package"
_FILE = r"__path__ attribute not found on '([\w.]+)'"
_MISSING = r"No module named '?([\w.]+)"
_USAGE = r"^usage: \S+ \[option\] \.\.\. \[-c cmd"


def explain_refusal(words: str, python: str) -> str:
    """Return the next step after such a line, the last of `words`; "" for any other. `python`: what has run."""
    if re.search(_USAGE, words, re.MULTILINE):
        return "correct the options before the name of the script: they are Python's own"
    last = words.rstrip().rpartition("\n")[2]
    if found := re.search(_SCRIPT, last):
        if found[1] == "2":
            return f"check the path of the script: the current directory is {_name_directory()}"
        return "check the permissions of the script and its directories with ls -l"
    if "can't find '__main__' module in" in last:
        return "give the name of a script in it"
    if found := re.search(_PACKAGE, last):
        return f"give the name of a module in it, or create {found[1].replace('.', '/')}/__main__.py"
    if found := re.search(_FILE, last):
        return f"write -m {found[1]}: it is a file, not a package"
    found = re.search(_MISSING, last)
    return _explain_module(found[1], python) if found else ""


def _explain_module(name: str, python: str) -> str:
    """Explain a module that -m has not found; Python has found what is before its last dot."""
    parent, _, last = name.rpartition(".")
    folder = parent.replace(".", "/") or "."
    entries = os.listdir(folder) if os.path.isdir(folder) else []
    names = (entry.removesuffix(".py") for entry in entries if entry.endswith(".py") or "." not in entry)
    if question := suggest(last, {each: f"{parent}.{each}".lstrip(".") for each in names}, similarity=0.8):
        return question
    if parent:
        return f"check the name after -m: {parent} has no module {last}"
    return f"check the name after -m: {last} is neither in {_name_directory()} nor installed for {sanitize(python)}"


def _name_directory() -> str:
    try:
        return sanitize(os.getcwd())
    except OSError:  # removed
        return "gone"
