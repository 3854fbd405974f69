"""The server of the page: threads of the standard library's http.server, with limits for readers that mean no good.

    /                 the page
    /api/run          a RunView                 /api/events?after=N          an EventLines
    /api/why          a Conclusion              /api/logs?node=NODE&rank=R   a LogPage
    /save             the page with its data, as a file

A connection carries one request of 16 KiB at most, which has 10 s to come as a whole; its answer has 15 s to be taken.
Beyond half of `CONNECTIONS_MAX` the oldest connection whose reader is not admitted yet makes room, of the user or
address that has the most: so strangers, however many they open, keep no reader out, and leave the agent
descriptors. Only GET is answered, only these paths exist, and no request is logged, as its address may hold the token.
Why no framework: docs/internals/decisions/0051-a-page-of-one-file.md.
"""

from __future__ import annotations

import errno
import os
import secrets
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from http.server import ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
from msgspec import Struct

from launcher.model.errors import UsageError, find_shortage_hint, sanitize
from launcher.observe.http_handler import TEXT, OneRequestHandler
from launcher.observe.node_report import LogCursor, ReadLogs
from launcher.observe.page.admission import Admission, Refusal
from launcher.observe.page.document import load_document, save_document
from launcher.observe.page.peer_user import find_peer_user
from launcher.observe.page.shared_run import Body, SharedRun, compress
from launcher.observe.run_source import RunSource
from rendezvous.errors import MeshrunError
from rendezvous.stores.addresses import join_address
from rendezvous.stores.listeners import find_foreign_listener, find_listeners, limit_connections

CONNECTIONS_MAX = 256
"""Of readers that are admitted (`limit_connections`); others have half as many places."""
HEAD_LIMIT_S = 10.0
"""Until a request has come as a whole."""
SEND_LIMIT_S = 15.0
"""Until its reader has taken the answer, which takes up to 20 s to be made."""
REFUSED_MAX = 8
"""Requests that are refused, until no connection is accepted for a moment: then a flood of them costs little CPU time,
and a reader waits as long."""
REFUSED_PAUSE_S = 0.05
REQUEST_BYTES_MAX = 16 << 10
TARGET_MAX = 4096
LOG_LINES_MAX = 2000
NAME_MAX = 255
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Connection": "close",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}
_HTML, _JSON = "text/html; charset=utf-8", "application/json"


# docs/internals/decisions/0051-a-page-of-one-file.md
class PageServer:
    """Serves the page of a run until it is closed. `url`: with the token, if readers need it.

    Raises UsageError if the address cannot be listened on, RuntimeError where no thread is to be had. `host`: a name or
    address; `port` 0: any that is free.
    """

    def __init__(self, source: RunSource, host: str, port: int, *, token: str = "") -> None:
        self.shared = SharedRun(source)
        token = token or secrets.token_urlsafe(24)
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            family, _, _, _, address = found[0]
            names = {socket.gethostname().lower(), socket.getfqdn().lower(), host.lower()}
            self._server = _Server(family, (str(address[0]), port), self.shared, Admission(token=token, names=names))
        except (OSError, UnicodeError) as error:
            raise _explain(error, host, port) from None
        self.host, self.port = str(address[0]), self._server.port
        # Where the kernel does not even tell of this socket, it will not tell who connects.
        self.needs_token = not self._server.is_local or not find_listeners(self.port)
        suffix = f"?token={token}" if self.needs_token else ""
        self.url = f"http://{join_address(_choose_name(self.host), self.port)}/{suffix}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="page", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # no thread is to be had: the port must be free for the next try
            self._server.server_close()
            raise

    def close(self) -> None:
        """Stop listening, and cut all connections."""
        self._server.shutdown()
        self._server.server_close()
        self._server.cut_connections()
        self._thread.join()


def _explain(error: Exception, host: str, port: int) -> UsageError:
    what = f"the page cannot listen on {join_address(host, port)}"
    number = error.errno if isinstance(error, OSError) else None
    if number == errno.EADDRINUSE:
        holder = find_foreign_listener(port)
        return UsageError(f"{what}: the port is taken" + (f" by {holder}" if holder else ""), "0 is any that is free")
    why = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return UsageError(f"{what}: {why[:1].lower()}{why[1:]}", find_shortage_hint(number))


