"""The server of --metrics-port over real connections: readers that hang, that are many, that send anything."""

from __future__ import annotations

import errno
import os
import random
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import Any

import pytest

from launcher.extensions.metrics.paths import share_node
from launcher.model.concurrency import start_thread
from launcher.model.errors import TemporaryError, UsageError
from launcher.views.http import http_server
from launcher.views.http.http_server import HEAD_MAX, PLACES_MAX, HttpServer
from launcher.views.http.path_group import open_listener
from tests.support.page.serving import begin, make_metrics_group, serve_metrics
from tests.support.reasons import because
from tests.support.reports import FixedSource, make_report
from tests.support.threads import no_threads
from tests.support.waiting import wait_until

LIMIT_S = 20.0


@pytest.fixture
def source() -> FixedSource:
    return FixedSource(make_report())


@pytest.fixture
def server(source: FixedSource) -> Iterator[HttpServer]:
    server = serve_metrics(source)
    yield server
    server.close()
    wait_until(lambda: not [one for one in threading.enumerate() if one.name in ("server", "reader")])


def exchange(port: int, request: bytes, *, ends: bool = False) -> bytes:
    """Send these bytes; return all that comes. `ends`: whether this side closes its half."""
    with socket.create_connection(("127.0.0.1", port), LIMIT_S) as connection:
        connection.sendall(request)
        if ends:
            connection.shutdown(socket.SHUT_WR)
        with connection.makefile("rb") as answer:
            return answer.read()


def get(port: int, path: str) -> tuple[int, str]:
    head, _, body = exchange(port, f"GET {path} HTTP/1.1\r\nHost: n0\r\n\r\n".encode()).partition(b"\r\n\r\n")
    return int(head.split()[1]), body.decode()


def test_a_page_of_metrics_is_complete_and_typed(server: HttpServer) -> None:
    answer = exchange(server.port, b"GET /metrics?x=1 HTTP/1.1\r\nHost: n0\r\n\r\n")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"Content-Type: text/plain; version=0.0.4" in head
    assert f"Content-Length: {len(body)}".encode() in head
    assert b'meshrun_round{node="n0",run="exp-41"} 2.0\n' in body


@pytest.mark.parametrize(
    ("state", "waiting", "status", "sentence"),
    [
        ("running", "", 200, "round 2 runs here, with 2 of 4 ranks"),
        ("spare", "", 200, "this node is a spare"),
        ("waiting", "1 of at least 2 nodes has joined", 503, "waiting: 1 of at least 2 nodes has joined"),
        ("stopping", "", 503, "stopping"),
    ],
)
def test_readiness_says_why(
    server: HttpServer, source: FixedSource, state: str, waiting: str, status: int, sentence: str
) -> None:
    source.answer = make_report(state=state, why=because(waiting) if waiting else None)
    assert get(server.port, "/readyz") == (status, f"{sentence}\n")
    assert get(server.port, "/healthz") == (200, "ok\n"), "it lives, whatever it waits for"


def test_without_an_answer_of_the_agent_nothing_is_well(server: HttpServer, source: FixedSource) -> None:
    source.answer = "the agent of run exp-41 on this machine has not answered in time"
    for path in ("/metrics", "/healthz", "/readyz"):
        assert get(server.port, path) == (503, f"{source.answer}\n")


def test_other_paths_and_methods_are_refused(server: HttpServer, source: FixedSource) -> None:
    assert get(server.port, "/")[0] == 404
    assert get(server.port, "/../../etc/passwd")[0] == 404
    assert exchange(server.port, b"POST /metrics HTTP/1.1\r\nContent-Length: 0\r\n\r\n").split()[1] == b"405"
    assert source.asked == 0


def test_many_readers_at_once_are_one_question_to_the_agent(server: HttpServer, source: FixedSource) -> None:
    source.gate.clear()
    with ThreadPoolExecutor(50) as pool:
        answers = [pool.submit(get, server.port, "/metrics") for _ in range(50)]
        wait_until(lambda: source.asked)
        source.gate.set()
        pages = {answer.result(LIMIT_S) for answer in answers}
    assert {status for status, _ in pages} == {200}
    assert source.asked <= 2, "on a slow machine a second may have gone by"


def test_readers_that_hang_hold_nobody_up_for_long(server: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "HEAD_LIMIT_S", 0.2)
    with ExitStack() as stack:
        for index in range(2 * PLACES_MAX):
            hanging = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), LIMIT_S))
            hanging.sendall(b"GET /metr"[: index % 9])
        assert get(server.port, "/healthz") == (200, "ok\n")


def test_a_reader_that_sends_a_byte_now_and_then_is_given_up(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "HEAD_LIMIT_S", 0.3)
    with socket.create_connection(("127.0.0.1", server.port), LIMIT_S) as connection:
        connection.settimeout(0.05)

        def is_closed() -> bool:
            try:
                connection.send(b"x")
                return connection.recv(1) == b""
            except TimeoutError:
                return False
            except OSError:
                return True

        wait_until(is_closed, what="the end of a connection that is never a request")


