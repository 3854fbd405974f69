"""The file of --metrics-file, for node_exporter's textfile collector: every 15 s a new one takes the place of the old.

It is removed when the agent ends, since node_exporter would go on telling what was true then. If it cannot be written
the log says so once, until it can be written again; the job goes on.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress

from prometheus_client import write_to_textfile

from launcher.extensions.metrics.exposition import make_registry
from launcher.extensions.metrics.server import ReadNode
from launcher.model.console import log
from launcher.model.errors import TemporaryError, find_shortage_hint, sanitize

PERIOD_S = 15.0
CLOSE_LIMIT_S = 2.0
"""For a write that is under way and the removal: the file may lie on a file system that has gone."""


class MetricsFile:
    """Written by `run`, in a thread of its own, until `close`."""

    def __init__(self, path: str, read: ReadNode, period_s: float = PERIOD_S) -> None:
        self._path = path
        self._read = read
        self._period_s = period_s
        self._is_failing = False
        self._closed = threading.Event()
        self._removed = threading.Event()

    def close(self) -> None:
        """Write no more, and remove the file; wait a moment for both."""
        self._closed.set()
        self._removed.wait(CLOSE_LIMIT_S)

    def run(self) -> None:
        """Write it again and again, and remove it at the end."""
        while not self._closed.is_set():
            self._write()
            self._closed.wait(self._period_s)
        with suppress(OSError):
            os.unlink(self._path)
        self._removed.set()

    def _write(self) -> None:
        try:
            registry = make_registry(self._read())
        except TemporaryError:  # the file's time shows that it is old
            return
        if self._closed.is_set():
            return
        try:
            write_to_textfile(self._path, registry)
        except OSError as error:
            if not self._is_failing:
                hint = find_shortage_hint(error.errno)
                why = f"{error.strerror} ({hint})" if hint else error.strerror
                log(f"--metrics-file {sanitize(self._path)} cannot be written: {why}; tried again every {PERIOD_S:g} s")
            self._is_failing = True
        else:
            self._is_failing = False
