"""Why a worker could not be started, and what to do: from an error number and a look at the program.

One number stands for several causes: ENOENT also for a script whose interpreter is missing, or whose first line ends
with a carriage return. So the file is looked at, once a start has failed, on the node where it has failed.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import sys
from contextlib import suppress
from typing import NamedTuple

from launcher.extensions.hints.hidden import explain_hidden
from launcher.extensions.hints.nothing_to_run import explain_refusal
from launcher.logs.reports import symptoms
from launcher.model.errors import sanitize

_FOR_OTHERS = "use a build for this machine"


class Cause(NamedTuple):
    """A sentence, "" if the cause is not seen, and a hint."""

    sentence: str
    hint: str = ""


def explain_failure(program: str, is_python: bool, exception: str, spawn_error: int, text: str, has_run: bool) -> Cause:
    """Explain what a look at this node, and at the words of a worker, adds to its failure.

    `program` could not be started with `spawn_error`; or, that being 0, it ended with `exception`, or "". `is_python`:
    it is a Python that was to run the script. `text`: its traceback, or its last lines. `has_run`: the script itself
    has run, so that a Python which has found nothing to run is another.
    """
    if spawn_error:
        return explain_start(program, spawn_error, is_python)
    hint = explain_words(text)
    if not (hint or has_run) and (not exception or symptoms.is_refusal(exception)):
        hint = explain_refusal(exception or text, program)
    elif not hint and is_python:
        hint = explain_hidden(exception, text, is_own_python=_is_ours(program))
        hint = hint or explain_missing_module(exception, program)
    return Cause("", hint)


def explain_words(words: str) -> str:
    """Return the hint for what argparse, or torch's data loader, has said; "" for anything else."""
    if re.search(r"arguments are required: .*--local[-_]rank", words):
        return "add --legacy-local-rank, or let the script read LOCAL_RANK"
    if re.search(r"unrecognized arguments: .*--local[-_]rank", words):
        return "leave out --legacy-local-rank: the script does not take --local-rank"
    if re.search(r"(?:/dev/shm|</torch_).*No space left on device", words):
        return "check the space in /dev/shm, which is full; in a container, raise its size"
    return ""


def explain_start(program: str, error_number: int, is_python: bool) -> Cause:
    """Explain why `program` cannot run. `is_python`: it is to run the script."""
    called, found = sanitize(program), _find(program)
    if not found and error_number == errno.EACCES and "/" in program:
        return _deny(called)  # nor can it be seen, in a directory that may not be searched
    if not found:
        where = "does not exist" if "/" in program else "is in no directory of PATH"
        return Cause(f"{called} {where}", _hint_missing(program, is_python=is_python))
    match error_number:
        case errno.ENOENT:
            return _explain_interpreter(called, found)
        case errno.EACCES | errno.EISDIR:
            return _explain_access(called, found)
        case errno.ENOEXEC:
            return _explain_format(called, found)
        case errno.ENOTDIR:
            return Cause(f"a part of the path {called} is not a directory", "correct the path")
        case errno.ETXTBSY:
            return Cause(f"{called} is open for writing", "start the job when the copy is complete")
    return Cause("")


def _find(program: str) -> str:
    """Return the path of a program, executable or not; "" if there is none."""
    folders = [""] if "/" in program else os.environ.get("PATH", os.defpath).split(":")
    places = [os.path.join(folder, program) for folder in folders]
    return next(filter(os.path.lexists, places), "")


def _hint_missing(program: str, *, is_python: bool) -> str:
    if is_python:
        return "set PYTHON_EXEC to a Python of this node, or unset it"
    if "/" not in program and os.path.isfile(program):
        if program.endswith(".py"):
            return f"leave out --no-python: {sanitize(program)} is a Python script"
        return f"write ./{sanitize(program)}: the current directory is not in PATH"
    if " " in program:
        return "write the program and its arguments as separate words, without quotes around all of them"
    return "install it on this node, or correct its name"


