"""The socket by which an agent can be asked: open from its start, while what answers is loaded with the first question.

Its name, in the kernel's abstract namespace, shows whose it is; see `local_socket`, the other end.
"""

from __future__ import annotations

import errno
import os
from _socket import AF_UNIX, SOCK_CLOEXEC, SOCK_NONBLOCK, SOCK_STREAM, SOMAXCONN, socket

from launcher.model.console import log

SOCKET_NAME = "meshrun.{uid}.{pid}"


def open_listener() -> socket | None:
    """Listen as this process; None where a sandbox forbids it: questions come through the store then, or by SIGQUIT."""
    try:
        listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK)
    except OSError:
        return None
    try:
        _bind(listener)
        listener.listen(SOMAXCONN)  # who finds no place is refused at once, and does not wait
    except OSError:
        listener.close()
        return None
    return listener


def _bind(listener: socket) -> None:
    """Bind it to this agent's name, or where that is taken to one that nobody can take first. Raises OSError."""
    name = SOCKET_NAME.format(uid=os.geteuid(), pid=os.getpid())
    try:
        listener.bind(f"\0{name}")
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        other = f"{name}.{int.from_bytes(os.urandom(4), 'big')}"
        listener.bind(f"\0{other}")
        log(f"another process has taken the socket name {name}: this agent answers meshctl at {other}")
