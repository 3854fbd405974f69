"""Queries to a metadata server, or any small HTTP server, that neither block for long nor trust what answers.

Some answer in a millisecond; some never, because a firewall drops their packets; and where there is no such server a
foreign one may have the address. So one limit covers all queries to a server, however slowly it sends; an answer has
a maximum size; redirects are answers like others and not followed; and proxies are not used, as variables such as
http_proxy would send the query, with its token, to another host.

An error is raised as a clause that fits behind the server's name: "does not answer within 1 s".
"""

from __future__ import annotations

import io
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from msgspec import Struct

if TYPE_CHECKING:
    import socket
    import ssl

LINK_LOCAL = ("169.254.169.254", 80)
"""The address in every cloud. Tests pass another one to the constructor; no variable sets it, since a variable could
then direct the query to any host."""

LIMIT_S = 1.0
"""A metadata server is on the same machine or close to it: it answers in milliseconds or not at all."""

SIZE_MAX = 1 << 16
_HEAD_MAX = 1 << 16
_FLAVOR = "Metadata-Flavor"
_NO_HTTP = "returned a response that is not HTTP"


class NoAnswer(Exception):
    """The server returned nothing usable; the message is a clause that says what it did.

    `kind`: of what went wrong, for who says each once.
    """

    def __init__(self, clause: str, kind: str = "") -> None:
        super().__init__(clause)
        self.kind = kind


class HttpResponse(Struct, frozen=True):
    """The answer to a request."""

    status: int
    text: str
    headers: Mapping[str, str]
    """By lower-case name."""

    def get_text(self, asked: str) -> str | None:
        """Return the text; None if there is nothing under the name that was `asked`. Raises NoAnswer."""
        if self.status not in (200, 404):
            raise NoAnswer(f"answers {self.status} to {asked}")
        return self.text if self.status == 200 else None


class Server:
    """One server, and the time limit in seconds for all queries together. `tls`: None for plain HTTP."""

    def __init__(self, address: tuple[str, int], limit_s: float, tls: ssl.SSLContext | None = None) -> None:
        self._address = address
        self._limit_s = limit_s
        self._deadline = time.monotonic() + limit_s
        self._tls = tls

    def ask(
        self,
        path: str,
        headers: Mapping[str, str],
        *,
        method: str = "GET",
        content: bytes = b"",
        size_max: int = SIZE_MAX,
    ) -> HttpResponse:
        """Return the response, whatever its status; path and headers must be ASCII. Raises NoAnswer."""
        from http.client import HTTPResponse

        host = self._address[0]
        lines = [f"{method} {path} HTTP/1.1", f"Host: {f'[{host}]' if ':' in host else host}", "Connection: close"]
        if method != "GET":
            lines.append(f"Content-Length: {len(content)}")
        lines += (f"{name}: {value}" for name, value in headers.items())
        with self._describe_errors(), self._connect() as connection:
            connection.settimeout(self.require_remaining_s())
            connection.sendall("\r\n".join((*lines, "", "")).encode("ascii") + content)
            readable: Any = _LimitedReader(connection, self, _HEAD_MAX + size_max)
            response = HTTPResponse(readable, method=method)
            response.begin()
            text = response.read(size_max + 1)
            if len(text) > size_max:
                raise NoAnswer(f"returns more than {size_max >> 10} KiB")
            if response.length:
                raise NoAnswer("closed the connection within its answer")
            named = {name.lower(): value for name, value in response.getheaders()}
            return HttpResponse(response.status, text.decode(), named)

    def require_remaining_s(self) -> float:
        """Return the remaining seconds, more than 0. Raises TimeoutError."""
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        return left_s

    def _connect(self) -> socket.socket:
        import socket

        plain = socket.create_connection(self._address, self.require_remaining_s())
        if self._tls is None:
            return plain
        try:
            plain.settimeout(self.require_remaining_s())
            return self._tls.wrap_socket(plain, server_hostname=self._address[0])
        except BaseException:
            plain.close()
            raise

    @contextmanager
    def _describe_errors(self) -> Iterator[None]:
        """Raise NoAnswer for all that a server and the way to it may do."""
        from http.client import HTTPException

        try:
            yield
        except HTTPException as error:
            raise NoAnswer(_NO_HTTP, type(error).__name__) from None
        except (OSError, ValueError) as error:
            raise NoAnswer(self._describe_error(error), type(error).__name__) from None

    def _describe_error(self, error: Exception) -> str:
        match error:
            case TimeoutError():
                return f"does not answer within {self._limit_s:g} s"
            case ConnectionRefusedError():
                return "refuses connections"
            case OSError():  # described without the library's numbers
                said = getattr(error, "verify_message", "") or error.strerror or str(error) or type(error).__name__
                return f"cannot be queried: {said}"
            case UnicodeDecodeError():
                return "returned a response that is not text"
            case UnicodeError():  # of the look-up
                return "has an invalid name"
        return _NO_HTTP  # a ValueError: a chunk with a negative size


