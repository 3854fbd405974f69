"""What --metrics-port answers: /metrics for Prometheus, /healthz and /readyz for probes.

| path | 200 | 503, with the reason |
|---|---|---|
| /metrics | the metrics | the agent does not answer |
| /healthz | the agent's loop answers | it does not |
| /readyz | workers of a round run here, or this node is a spare | neither |
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from functools import partial

from launcher.extensions.metrics.exposition import encode_report
from launcher.model.errors import TemporaryError, describe
from launcher.views.http_server import HttpServer, Request, Response
from launcher.views.questions.kept_answer import KeptAnswer
from launcher.views.questions.run_source import RunSource
from launcher.views.requests import ReadState
from launcher.views.run_view import NodeView

# docs/internals/decisions/0049-metrics-by-threads-of-the-agent.md
CONNECTIONS_MAX = 64
PATHS = ("/metrics", "/healthz", "/readyz")
FRESH_S = 1.0
"""As old as an answer of the agent may be: it is asked once in this time, however many read."""
ReadNode = Callable[[], NodeView]
"""Returns the node as it is; raises TemporaryError."""


def share_node(source: RunSource) -> ReadNode:
    """Return what many threads may call."""
    kept: KeptAnswer[NodeView] = KeptAnswer(time.monotonic)

    def ask() -> NodeView:
        reply = source.read_node("", ReadState())
        assert isinstance(reply, NodeView), reply
        return reply

    return partial(kept.read, FRESH_S, ask)


def make_metrics_server(listener: socket.socket, read: ReadNode) -> HttpServer:
    """Make the server of the node that is read."""
    return HttpServer(listener, 2 * CONNECTIONS_MAX, lambda request: _answer(request, read))


def _answer(request: Request, read: ReadNode) -> Response:
    path = request.target.partition("?")[0]
    if path not in PATHS:
        return _say(404, f"the paths are {', '.join(PATHS)}")
    try:
        report = read()
    except TemporaryError as error:
        return _say(503, str(error))
    if path == "/metrics":
        page, content_type = encode_report(report, request.headers.get("accept", ""))
        return Response(status=200, body=page, content_type=content_type)
    if path == "/healthz":
        return _say(200, "ok")
    is_ready, sentence = describe_readiness(report)
    return _say(200 if is_ready else 503, sentence)


def _say(status: int, sentence: str) -> Response:
    return Response(status=status, body=f"{sentence}\n".encode(errors="replace"))


def describe_readiness(report: NodeView) -> tuple[bool, str]:
    """Return whether this node does what it is there for, and a sentence."""
    if report.state in ("running", "succeeded") and report.last is not None:
        world_size = report.last.world_size
        return True, f"round {report.round} runs here, with {len(report.ranks)} of {world_size} ranks"
    if report.state == "spare":
        return True, "this node is a spare"
    return False, f"{report.state}: {describe(report.why)}" if report.why else report.state
