"""The server of --metrics-port: /metrics for Prometheus, /healthz and /readyz for probes; bounded in every direction.

Each connection is one GET, with a limit for its size and its time, in a thread of its own if one is to be had; beyond
`CONNECTIONS_MAX` others wait in the kernel's queue.

| path | 200 | 503, with the reason |
|---|---|---|
| /metrics | the metrics | the agent does not answer |
| /healthz | the agent's loop answers | it does not |
| /readyz | workers of a round run here, or this node stands by as a spare | neither |
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from http import HTTPStatus

from launcher.model.concurrency import start_thread
from launcher.model.errors import TemporaryError
from launcher.observe.http_handler import OneRequestHandler
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


class _Handler(OneRequestHandler):
    """Answers one request. Raises OSError if the peer is gone or too slow."""

    head_max, head_limit_s, send_limit_s = HEAD_MAX, HEAD_LIMIT_S, SEND_LIMIT_S

    def __init__(self, connection: socket.socket, cache: ReportCache) -> None:
        self._cache = cache
        super().__init__(connection, ("", 0), None)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path not in PATHS:
            self.answer(HTTPStatus.NOT_FOUND, f"there are {', '.join(PATHS)}\n".encode())
            return
        try:
            report = self._cache.read()
        except TemporaryError as error:
            self.answer(HTTPStatus.SERVICE_UNAVAILABLE, f"{error}\n".encode(errors="replace"))
            return
        if path == "/metrics":
            page, content_type = encode_report(report, self.headers.get("Accept", ""))
            self.answer(HTTPStatus.OK, page, content_type)
        elif path == "/healthz":
            self.answer(HTTPStatus.OK, b"ok\n")
        else:
            is_ready, sentence = describe_readiness(report)
            status = HTTPStatus.OK if is_ready else HTTPStatus.SERVICE_UNAVAILABLE
            self.answer(status, f"{sentence}\n".encode(errors="replace"))


def describe_readiness(report: NodeReport) -> tuple[bool, str]:
    """Return whether this node does what it is there for, and a sentence."""
    if report.state == "running":
        return True, f"round {report.round} runs here, with {len(report.ranks)} of {report.world_size} ranks"
    if report.state == "spare":
        return True, "this node stands by as a spare"
    return False, f"{report.state}: {report.waiting}" if report.waiting else report.state
