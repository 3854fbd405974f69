"""The server of the page, at real sockets: who is answered, and what readers that mean no good can do to it.

What it shares with that of the metrics is tested there: requests that are none, and readers that hang.
"""

from __future__ import annotations

import gzip
import http.client
import json
import os
import re
import socket
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest

from launcher.model.errors import TemporaryError
from launcher.views.http import http_server
from launcher.views.http.http_server import REFUSED_MAX, REFUSED_PAUSE_S, HttpServer
from launcher.views.http.path_group import open_listener
from rendezvous.stores import listeners
from tests.support.jobs.attacks import Stranger
from tests.support.page.fake_run import FakeRun
from tests.support.page.serving import LOCAL, begin, make_metrics_group, make_page_group, serve_page
from tests.support.reports import FixedSource, make_report
from tests.support.waiting import wait_until


class Response(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def error(self) -> str:
        return str(json.loads(self.body)["error"])


@pytest.fixture
def source() -> FakeRun:
    return FakeRun(4)


@pytest.fixture
def page(source: FakeRun) -> Iterator[HttpServer]:
    with closing(serve_page(source)) as served:
        yield served


@pytest.fixture
def strict(source: FakeRun, monkeypatch: pytest.MonkeyPatch) -> Iterator[HttpServer]:
    """A page that does not know whose its readers are, as on another address than loopback."""
    monkeypatch.setattr(http_server, "find_peer_user", lambda end: None)
    with closing(serve_page(source, token="the-token")) as served:
        yield served


def ask(page: HttpServer, path: str, method: str = "GET", **headers: str) -> Response:
    connection = http.client.HTTPConnection(LOCAL, page.port, timeout=20)
    try:
        connection.request(method, path, headers={name.replace("_", "-"): text for name, text in headers.items()})
        answer = connection.getresponse()
        return Response(answer.status, {name.lower(): text for name, text in answer.getheaders()}, answer.read())
    finally:
        connection.close()


def send(page: HttpServer, data: bytes) -> bytes:
    """Send bytes; return all that is answered."""
    with socket.create_connection((LOCAL, page.port), 20) as end:
        try:
            end.sendall(data)
            return b"".join(iter(lambda: end.recv(65536), b""))
        except OSError:  # the server has cut the connection
            return b""


def test_the_user_of_the_run_needs_no_token_on_loopback(page: HttpServer) -> None:
    assert page.url == f"http://127.0.0.1:{page.port}/"
    assert json.loads(ask(page, "/api/run").body)["run_id"] == "llama-70b"
    assert ask(page, "/").body.startswith(b"<!DOCTYPE html>")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
def test_another_user_of_this_machine_is_refused_on_loopback(page: HttpServer) -> None:
    with Stranger(lambda: ask(page, "/api/run").status) as stranger:
        assert stranger.wait() == 401


def test_without_an_answer_of_the_kernel_loopback_needs_a_token(
    source: FakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listeners, "_SOCK_DIAG", 31)  # no such family: as in a sandbox
    with closing(serve_page(source, token="t0ken")) as page:
        assert page.url == f"http://127.0.0.1:{page.port}/?token=t0ken"
        assert ask(page, "/api/run").status == 401
        assert ask(page, "/api/run?token=t0ken").status == 200


def test_the_kernel_says_whose_a_connection_is() -> None:
    for family, host in ((socket.AF_INET, LOCAL), (socket.AF_INET6, "::1")):
        with socket.socket(family) as listener:
            listener.bind((host, 0))
            listener.listen()
            with socket.create_connection(listener.getsockname()[:2]):
                accepted, _ = listener.accept()
                assert http_server.find_peer_user(accepted) == os.geteuid()
            assert accepted.recv(1) == b""  # the client has closed it: what is left is listed as root's
            assert http_server.find_peer_user(accepted) is None
            accepted.close()
    one, other = socket.socketpair()
    assert http_server.find_peer_user(one) is None
    one.close()
    other.close()


@pytest.mark.parametrize("path", ["/", "/api/run", "/api/logs?node=h0", "/save", "/nothing"])
def test_who_has_no_token_sees_nothing(strict: HttpServer, source: FakeRun, path: str) -> None:
    missing, wrong = ask(strict, path), ask(strict, path, Authorization="Bearer the-tokem")
    assert (missing.status, wrong.status) == (401, 403)
    assert b"llama" not in missing.body + wrong.body
    assert source.counts == {}


def test_the_token_in_the_address_becomes_a_cookie_and_leaves_the_address(strict: HttpServer) -> None:
    answer = ask(strict, "/?token=the-token")
    assert (answer.status, answer.headers["location"], answer.body) == (303, "/", b"")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Lax" in cookie
    assert ask(strict, "/", Cookie=cookie.partition(";")[0]).status == 200
    assert ask(strict, "/api/run", Authorization="Bearer the-token").status == 200
    assert ask(strict, "/?token=other").status == 403


def test_elsewhere_than_on_loopback_the_address_has_a_token(source: FakeRun) -> None:
    with closing(serve_page(source, "0.0.0.0")) as served:
        token = re.fullmatch(
            rf"http://{re.escape(socket.gethostname())}:{served.port}/\?token=([\w-]{{32}})", served.url
        )
        assert token
        assert ask(served, "/api/run").status == 401
        assert ask(served, f"/api/run?token={token[1]}").status == 200


def test_a_foreign_host_name_is_refused(page: HttpServer) -> None:
    assert ask(page, "/api/run", Host="evil.example").status == 421
    assert ask(page, "/api/run", Host=f"localhost:{page.port + 1}").status == 200  # forwarded by ssh to another port
    assert send(page, b"GET /api/run HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 421 ")


def test_another_site_reads_nothing(page: HttpServer, source: FakeRun) -> None:
    assert ask(page, "/api/why", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="no-cors").status == 403
    assert source.counts == {}


@pytest.mark.parametrize(
    "path",
    ["/../etc/passwd", "/%2e%2e/etc/passwd", "//etc/passwd", "/api/../api/run", "/api/run/", "/api", "/live.html", "/x",
     "/api%2frun", "http://other/secret", "/" + "a" * 5000, "/\x80"],
)  # fmt: skip
def test_other_paths_are_not_there(page: HttpServer, source: FakeRun, path: str) -> None:
    answer = send(page, f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode("latin-1"))
    assert answer.startswith(b"HTTP/1.1 404 ")
    assert source.counts == {}


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE"])
def test_nothing_can_be_written(page: HttpServer, source: FakeRun, method: str) -> None:
    answer = ask(page, "/api/why", method)
    assert (answer.status, answer.headers["allow"]) == (405, "GET")
    assert source.counts == {}


def test_every_answer_says_what_a_browser_may_do_with_it(page: HttpServer) -> None:
    for path in ("/", "/api/run", "/save", "/nothing", "/api/nothing"):
        headers = ask(page, path).headers
        assert headers["cache-control"] == "no-store"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert "server" not in headers, "it would name the version of Python"


def test_a_browser_gets_it_compressed(page: HttpServer) -> None:
    answer = ask(page, "/api/run", Accept_Encoding="gzip, deflate")
    assert answer.headers["content-encoding"] == "gzip"
    assert json.loads(gzip.decompress(answer.body))["run_id"] == "llama-70b"


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("/api/logs?node=h0&rank=one", "rank must be a whole number"),
        ("/api/logs?node=h0&rank=1&rank=--2", "rank must be a whole number"),
        ("/api/logs?node=h0&lines=" + "9" * 30, "lines must be a whole number"),
        ("/api/logs?node=h0&cursors=[[1,2]]", "cursors must be a list of [file, offset]"),
        ("/api/logs?node=h0&round=%D9%A1", "round must be a whole number"),
    ],
)
def test_a_wrong_question_is_told_what_is_wrong(page: HttpServer, path: str, error: str) -> None:
    answer = ask(page, path)
    assert (answer.status, answer.error) == (400, error)