def test_a_reader_that_does_not_read_is_given_up(source: FixedSource, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "PLACES_MAX", 2)
    monkeypatch.setattr(http_server, "SEND_LIMIT_S", 0.2)
    source.answer = make_report(200)  # more than the kernel buffers
    listener = open_listener("127.0.0.1", 0, "--metrics-port")
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    server = begin(HttpServer(listener, [make_metrics_group(source)]))
    with socket.socket() as lazy:
        lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        lazy.connect(("127.0.0.1", server.port))
        lazy.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert get(server.port, "/healthz")[0] == 200
    server.close()


def test_garbage_is_answered_or_cut_off_without_a_word(server: HttpServer, capfd: pytest.CaptureFixture[str]) -> None:
    draw = random.Random(1)
    requests = [
        b"", b"\r\n\r\n", b"\n\n", b"GET\r\n\r\n", b"GET /metrics\r\n\r\n", b"GET /metrics HTTP/9.9\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nContent-Length: -1\r\n\r\n", b"GET  /metrics  HTTP/1.1 x\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nAccept: application/openmetrics-text;version=x.y\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nAccept: application/openmetrics-text;version=1.0.0;escaping=values\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nAccept: text/plain;version=\xff\xfe\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200) + b"\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET " + b"/" * 7000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 500 + b"\r\n", b"GET / HTTP/1.1\r\n: x\r\n\x00: \x00\r\n\r\n",
        *(draw.randbytes(draw.randrange(1, 400)) + b"\r\n\r\n" for _ in range(200)),
        *(b"GET " + draw.randbytes(draw.randrange(1, 60)) + b"\r\n\r\n" for _ in range(200)),
    ]  # fmt: skip
    for request in requests:
        answer = exchange(server.port, request, ends=True)
        assert answer.startswith(b"HTTP/1.1 200") or b"Accept:" not in request
    with suppress(OSError):  # it is cut off, with what it has sent unread
        assert exchange(server.port, b"x" * (HEAD_MAX + 1)) == b""
    assert get(server.port, "/healthz") == (200, "ok\n")
    assert capfd.readouterr() == ("", "")


def test_a_taken_port_may_be_free_later_and_a_wrong_address_is_an_error_of_the_users(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> socket.socket:
        raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))

    with open_listener("127.0.0.1", 0, "--metrics-port") as first:
        port = first.getsockname()[1]
        with pytest.raises(TemporaryError, match=f"--metrics-port cannot listen on 127.0.0.1:{port}: the port is"):
            open_listener("127.0.0.1", port, "--metrics-port")
    with pytest.raises(UsageError, match="Cannot assign requested address"):
        open_listener("192.0.2.1", 0, "--metrics-port")
    with monkeypatch.context() as patch:
        patch.setattr(socket, "socket", refuse)
        with pytest.raises(UsageError, match="Address family not supported"):
            open_listener("127.0.0.1", 0, "--metrics-port")
    with pytest.raises(UsageError, match=r"cannot listen on no-such-host\.invalid:0: "):
        open_listener("no-such-host.invalid", 0, "--metrics-port")


def test_a_port_is_free_again_after_a_server(source: FixedSource) -> None:
    listener = open_listener("127.0.0.1", 0, "--metrics-port")
    port = listener.getsockname()[1]
    server = begin(HttpServer(listener, [make_metrics_group(source)]))
    assert get(port, "/healthz")[0] == 200
    server.close()
    open_listener("127.0.0.1", port, "--metrics-port").close()


def test_descriptors_do_not_leak(server: HttpServer) -> None:
    get(server.port, "/healthz")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(40):
        get(server.port, "/metrics")
    wait_until(lambda: len(os.listdir("/proc/self/fd")) <= before)


def test_a_report_is_read_anew_after_a_second(source: FixedSource, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    cache = share_node(source)
    cache()
    cache()
    assert source.asked == 1
    now += 1.0
    cache()
    assert source.asked == 2


def test_a_clock_beyond_all_calendars_costs_no_answer(server: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 1e12)  # the year 33658
    assert get(server.port, "/healthz") == (200, "ok\n")
    assert get(server.port, "/metrics")[0] == 200


def test_without_threads_readers_are_answered_one_after_another(server: HttpServer) -> None:
    with no_threads():
        for _ in range(PLACES_MAX // 2):
            assert get(server.port, "/healthz") == (200, "ok\n")
    assert get(server.port, "/healthz") == (200, "ok\n")


def test_a_lack_of_memory_costs_a_connection_and_none_of_the_later_ones(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    lacks = [MemoryError()]

    def start(*arguments: Any) -> threading.Thread | None:
        if lacks:
            raise lacks.pop()
        return start_thread(*arguments)

    monkeypatch.setattr(http_server, "start_thread", start)
    with suppress(ConnectionError):
        assert exchange(server.port, b"GET /healthz HTTP/1.1\r\n\r\n") == b""
    assert get(server.port, "/healthz") == (200, "ok\n")
    assert not lacks
