"""Who listens on a port of this machine: read from /proc, for the sentence that says why a port cannot be had."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection

_LISTENS = "0A"  # include/net/tcp_states.h
UNKNOWN = "another user's process"
"""Whose files cannot be seen; for a moment also a process that is about to be gone."""


def foreign_listener(port: int, own: Collection[int] = ()) -> str:
    """Who listens there and is none of the processes `own`: "pid 12 (python)", or "another user's process"; or "".

    A process that ends has no files to look at any more, while its sockets are still being closed.
    """
    sockets = _listening(port)
    for pid in own:
        sockets -= _held_by(pid)
    if not sockets:
        return ""
    for number in filter(str.isdigit, os.listdir("/proc")):
        if int(number) not in own and sockets & _held_by(int(number)):
            return f"pid {number} ({_name(number)})"
    return UNKNOWN


def _listening(port: int) -> set[str]:
    """The inodes of the sockets that listen on the port, on whatever address (proc(5), /proc/net/tcp)."""
    found: set[str] = set()
    for name in ("tcp", "tcp6"):
        try:
            with open(f"/proc/net/{name}") as file:
                lines = [line.split() for line in file][1:]
        except OSError:  # a kernel without IPv6
            continue
        found.update(
            fields[9] for fields in lines if fields[3] == _LISTENS and int(fields[1].rpartition(":")[2], 16) == port
        )
    return found


def _held_by(pid: int) -> set[str]:
    """The inodes of the sockets that a process has open; none if it has gone or is another user's."""
    found = _open_in(f"/proc/{pid}/fd")
    if not found:  # its first thread may have ended before the others
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{pid}/task"):
                if thread != str(pid):
                    found |= _open_in(f"/proc/{pid}/task/{thread}/fd")
    return found


def _open_in(folder: str) -> set[str]:
    found: set[str] = set()
    with contextlib.suppress(OSError):
        for number in os.listdir(folder):
            target = ""
            with contextlib.suppress(OSError):  # this one has been closed since
                target = os.readlink(f"{folder}/{number}")
            if target.startswith("socket:["):
                found.add(target[8:-1])
    return found


def _name(number: str) -> str:
    try:
        with open(f"/proc/{number}/comm") as file:
            return file.read().strip()
    except OSError:
        return "gone"
