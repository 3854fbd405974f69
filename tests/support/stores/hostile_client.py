"""A stranger at the port of a served store: HTTP/2 by hand, so that it may do what no client would.

    python -m tests.support.stores.hostile_client MODE HOST PORT SECONDS

Begun by root it goes on as the user nobody. Ends by itself after SECONDS; the last line it writes is what it has sent.
Modes: `guess` calls Authenticate with wrong passwords, `reset` opens calls and takes them back at once (rapid
reset), `open` opens calls and leaves them, `connect` opens connections and calls once on each, `idle` keeps
connections on which nothing is said, `goaway` says goodbye with words for the server's log, `noise` sends frames
of random bytes, `odd` calls with fields that no client sends, `large` begins messages that are never ended.
"""

from __future__ import annotations

import contextlib
import encodings.idna  # noqa: F401 - which a socket asks for at its first address, too late for nobody
import functools
import itertools
import os
import random
import resource
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, END_HEADERS = 1, 4
NOBODY = 65534
BATCH = 100  # calls in one write
SHOUT = b"\n\x1b]0;OWNED\x07meshrun: the job has succeeded\n"


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def _text(value: bytes) -> bytes:
    assert len(value) < 127
    return bytes((len(value),)) + value


def _fields(method: bytes, *more: tuple[bytes, bytes]) -> bytes:
    """A request's header block, its fields entered into the table of the connection (RFC 7541 6.2.1)."""
    block = b"\x83\x86" + b"\x44" + _text(method) + b"\x41" + _text(b"store")
    for name, value in ((b"content-type", b"application/grpc"), (b"te", b"trailers"), *more):
        block += b"\x40" + _text(name) + _text(value)
    return block


def _again(count: int) -> bytes:
    """The same block once more: all of it from the table."""
    return b"\x83\x86" + bytes(0x80 | 62 + index for index in reversed(range(count)))


AUTHENTICATE = b"/etcdserverpb.Auth/Authenticate"
KEEP_ALIVE = b"/etcdserverpb.Lease/LeaseKeepAlive"
GUESS = b"\x0a\x07meshrun\x12\x05wrong"
MESSAGE = b"\0" + struct.pack(">I", len(GUESS)) + GUESS


class Connection:
    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address, 5.0)
        self.socket.sendall(PREFACE + frame(SETTINGS, 0, 0, b""))
        self.socket.setblocking(False)
        self.streams = itertools.count(1, 2)
        self._has_fields = False
        self._unsent = b""

    def headers(self, method: bytes) -> tuple[int, bytes]:
        block = _again(4) if self._has_fields else _fields(method)
        self._has_fields = True
        stream = next(self.streams)
        return stream, frame(HEADERS, END_HEADERS, stream, block)

    def close(self) -> None:
        self.socket.close()

    def push(self, make: Callable[[], bytes]) -> bool:
        """Send what `make` makes if all before is gone, take what has come; whether it was made. Raises OSError."""
        with contextlib.suppress(BlockingIOError):
            while True:
                if not self.socket.recv(1 << 16):
                    raise ConnectionResetError
        made = not self._unsent
        self._unsent = self._unsent or make()
        try:
            sent = self.socket.send(self._unsent)
        except BlockingIOError:
            time.sleep(0.001)
            return False
        self._unsent = self._unsent[sent:]
        return made


def guess(connection: Connection) -> bytes:
    parts = []
    for _ in range(BATCH):
        stream, block = connection.headers(AUTHENTICATE)
        parts += [block, frame(DATA, END_STREAM, stream, MESSAGE)]
    return b"".join(parts)


def reset(connection: Connection) -> bytes:
    parts = []
    for _ in range(BATCH):
        stream, block = connection.headers(AUTHENTICATE)
        parts += [block, frame(RST_STREAM, 0, stream, struct.pack(">I", 8))]
    return b"".join(parts)


def leave_open(connection: Connection) -> bytes:
    return b"".join(connection.headers(KEEP_ALIVE)[1] for _ in range(BATCH))


def large(connection: Connection) -> bytes:
    """The head of a message of a megabyte, and as much of it as the window of a stream takes."""
    parts = []
    for _ in range(4):
        stream, block = connection.headers(AUTHENTICATE)
        parts += [block, frame(DATA, 0, stream, b"\0" + struct.pack(">I", 1 << 20))]
        parts += [frame(DATA, 0, stream, bytes(16_000)) for _ in range(4)]
    return b"".join(parts)


def noise(connection: Connection) -> bytes:
    chance = random.Random()
    return b"".join(
        frame(chance.randrange(12), chance.randrange(256), chance.randrange(8), chance.randbytes(chance.randrange(40)))
        for _ in range(BATCH)
    )


def goaway(connection: Connection) -> bytes:
    return frame(GOAWAY, 0, 0, struct.pack(">II", 0, 2) + SHOUT * 200)


ODD = (
    (b"token", b"\xff\xfe\n\x1b]0;OWNED\x07"), (b"token-bin", b"!!"), (b"grpc-timeout", b"soon"),
    (b"grpc-encoding", b"gzip"), (b"te", b"\n\x1b]0;OWNED\x07"), (b"\xff\n", b"1"), (b":path", b"/other"),
    (b"content-type", b"text/html"),
)  # fmt: skip


def odd(connection: Connection) -> bytes:
    """Calls with fields that are wrong, one or two each, on methods that are there and that are not."""
    parts = []
    for method in (AUTHENTICATE, KEEP_ALIVE, b"/etcdserverpb.Watch/Watch", b"/etcdserverpb.KV/Put", b"/\xff\n", b""):
        for field in ODD:
            stream = next(connection.streams)
            parts += [frame(HEADERS, END_HEADERS, stream, _fields(method, field))]
            parts += [frame(DATA, END_STREAM, stream, b"\1" + MESSAGE[1:])]
    return b"".join(parts)


FLOODS = {"guess": guess, "reset": reset, "open": leave_open, "large": large, "noise": noise, "odd": odd}


def flood(address: tuple[str, int], make: Callable[[Connection], bytes], until: float) -> Iterator[int]:
    """Two connections, each made anew when the store has ended it."""
    connections: list[Connection | None] = [None, None]
    while time.monotonic() < until:
        for index, connection in enumerate(connections):
            with contextlib.suppress(OSError):
                connection = connection or Connection(address)
                connections[index] = None
                made = connection.push(functools.partial(make, connection))
                connections[index] = connection
                yield BATCH if made else 0


def storm(address: tuple[str, int], make: Callable[[Connection], bytes], until: float) -> Iterator[int]:
    """A connection for everything that is said; the last 500 stay open."""
    kept: list[Connection] = []
    while time.monotonic() < until:
        try:
            connection = Connection(address)
            connection.push(functools.partial(make, connection))
            kept.append(connection)
        except OSError:
            time.sleep(0.001)
            continue
        yield 1
        if len(kept) > 500:
            kept.pop(0).close()


def call_once(connection: Connection) -> bytes:
    stream, block = connection.headers(AUTHENTICATE)
    return block + frame(DATA, END_STREAM, stream, MESSAGE)


def main(mode: str, host: str, port: str, seconds: str) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    address, until = (host, int(port)), time.monotonic() + float(seconds)
    if mode in FLOODS:
        sent = flood(address, FLOODS[mode], until)
    else:
        sent = storm(address, {"connect": call_once, "goaway": goaway, "idle": lambda _: b""}[mode], until)
    print(mode, sum(sent), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
