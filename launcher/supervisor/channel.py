"""Whole messages, with descriptors, over the socket between the agent and its supervisor.

A stream socket splits its bytes anywhere and blocks when the peer does not read; two processes that both block in
send deadlock. So a channel never blocks: what does not fit waits in a queue, and an incomplete message waits in a
buffer. A message is JSON (text may contain surrogate escapes, which JSON keeps exactly) after a header with its length.
The descriptors of a message travel with its first byte, and the kernel never joins the bytes of two such messages in
one read, so each message gets its own.
"""

from __future__ import annotations

import json
import socket
import struct
from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_HEAD = struct.Struct("!IB")  # length of the JSON, number of descriptors
_READ_SIZE = 1 << 16
_DESCRIPTOR_LIMIT = 8  # per message; a worker has two


class Channel:
    """One end. `has_ended` once the other side closed or shut down its writing half."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._socket = end
        self._outbound: deque[tuple[memoryview, tuple[int, ...]]] = deque()
        self._inbound = bytearray()
        self._descriptors: list[int] = []
        self._is_broken = False
        self.has_ended = False

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: Sequence[object], descriptors: tuple[int, ...] = ()) -> bool:
        """Queue a message, write what fits, return flush()'s answer. Descriptors must stay open until it is True."""
        text = json.dumps(message).encode("ascii")
        self._outbound.append((memoryview(_HEAD.pack(len(text), len(descriptors)) + text), descriptors))
        return self.flush()

    def flush(self) -> bool:
        """Write what fits; True when nothing is left to write, also because the peer has closed."""
        while self._outbound and not self._is_broken:
            data, descriptors = self._outbound[0]
            try:
                sent = socket.send_fds(self._socket, [data], descriptors) if descriptors else self._socket.send(data)
            except BlockingIOError:
                return False
            except (BrokenPipeError, ConnectionResetError):
                self._is_broken = True
            else:
                if sent == len(data):
                    self._outbound.popleft()
                else:
                    self._outbound[0] = (data[sent:], ())
        self._outbound.clear()
        return True

    def receive(self) -> Iterator[tuple[list[Any], tuple[int, ...]]]:
        """Yield each complete message, with its descriptors (close-on-exec, the caller's from now on)."""
        space = socket.CMSG_SPACE(_DESCRIPTOR_LIMIT * array("i").itemsize)
        while not self.has_ended:
            try:
                data, ancillary, flags, _ = self._socket.recvmsg(_READ_SIZE, space, socket.MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                return
            except ConnectionResetError:  # closed with something of ours unread
                data, ancillary, flags = b"", [], 0
            if flags & socket.MSG_CTRUNC:
                raise OSError("descriptors were lost on the way: too many files are open (ulimit -n)")
            for _level, _kind, packed in ancillary:
                numbers = array("i")
                numbers.frombytes(packed)
                self._descriptors.extend(numbers)
            self.has_ended = not data
            self._inbound += data
            yield from self._split_messages()

    def _split_messages(self) -> Iterator[tuple[list[Any], tuple[int, ...]]]:
        while len(self._inbound) >= _HEAD.size:
            length, descriptor_count = _HEAD.unpack_from(self._inbound)
            end = _HEAD.size + length
            if len(self._inbound) < end:
                return
            message = json.loads(self._inbound[_HEAD.size : end])
            del self._inbound[:end]
            descriptors = tuple(self._descriptors[:descriptor_count])
            del self._descriptors[:descriptor_count]
            yield message, descriptors

    def finish(self) -> None:
        """Announce that nothing more will be sent; the other side's `has_ended` becomes true. Reading goes on."""
        with suppress(OSError):  # the other side has gone already
            self._socket.shutdown(socket.SHUT_WR)

    def abandon(self) -> None:
        """Stop sending and receiving; the descriptor stays, and is readable, until close()."""
        self._is_broken = self.has_ended = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._is_broken = self.has_ended = True
        self._socket.close()
