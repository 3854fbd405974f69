"""Writes a picture to its file completely or not at all.

The file gets its name only when all of it is on the disk, so a full disk leaves the old one unchanged.
"""

from __future__ import annotations

import contextlib
import os
import stat

from launcher.model.errors import UsageError, find_shortage_hint


def write_file(path: str, text: str) -> None:
    """Write `text` to a file, replacing its content. Raises UsageError."""
    if path in ("", "-"):
        raise UsageError(f"{path!r} is no name of a file", "stdout has the answer")
    target = os.path.realpath(path)  # a link stays a link
    temporary = os.path.join(os.path.dirname(target), f".{os.path.basename(target)[:100]}.{os.getpid()}")
    try:
        if os.path.lexists(target) and not stat.S_ISREG(os.stat(target).st_mode):
            # A device or pipe cannot be replaced, and has no old content to lose.
            _write_new(target, text, os.O_WRONLY)
            return
        _write_new(temporary, text, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        os.replace(temporary, target)
    except (OSError, ValueError) as error:  # ValueError: a name with a zero byte
        with contextlib.suppress(OSError, ValueError):
            os.unlink(temporary)
        number = error.errno if isinstance(error, OSError) else None
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"cannot write {path!r}: {why}", find_shortage_hint(number)) from None


def _write_new(path: str, text: str, flags: int) -> None:
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o666)
    try:
        data = memoryview(text.encode(errors="backslashreplace"))
        while data:
            data = data[os.write(descriptor, data) :]
        if flags & os.O_CREAT:
            os.fsync(descriptor)  # some disks report only now that they are full
    finally:
        os.close(descriptor)
