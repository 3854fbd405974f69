"""Small UDP echoes: how long a packet takes to another node and back, while the network is full.

One socket asks and answers. Only the time on the way counts: the kernel notes when a datagram arrives, on both sides,
and the one that answers says how long it held it. A busy Python does not lengthen a round trip then. That note has the
wall clock's time, which may be set at any moment: only the time since then is used, on the monotonic clock.

Every datagram begins with the token of the measurement, which participants read in the store, and others are ignored.
An answer is as long as its question: nothing is gained by forging the sender's address.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections import defaultdict
from collections.abc import Sequence

TOKEN_BYTES = 16
_FORM = struct.Struct("!16sBIHqq")  # token, kind, serial of the round, who is asked, time of sending, time held
_ASK, _ANSWER = 1, 2
_SO_TIMESTAMPNS = 35  # Linux, include/uapi/asm-generic/socket.h; the control message has the same number
_STAMP = struct.Struct("@qq")
_SHARE_OF_WINDOW = 0.85  # in which questions are sent: the last ones need time to come back
_DELAY_MAX_NS = 10**9  # a datagram that Python reads later than this seems to: the wall clock was set
_TICK_S = 0.5  # how soon the thread notices that it is to end


class EchoSocket:
    """Answers from its creation to `close`, on a thread of its own."""

    def __init__(self, address: str) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.bind((address, 0))
        self._socket.settimeout(_TICK_S)
        with contextlib.suppress(OSError):
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        self.port: int = self._socket.getsockname()[1]
        self._token = b""
        self._round_trips: defaultdict[tuple[int, int], list[float]] = defaultdict(list)
        self._is_closed = False
        self._thread = threading.Thread(target=self._serve, name="measure echo", daemon=True)
        self._thread.start()

    def set_token(self, token: bytes) -> None:
        """Begin a measurement: only datagrams with this token count from now on."""
        self._token = token
        self._round_trips.clear()

    def ask(self, serial: int, asked: Sequence[tuple[int, tuple[str, int]]], repeats: int, window_s: float) -> None:
        """Ask each of these, by number and address, several times, spread over the window; return at its end."""
        began = time.monotonic()
        gap_s = window_s * _SHARE_OF_WINDOW / max(1, repeats * len(asked))
        for turn in range(repeats):
            for place, (number, address) in enumerate(asked):
                due = began + (turn * len(asked) + place) * gap_s
                if (wait_s := due - time.monotonic()) > 0:
                    time.sleep(wait_s)
                self._send(_FORM.pack(self._token, _ASK, serial, number, time.monotonic_ns(), 0), address)
        time.sleep(max(0.0, began + window_s - time.monotonic()))

    def find_low_us(self, serial: int, number: int) -> int:
        """Return the lower quartile of the round trips to a participant in a round, in microseconds; 0 without any.

        A full queue holds every echo back, a busy machine some of them.
        """
        found = sorted(self._round_trips.get((serial, number), ()))
        return max(1, round(found[(len(found) - 1) // 4] * 1e6)) if found else 0

    def close(self) -> None:
        self._is_closed = True
        self._thread.join()
        self._socket.close()

    def _send(self, data: bytes, address: tuple[str, int]) -> None:
        with contextlib.suppress(OSError):  # an echo that cannot be sent is one that is lost
            self._socket.sendto(data, address)

    def _serve(self) -> None:
        while not self._is_closed:
            try:
                data, ancillary, _, address = self._socket.recvmsg(_FORM.size + 1, 64)
            except OSError:  # nothing for a moment, or an answer that a host has refused
                continue
            if len(data) != _FORM.size or not self._token or data[:TOKEN_BYTES] != self._token:
                continue
            arrived_ns = time.monotonic_ns() - _find_delay_ns(ancillary)
            _, kind, serial, number, sent_ns, held_ns = _FORM.unpack(data)
            if kind == _ASK:
                held_ns = time.monotonic_ns() - arrived_ns
                self._send(_FORM.pack(self._token, _ANSWER, serial, number, sent_ns, held_ns), address)
            elif kind == _ANSWER:
                self._round_trips[serial, number].append(max(0, arrived_ns - sent_ns - held_ns) / 1e9)


def _find_delay_ns(ancillary: Sequence[tuple[int, int, bytes]]) -> int:
    """Return how long ago the kernel received the datagram; 0 if it does not say, or the wall clock was set since."""
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, _SO_TIMESTAMPNS) and len(data) == _STAMP.size:
            seconds, nanoseconds = _STAMP.unpack(data)
            delay_ns = time.time_ns() - int(seconds * 10**9 + nanoseconds)
            return delay_ns if 0 <= delay_ns <= _DELAY_MAX_NS else 0
    return 0
