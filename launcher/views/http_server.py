"""A small HTTP server for readers that may mean no good: the page and the metrics are functions that it calls.

A connection carries one GET, which has `HEAD_LIMIT_S` to arrive as a whole; its answer has `SEND_LIMIT_S` to be taken.
Each has a thread, or where none can be started, the thread that accepts. Beyond half of `places_max` the oldest
connection whose reader is not admitted makes room, of the user or address that has the most: so strangers, however many
they open, keep no reader out, and leave the agent descriptors. No request is logged: its address may hold a token, and
whoever can reach the port could fill the log.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus

from msgspec import Struct

from launcher.model.concurrency import start_thread
from launcher.model.errors import UsageError
from rendezvous.errors import StoreError
from rendezvous.stores.listeners import limit_connections, listen

HEAD_MAX = 16 << 10
"""Bytes of a request: Prometheus sends 300, a browser 1,000."""
HEAD_LIMIT_S = 10.0
SEND_LIMIT_S = 15.0
REFUSED_MAX = 8
"""Requests that are refused, until no connection is accepted for a moment: then a flood of them costs little CPU time,
and a reader waits as long."""
REFUSED_PAUSE_S = 0.05
RETRY_S = 0.1
"""After a connection that could not be accepted, as where there are no more descriptors, or no memory."""
TEXT = "text/plain; charset=utf-8"
_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Connection": "close",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}


class Request(Struct, frozen=True, kw_only=True):
    """A GET."""

    target: str
    """As it was sent: path and query."""
    headers: Mapping[str, str]
    """Names in small letters."""
    is_admitted: bool
    """Whether the kernel has told that the reader is this user, or root."""
    admit: Callable[[], bool]
    """Gives a reader that has proved itself a place among the admitted; whether there is one."""


class Response(Struct, frozen=True, kw_only=True):
    """What is sent back."""

    status: int
    body: bytes
    content_type: str = TEXT
    headers: Mapping[str, str] = {}
    """In addition to those of every answer."""

    def encode(self) -> bytes:
        fixed = {"Content-Type": self.content_type, "Content-Length": str(len(self.body))}
        lines = [f"{name}: {text}\r\n" for name, text in {**_HEADERS, **fixed, **self.headers}.items()]
        status = HTTPStatus(self.status)
        return f"HTTP/1.1 {status.value} {status.phrase}\r\n{''.join(lines)}\r\n".encode("latin-1") + self.body


class _Place(Struct, kw_only=True):
    """What is known of a connection."""

    origin: str
    """The user of its other end where the kernel tells, else the address."""
    is_admitted: bool


class HttpServer:
    """Serves at a listener, which it closes. `answer` is called in threads; where it raises, nothing is sent.

    `find_user`: of the other end of a connection, None for unknown. Not given: nobody is admitted by that.
    """

    def __init__(
        self,
        listener: socket.socket,
        places_max: int,
        answer: Callable[[Request], Response],
        find_user: Callable[[socket.socket], int | None] = lambda end: None,
    ) -> None:
        self.port = int(listener.getsockname()[1])
        self._listener = listener
        self._places_max = limit_connections(places_max)
        self._answer = answer
        self._find_user = find_user
        self._connections: dict[socket.socket, _Place] = {}  # the oldest first
        self._lock = threading.Lock()  # of the connections
        self._refused_count = 0  # since the last pause; all threads add to it, so it may be a few too low
        self._is_closed = threading.Event()

    def run(self) -> None:
        """Accept connections until it is closed."""
        while True:
            try:
                end, address = self._listener.accept()
            except (MemoryError, OSError):
                if self._is_closed.wait(RETRY_S):
                    return
                continue
            if self._refused_count >= REFUSED_MAX:  # each has cost a thread and a parsed request
                self._refused_count = 0
                self._is_closed.wait(REFUSED_PAUSE_S)
            try:
                if not self._enter(end, str(address[0])):
                    end.close()
                elif start_thread(self._serve, "reader", end) is None:
                    self._serve(end)
            except Exception:  # such as a lack of memory: that costs a connection, and not all later ones
                self._let_go(end)

    def close(self) -> None:
        """Accept no more connections, and cut those that are open."""
        self._is_closed.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread in accept
        self._listener.close()
        with self._lock:
            for end in list(self._connections):
                self._cut(end)

    def _enter(self, end: socket.socket, address: str) -> bool:
        """Give a new connection a place, another's if need be; False if there is none."""
        user = self._find_user(end)
        place = _Place(origin=address if user is None else f"user {user}", is_admitted=user in (os.geteuid(), 0))
        with self._lock:
            if place.is_admitted and self._count_admitted() >= self._places_max:
                self._refused_count += 1
                return False
            self._connections[end] = place
            strangers = [one for one, other in self._connections.items() if not other.is_admitted]
            if len(strangers) > max(1, self._places_max // 2):
                counts = Counter(self._connections[one].origin for one in strangers)
                busiest = max(counts, key=counts.__getitem__)
                self._cut(next(one for one in strangers if self._connections[one].origin == busiest))
        return True

    def _admit(self, end: socket.socket) -> bool:
        with self._lock:
            place = self._connections.get(end)
            if place is None:  # it has been cut
                return False
            place.is_admitted = place.is_admitted or self._count_admitted() < self._places_max
            return place.is_admitted

    def _count_admitted(self) -> int:
        return sum(place.is_admitted for place in self._connections.values())

    def _cut(self, end: socket.socket) -> None:
        """End a connection: its thread closes it, and its place is free from now on."""
        del self._connections[end]
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)

    def _serve(self, end: socket.socket) -> None:
        try:
            answer = self._respond(end, read_head(end))
            self._refused_count += answer.status >= 400
            end.settimeout(SEND_LIMIT_S)
            end.sendall(answer.encode())
            end.shutdown(socket.SHUT_WR)
        except Exception:  # it has gone, is too slow, or has found a fault here: that costs an answer, and no job
            pass
        finally:
            self._let_go(end)

    def _let_go(self, end: socket.socket) -> None:
        with self._lock:
            self._connections.pop(end, None)
        end.close()

    def _respond(self, end: socket.socket, head: bytes) -> Response:
        found = parse_head(head)
        if found is None:
            return Response(status=400, body=b"this is not an HTTP request\n")
        method, target, headers = found
        if method != "GET":
            return Response(status=405, body=b"only GET is supported\n" * (method != "HEAD"), headers={"Allow": "GET"})
        place = self._connections.get(end)
        is_admitted = place is not None and place.is_admitted
        return self._answer(
            Request(target=target, headers=headers, is_admitted=is_admitted, admit=lambda: self._admit(end))
        )


