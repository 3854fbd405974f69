"""The socket by which an agent can be asked: open from its start, while what answers is loaded with the first question.

Its name, in the kernel's abstract namespace, shows whose it is; see `local_socket`, the other end.
"""

from __future__ import annotations

import os
from _socket import AF_UNIX, SOCK_CLOEXEC, SOCK_NONBLOCK, SOCK_STREAM, SOMAXCONN, socket

SOCKET_NAME = "meshrun.{uid}.{pid}"


def open_listener() -> socket | None:
    """Listen as this process; None where a sandbox forbids it: questions come through the store then, or by SIGQUIT."""
    listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK)
    try:
        listener.bind("\0" + SOCKET_NAME.format(uid=os.geteuid(), pid=os.getpid()))
        listener.listen(SOMAXCONN)  # who finds no place is refused at once, and does not wait
    except OSError:
        listener.close()
        return None
    return listener
