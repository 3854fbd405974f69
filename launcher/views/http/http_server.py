"""A small HTTP server for readers that may mean no good: what it serves are paths, of the page and of the metrics.

A connection carries one GET, which has `HEAD_LIMIT_S` to arrive as a whole; its answer has `SEND_LIMIT_S` to be taken.
Each has a thread, or where none can be started, the thread that accepts. Beyond `PLACES_MAX` of readers that are
admitted, and half as many of others, the oldest such connection makes room, of the user or address that has the most:
so nobody, however many they open, keeps a probe out, nor strangers a reader, and the agent has descriptors left. No
request is logged: its address may hold a token, and whoever can reach the port could fill the log. Why no framework:
docs/internals/decisions/0051-a-page-of-one-file.md.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from email.parser import HeaderParser
from http import HTTPStatus
from urllib.parse import parse_qs, urlsplit

import msgspec
from msgspec import Struct

from launcher.model.concurrency import start_thread
from launcher.model.errors import UsageError, describe_bug, sanitize
from launcher.views.http.admission import Admission, Refused
from launcher.views.http.path_group import PathGroup
from rendezvous.errors import MeshrunError
from rendezvous.stores.addresses import join_address
from rendezvous.stores.listeners import find_listeners, find_owner, limit_connections

PLACES_MAX = 256
"""Of readers that are admitted; others have half as many."""
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
TARGET_MAX = 4096
TEXT, JSON = "text/plain; charset=utf-8", "application/json"
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

    query: Mapping[str, str]
    headers: Mapping[str, str]
    """Names in small letters."""


class Response(Struct, frozen=True, kw_only=True):
    """What is sent back."""

    body: bytes
    status: int = 200
    content_type: str = TEXT
    gzip: bytes = b""
    """The body compressed, for readers that take it."""
    headers: Mapping[str, str] = {}
    """In addition to those of every answer."""

    def encode(self, *, takes_gzip: bool = False) -> bytes:
        packed = {"Content-Encoding": "gzip"} if takes_gzip and self.gzip else {}
        body = self.gzip if packed else self.body
        fixed = {"Content-Type": self.content_type, "Content-Length": str(len(body)), **packed}
        lines = [f"{name}: {text}\r\n" for name, text in {**_HEADERS, **fixed, **self.headers}.items()]
        status = HTTPStatus(self.status)
        return f"HTTP/1.1 {status.value} {status.phrase}\r\n{''.join(lines)}\r\n".encode("latin-1") + body


class _Place(Struct, kw_only=True):
    """What is known of a connection."""

    origin: str
    """The user of its other end where the kernel tells, else the address."""
    is_admitted: bool


# docs/internals/decisions/0051-a-page-of-one-file.md
class HttpServer:
    """Serves `groups` at a listener, which it closes. `host`: a name of the listener's that readers may use.

    On loopback the kernel says whose a connection is: this user and root are admitted. Elsewhere, and where the kernel
    does not even tell of this socket, a reader of a group that is not open needs the token.
    """

    def __init__(
        self, listener: socket.socket, groups: Sequence[PathGroup], host: str = "", *, token: str = ""
    ) -> None:
        self.groups = groups
        self.host, self.port = listener.getsockname()[:2]
        names = {socket.gethostname().lower(), socket.getfqdn().lower(), host.lower()}
        self._gate = Admission(token=token or os.urandom(16).hex(), names=names)
        self._is_local = self.host == "::1" or self.host.startswith("127.")
        self.needs_token = not self._is_local or not find_listeners(self.port)
        self._listener = listener
        self._places_max = limit_connections(PLACES_MAX)
        self._connections: dict[socket.socket, _Place] = {}  # the oldest first
        self._lock = threading.Lock()  # of the connections
        self._refused_count = 0  # since the last pause; all threads add to it, so it may be a few too low
        self._is_closed = threading.Event()

    @property
    def address(self) -> str:
        """Where others find it: by this machine's name, if it listens on all addresses."""
        name = socket.gethostname() if self.host in ("0.0.0.0", "::") else self.host
        return f"http://{join_address(name, self.port)}/"

    @property
    def url(self) -> str:
        """The address, with the token if readers need it."""
        return self.address + (f"?token={self._gate.token}" if self.needs_token else "")

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
                self._enter(end, str(address[0]))
                if start_thread(self._serve, "reader", end) is None:
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

    def _enter(self, end: socket.socket, address: str) -> None:
        user = find_peer_user(end) if self._is_local else None
        place = _Place(origin=address if user is None else f"user {user}", is_admitted=user in (os.geteuid(), 0))
        with self._lock:
            self._connections[end] = place
            self._make_room(is_admitted=place.is_admitted)

    def _make_room(self, *, is_admitted: bool) -> None:
        """Cut a connection if there are too many like that: the oldest of who has the most."""
        origins = {one: place.origin for one, place in self._connections.items() if place.is_admitted == is_admitted}
        if len(origins) > max(1, self._places_max // (1 if is_admitted else 2)):
            counts = Counter(origins.values())
            busiest = max(counts, key=counts.__getitem__)
            self._cut(next(one for one, origin in origins.items() if origin == busiest))

    def _cut(self, end: socket.socket) -> None:
        """End a connection: its thread closes it, and its place is free from now on."""
        del self._connections[end]
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)

    def _serve(self, end: socket.socket) -> None:
        try:
            found = parse_head(read_head(end))
            answer = self._respond(end, *found) if found is not None else refuse("", 400, "this is no HTTP request")
            self._refused_count += answer.status >= 400
            end.settimeout(SEND_LIMIT_S)
            takes_gzip = found is not None and "gzip" in found[2].get("accept-encoding", "")
            end.sendall(answer.encode(takes_gzip=takes_gzip))
            end.shutdown(socket.SHUT_WR)
        except Exception:  # it has gone, is too slow, or has found a fault here: that costs an answer, and no job
            pass
        finally:
            self._let_go(end)

    def _let_go(self, end: socket.socket) -> None:
        with self._lock:
            self._connections.pop(end, None)
        end.close()

    def _respond(self, end: socket.socket, method: str, target: str, headers: Mapping[str, str]) -> Response:
        if method != "GET":
            return Response(status=405, body=b"only GET is supported\n" * (method != "HEAD"), headers={"Allow": "GET"})
        path, query = _parse_target(target)
        try:
            found = ((group, answer) for group in self.groups if (answer := group.read().get(path)) is not None)
            group, answer = next(found, (self.groups[-1], None))
            if not group.is_open:
                self._check(end, query.get("token"), headers)
            if answer is None:
                return refuse(path, 404, "this path does not exist")
            if "token" in query and path == "/":
                # The token is handed over to a cookie, so that it stands in no address bar and no history.
                cookie = f"{self._gate.cookie_name}={self._gate.token}; Path=/; HttpOnly; SameSite=Lax"
                return Response(status=303, body=b"", headers={"Location": "/", "Set-Cookie": cookie})
            response: Response = answer(Request(query=query, headers=headers))
            return response
        except Refused as refused:
            return refuse(path, refused.status, str(refused))
        except MeshrunError as error:
            return refuse(path, 400 if isinstance(error, UsageError) else 503, str(error))
        except Exception as error:  # a bug here must cost an answer, and no job
            return refuse(path, 500, f"an error in meshrun itself: {describe_bug(error)}")

    def _check(self, end: socket.socket, token: str | None, headers: Mapping[str, str]) -> None:
        self._gate.check_origin(headers)
        with self._lock:
            place = self._connections.get(end)
            if place is None or not place.is_admitted:
                self._gate.check_token(token, headers)
            if place is not None and not place.is_admitted:
                place.is_admitted = True
                self._make_room(is_admitted=True)


