"""Bulk data over TCP: what fills the links, and the bytes that arrive.

A stream begins with the token of the measurement and the serial of the round; one that does not is closed. Received
bytes are counted and dropped in the kernel. At the end of a round the sender resets its streams, so that what waits in
its buffers is not sent any more. The kernel paces a stream that may only have a part of the link (SO_MAX_PACING_RATE),
so that it makes no queue in bursts.
"""

from __future__ import annotations

import contextlib
import hmac
import select
import socket
import struct
import threading
import time
from collections import defaultdict

from launcher.extensions.measure.udp_echo import TOKEN_BYTES

_HEADER = struct.Struct("!16sI")  # token, serial of the round
_HEADER_LIMIT_S = 2.0
_SILENCE_LIMIT_S = 5.0  # a reset may be lost; rounds are shorter
_CHUNK = 256 * 1024
_TICK_S = 0.5
_BACKLOG = 64
_STREAMS_MAX = 64  # at once: a round has one sender, with 8 at most
_PAUSE_S = 0.1
_SO_MAX_PACING_RATE = 47  # Linux, include/uapi/asm-generic/socket.h; bytes per second
_PACING_MAX = 2**32 - 2  # of the old form of the option, which every kernel takes
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing resets
_FRAME_OVERHEAD = 66  # bytes of a full frame that are not payload: Ethernet 14, IPv4 20, TCP 20 with time stamps 12
_MSS_USUAL = 1448


class BulkReceiver:
    """Receives from its creation to `close`: one thread accepts, one for each stream counts."""

    def __init__(self, address: str) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listener = socket.create_server((address, 0), family=family, backlog=_BACKLOG)
        self._listener.settimeout(_TICK_S)
        self.port: int = self._listener.getsockname()[1]
        self._token = b""
        self._lock = threading.Lock()
        self._bytes: defaultdict[int, int] = defaultdict(int)
        self._free = threading.BoundedSemaphore(_STREAMS_MAX)
        self._is_closed = False
        self._thread = threading.Thread(target=self._accept, name="measure accept", daemon=True)
        self._thread.start()

    def set_token(self, token: bytes) -> None:
        self._token = token

    def count_bytes(self, serial: int) -> int:
        """Return what has arrived in a round so far, with the headers of its frames."""
        with self._lock:
            return self._bytes[serial]

    def close(self) -> None:
        self._is_closed = True
        self._thread.join()
        self._listener.close()

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:  # one who has left again, or no descriptor is left
                time.sleep(_PAUSE_S)
                continue
            if not self._free.acquire(blocking=False):
                connection.close()
                continue
            threading.Thread(target=self._receive, args=(connection,), name="measure stream", daemon=True).start()

    def _receive(self, connection: socket.socket) -> None:
        try:
            self._count(connection)
        finally:
            self._free.release()

    def _count(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.settimeout(_HEADER_LIMIT_S)
            header = connection.recv(_HEADER.size)  # one segment: it is the first that a sender sends
            if len(header) < _HEADER.size:
                return
            token, serial = _HEADER.unpack(header)
            if len(self._token) != TOKEN_BYTES or not hmac.compare_digest(token, self._token):
                return
            connection.settimeout(_SILENCE_LIMIT_S)
            payload = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG) or _MSS_USUAL
            factor = (payload + _FRAME_OVERHEAD) / payload
            buffer = bytearray(_CHUNK)
            while not self._is_closed and (count := connection.recv_into(buffer, _CHUNK, socket.MSG_TRUNC)):
                with self._lock:
                    self._bytes[serial] += round(count * factor)


def start_sending(
    address: tuple[str, int], token: bytes, serial: int, *, end: float, pace_bps: int, streams: int
) -> list[threading.Thread]:
    """Send to one receiver until `end`, a time of the monotonic clock, on a thread for each stream."""
    pace = max(1, pace_bps // streams // 8) if pace_bps else 0  # 0 is no limit
    arguments = (address, _HEADER.pack(token, serial), end, pace)
    threads = [threading.Thread(target=_send, args=arguments, name="measure load", daemon=True) for _ in range(streams)]
    for thread in threads:
        thread.start()
    return threads


def choose_stream_count(speed_mbit: int) -> int:
    """Choose how many streams fill a link of this speed: a core moves some 20 Gbit/s, and paths may be several."""
    return 1 if speed_mbit <= 10_000 else 4 if speed_mbit <= 100_000 else 8


def _send(address: tuple[str, int], header: bytes, end: float, pace: int) -> None:
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as stream:
        if pace:
            with contextlib.suppress(OSError):
                stream.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, struct.pack("@I", min(_PACING_MAX, pace)))
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        stream.settimeout(max(0.01, end - time.monotonic()))
        stream.connect(address)
        stream.sendall(header)
        stream.setblocking(False)
        poll = select.poll()
        poll.register(stream, select.POLLOUT)
        data = bytes(_CHUNK)
        while (left_s := end - time.monotonic()) > 0:
            if poll.poll(left_s * 1000):
                with contextlib.suppress(BlockingIOError):
                    stream.send(data)
