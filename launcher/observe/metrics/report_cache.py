"""The last report of the node, shared by all who read metrics: the agent is asked once a second, however many they are.

Who comes while the agent is being asked waits for the same answer, also for the sentence that says why there is none.
"""

from __future__ import annotations

import threading
import time

from launcher.model.errors import TemporaryError
from launcher.observe.node_report import NodeReport, ReadState
from launcher.observe.run_source import RunSource

FRESH_S = 1.0


class ReportCache:
    """May be read from any thread."""

    def __init__(self, source: RunSource) -> None:
        self._source = source
        self._lock = threading.Lock()
        self._read_at = 0.0
        self._report: NodeReport | None = None
        self._problem = "nothing has been read yet"

    def read(self) -> NodeReport:
        """Return a report that is at most `FRESH_S` old. Raises TemporaryError."""
        with self._lock:
            if not self._read_at or time.monotonic() - self._read_at >= FRESH_S:
                self._refresh()
                self._read_at = time.monotonic()
            if self._report is None:
                raise TemporaryError(self._problem)
            return self._report

    def _refresh(self) -> None:
        self._report = None
        try:
            reply = self._source.read_node("", ReadState(has_rounds=False))
        except TemporaryError as error:
            self._problem = str(error)
            return
        if isinstance(reply, NodeReport):
            self._report = reply
        else:
            self._problem = f"the agent has answered with a {type(reply).__name__}"