def read_head(end: socket.socket) -> bytes:
    """Return what arrives up to the empty line after a request's headers, or until the peer ends.

    Raises TimeoutError after `HEAD_LIMIT_S`, and OSError with more than `HEAD_MAX` bytes.
    """
    head, until = b"", time.monotonic() + HEAD_LIMIT_S
    while b"\r\n\r\n" not in head and b"\n\n" not in head:
        left_s = until - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        end.settimeout(left_s)
        data = end.recv(HEAD_MAX)
        if not data:
            break
        head += data
        if len(head) > HEAD_MAX:
            raise OSError("a request has no more than a few headers")
    return head


def parse_head(head: bytes) -> tuple[str, str, dict[str, str]] | None:
    """Return the method, target and headers, with their names in small letters; None for what is not HTTP/1."""
    text, blank, _ = head.decode("latin-1").replace("\r\n", "\n").partition("\n\n")
    first, *lines = text.split("\n")
    words = first.split(" ")
    if not blank or len(words) != 3 or not words[2].startswith("HTTP/1."):
        return None
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or name != name.strip():  # also a header in several lines, which no browser sends
            return None
        headers[name.lower()] = value.strip()
    return words[0], words[1], headers


def open_listener(host: str, port: int, what: str) -> socket.socket:
    """Listen at an address; port 0 is any free one. Raises UsageError. `what`: will listen, for its sentence."""
    try:
        return listen(host, port, what)
    except StoreError as error:
        raise UsageError(str(error), error.hint) from None
    except UnicodeError:
        raise UsageError(f"{what} cannot listen on {host!a}: this is not a host name") from None
