"""The file of --metrics-file, for node_exporter's textfile collector: every 15 s a new one takes the place of the old.

It is removed when the agent ends, since node_exporter would go on telling what was true then. If it cannot be written
the log says so once, until it can be written again; the job goes on.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from launcher.model.concurrency import LateThread
from launcher.model.console import log
from launcher.model.errors import TemporaryError, describe_bug, find_shortage_hint, sanitize
from launcher.parts.part import LATER_S, RETRY_S, Effect, Fact

if TYPE_CHECKING:
    from launcher.agent.membership import Ask
    from launcher.extensions.metrics.paths import ReadNode

PERIOD_S = 15.0
CLOSE_LIMIT_S = 2.0
"""For a write that is under way and the removal: the file may lie on a file system that has gone."""


class MetricsFile:
    """The part whose thread writes the file, from `LATER_S` after the agent's start: what it imports takes 40 ms."""

    def __init__(self, path: str, ask: Ask, run_id: str, delay_s: float = LATER_S, period_s: float = PERIOD_S) -> None:
        self._path = path
        self._ask = ask
        self._run_id = run_id
        self._delays_s = delay_s, period_s
        self._read: ReadNode | None = None
        self._is_failing = False
        self._closed = threading.Event()
        self._thread = LateThread(self._run, "metrics file")
        self.wake_at = -math.inf

    def take(self, fact: Fact) -> None:
        pass

    def advance(self, now: float) -> Iterable[Effect]:
        self._thread.start()
        self.wake_at = now + RETRY_S if self._thread.is_missing else math.inf
        return ()

    def close(self) -> None:
        """Write no more, and remove the file; wait a moment for both."""
        self._closed.set()
        self._thread.finish(CLOSE_LIMIT_S)

    def _run(self) -> None:
        """Write it again and again, and remove it at the end."""
        delay_s, period_s = self._delays_s
        while not self._closed.wait(delay_s):
            self._write()
            delay_s = period_s
        with suppress(OSError):
            os.unlink(self._path)

    def _write(self) -> None:
        try:
            from prometheus_client import write_to_textfile

            from launcher.extensions.metrics.exposition import ReportCollector
            from launcher.extensions.metrics.paths import share_node
            from launcher.views.questions.local_socket import QuestionSource

            self._read = self._read or share_node(QuestionSource(self._ask, self._run_id))
            collector = ReportCollector(self._read())
            if not self._closed.is_set():
                write_to_textfile(self._path, collector)
            self._is_failing = False
        except TemporaryError:  # the file's time shows that it is old
            pass
        except Exception as error:  # a disk, no descriptor to import with, or a bug
            if not self._is_failing:
                hint = find_shortage_hint(error.errno) if isinstance(error, OSError) else ""
                why = (error.strerror if isinstance(error, OSError) else "") or describe_bug(error)
                why += f" ({hint})" if hint else ""
                log(f"--metrics-file {sanitize(self._path)} cannot be written: {why}; tried again every {PERIOD_S:g} s")
            self._is_failing = True
