"""A server of paths, as an agent and `meshctl serve` have it, at a real socket."""

from __future__ import annotations

from collections.abc import Mapping

from launcher.extensions.metrics.paths import make_paths as make_metrics
from launcher.extensions.page.paths import make_paths as make_page
from launcher.model.concurrency import start_thread
from launcher.views.http.http_server import HttpServer
from launcher.views.http.path_group import Answer, PathGroup, open_listener
from launcher.views.questions.local_socket import QuestionSource

LOCAL = "127.0.0.1"


def begin(server: HttpServer) -> HttpServer:
    """Have a server accept in a thread; return it."""
    assert start_thread(server.run, "server") is not None
    return server


def serve_page(source: QuestionSource, host: str = LOCAL, port: int = 0, *, token: str = "") -> HttpServer:
    return begin(HttpServer(open_listener(host, port, "the page"), [make_page_group(source)], host, token=token))


def serve_metrics(source: QuestionSource) -> HttpServer:
    return begin(HttpServer(open_listener(LOCAL, 0, "--metrics-port"), [make_metrics_group(source)]))


def make_page_group(source: QuestionSource, **fields: bool | str) -> PathGroup:
    return _make_group(make_page(source), **fields)


def make_metrics_group(source: QuestionSource, **fields: bool | str) -> PathGroup:
    return _make_group(make_metrics(source), is_open=True, **fields)


def _make_group(paths: Mapping[str, Answer], **fields: bool | str) -> PathGroup:
    return PathGroup(lambda: paths, **fields)  # type: ignore[arg-type]
