"""`meshctl status`: prints a job's state once, or follows the job until it ends.

A job that is followed is read again whenever one of its keys changes, and periodically for the ages. A terminal is
redrawn; a log or a pipe gets a line for each change, or an object with --json. A store or an agent that does not answer
for a while is reported once, and awaited. A pipe whose reader has gone ends it, also while nothing changes.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial

from launcher.meshctl.job_store import JobSnapshot, JobStore
from launcher.meshctl.live.local_files import LocalFolders, describe_gone
from launcher.meshctl.live.source import RunGoneError
from launcher.meshctl.status.agents import derive_overview
from launcher.meshctl.status.render import describe, describe_changes, encode_overview
from launcher.meshctl.status.state import Overview, build_overview, read_overview
from launcher.model.console import escape, format_time, write_stderr
from launcher.model.errors import TemporaryError
from launcher.observe.run_source import RunSource
from rendezvous.errors import StoreError
from rendezvous.stores.contract import Store

REFRESH_S = 2.0  # of the ages, and of the watch if it has been lost
DEBOUNCE_S = 0.1  # changes this close together are shown as one

WriteLines = Callable[[Iterable[str]], object]
"""Writes lines to stdout; raises BrokenPipeError if its reader has gone, also for no lines."""


def show_status(jobs: JobStore, run_id: str, write: WriteLines, *, watch: bool, as_json: bool, all_nodes: bool) -> None:
    """Show the run, once or until it ends. Raises UsageError for an unknown run."""
    if watch:
        follow(jobs, run_id, choose_display(write, as_json=as_json, all_nodes=all_nodes))
    else:
        write([format_overview(read_overview(jobs, run_id), as_json=as_json, all_nodes=all_nodes)])


def show_agents_status(source: RunSource, write: WriteLines, *, watch: bool, as_json: bool, all_nodes: bool) -> None:
    """Show a run by what its agents say, once or until none is on this machine. Raises TemporaryError at first."""
    report = source.read_run()
    if not watch:
        write([format_overview(derive_overview(report), as_json=as_json, all_nodes=all_nodes)])
        return
    display, folders, is_silent = choose_display(write, as_json=as_json, all_nodes=all_nodes), LocalFolders(), False
    while True:
        folders.update(report)
        display(derive_overview(report))
        time.sleep(REFRESH_S)
        try:
            report, is_silent = source.read_run(), False
        except RunGoneError:
            _warn(describe_gone(report.run_id, folders.describe_ending(report)))
            return
        except TemporaryError as error:
            if not is_silent:
                _warn(f"{error}; trying again")
            is_silent = True


def choose_display(write: WriteLines, *, as_json: bool, all_nodes: bool) -> Callable[[Overview], None]:
    """Choose how to show what changes: in a terminal, or line by line."""
    if as_json:
        return JsonLinesPrinter(write)
    return partial(draw_screen, all_nodes=all_nodes) if os.isatty(1) else ChangePrinter(write)


def format_overview(overview: Overview, *, as_json: bool, all_nodes: bool) -> str:
    """Format it for one reading."""
    return json.dumps(encode_overview(overview), indent=2) if as_json else describe(overview, all_nodes=all_nodes)


def follow(jobs: JobStore, run_id: str, display: Callable[[Overview], None]) -> Overview:
    """Show the job until it has ended; return its last state. Raises UsageError when the run is removed."""
    watcher = _Watcher(jobs.store)
    trouble = ""
    try:
        while True:
            try:
                reading = jobs.read_job(run_id)
                watcher.watch(reading)
            except StoreError as error:
                if str(error) != trouble:
                    trouble = str(error)
                    _warn(f"the store does not answer, trying again: {error}")
                time.sleep(REFRESH_S)
                continue
            trouble = ""
            seen = build_overview(reading, jobs.secret)
            display(seen)
            if seen.verdict is not None:
                return seen
            watcher.wait()
    finally:
        watcher.cancel()


class _Watcher:
    """Wakes the waiting thread when a key of the job changes."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._changed = threading.Event()
        self._root = ""
        self.cancel: Callable[[], None] = lambda: None

    def watch(self, snapshot: JobSnapshot) -> None:
        """Watch every change after this reading. Raises StoreError."""
        root = snapshot.keys.root.rpartition("/")[0] + "/"  # with `current`, which names the job
        if self._root != root:
            self.cancel = self._store.watch(
                root, prefix=True, start_revision=snapshot.revision + 1,
                on_batch=lambda batch: self._changed.set(), on_lost=self._on_lost,
            ).cancel  # fmt: skip
            self._root = root

    def wait(self) -> None:
        if self._changed.wait(REFRESH_S):
            time.sleep(DEBOUNCE_S)
        self._changed.clear()

    def _on_lost(self, error: StoreError) -> None:
        self._root = ""
        self._changed.set()


class ChangePrinter:
    """Prints a line for each change, none for what stays."""

    def __init__(self, write: WriteLines) -> None:
        self._write = write
        self._before: Overview | None = None

    def __call__(self, overview: Overview) -> None:
        changes = describe_changes(self._before, overview)
        self._write([f"{format_time(overview.at)} {escape(sentence)}" for sentence in changes])
        self._before = overview


class JsonLinesPrinter:
    """Prints one object per line, whenever anything except the time since keep-alives has changed."""

    def __init__(self, write: WriteLines) -> None:
        self._write = write
        self._before = ""

    def __call__(self, overview: Overview) -> None:
        content = encode_overview(overview)
        ages = [node.pop("silent_s") for node in content["nodes"]]
        at = content.pop("at")
        text = json.dumps(content)
        if text == self._before:
            self._write([])
            return
        self._before = text
        for node, age in zip(content["nodes"], ages, strict=True):
            node["silent_s"] = age
        self._write([json.dumps({"schema": content.pop("schema"), "at": at, **content})])


def draw_screen(overview: Overview, *, all_nodes: bool) -> None:
    """Redraw the terminal from its upper left corner; what does not fit below is left out."""
    lines = describe(overview, all_nodes=all_nodes).splitlines()[: shutil.get_terminal_size().lines - 1]
    # To the corner, clearing after each line's end, and below.
    sys.stdout.write("\x1b[H" + "".join(f"{line}\x1b[K\n" for line in lines) + "\x1b[J")
    sys.stdout.flush()


def _warn(sentence: str) -> None:
    write_stderr(f"meshctl: {escape(sentence)}")
