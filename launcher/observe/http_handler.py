"""One HTTP request for each connection, bounded in size and time: what the servers of metrics and of the page share.

What comes is parsed by Python's http.server once all of it is here, so a peer that sends slowly, or nothing, holds its
thread no longer than the limit; the answer is sent as a whole, within another. Nothing here is written to the log:
whoever can reach the port could fill it, and an address may hold the page's token.
"""

from __future__ import annotations

import io
import socket
import time
from http.server import BaseHTTPRequestHandler
from typing import Any, ClassVar

TEXT = "text/plain; charset=utf-8"


class OneRequestHandler(BaseHTTPRequestHandler):
    """Answers one request. Raises OSError if the peer is gone, too slow, or sends too much."""

    head_max: ClassVar[int]
    """Bytes of a request."""
    head_limit_s: ClassVar[float]
    send_limit_s: ClassVar[float]

    def setup(self) -> None:
        self.connection = self.request
        self.rfile = io.BytesIO(read_head(self.connection, self.head_max, self.head_limit_s))
        self.wfile = self._reply = io.BytesIO()

    def finish(self) -> None:
        self.connection.settimeout(self.send_limit_s)
        self.connection.sendall(self._reply.getvalue())
        self.connection.shutdown(socket.SHUT_WR)

    def answer(self, status: int, body: bytes, content_type: str = TEXT, **headers: str) -> None:
        """Write an answer, with further headers."""
        self.send_response_only(status)  # without the library's Date, which no clock beyond the year 9999 allows
        fixed = {"Content-Type": content_type, "Content-Length": str(len(body)), "Cache-Control": "no-store"}
        for name, text in {**fixed, **headers}.items():
            self.send_header(name, text)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer what the library refuses: no HTTP, too long, or an unknown method."""
        self.close_connection = True
        self.answer(code, (message or "this is no request").encode(errors="replace") + b"\n")

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


def read_head(connection: socket.socket, head_max: int, limit_s: float) -> bytes:
    """Return what comes up to the empty line behind a request's headers, or what has come when the peer ends.

    Raises TimeoutError after `limit_s`, and OSError with more than `head_max` bytes.
    """
    head, until = b"", time.monotonic() + limit_s
    while b"\r\n\r\n" not in head and b"\n\n" not in head:
        left_s = until - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        connection.settimeout(left_s)
        data = connection.recv(head_max)
        if not data:
            break
        head += data
        if len(head) > head_max:
            raise OSError("a request has no more than a few headers")
    return head
