"""What the page answers, to whom: an `HttpServer` gets the requests, `admission` decides who is answered.

    /                 the page
    /api/run          a run, by run_json        /api/events?after=N          an EventPage
    /api/why          a Conclusion              /api/logs?node=NODE&rank=R   a LogPage
    /save             the page with its data, as a file

Only these paths exist. Why no framework: docs/internals/decisions/0051-a-page-of-one-file.md.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable
from urllib.parse import parse_qs, urlsplit

import msgspec

from launcher.extensions.page.admission import Admission, Refusal
from launcher.extensions.page.document import load_document, save_document
from launcher.extensions.page.shared_run import Body, SharedRun, compress
from launcher.model.concurrency import NO_THREAD, start_thread
from launcher.model.errors import TemporaryError, UsageError, sanitize
from launcher.views.http_server import HttpServer, Request, Response, open_listener
from launcher.views.questions.run_source import RunSource
from launcher.views.requests import LogCursor, ReadLogs
from rendezvous.errors import MeshrunError
from rendezvous.stores.addresses import join_address
from rendezvous.stores.listeners import find_listeners, find_owner

PLACES_MAX = 256
"""Of readers that are admitted; others have half as many."""
TARGET_MAX = 4096
LOG_LINES_MAX = 2000
NAME_MAX = 255
_HTML, _JSON = "text/html; charset=utf-8", "application/json"


# docs/internals/decisions/0051-a-page-of-one-file.md
class PageServer:
    """Serves the page of a run until it is closed. `url`: with the token, if readers need it.

    Raises UsageError if the address cannot be listened on, TemporaryError where no thread can be started. `host`: a
    name or address; `port` 0: any that is free.
    """

    def __init__(self, source: RunSource, host: str, port: int, *, token: str = "") -> None:
        self._shared = SharedRun(source)
        self._document = load_document()
        self._page = Body(text=self._document.text, gzip=compress(self._document.text))
        names = {socket.gethostname().lower(), socket.getfqdn().lower(), host.lower()}
        self._gate = Admission(token=token or secrets.token_urlsafe(24), names=names)
        listener = open_listener(host, port, "the page")
        self.host, self.port = listener.getsockname()[:2]
        is_local = self.host == "::1" or self.host.startswith("127.")
        # Where the kernel does not even tell of this socket, it will not tell who connects.
        self.needs_token = not is_local or not find_listeners(self.port)
        self._server = HttpServer(listener, PLACES_MAX, self._answer, *([find_peer_user] if is_local else []))
        if start_thread(self._server.run, "page") is None:
            self._server.close()
            raise TemporaryError(f"the page cannot be served: {NO_THREAD}")

    @property
    def url(self) -> str:
        """Where others find it: by this machine's name, if it listens on all addresses."""
        name = socket.gethostname() if self.host in ("0.0.0.0", "::") else self.host
        return f"http://{join_address(name, self.port)}/" + (f"?token={self._gate.token}" if self.needs_token else "")

    def close(self) -> None:
        """Stop listening, and cut all connections."""
        self._server.close()

    def _answer(self, request: Request) -> Response:
        path, query = _parse_target(request.target)
        refusal = self._admit(request, query.get("token"))
        if refusal is not None:
            return _refuse(path, refusal)
        if "token" in query and path == "/":
            # The token is handed over to a cookie, so that it stands in no address bar and no history.
            cookie = f"{self._gate.cookie_name}={self._gate.token}; Path=/; HttpOnly; SameSite=Lax"
            return Response(status=303, body=b"", headers={"Location": "/", "Set-Cookie": cookie})
        takes_gzip = "gzip" in request.headers.get("accept-encoding", "")
        try:
            return self._read(path, query, takes_gzip=takes_gzip)
        except MeshrunError as error:
            return _refuse(path, Refusal(status=400 if isinstance(error, UsageError) else 503, sentence=str(error)))
        except Exception as error:  # a bug here must cost an answer, and no job
            sentence = f"an error in meshrun itself: {type(error).__name__}: {sanitize(str(error))}"
            return _refuse(path, Refusal(status=500, sentence=sentence))

    def _admit(self, request: Request, token: str | None) -> Refusal | None:
        refusal = self._gate.check_origin(request.headers)
        if refusal is not None or request.is_admitted:
            return refusal
        refusal = self._gate.check_token(token, request.headers)
        if refusal is None and not request.admit():
            return Refusal(status=503, sentence="this page has too many readers at the moment")
        return refusal

    def _read(self, path: str, query: dict[str, str], *, takes_gzip: bool) -> Response:
        shared = self._shared
        if path == "/":
            return _pack(self._page, _HTML, takes_gzip, {"Content-Security-Policy": self._document.policy})
        if path == "/save":
            saved = save_document(shared, has_stacks=False)
            return _pack(saved, _HTML, takes_gzip, {"Content-Disposition": 'attachment; filename="meshrun.html"'})
        answers: dict[str, Callable[[], Body | bytes]] = {
            "/api/run": shared.read_run,
            "/api/events": lambda: msgspec.json.encode(shared.list_events(_read_integer(query, "after", -1))),
            "/api/logs": lambda: msgspec.json.encode(shared.list_logs(_read_name(query), _read_log_request(query))),
            "/api/why": shared.ask_why,
        }
        if path in answers:
            return _pack(answers[path](), _JSON, takes_gzip, {})
        return _refuse(path, Refusal(status=404, sentence="this page does not exist"))


def find_peer_user(end: socket.socket) -> int | None:
    """Return the user id of the process of this machine at the other end of a TCP connection; None if unknown."""
    if end.family not in (socket.AF_INET, socket.AF_INET6):
        return None
    try:
        ends = [(socket.inet_pton(end.family, name[0]), name[1]) for name in (end.getpeername(), end.getsockname())]
    except (OSError, ValueError):
        return None
    return find_owner(end.family, *ends)


def _parse_target(target: str) -> tuple[str, dict[str, str]]:
    """Return the path and the query; an empty path for what is too long, or no address."""
    try:
        parts = urlsplit(target[:TARGET_MAX])
        query = {name: texts[-1] for name, texts in parse_qs(parts.query, max_num_fields=10).items()}
    except ValueError:
        return "", {}
    return parts.path if len(target) <= TARGET_MAX else "", query


def _refuse(path: str, refusal: Refusal) -> Response:
    if path.startswith("/api/"):
        body = msgspec.json.encode({"error": refusal.sentence})
        return Response(status=refusal.status, body=body, content_type=_JSON)
    return Response(status=refusal.status, body=f"meshrun: {refusal.sentence}\n".encode())


def _pack(body: Body | bytes, content_type: str, takes_gzip: bool, headers: dict[str, str]) -> Response:
    if isinstance(body, Body):
        headers = {**headers, "Content-Encoding": "gzip"} if takes_gzip else headers
        body = body.gzip if takes_gzip else body.text
    return Response(status=200, body=body, content_type=content_type, headers=headers)


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
