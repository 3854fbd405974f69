"""Whole messages in the format of the supervisor's channel: a header, JSON, descriptors with the first byte.

The header is the length of the JSON, four bytes in big-endian order, and the number of descriptors, one byte. Here
reading may block: fork server and worker have nothing else to do.
"""

from __future__ import annotations

import json
import os
import sys
from _socket import CMSG_SPACE, MSG_CMSG_CLOEXEC, MSG_DONTWAIT, SCM_RIGHTS, SOL_SOCKET, socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_HEAD_SIZE = 5
_READ_SIZE = 1 << 16
_NUMBER_SIZE = 4  # a C int
_DESCRIPTOR_LIMIT = 8  # per message, as in the supervisor's channel


class Wire:
    """One end, owner of the descriptor. `has_ended` once the other side has closed."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, True)
        self._socket = socket(fileno=descriptor)
        self._data = b""
        self._descriptors: list[int] = []
        self.has_ended = False

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: list[object]) -> None:
        """Write a message. It is dropped if the other side has closed."""
        text = json.dumps(message).encode("ascii")
        try:
            self._socket.sendall(len(text).to_bytes(4, "big") + b"\0" + text)
        except (BrokenPipeError, ConnectionResetError):
            self.has_ended = True

    def receive(self, *, wait: bool) -> tuple[list[Any], list[int]] | None:
        """The next message and its descriptors, close-on-exec; None at the end, or if there is none and no `wait`."""
        while True:
            length = int.from_bytes(self._data[:4], "big")
            end = _HEAD_SIZE + length
            if len(self._data) >= max(end, _HEAD_SIZE):
                count = self._data[4]
                text, self._data = self._data[_HEAD_SIZE:end], self._data[end:]
                given, self._descriptors = self._descriptors[:count], self._descriptors[count:]
                return json.loads(text), given
            if self.has_ended or not self._read(wait):
                return None

    def _read(self, wait: bool) -> bool:
        flags = MSG_CMSG_CLOEXEC | (0 if wait else MSG_DONTWAIT)
        try:
            data, ancillary, _, _ = self._socket.recvmsg(
                _READ_SIZE, CMSG_SPACE(_DESCRIPTOR_LIMIT * _NUMBER_SIZE), flags
            )
        except BlockingIOError:
            return False
        except ConnectionResetError:  # closed with something of ours unread
            data, ancillary = b"", []
        for level, kind, packed in ancillary:
            if (level, kind) == (SOL_SOCKET, SCM_RIGHTS):
                numbers = (packed[at : at + _NUMBER_SIZE] for at in range(0, len(packed), _NUMBER_SIZE))
                self._descriptors += [int.from_bytes(number, sys.byteorder) for number in numbers]
        self.has_ended = not data
        self._data += data
        return bool(data)

    def close(self) -> None:
        self._socket.close()
