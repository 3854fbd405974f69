"""The last report of the node, shared by all who read metrics: the agent is asked once a second."""

from __future__ import annotations

import time

from launcher.views.node_report import NodeReport, ReadState
from launcher.views.questions.kept_answer import KeptAnswer
from launcher.views.questions.run_source import RunSource

FRESH_S = 1.0


class ReportCache:
    """May be read from any thread."""

    def __init__(self, source: RunSource) -> None:
        self._source = source
        self._kept: KeptAnswer[NodeReport] = KeptAnswer(time.monotonic)

    def read(self) -> NodeReport:
        """Return a report that is at most `FRESH_S` old. Raises TemporaryError."""
        return self._kept.read(FRESH_S, self._ask)

    def _ask(self) -> NodeReport:
        reply = self._source.read_node("", ReadState(has_rounds=False))
        assert isinstance(reply, NodeReport), reply
        return reply
