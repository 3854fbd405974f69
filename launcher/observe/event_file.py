"""Where events go on this node's disk: the file or stream of --events, and a file for each round beside its logs.

Neither may hold the agent, nor end it: a pipe without a reader, a full disk or a removed directory costs lines, which
is said once. A line is written whole or not at all, so that several agents may append to one file.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

import msgspec

from launcher.model.console import format_time, write_at_once
from launcher.model.errors import UsageError, sanitize
from launcher.observe.run_events import RunEvent, encode_event
from launcher.observe.timeline import RoundSummary, WorkerRecord
from rendezvous import codec

STDOUT = "-"
ROUND_LIMIT_S = 1.0
"""How long the agent waits for the file of a round."""
_ROUND_TIMES = ("began_at", "ended_at", "saved_at")


class EventSink(Protocol):
    """Where events go."""

    def write(self, event: RunEvent) -> None:
        """Take an event; never wait for its reader."""
        ...

    def close(self) -> None:
        """Let go of it, after a moment at most."""
        ...


class EventFile:
    """The lines of --events. `warn` gets a sentence when lines are lost. Raises UsageError if it cannot be written."""

    def __init__(self, path: str, origin: str, warn: Callable[[str], None]) -> None:
        self._label = f"{origin} {sanitize(path)}"
        self._warn = warn
        self._has_warned = False
        self._pending = b""  # of a line of which a part has been written
        self._is_shared = path == STDOUT  # with the workers: their position in a file counts, and they may wait
        try:
            self._descriptor = os.dup(1) if self._is_shared else _open_append(path)
        except OSError as error:
            hint = "a pipe needs a reader before the start" if error.errno == 6 else ""
            raise UsageError(f"{self._label} cannot be written: {error.strerror}", hint) from None

    def write(self, event: RunEvent) -> None:
        """Write a line, or drop it if there is no room for it."""
        try:
            self._pending = self._write(self._pending)
            if self._pending:
                raise BlockingIOError
            self._pending = self._write(encode_event(event) + b"\n")
        except OSError as error:
            self._report(error)
            return
        if self._has_warned:
            self._has_warned = False
            self._warn(f"{self._label} is written again")

    def close(self) -> None:
        with suppress(OSError):
            os.close(self._descriptor)

    def _write(self, data: bytes) -> bytes:
        """Write what can be; return the rest of a line that has begun. Raises OSError if none of it can be written."""
        write = write_at_once if self._is_shared else os.write
        size = len(data)
        try:
            while data:
                data = data[write(self._descriptor, data) :]
        except OSError:
            if len(data) == size:
                raise
        return data

    def _report(self, error: OSError) -> None:
        if not self._has_warned:
            self._has_warned = True
            why = "its reader is too slow" if isinstance(error, BlockingIOError) else error.strerror
            self._warn(f"{self._label}: events are lost: {why}")


def make_round_writer(
    folder: str, warn: Callable[[str], None]
) -> Callable[[RoundSummary, Sequence[WorkerRecord]], None]:
    """Return what writes `round_<number>.json` into a folder: the round as this node saw it, and its workers.

    A thread writes: storage that hangs may be why the round has ended, and must not hold the agent.
    """
    has_warned = False
    writer: threading.Thread | None = None

    def warn_once(sentence: str) -> None:
        nonlocal has_warned
        if not has_warned:
            has_warned = True
            warn(sentence)

    def write(summary: RoundSummary, workers: Sequence[WorkerRecord]) -> None:
        nonlocal writer
        if writer is not None and writer.is_alive():
            return
        path = os.path.join(folder, f"round_{summary.round}.json")
        fields = msgspec.to_builtins(summary)
        for name in _ROUND_TIMES:
            fields[name] = format_time(fields[name]) if fields[name] else None
        records = [msgspec.to_builtins(worker) for worker in workers]
        for record in records:
            for name in ("started_at", "ended_at"):
                record[name] = format_time(record[name]) if record[name] else None
        text = msgspec.json.format(codec.encode({"schema": 1, **fields, "workers": records}), indent=2)
        writer = threading.Thread(target=store, args=(path, text), name="round file", daemon=True)
        writer.start()
        writer.join(ROUND_LIMIT_S)
        if writer.is_alive():
            warn_once(f"{path} is not written: its storage does not answer")

    def store(path: str, text: bytes) -> None:
        try:
            with open(f"{path}.part", "wb") as file:
                file.write(text + b"\n")
            os.replace(f"{path}.part", path)
        except OSError as error:
            with suppress(OSError):
                os.unlink(f"{path}.part")
            warn_once(f"{path} cannot be written: {error.strerror}")

    return write


def _open_append(path: str) -> int:
    """Open a file to append to, or a pipe without waiting for it. Raises OSError."""
    flags = os.O_WRONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    descriptor = os.open(path, flags | os.O_APPEND | os.O_CREAT, 0o666)
    if stat.S_ISDIR(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise IsADirectoryError(21, "it is a directory")
    return descriptor