def refuse(path: str, status: int, sentence: str) -> Response:
    """Answer with an error, as JSON to a script."""
    if path.startswith("/api/"):
        return Response(status=status, body=msgspec.json.encode({"error": sentence}), content_type=JSON)
    return say(status, sentence)


def say(status: int, sentence: str) -> Response:
    """Answer with a sentence, in which names cannot control a terminal."""
    return Response(status=status, body=f"{sanitize(sentence)}\n".encode())


def _parse_target(target: str) -> tuple[str, dict[str, str]]:
    """Return the path and the query; an empty path for what is too long, or no address."""
    try:
        parts = urlsplit(target[:TARGET_MAX])
        query = {name: texts[-1] for name, texts in parse_qs(parts.query, max_num_fields=10).items()}
    except ValueError:
        return "", {}
    return parts.path if len(target) <= TARGET_MAX else "", query


def find_peer_user(end: socket.socket) -> int | None:
    """Return the user id of the process of this machine at the other end of a TCP connection; None if unknown."""
    if end.family not in (socket.AF_INET, socket.AF_INET6):
        return None
    try:
        ends = [(socket.inet_pton(end.family, name[0]), name[1]) for name in (end.getpeername(), end.getsockname())]
    except (OSError, ValueError):
        return None
    return find_owner(end.family, *ends)


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
    first, _, rest = head.decode("latin-1").replace("\r\n", "\n").partition("\n")
    words, message = first.split(" "), HeaderParser().parsestr(rest)
    headers = {name.lower(): text.strip() for name, text in message.items()}
    is_sound = not message.defects and not any("\n" in text for text in headers.values())  # no browser sends such
    if not is_sound or "\n\n" not in f"\n{rest}" or len(words) != 3 or not words[2].startswith("HTTP/1."):
        return None
    return words[0], words[1], headers
