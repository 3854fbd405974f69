"""What --metrics-port answers: /metrics for Prometheus, /healthz and /readyz for probes.

| path | 200 | 503, with the reason |
|---|---|---|
| /metrics | the metrics | the agent does not answer |
| /healthz | the agent's loop answers | it does not |
| /readyz | workers of a round run here, or this node is a spare | neither |
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial

from launcher.extensions.metrics.exposition import encode_report
from launcher.model.errors import describe
from launcher.views.http.http_server import Request, Response, say
from launcher.views.http.path_group import Answer
from launcher.views.questions.kept_answer import KeptAnswer
from launcher.views.questions.local_socket import QuestionSource
from launcher.views.requests import ReadState
from launcher.views.run_view import NodeView

# docs/internals/decisions/0049-metrics-by-threads-of-the-agent.md
FRESH_S = 1.0
"""As old as an answer of the agent may be: it is asked once in this time, however many read."""
ReadNode = Callable[[], NodeView]
"""Returns the node as it is; raises TemporaryError."""


def share_node(source: QuestionSource) -> ReadNode:
    """Return what many threads may call."""
    kept: KeptAnswer[NodeView] = KeptAnswer(time.monotonic)

    def ask() -> NodeView:
        reply = source.read_node("", ReadState())
        assert isinstance(reply, NodeView), reply
        return reply

    return partial(kept.read, FRESH_S, ask)


def make_paths(source: QuestionSource) -> Mapping[str, Answer]:
    """Return the answers of the node that is read; without one of the agent, each is 503."""
    read = share_node(source)

    def read_metrics(request: Request) -> Response:
        page, content_type = encode_report(read(), request.headers.get("accept", ""))
        return Response(body=page, content_type=content_type)

    return {
        "/metrics": read_metrics,
        "/healthz": lambda request: say(200, "ok" if read() else ""),
        "/readyz": lambda request: say(*describe_readiness(read())),
    }


def describe_readiness(report: NodeView) -> tuple[int, str]:
    """Return 200 if this node does what it is there for, else 503, and a sentence."""
    if report.state in ("running", "succeeded") and report.last is not None:
        world_size = report.last.world_size
        return 200, f"round {report.round} runs here, with {len(report.ranks)} of {world_size} ranks"
    if report.state == "spare":
        return 200, "this node is a spare"
    return 503, f"{report.state}: {describe(report.why)}" if report.why else report.state
