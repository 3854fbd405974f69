"""`meshctl install-shim`: a `torchrun` that starts meshrun, for programs that call torchrun by its name.

TorchX, NeMo-Run and many job scripts look `torchrun` up on PATH. The shim is an executable file of that name in a
directory of the user's choice, which stands before torch's own on PATH. A console script named torchrun would be
installed over torch's, and removed with it.

Programs that import torch.distributed.run and call it, such as `accelerate launch`, do not look at PATH.
"""

from __future__ import annotations

import os
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress

from launcher.model.console import write_stderr, write_stdout
from launcher.model.errors import UsageError, find_shortage_hint, sanitize
from rendezvous import __version__

NAME = "torchrun"
_MARK = "written by meshctl install-shim"
_PROGRAM = f"""\
# {NAME}, answered by meshrun: {_MARK}. `meshctl install-shim --remove DIR` removes it.
import sys

from launcher.cli import main

if __name__ == "__main__":
    sys.exit(main())
"""
_INTERPRETER_LENGTH_MAX = 125  # Linux before 5.1 cuts the first line of a script after 127 bytes
_CHECK_LIMIT_S = 60.0


# docs/internals/decisions/0056-a-torchrun-on-the-path.md
def install_shim(directory: str, environ: Mapping[str, str]) -> None:
    """Write the shim for this Python into a directory, and say so; warn if PATH leads elsewhere.

    It gets its name when it has run once, so there is no broken one at any time. Raises UsageError if the directory
    has another torchrun, if it cannot be written, or if the shim does not run there.
    """
    if not os.path.isdir(directory):
        raise UsageError(f"{directory!r} is not a directory", f"mkdir -p {_quote(directory)}" if directory else None)
    directory = os.path.abspath(directory)
    path = os.path.join(directory, NAME)
    if _read_owner(path) == "foreign":
        raise UsageError(
            f"{sanitize(path)} was not {_MARK}, and is left as it is",
            f"another directory, before {sanitize(directory)} on PATH, makes the shim the {NAME} that is found",
        )
    part = f"{path}.{os.getpid()}.part"
    try:
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o777), "wb") as file:
            file.write(os.fsencode(render_shim(sys.executable)))
            file.flush()
            os.fsync(file.fileno())
        _require_runs(part, path, environ)
        os.replace(part, path)
    except OSError as error:
        raise _make_fault("written", path, error) from None
    finally:
        with suppress(OSError):
            os.unlink(part)
    write_stdout(f"{sanitize(path)} starts meshrun {__version__} by {sanitize(sys.executable)}")
    write_stdout(f"to undo this: meshctl install-shim --remove {_quote(directory)}")
    if warning := describe_lookup(directory, environ.get("PATH", os.defpath)):
        write_stderr(f"meshctl: {warning}\nhint: export PATH={_quote(directory)}:$PATH")


def remove_shim(directory: str) -> None:
    """Remove the shim from a directory, and say so. Raises UsageError if it is not ours or cannot be removed."""
    path = os.path.join(os.path.abspath(directory), NAME)
    owner = _read_owner(path)
    if owner == "foreign":
        raise UsageError(f"{sanitize(path)} was not {_MARK}, and is left as it is")
    try:
        if owner:
            os.unlink(path)
    except OSError as error:
        raise _make_fault("removed", path, error) from None
    write_stdout(f"{sanitize(path)} is removed" if owner else f"there is no {sanitize(path)}")


def render_shim(python: str) -> str:
    """Return the text of the shim for this Python.

    A path that the first line of a script cannot hold goes through a shell. Python reads that line as a text.
    """
    if len(python) <= _INTERPRETER_LENGTH_MAX and not any(letter.isspace() for letter in python):
        return f"#!{python}\n{_PROGRAM}"
    return f"#!/bin/sh\n'''exec' {shlex.quote(python)} \"$0\" \"$@\"\n' '''\n{_PROGRAM}"


def describe_lookup(directory: str, search_path: str) -> str:
    """Return why a program that looks for torchrun on this PATH does not find the shim; "" if it does."""
    path = os.path.join(directory, NAME)
    found = shutil.which(NAME, path=search_path)
    if found is not None and os.path.exists(path) and os.path.samefile(found, path):
        return ""
    others = [os.path.realpath(entry) for entry in search_path.split(os.pathsep) if entry]
    where = "comes after that on PATH" if os.path.realpath(directory) in others else "is not on PATH"
    what = f"{NAME} is {sanitize(found)} in this shell" if found else f"no {NAME} is found in this shell"
    return f"{what}: {sanitize(directory)} {where}"


def _read_owner(path: str) -> str:
    """Return whose the file is: "" if there is none, "ours" or "foreign". A link is never ours."""
    try:
        if not stat.S_ISREG(os.lstat(path).st_mode):
            return "foreign"
        with open(path, "rb") as file:
            return "ours" if _MARK.encode() in file.read(8192) else "foreign"
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise _make_fault("read", path, error) from None


def _require_runs(part: str, path: str, environ: Mapping[str, str]) -> None:
    """Raise UsageError if the shim does not start meshrun: a disk without programs, a `launcher` beside it."""
    try:
        ended = subprocess.run(
            [part, "--version"],
            env=environ,
            cwd="/",
            capture_output=True,
            encoding="utf-8",
            errors="backslashreplace",
            timeout=_CHECK_LIMIT_S,
        )
        if ended.returncode == 0 and ended.stdout.endswith(f"meshrun {__version__}\n"):  # a Python may greet first
            return
        said = (ended.stderr.strip() or ended.stdout.strip()).rpartition("\n")[2]
        reason = f"exit code {ended.returncode}, {sanitize(said)}"
    except subprocess.TimeoutExpired:
        reason = f"no answer within {_CHECK_LIMIT_S:g} s"
    except OSError as error:
        reason = error.strerror or str(error)
    raise UsageError(
        f"{sanitize(path)} would not start meshrun: {reason}", "nothing was written; try another directory"
    )


def _make_fault(verb: str, path: str, error: OSError) -> UsageError:
    return UsageError(f"{sanitize(path)} cannot be {verb}: {error.strerror}", find_shortage_hint(error.errno))


def _quote(text: str) -> str:
    return shlex.quote(text) if text.isprintable() else sanitize(text)