def test_a_run_that_does_not_answer_is_said_so(page: HttpServer, source: FakeRun) -> None:
    source.problem = "no leader has answered"
    answer = ask(page, "/api/run")
    assert (answer.status, answer.error) == (503, "no leader has answered")
    assert ask(page, "/save").status == 503


def test_a_bug_costs_an_answer_and_no_more(page: HttpServer, source: FakeRun) -> None:
    source.ask_why = lambda: 1 / 0  # type: ignore[assignment,method-assign,return-value]
    assert ask(page, "/api/why").error == "an error in meshrun itself: ZeroDivisionError: division by zero"
    assert ask(page, "/api/run").status == 200


def test_readers_that_hang_are_limited_in_number_and_leave_their_places(
    page: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    page._places_max = 20
    monkeypatch.setattr(http_server, "HEAD_LIMIT_S", 60.0)
    held = [socket.create_connection((LOCAL, page.port), 20) for _ in range(20)]
    held[0].sendall(b"GET / HTTP/1.1\r\nHost: local")
    wait_until(lambda: len(page._connections) == 20, 20, "20 connections")
    assert ask(page, "/").status == 200
    assert held[0].recv(1) == b"", "the oldest has made room"
    for end in held:
        end.close()
    wait_until(lambda: not page._connections, 20, "their end")


def half_open(address: tuple[str, int], count: int, source: str = "") -> list[socket.socket]:
    held = [socket.create_connection(address, 20, (source, 0) if source else None) for _ in range(count)]
    for end in held:
        end.sendall(b"GET / HTTP/1.1\r\nHost: local")
    return held


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user takes root")
def test_strangers_on_the_machine_keep_the_user_of_the_run_from_no_place(page: HttpServer) -> None:
    page._places_max = 8
    last: list[socket.socket] = []
    go_on, end = os.pipe()

    def hold() -> int:
        os.close(end)
        last.extend(half_open((LOCAL, page.port), 40))
        os.read(go_on, 1)
        return len(last)

    with Stranger(hold) as stranger:
        os.close(go_on)
        wait_until(lambda: len(page._connections) == 4, 20, "half as many places as the run's user has")
        for _ in range(10):
            assert ask(page, "/").status == 200
        held = half_open((LOCAL, page.port), 7)
        assert ask(page, "/").status == 200
        os.close(end)
        assert stranger.wait() == 40
    for one in held:
        one.close()


def test_half_open_connections_keep_no_reader_of_another_address_out(source: FakeRun) -> None:
    with closing(serve_page(source, "0.0.0.0", token="the-token")) as served:
        served._places_max = 8
        slow = half_open((LOCAL, served.port), 1, "127.0.0.2")
        held = half_open((LOCAL, served.port), 40)
        wait_until(lambda: len(served._connections) == 4, 20, "half of the places")
        slow[0].sendall(b"host\r\nAuthorization: Bearer the-token\r\n\r\n")
        assert slow[0].recv(100).startswith(b"HTTP/1.1 200 ")
        for end in (*held, *slow):
            end.close()


def test_a_reader_that_is_killed_leaves_no_thread_behind(page: HttpServer, source: FakeRun) -> None:
    ask(page, "/api/run")
    before = threading.active_count()
    source.gate.clear()
    for _ in range(10):
        end = socket.create_connection((LOCAL, page.port), 20)
        end.sendall(b"GET /api/why HTTP/1.1\r\nHost: localhost\r\n\r\n")
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # a reset, as of a killed process
        end.close()
    source.gate.set()
    wait_until(lambda: threading.active_count() <= before and not page._connections, 20, "the threads' end")


def test_a_port_that_is_taken_is_a_sentence(page: HttpServer) -> None:
    with pytest.raises(TemporaryError) as found:
        serve_page(FakeRun(4), port=page.port)
    holder = f"pid {os.getpid()} ({Path('/proc/self/comm').read_text().strip()})"
    assert str(found.value) == f"the page cannot listen on 127.0.0.1:{page.port}: the port is taken by {holder}"
    assert found.value.hint == "set another port, or 0 for any free port"


def test_after_some_refused_requests_the_next_one_waits_a_moment(
    strict: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    naps: list[float] = []
    monkeypatch.setattr(strict._is_closed, "wait", naps.append)
    for _ in range(3 * REFUSED_MAX):
        assert ask(strict, "/api/run").status == 401
    assert naps == [REFUSED_PAUSE_S] * 2, "the next one waits, too"
    for _ in range(3 * REFUSED_MAX):
        assert ask(strict, "/?token=the-token").status == 303
    assert naps == [REFUSED_PAUSE_S] * 3, "who has the token costs none"


@pytest.fixture
def shared(source: FakeRun) -> Iterator[HttpServer]:
    """One listener for page and metrics, on all addresses."""
    groups = [make_metrics_group(FixedSource(make_report())), make_page_group(source)]
    with closing(begin(HttpServer(open_listener("0.0.0.0", 0, "--serve"), groups, token="the-token"))) as served:
        yield served


def test_metrics_beside_the_page_are_open_and_the_page_is_not(shared: HttpServer, source: FakeRun) -> None:
    for host in ("localhost", "prometheus.example", "evil.example"):
        assert ask(shared, "/healthz", Host=host).body == b"ok\n"
        assert b"meshrun_round{" in ask(shared, "/metrics?token=the-token", Host=host).body
    assert [ask(shared, path).status for path in ("/", "/api/run", "/api/why", "/save", "/nothing")] == [401] * 5
    assert ask(shared, "/api/run", Host="evil.example", Authorization="Bearer the-token").status == 421
    assert source.counts == {}
    assert ask(shared, "/api/run", Authorization="Bearer the-token").status == 200
    assert ask(shared, "/nothing", Authorization="Bearer the-token").status == 404


def test_two_hundred_readers_of_both_are_one_question_of_each(shared: HttpServer, source: FakeRun) -> None:
    source.gate.clear()
    paths = ["/api/run", "/healthz"] * 100
    with ThreadPoolExecutor(200) as readers:
        answers = [readers.submit(ask, shared, path, Authorization="Bearer the-token") for path in paths]
        wait_until(lambda: source.counts.get("run"), 20, "the question")
        source.gate.set()
        statuses = {answer.result(20).status for answer in answers if answer.exception(20) is None}
    assert statuses == {200}, "beyond the limit, the oldest are cut"
    assert source.counts["run"] <= 2, "on a slow machine a second may have gone by"
