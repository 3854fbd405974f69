"""Metadata servers on loopback: as clouds document them, and as they should not be.

A server here is a function from a request to the bytes of the answer, piece by piece; what does not end is cut when the
other side has gone. Nothing is done in the background but this.
"""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import cycle, islice
from typing import Any, NamedTuple


class Request(NamedTuple):
    """`headers`: by lower-case name."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes = b""


class Serving(NamedTuple):
    """`requests`: what was asked so far."""

    address: tuple[str, int]
    requests: list[Request]


Answering = Callable[[Request], Iterable[bytes]]


def reply(content: str | bytes | Mapping[str, Any] = "", status: int = 200, **headers: str) -> list[bytes]:
    """A whole answer; `_` in a header's name is a dash. A mapping is sent as JSON."""
    if isinstance(content, Mapping):
        content = json.dumps(content)
    body = content.encode() if isinstance(content, str) else content
    named = {"Content-Length": str(len(body)), **{name.replace("_", "-"): value for name, value in headers.items()}}
    lines = [f"HTTP/1.1 {status} some reason", *(f"{name}: {value}" for name, value in named.items()), "", ""]
    return ["\r\n".join(lines).encode() + body]


def pages(paths: Mapping[str, str | Mapping[str, Any]], **headers: str) -> Answering:
    """Answers what is at a path, 404 to others."""

    def answer(request: Request) -> list[bytes]:
        content = paths.get(request.path)
        return reply("", 404, **headers) if content is None else reply(content, 200, **headers)

    return answer


AMAZON_TOKEN = "AQAEAHx0aGUgdG9rZW4tZm9yLXRlc3Rz=="


def amazon(values: Mapping[str, str | list[Any] | Mapping[str, Any]], token: str = AMAZON_TOKEN) -> Answering:
    """Amazon's: a token for who asks by PUT, and with it what is below /latest/meta-data/."""

    def answer(request: Request) -> list[bytes]:
        if request.path == "/latest/api/token":
            is_asked = request.method == "PUT" and "x-aws-ec2-metadata-token-ttl-seconds" in request.headers
            return reply(AMAZON_TOKEN) if is_asked else reply("", 405)
        if request.headers.get("x-aws-ec2-metadata-token") != token:
            return reply("", 401)
        content = values.get(request.path.removeprefix("/latest/meta-data/"))
        if content is None:
            return reply("", 404)
        return reply(content if isinstance(content, str) else json.dumps(content), Date=DATE)

    return answer


def google(values: Mapping[str, str], changed: threading.Event | None = None) -> Answering:
    """Google's: what is below /computeMetadata/v1/; a value that is waited for comes once `changed` is set, or later.

    Its etag is the value itself.
    """

    def answer(request: Request) -> list[bytes]:
        key, _, query = request.path.removeprefix("/computeMetadata/v1/").partition("?")
        words = dict(word.split("=") for word in query.split("&")) if query else {}
        if words.get("wait_for_change") == "true" and values.get(key) == words.get("last_etag") and changed is not None:
            changed.wait(float(words["timeout_sec"]))
        content = values.get(key)
        if request.headers.get("metadata-flavor") != "Google" or content is None:
            return reply("", 404, Metadata_Flavor="Google")
        return reply(content, Metadata_Flavor="Google", ETag=content)

    return answer


def azure(events: list[Any]) -> Answering:
    """Azure's: the machine's name, vm-1, and its scheduled events."""

    def answer(request: Request) -> list[bytes]:
        if request.headers.get("metadata") != "true":
            return reply("", 400)
        if request.path.startswith("/metadata/instance/compute/name?"):
            return reply("vm-1")
        if request.path == "/metadata/scheduledevents?api-version=2020-07-01":
            return reply({"DocumentIncarnation": 7, "Events": events}, Date=DATE)
        return reply("", 404)

    return answer


DATE = "Mon, 05 Jan 2026 18:00:00 GMT"
"""When these servers answer: times in notices are compared with it, and with no clock."""


@contextmanager
def serving(
    answer: Answering, tls: tuple[str, str] | None = None, address: tuple[str, int] = ("127.0.0.1", 0)
) -> Iterator[Serving]:
    """A server on a port of 127.0.0.1, or at an address. `tls`: the files of its certificate and key."""
    listener = socket.create_server(address)
    found = Serving(listener.getsockname()[:2], [])
    is_over = threading.Event()
    thread = threading.Thread(target=_serve, args=(listener, answer, tls, found.requests, is_over))
    thread.start()
    try:
        yield found
    finally:
        is_over.set()
        listener.shutdown(socket.SHUT_RDWR)  # wakes it from accept
        thread.join(20)
        listener.close()
        assert not thread.is_alive()


@contextmanager
def silence() -> Iterator[tuple[str, int]]:
    """The address of one who accepts and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[:2]


def dripping(content: bytes) -> Answering:
    """The content again and again, a byte every five milliseconds: short waits that together take ten seconds."""

    def answer(_: Request) -> Iterator[bytes]:
        pace = threading.Event()
        for byte in islice(cycle(content), 2000):
            yield bytes([byte])
            pace.wait(0.005)

    return answer


def _serve(
    listener: socket.socket,
    answer: Answering,
    tls: tuple[str, str] | None,
    requests: list[Request],
    is_over: threading.Event,
) -> None:
    context = None
    if tls:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*tls)
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:  # it is over
            return
        with connection, suppress(OSError):
            connection.settimeout(10)
            if context:
                with context.wrap_socket(connection, server_side=True) as encrypted:
                    _answer(encrypted, answer, requests, is_over)
            else:
                _answer(connection, answer, requests, is_over)


def _answer(connection: socket.socket, answer: Answering, requests: list[Request], is_over: threading.Event) -> None:
    asked = b""
    while b"\r\n\r\n" not in asked:
        piece = connection.recv(65536)
        if not piece:
            return
        asked += piece
    head, _, body = asked.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    method, path, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    while len(body) < int(headers.get("content-length", 0)):
        piece = connection.recv(65536)
        if not piece:
            return
        body += piece
    requests.append(Request(method, path, headers, body))
    for piece in answer(requests[-1]):
        connection.sendall(piece)
        if is_over.is_set():
            return