def _explain_interpreter(called: str, found: str) -> Cause:
    """Explain ENOENT of a file that is there, or a link that leads nowhere."""
    if not os.path.exists(found):
        return Cause(f"{called} is a link to a file that does not exist", "correct the link")
    first = _read_first_line(found)
    if not first.startswith(b"#!"):
        loader = re.search(rb"/[\w./-]*/ld[\w-]*[.-][\w.-]*so[\w.]*", _read_start(found, 4096))
        if loader is None or os.path.exists(loader[0]):
            return Cause("")
        return Cause(f"{called} needs {os.fsdecode(loader[0])}, which does not exist", _FOR_OTHERS)
    if first.endswith(b"\r"):
        cure = f"convert it to Unix line ends: sed -i 's/\\r$//' {called}"
        return Cause(f"the first line of {called} ends with a carriage return", cure)
    interpreter = sanitize(_get_interpreter(first))
    return Cause(f"{called} needs {interpreter}, which does not exist", "correct its first line, or install it")


def _explain_access(called: str, found: str) -> Cause:
    mode = os.stat(found).st_mode
    if stat.S_ISDIR(mode):
        return Cause(f"{called} is a directory", "name a program in it")
    if not mode & 0o111:
        return Cause(f"{called} is not executable", f"run chmod +x {called}")
    first = _read_first_line(found)
    interpreter = _get_interpreter(first) if first.startswith(b"#!") else ""
    if interpreter and not os.access(interpreter, os.X_OK):
        return Cause(f"{called} needs {sanitize(interpreter)}, which is not executable", "correct its first line")
    return _deny(called)


def _deny(called: str) -> Cause:
    hint = "check its directories with ls -ld, and whether its disk is mounted noexec"
    return Cause(f"this user may not run {called}", hint)


def _explain_format(called: str, found: str) -> Cause:
    first = _read_first_line(found)
    if not first and not os.path.getsize(found):
        return Cause(f"{called} is empty", "copy it again")
    if first.startswith(b"\x7fELF"):
        return Cause(
            f"{called} is damaged, or built for another kind of machine", f"{_FOR_OTHERS}, {os.uname().machine}"
        )
    if b"\0" in first:
        return Cause(f"{called} is not a program for Linux", _FOR_OTHERS)
    if first.startswith(b"\xef\xbb\xbf"):
        return Cause(f"{called} begins with a byte order mark", "save it as UTF-8 without one")
    return Cause(f"{called} names no interpreter", "add a first line such as #!/bin/bash")


def _read_first_line(path: str) -> bytes:
    return _read_start(path, 512).partition(b"\n")[0]


def _read_start(path: str, size: int) -> bytes:
    try:
        with open(path, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as file:
            return file.read(size) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else b""
    except OSError:
        return b""


def _get_interpreter(line: bytes) -> str:
    return os.fsdecode(line[2:].split(None, 1)[0]) if line[2:].split() else ""


def explain_missing_module(exception: str, python: str) -> str:
    """Return the hint for a ModuleNotFoundError of a worker that `python` ran; "" for another exception."""
    found = re.match(r"ModuleNotFoundError: No module named '([\w.]+)'", exception)
    if not found:
        return ""
    top, dot, _ = found[1].partition(".")
    if dot:  # then Python has found what is before the last dot
        return f"check whether {top} is installed for {sanitize(python)}, and its version"
    here = f"{top}.py" if os.path.isfile(f"{top}.py") else top if _has_python_files(top) else ""
    if here:
        return f"add the directory of {here} to PYTHONPATH: Python searches the script's directory, not the current one"
    home = os.path.dirname(os.path.dirname(python))
    is_of_tool = any(os.path.isfile(f"{home}/{name}") for name in ("pipx_metadata.json", "uv-receipt.toml"))
    if is_of_tool or "/uv/archive-v" in python:  # the latter is uvx's
        return f"set PYTHON_EXEC to the Python that has {top}: workers run {sanitize(python)}, meshrun's own"
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        folder = os.environ.get(variable, "")
        if folder and not os.path.abspath(python).startswith(os.path.join(folder, "")):
            there = f"the meshrun of {sanitize(folder)} ({variable})"
            return f"use {there}, or set PYTHON_EXEC: workers run {sanitize(python)}"
    return f"install {top} for {sanitize(python)}, which runs the workers"


def _is_ours(python: str) -> bool:
    return os.path.abspath(python) == os.path.abspath(sys.executable)


def _has_python_files(folder: str) -> bool:
    """Whether it may be a package of the user's; many a folder has the name of a package, such as datasets."""
    with suppress(OSError), os.scandir(folder) as entries:
        return any(entry.name.endswith(".py") for entry in entries)
    return False
