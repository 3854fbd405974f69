"""The server of --metrics-port: /metrics for Prometheus, /healthz and /readyz for probes; bounded in every direction.

Each connection is one GET, with a limit for its size and its time, in a thread of its own if one is to be had; beyond
`CONNECTIONS_MAX` others wait in the kernel's queue. What comes is parsed by Python's http.server once all of it is
here, so a peer that sends slowly, or nothing, holds its thread no longer than the limit. Nothing here is written to the
log: whoever can reach the port could fill it.

| path | 200 | 503, with the reason |
|---|---|---|
| /metrics | the metrics | the agent does not answer |
| /healthz | the agent's loop answers | it does not |
| /readyz | workers of a round run here, or this node stands by as a spare | neither |
"""

from __future__ import annotations

import io
import socket
import threading
import time
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any

from launcher.model.concurrency import start_thread
from launcher.model.errors import TemporaryError
from launcher.observe.metrics.exposition import encode_report
from launcher.observe.metrics.report_cache import ReportCache
from launcher.observe.node_report import NodeReport
from rendezvous.stores.listeners import limit_connections

# docs/internals/decisions/0049-metrics-by-threads-of-the-agent.md
CONNECTIONS_MAX = 16
HEAD_MAX = 8192
"""Bytes of a request: Prometheus sends 300, a browser 1,000."""
HEAD_LIMIT_S = 2.0
SEND_LIMIT_S = 5.0
PAUSE_S = 1.0
"""After a connection that could not be accepted, as where there are no more descriptors."""
PATHS = ("/metrics", "/healthz", "/readyz")


class MetricsServer:
    """Serves at a listener, which it closes. `cache`: of the node that it tells about."""

    def __init__(self, listener: socket.socket, cache: ReportCache) -> None:
        self._listener = listener
        self._cache = cache
        self._free = threading.BoundedSemaphore(limit_connections(CONNECTIONS_MAX))
        self._closed = threading.Event()
        self.port = int(listener.getsockname()[1])

    def close(self) -> None:
        """Accept no more connections. Those that are open end by themselves."""
        self._closed.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes who waits in accept
        self._listener.close()

    def run(self) -> None:
        """Answer until it is closed."""
        while True:
            self._free.acquire()
            try:
                connection, _ = self._listener.accept()
            except OSError:
                self._free.release()
                if self._closed.wait(PAUSE_S):
                    return
                continue
            # A probe that is refused may end a healthy pod: one after another, then.
            if start_thread(self._serve, "metrics reader", connection) is None:
                self._serve(connection)

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection:
                _Handler(connection, self._cache)
        except Exception:  # it has gone, does not read, or has found a fault here: that costs it an answer, and no more
            pass
        finally:
            self._free.release()


class _Handler(BaseHTTPRequestHandler):
    """Answers one request. Raises OSError if the peer is gone or too slow."""

    error_message_format = "%(message)s\n"
    error_content_type = "text/plain; charset=utf-8"

    def __init__(self, connection: socket.socket, cache: ReportCache) -> None:
        self._cache = cache
        super().__init__(connection, ("", 0), None)  # type: ignore[arg-type]

    def setup(self) -> None:
        self.connection = self.request
        self.rfile = io.BytesIO(read_head(self.connection))
        self.wfile = self._reply = io.BytesIO()

    def finish(self) -> None:
        self.connection.settimeout(SEND_LIMIT_S)
        self.connection.sendall(self._reply.getvalue())
        self.connection.shutdown(socket.SHUT_WR)

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path not in PATHS:
            self._answer(HTTPStatus.NOT_FOUND, f"there are {', '.join(PATHS)}\n")
            return
        try:
            report = self._cache.read()
        except TemporaryError as error:
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, f"{error}\n")
            return
        if path == "/metrics":
            page, content_type = encode_report(report, self.headers.get("Accept", ""))
            self._answer(HTTPStatus.OK, page, content_type)
        elif path == "/healthz":
            self._answer(HTTPStatus.OK, "ok\n")
        else:
            is_ready, sentence = describe_readiness(report)
            self._answer(HTTPStatus.OK if is_ready else HTTPStatus.SERVICE_UNAVAILABLE, f"{sentence}\n")

    def _answer(self, status: HTTPStatus, text: str | bytes, content_type: str = "text/plain; charset=utf-8") -> None:
        body = text if isinstance(text, bytes) else text.encode(errors="replace")
        self.send_response_only(status)  # without the library's Date, which no clock beyond the year 9999 allows
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def version_string(self) -> str:
        return "meshrun"

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


def describe_readiness(report: NodeReport) -> tuple[bool, str]:
    """Return whether this node does what it is there for, and a sentence."""
    if report.state == "running":
        return True, f"round {report.round} runs here, with {len(report.ranks)} of {report.world_size} ranks"
    if report.state == "spare":
        return True, "this node stands by as a spare"
    return False, f"{report.state}: {report.waiting}" if report.waiting else report.state


def read_head(connection: socket.socket) -> bytes:
    """Return what comes up to the empty line behind a request's headers, or what has come when the peer ends.

    Raises TimeoutError after `HEAD_LIMIT_S`, and OSError with more than `HEAD_MAX` bytes.
    """
    head, until = b"", time.monotonic() + HEAD_LIMIT_S
    while b"\r\n\r\n" not in head and b"\n\n" not in head:
        left_s = until - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        connection.settimeout(left_s)
        data = connection.recv(HEAD_MAX)
        if not data:
            break
        head += data
        if len(head) > HEAD_MAX:
            raise OSError("a request has no more than a few headers")
    return head