class _LimitedReader(io.RawIOBase):
    """The connection as HTTPResponse reads it: every wait within the server's limit, and at most `size_max` bytes."""

    def __init__(self, connection: socket.socket, server: Server, size_max: int) -> None:
        self._connection = connection
        self._server = server
        self._bytes_left = size_max

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._bytes_left:
            raise NoAnswer("answers without end")
        self._connection.settimeout(self._server.require_remaining_s())
        count = self._connection.recv_into(memoryview(buffer)[: self._bytes_left])
        self._bytes_left -= count
        return count


AMAZON_OFF = "AWS_EC2_METADATA_DISABLED"
AMAZON_TOKEN = "X-aws-ec2-metadata-token"


def is_amazon_off(environ: Mapping[str, str]) -> bool:
    """Whether a variable that Amazon's own libraries heed forbids to ask its server."""
    return environ.get(AMAZON_OFF, "").lower() == "true"


def fetch_amazon_token(server: Server, ttl_s: int) -> str:
    """Return the token for queries to Amazon's server (IMDSv2) in the next `ttl_s` seconds. Raises NoAnswer.

    Every query needs one, and the answer with it must not cross more hops than the machine's owner allows. By default
    that is one, too few for a container with a network of its own: the server seems not to answer.
    """
    try:
        answer = server.ask("/latest/api/token", {f"{AMAZON_TOKEN}-ttl-seconds": str(ttl_s)}, method="PUT")
    except NoAnswer as error:
        raise NoAnswer(f"{error}; in a container its hop limit must be 2 or more") from None
    token = strip_text(answer.text)
    if answer.status != 200:
        off = ": it is turned off for this machine" if answer.status == 403 else ""
        raise NoAnswer(f"refused a token with status {answer.status}{off}")
    if not is_token(token):
        raise NoAnswer("returned an invalid token")
    return token


def ask_google(server: Server, key: str, asked: str = "", size_max: int = SIZE_MAX) -> str | None:
    """Return the value of a key of Google's server, None if there is none. Raises NoAnswer, also for another server."""
    return query_google(server, key, size_max).get_text(asked or key)


def query_google(server: Server, key: str, size_max: int = SIZE_MAX) -> HttpResponse:
    """Return the response of Google's server to a key, whatever its status. Raises NoAnswer for another server, too."""
    answer = server.ask(f"/computeMetadata/v1/{key}", {_FLAVOR: "Google"}, size_max=size_max)
    if answer.headers.get(_FLAVOR.lower()) != "Google":
        raise NoAnswer("is not Google's")
    return answer


def parse_object(text: str) -> dict[str, Any]:
    """Parse a server's JSON object. Raises NoAnswer."""
    found = parse_json(text)
    if not isinstance(found, dict):
        raise NoAnswer("returned JSON that is not an object")
    return found


def parse_json(text: str) -> object:
    """Parse a server's JSON. Raises NoAnswer."""
    import json

    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise NoAnswer("returned a response that is not JSON") from None


def strip_text(value: object) -> str:
    """Return a server's value without surrounding white space; empty if it is no text."""
    return value.strip() if isinstance(value, str) else ""


def is_token(text: str) -> bool:
    """Whether it may stand in a header or an address: printable ASCII without spaces, and not empty."""
    return text.isascii() and text.isprintable() and text != "" and " " not in text
