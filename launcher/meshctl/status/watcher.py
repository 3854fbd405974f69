"""Follows a job: reads it again whenever one of its keys changes, and periodically for the ages.

A terminal is redrawn; a log or a pipe gets a line for each change, or an object with --json. It ends with the job. A
store that does not answer for a while is reported once, and awaited.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable

from launcher.meshctl.status.changes import describe_changes
from launcher.meshctl.status.reader import read_job
from launcher.meshctl.status.state import JobSnapshot, Overview, build_overview
from launcher.model.console import write_stderr, write_stdout
from rendezvous.errors import StoreError
from rendezvous.stores.contract import Batch, Store

REFRESH_S = 2.0  # of the ages, and of the watch if it has been lost
DEBOUNCE_S = 0.1  # changes this close together are shown as one


def follow(store: Store, prefix: str, run_id: str, secret: bytes, display: Callable[[Overview], None]) -> Overview:
    """Show the job until it has ended; return its last state. Raises UsageError when the run is removed."""
    watcher = _Watcher(store)
    trouble = ""
    try:
        while True:
            try:
                reading = read_job(store, prefix, run_id, secret)
                watcher.watch(reading)
            except StoreError as error:
                if str(error) != trouble:
                    trouble = str(error)
                    write_stderr(f"meshctl: the store does not answer, trying again: {error}")
                time.sleep(REFRESH_S)
                continue
            trouble = ""
            seen = build_overview(reading, secret)
            display(seen)
            if seen.verdict is not None:
                return seen
            watcher.wait()
    finally:
        watcher.close()


class _Watcher:
    """Wakes the waiting thread when a key of the job changes."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._changed = threading.Event()
        self._root = ""
        self._cancel: Callable[[], None] = lambda: None

    def watch(self, snapshot: JobSnapshot) -> None:
        """Watch every change after this reading. Raises StoreError."""
        root = snapshot.keys.root.rpartition("/")[0] + "/"  # with `current`, which names the job
        if self._root == root:
            return
        watch = self._store.watch(
            root, prefix=True, start_revision=snapshot.revision + 1, on_batch=self._on_batch, on_lost=self._on_lost
        )
        self._cancel, self._root = watch.cancel, root

    def wait(self) -> None:
        if self._changed.wait(REFRESH_S):
            time.sleep(DEBOUNCE_S)
        self._changed.clear()

    def close(self) -> None:
        self._cancel()

    def _on_batch(self, batch: Batch) -> None:
        self._changed.set()

    def _on_lost(self, error: StoreError) -> None:
        self._root = ""
        self._changed.set()


class ChangePrinter:
    """Prints a line for each change, none for what stays."""

    def __init__(self) -> None:
        self._before: Overview | None = None

    def __call__(self, overview: Overview) -> None:
        for sentence in describe_changes(self._before, overview):
            write_stdout(sentence)
        self._before = overview


class Screen:
    """The terminal, redrawn from its upper left corner; what does not fit below is left out."""

    def __init__(self, describe: Callable[[Overview], str]) -> None:
        self._describe = describe

    def __call__(self, overview: Overview) -> None:
        import shutil

        lines = self._describe(overview).splitlines()[: shutil.get_terminal_size().lines - 1]
        # To the corner, clearing after each line's end, and below.
        sys.stdout.write("\x1b[H" + "".join(f"{line}\x1b[K\n" for line in lines) + "\x1b[J")
        sys.stdout.flush()
