"""The socket on which this agent answers questions of its own user, without a store; `local_socket` is the other end.

Each side checks that the other is this user, or root: what workers print is said here, too.
"""

from __future__ import annotations

import _socket
import math
import os
import socket
from collections.abc import Iterator
from contextlib import suppress

from msgspec import Struct, field

from launcher.model.concurrency import start_thread
from launcher.parts.host import Watcher
from launcher.views.questions.local_socket import read_user
from launcher.views.questions.messages import Question
from rendezvous import codec
from rendezvous.stores.listeners import limit_connections

CONNECTIONS_MAX = 32
"""Further ones are closed: they may ask again. Only this user and root have a place."""
LINE_MAX = 1 << 16
BATCHES_MAX = 16
"""Of connections in one turn of the loop, which anybody may make; the others keep the listener readable."""
SHORT_MAX = 64 * 1024
"""Bytes: a socket's buffer holds so much."""
SHORT_LIMIT_S = 0.1
LONG_LIMIT_S = 10.0
REFUSED_MAX = 16
"""Connections that bring no question, until no further ones are taken for a moment: each wakes the agent's loop."""
REFUSED_PAUSE_S = 0.05
"""Then a flood costs a batch of connections in this time; who has a question waits as long."""
SHORTAGE_PAUSE_S = 1.0
"""Where no descriptor is left."""


class Connection(Struct, eq=False):
    """A process that asks. Close it when it is answered."""

    end: socket.socket

    _data: bytearray = field(default_factory=bytearray)

    def read(self) -> Question | None:
        """Return the question once it is whole.

        Raises ValueError, RecursionError or OSError for what is none, or at the end.
        """
        try:
            data = self.end.recv(LINE_MAX)
        except BlockingIOError:
            return None
        self._data += data
        if not data or len(self._data) > LINE_MAX:
            raise ValueError
        line, end, _ = self._data.partition(b"\n")
        return codec.find_decoder(Question).decode(line) if end else None

    def has_room(self, text: bytes) -> bool:
        return True

    def answer(self, text: bytes) -> None:
        """Answer and close, without a wait for one that does not read: a long answer is written by a thread."""
        if len(text) < SHORT_MAX or start_thread(self._send, "answer", text, LONG_LIMIT_S) is None:
            self._send(text, SHORT_LIMIT_S)

    def _send(self, text: bytes, limit_s: float) -> None:
        with suppress(OSError), self.end:
            self.end.settimeout(limit_s)
            self.end.sendall(text)  # megabytes, perhaps for many who ask: not copied for each
            self.end.sendall(b"\n")

    def close(self) -> None:
        self.end.close()


class QuestionSocket:
    """`watcher`: watches `listener` already, whose descriptor belongs to this object from now on."""

    def __init__(self, watcher: Watcher, listener: _socket.socket) -> None:
        self._watcher = watcher
        self._connections_max = limit_connections(CONNECTIONS_MAX)
        self._listener = socket.socket(fileno=listener.detach())  # last: what fails before leaves it to the caller
        self._refused_count = 0  # since the last pause
        self.wake_at = math.inf
        """When to call `take`, though no connection has come: there is a pause until then."""
        self._connections: dict[int, Connection] = {}

    def take(self, now: float) -> Iterator[tuple[Connection, Question]]:
        """Yield what has been asked; the connection is the caller's from then on."""
        if now >= self.wake_at:
            self.wake_at = math.inf
            self._watcher.register(self._listener.fileno())
        for _ in range(BATCHES_MAX):
            is_more = self._accept(now)
            yield from self._read()
            if not is_more:
                break
        if self._refused_count >= REFUSED_MAX and not self._is_paused:
            self._pause(now + REFUSED_PAUSE_S)

    def _read(self) -> Iterator[tuple[Connection, Question]]:
        for descriptor, connection in list(self._connections.items()):
            try:
                question = connection.read()
            except (ValueError, OSError, RecursionError):
                self._forget(descriptor)
                connection.close()
                self._refused_count += 1
                continue
            if question is not None:
                self._forget(descriptor)
                yield connection, question

    def close(self) -> None:
        if not self._is_paused:
            self._watcher.unregister(self._listener.fileno())
        self._listener.close()
        for descriptor, connection in list(self._connections.items()):
            self._forget(descriptor)
            connection.close()

    def _accept(self, now: float) -> bool:
        """Accept some connections, to be read before others are; return whether there may be more."""
        try:
            for _ in range(0 if self._is_paused else CONNECTIONS_MAX):
                end = self._listener.accept()[0]
                end.setblocking(False)
                if len(self._connections) >= self._connections_max or read_user(end) not in (os.geteuid(), 0):
                    end.close()
                    self._refused_count += 1
                    continue
                self._connections[end.fileno()] = Connection(end)
                self._watcher.register(end.fileno())
            return not self._is_paused
        except BlockingIOError:
            pass
        except OSError:  # no descriptor is left: it would stay readable, and the loop would not rest
            self._pause(now + SHORTAGE_PAUSE_S)
        return False

    @property
    def _is_paused(self) -> bool:
        return self.wake_at < math.inf

    def _pause(self, until: float) -> None:
        """Let connections wait in the kernel's queue."""
        self._refused_count, self.wake_at = 0, until
        self._watcher.unregister(self._listener.fileno())

    def _forget(self, descriptor: int) -> None:
        self._watcher.unregister(descriptor)
        del self._connections[descriptor]
