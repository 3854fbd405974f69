"""The last report of the node, shared by all who read metrics: the agent is asked once a second."""

from __future__ import annotations

import time

from launcher.views.questions.kept_answer import KeptAnswer
from launcher.views.questions.run_source import RunSource
from launcher.views.requests import ReadState
from launcher.views.run_view import NodeView

FRESH_S = 1.0


class ReportCache:
    """May be read from any thread."""

    def __init__(self, source: RunSource) -> None:
        self._source = source
        self._kept: KeptAnswer[NodeView] = KeptAnswer(time.monotonic)

    def read(self) -> NodeView:
        """Return a report that is at most `FRESH_S` old. Raises TemporaryError."""
        return self._kept.read(FRESH_S, self._ask)

    def _ask(self) -> NodeView:
        reply = self._source.read_node("", ReadState())
        assert isinstance(reply, NodeView), reply
        return reply
