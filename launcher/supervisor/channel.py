"""Whole messages, with descriptors, over a socket: between agent, supervisor, fork server and forked workers.

A message is its encoding after a header: the length of that, four bytes in big-endian order, and the number of
descriptors, one byte. The descriptors travel with the first byte, and
the kernel never joins the bytes of two such messages in one read, so each message gets its own.

Agent and supervisor must not block: two processes that both block in send deadlock. So what does not fit waits in a
queue, and an incomplete message waits in a buffer. Fork server and worker have nothing else to do, and may block. They
run in the workers' Python, so this module imports little of the library and nothing of this project.
"""

from __future__ import annotations

import _socket
import marshal
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from typing_extensions import Self

_HEAD_SIZE = 5
_READ_SIZE = 1 << 16
_NUMBER_SIZE = struct.calcsize("i")
DESCRIPTORS_MAX = 8  # per message; a worker has two


class Channel:
    """One end, owner of the socket. `has_ended` once the other side closed or shut down its writing half.

    Between processes that were forked from one Python, and run nothing else; see `JsonChannel` for others.
    """

    def __init__(self, end: _socket.socket, *, blocks: bool = False) -> None:
        end.setblocking(blocks)
        self._socket = end
        self._outbound: list[tuple[memoryview, Sequence[int]]] = []
        self._inbound = b""
        self._descriptors: list[int] = []
        self._is_broken = False
        self.has_ended = False

    @classmethod
    def open(cls, descriptor: int) -> Self:
        """Take over this descriptor, an end that blocks."""
        return cls(_socket.socket(fileno=descriptor), blocks=True)

    # marshal is part of Python, while json brings re and enum. Either keeps surrogate escapes in text.

    @staticmethod
    def encode(message: Sequence[object]) -> bytes:
        return marshal.dumps(message)  # type: ignore[arg-type]  # of what it can encode, see the senders

    @staticmethod
    def decode(text: bytes) -> Sequence[Any]:
        found: Sequence[Any] = marshal.loads(text)
        return found

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: Sequence[object], descriptors: Sequence[int] = ()) -> bool:
        """Queue a message, write what fits, return flush()'s answer. Descriptors must stay open until it is True."""
        text = self.encode(message)
        head = len(text).to_bytes(4, "big") + bytes([len(descriptors)])
        self._outbound.append((memoryview(head + text), descriptors))
        return self.flush()

    def flush(self) -> bool:
        """Write what fits; True when nothing is left to write, also because the peer has closed."""
        while self._outbound and not self._is_broken:
            data, descriptors = self._outbound[0]
            numbers = struct.pack(f"{len(descriptors)}i", *descriptors)
            rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, numbers)] if numbers else []
            try:
                sent = self._socket.sendmsg([data], rights)
            except BlockingIOError:
                return False
            except (BrokenPipeError, ConnectionResetError):
                self._is_broken = True
            else:
                self._outbound[:1] = [(data[sent:], ())] if sent < len(data) else []
        self._outbound.clear()
        return True

    def receive(self, *, wait: bool = False) -> Iterator[tuple[Sequence[Any], list[int]]]:
        """Yield each complete message, with its descriptors (close-on-exec, the caller's from now on).

        `wait`, for an end that blocks: wait for more, until the other side has ended.
        """
        while True:
            yield from self._split_messages()
            if self.has_ended or not self._read(wait):
                return

    def _split_messages(self) -> Iterator[tuple[Sequence[Any], list[int]]]:
        while len(self._inbound) >= _HEAD_SIZE:
            end = _HEAD_SIZE + int.from_bytes(self._inbound[:4], "big")
            if len(self._inbound) < end:
                return
            count, text, self._inbound = self._inbound[4], self._inbound[_HEAD_SIZE:end], self._inbound[end:]
            descriptors, self._descriptors = self._descriptors[:count], self._descriptors[count:]
            yield self.decode(text), descriptors

    def _read(self, wait: bool) -> bool:
        """Whether anything came."""
        flags = _socket.MSG_CMSG_CLOEXEC | (0 if wait else _socket.MSG_DONTWAIT)
        try:
            data, ancillary, found, _ = self._socket.recvmsg(
                _READ_SIZE, _socket.CMSG_SPACE(DESCRIPTORS_MAX * _NUMBER_SIZE), flags
            )
        except BlockingIOError:
            return False
        except ConnectionResetError:  # closed with something of ours unread
            data, ancillary, found = b"", [], 0
        if found & _socket.MSG_CTRUNC:
            raise OSError("descriptors were lost in transit: too many open files (ulimit -n)")
        for _level, _kind, packed in ancillary:
            self._descriptors += struct.unpack(f"{len(packed) // _NUMBER_SIZE}i", packed)
        self._inbound += data
        self.has_ended = not data
        return bool(data)

    def finish(self) -> None:
        """Announce that nothing more will be sent; the other side's `has_ended` becomes true. Reading goes on."""
        self._shut_down(_socket.SHUT_WR)

    def abandon(self) -> None:
        """Stop sending and receiving; the descriptor stays, and is readable, until close()."""
        self._is_broken = self.has_ended = True
        self._shut_down(_socket.SHUT_RDWR)

    def _shut_down(self, how: int) -> None:
        try:  # noqa: SIM105 - as little of Python's library as possible
            self._socket.shutdown(how)
        except OSError:  # the other side has gone already
            pass

    def close(self) -> None:
        self._is_broken = self.has_ended = True
        self._socket.close()