def _choose_name(host: str) -> str:
    """Return what others call the address: this machine's name, if the server listens on all."""
    return socket.gethostname() if host in ("0.0.0.0", "::") else host


class _Place(Struct, kw_only=True):
    """What is known of a connection."""

    origin: str
    """The user of its other end where the kernel tells, else the address."""
    is_admitted: bool


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 256
    allow_reuse_address = True

    def __init__(
        self, family: socket.AddressFamily, address: tuple[str, int], shared: SharedRun, gate: Admission
    ) -> None:
        self.address_family = family
        self.shared = shared
        self.gate = gate
        self.document = load_document()
        self.packed_document = compress(self.document.text)
        self._admitted_max = limit_connections(CONNECTIONS_MAX)
        self._connections: dict[socket.socket, _Place] = {}  # the oldest first
        self._connections_lock = threading.Lock()
        self.refused_count = 0
        """Since the last pause; all threads add to it, so it may be a few too low."""
        super().__init__(address, _PageHandler)
        self.port = int(self.server_address[1])
        self.is_local = address[0] == "::1" or address[0].startswith("127.")

    def server_bind(self) -> None:
        # HTTPServer looks up the name of the address here, which takes seconds where no name server answers.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    def get_request(self) -> tuple[Any, Any]:
        if self.refused_count >= REFUSED_MAX:  # each has cost a thread and a parsed request
            self.refused_count = 0
            time.sleep(REFUSED_PAUSE_S)
        try:
            return super().get_request()
        except OSError:  # no descriptor is left: the connection waits, and would be reported again at once
            time.sleep(0.1)
            raise

    def verify_request(self, request: Any, client_address: Any) -> bool:
        user = find_peer_user(request) if self.is_local else None
        origin = str(client_address[0]) if user is None else f"user {user}"
        place = _Place(origin=origin, is_admitted=user in (os.geteuid(), 0))
        with self._connections_lock:
            if place.is_admitted and self._count_admitted() >= self._admitted_max:
                self.refused_count += 1
                return False
            self._connections[request] = place
            strangers = [end for end, other in self._connections.items() if not other.is_admitted]
            if len(strangers) > max(1, self._admitted_max // 2):
                counts = Counter(self._connections[end].origin for end in strangers)
                busiest = max(counts, key=counts.__getitem__)
                self._cut(next(end for end in strangers if self._connections[end].origin == busiest))
        return True

    def admit(self, end: socket.socket) -> bool:
        """Give a reader that has shown the token a place among the admitted; whether there is one."""
        with self._connections_lock:
            place = self._connections.get(end)
            if place is None:  # it has been cut
                return False
            place.is_admitted = place.is_admitted or self._count_admitted() < self._admitted_max
            return place.is_admitted

    def is_admitted(self, end: socket.socket) -> bool:
        """Whether the kernel has told that it is of this user, or of root."""
        place = self._connections.get(end)
        return place is not None and place.is_admitted

    def _count_admitted(self) -> int:
        return sum(place.is_admitted for place in self._connections.values())

    def _cut(self, end: socket.socket) -> None:
        """End a connection: its thread closes it, and its place is free from now on."""
        del self._connections[end]
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)

    def shutdown_request(self, request: Any) -> None:
        with self._connections_lock:
            self._connections.pop(request, None)
        super().shutdown_request(request)

    def cut_connections(self) -> None:
        """Cut all connections."""
        with self._connections_lock:
            for end in list(self._connections):
                self._cut(end)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A reader that was killed, or has sent what is no HTTP, is none of the job's concern."""


