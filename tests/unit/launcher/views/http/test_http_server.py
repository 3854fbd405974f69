"""The head of a request, as the server of page and metrics reads it."""

from __future__ import annotations

import pytest

from launcher.views.http.http_server import Response, parse_head


@pytest.mark.parametrize("line_end", ["\r\n", "\n"])
def test_a_request_has_a_method_a_target_and_headers(line_end: str) -> None:
    lines = ("GET /a?b=c HTTP/1.1", "Host: n0:9100", "COOKIE:a=b; c=d", "", "body")
    headers = {"host": "n0:9100", "cookie": "a=b; c=d"}
    assert parse_head(line_end.join(lines).encode()) == ("GET", "/a?b=c", headers)


@pytest.mark.parametrize(
    "head",
    [b"", b"\n\n", b"GET /\r\n\r\n", b"GET / HTTP/2.0\r\n\r\n", b"GET /a b HTTP/1.1\r\n\r\n",
     b"GET  / HTTP/1.1\r\n\r\n",
     b"GET / HTTP/1.1\r\nHost: n0\r\n", b"GET / HTTP/1.1\r\nHost\r\n\r\n", b"GET / HTTP/1.1\r\nHost : n0\r\n\r\n",
     b"GET / HTTP/1.1\r\nA: b\r\n Host: n0\r\n\r\n"],
)  # fmt: skip
def test_what_is_not_http_is_no_request(head: bytes) -> None:
    assert parse_head(head) is None


def test_an_answer_ends_with_its_body() -> None:
    head, _, body = Response(status=404, body=b"no\n", headers={"Allow": "GET"}).encode().partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    assert lines[0] == b"HTTP/1.1 404 Not Found"
    assert {b"Content-Length: 3", b"Connection: close", b"Allow: GET"} < set(lines)
    assert body == b"no\n"
