"""What workers tell their agent: that a checkpoint is saved. `launcher.worker` is their end.

A datagram socket in the kernel's abstract namespace: no file to leave behind, and any process of the job can write to
it. So can others on this machine; the kernel says who wrote, and only this user is heard.
"""

from __future__ import annotations

import os
import socket
import struct

from launcher.worker import SOCKET_VARIABLE

_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid
_MESSAGE_BYTES_MAX = 64


class Hearing:
    """Register it for reading, and `take` when there is something."""

    def __init__(self) -> None:
        name = f"meshrun-{os.urandom(8).hex()}"
        self.environment = {SOCKET_VARIABLE: name}
        """What workers need to find it."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._socket.bind(f"\0{name}")

    def fileno(self) -> int:
        return self._socket.fileno()

    def take(self) -> list[int]:
        """The rounds of which workers have said that a checkpoint is saved, in order."""
        rounds: list[int] = []
        while True:
            try:
                text, extra, _, _ = self._socket.recvmsg(_MESSAGE_BYTES_MAX, socket.CMSG_SPACE(_CREDENTIALS.size))
            except BlockingIOError:
                return rounds
            writers = [
                _CREDENTIALS.unpack(data)[1]
                for level, kind, data in extra
                if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS
            ]
            word, _, number = text.partition(b" ")
            if writers == [os.getuid()] and word == b"saved" and number.isdigit():
                rounds.append(int(number))

    def close(self) -> None:
        self._socket.close()
