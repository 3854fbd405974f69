"""The socket on which workers report to their agent that a checkpoint is saved. `launcher.worker` is their end.

A datagram socket in the kernel's abstract namespace: it leaves no file behind, and any process of the job can write to
it, also one that has inherited no descriptor. So can foreign processes on this machine, as its name is in
/proc/net/unix. So each message begins with a token that only the job's processes know, and a socket filter in the
kernel drops all others: they fill no queue and do not wake the agent. The kernel also adds the sender's credentials,
and only this user's messages are accepted.
"""

from __future__ import annotations

import array
import os
import socket
import struct
from contextlib import suppress

from launcher.worker import SOCKET_VARIABLE

MESSAGES_MAX = 64
"""The most that one iteration of the agent's loop takes: a flood of messages does not delay the lease."""
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid
_MESSAGE_BYTES_MAX = 64
_TOKEN_BYTES = 16
_ATTACH_FILTER = getattr(
    socket, "SO_ATTACH_FILTER", 26
)  # Python lacks the constant; alpha and sparc have other numbers


class CheckpointSocket:
    """Register it for reading, and call `take` when it is readable."""

    def __init__(self) -> None:
        name, token = f"meshrun-{os.urandom(8).hex()}", os.urandom(_TOKEN_BYTES // 2).hex()
        self.environment = {SOCKET_VARIABLE: f"{name}:{token}"}
        """The variables with which workers find it and authenticate."""
        self._token = token.encode()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        with suppress(OSError):  # a sandbox without filters: `take` checks the token as well
            _attach_token_filter(self._socket, self._token)
        self._socket.bind(f"\0{name}")

    def fileno(self) -> int:
        return self._socket.fileno()

    def take(self) -> list[int]:
        """Return the rounds whose workers have reported a saved checkpoint, in order; at most `MESSAGES_MAX`."""
        rounds: list[int] = []
        for _ in range(MESSAGES_MAX):
            try:
                text, extra, _, _ = self._socket.recvmsg(_MESSAGE_BYTES_MAX, socket.CMSG_SPACE(_CREDENTIALS.size))
            except BlockingIOError:
                break
            writers = [
                _CREDENTIALS.unpack(data)[1]
                for level, kind, data in extra
                if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS
            ]
            token, _, said = text.partition(b" ")
            word, _, number = said.partition(b" ")
            if writers == [os.getuid()] and (token, word) == (self._token, b"saved") and number.isdigit():
                rounds.append(int(number))
        return rounds

    def close(self) -> None:
        self._socket.close()


# docs/internals/decisions/0040-authentication-of-datagrams-and-peers.md
def _attach_token_filter(end: socket.socket, token: bytes) -> None:
    """Have the kernel drop every datagram that does not begin with these bytes. Raises OSError.

    A classic BPF program (Linux, Documentation/networking/filter.rst): for each word of the token, load it, compare,
    and jump to the last line, which drops, if it is another; the line before the last keeps the datagram.
    """
    load, compare, end_with = 0x20, 0x15, 0x06  # LD|W|ABS, JMP|JEQ|K, RET|K
    words = struct.unpack(f">{len(token) // 4}I", token)
    lines = [
        line
        for index, word in enumerate(words)
        for line in ((load, 0, 0, 4 * index), (compare, 0, 2 * (len(words) - index) - 1, word))
    ]
    lines += [(end_with, 0, 0, 0xFFFF), (end_with, 0, 0, 0)]
    program = array.array("B", b"".join(struct.pack("HBBI", *line) for line in lines))
    end.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, struct.pack("HP", len(lines), program.buffer_info()[0]))