class _PageHandler(OneRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    head_max, head_limit_s, send_limit_s = REQUEST_BYTES_MAX, HEAD_LIMIT_S, SEND_LIMIT_S

    def answer(self, status: int, body: bytes, content_type: str = TEXT, **headers: str) -> None:
        self.server.refused_count += status >= 400
        super().answer(status, body, content_type, **{**_HEADERS, **headers})

    def do_GET(self) -> None:
        self.close_connection = True
        target = urlsplit(self.path[:TARGET_MAX])
        try:
            query = {name: texts[-1] for name, texts in parse_qs(target.query, max_num_fields=10).items()}
        except ValueError:
            query = {}
        refusal = self._admit(query.get("token"))
        if refusal is not None:
            self._refuse(refusal)
        elif "token" in query and target.path == "/":
            self._keep_token()
        else:
            self._answer(target.path if len(self.path) <= TARGET_MAX else "", query)

    def _refuse_method(self) -> None:
        self.close_connection = True
        self._send(405, b"this page is only read: GET\n", TEXT, Allow="GET")

    do_POST = do_PUT = do_DELETE = do_PATCH = do_HEAD = do_OPTIONS = do_TRACE = do_CONNECT = _refuse_method

    def _admit(self, token: str | None) -> Refusal | None:
        headers = {name.lower(): text for name, text in self.headers.items()}
        gate = self.server.gate
        refusal = gate.check_origin(headers)
        if refusal is not None:
            return refusal
        if self.server.is_admitted(self.connection):
            return None
        refusal = gate.check_token(token, headers)
        if refusal is None and not self.server.admit(self.connection):
            return Refusal(status=503, sentence="this page has too many readers at the moment")
        return refusal

    def _keep_token(self) -> None:
        """Hand the token over to a cookie, so that it stands in no address bar and no history."""
        gate = self.server.gate
        cookie = f"{gate.cookie_name}={gate.token}; Path=/; HttpOnly; SameSite=Lax"
        self._send(303, b"", TEXT, Location="/", **{"Set-Cookie": cookie})

    def _answer(self, path: str, query: dict[str, str]) -> None:
        shared, document = self.server.shared, self.server.document
        answers: dict[str, Callable[[], Body | bytes]] = {
            "/api/run": shared.read_run,
            "/api/events": lambda: shared.read_events(_read_integer(query, "after", -1)),
            "/api/logs": lambda: shared.read_logs(_read_name(query), _read_log_request(query)),
            "/api/why": shared.ask_why,
        }
        try:
            if path == "/":
                page = Body(text=document.text, gzip=self.server.packed_document)
                self._send(200, page, _HTML, **{"Content-Security-Policy": document.policy})
            elif path == "/save":
                saved = save_document(shared, has_stacks=False)
                self._send(200, saved, _HTML, **{"Content-Disposition": 'attachment; filename="meshrun.html"'})
            elif path in answers:
                self._send(200, answers[path](), _JSON)
            else:
                self._refuse(Refusal(status=404, sentence="there is no such page"))
        except MeshrunError as error:
            self._refuse(Refusal(status=400 if isinstance(error, UsageError) else 503, sentence=str(error)))
        except ConnectionError:  # the reader has gone
            raise
        except Exception as error:  # a bug here must cost an answer, and no job
            sentence = f"an error in meshrun itself: {type(error).__name__}: {sanitize(str(error))}"
            self._refuse(Refusal(status=500, sentence=sentence))

    def _refuse(self, refusal: Refusal) -> None:
        if self.path.startswith("/api/"):
            self._send(refusal.status, msgspec.json.encode({"error": refusal.sentence}), _JSON)
        else:
            self._send(refusal.status, f"meshrun: {refusal.sentence}\n".encode(), TEXT)

    def _send(self, status: int, body: Body | bytes, kind: str, **headers: str) -> None:
        data = body if isinstance(body, bytes) else body.text
        if isinstance(body, Body) and "gzip" in self.headers.get("Accept-Encoding", ""):
            data = body.gzip
            headers["Content-Encoding"] = "gzip"
        self.answer(status, data, kind, **headers)


def _read_integer(query: dict[str, str], name: str, default: int) -> int:
    text = query.get(name, str(default))
    if not (text.removeprefix("-").isdecimal() and text.isascii() and len(text) < 16):
        raise UsageError(f"{name} must be a whole number")
    return int(text)


def _read_name(query: dict[str, str]) -> str:
    name = query.get("node", "")
    if len(name) > NAME_MAX:
        raise UsageError(f"node must have at most {NAME_MAX} letters")
    return name


def _read_log_request(query: dict[str, str]) -> ReadLogs:
    """Read a request for logs: `lines` of each file's end, or what follows `cursors`, a list of [file, offset]."""
    try:
        cursors = msgspec.json.decode(query.get("cursors", "[]"), type=tuple[LogCursor, ...])
    except msgspec.MsgspecError:
        raise UsageError("cursors must be a list of [file, offset]") from None
    return ReadLogs(
        cursors=cursors,
        tail_lines=min(LOG_LINES_MAX, max(0, _read_integer(query, "lines", 200))),
        rank=_read_integer(query, "rank", -1),
        round=_read_integer(query, "round", 0),
    )
