"""Where events go on this node's disk: the file or stream of --events, and a file for each round beside its logs.

Neither may hold the agent, nor end it: threads write, and a pipe that is not read, storage that hangs or a full disk
costs lines, which is said. A line is written whole or not at all, so that several agents may append to one file.
"""

from __future__ import annotations

import os
import select
import stat
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

import msgspec

from launcher.hardware.linux.files import replacing
from launcher.model.concurrency import NO_THREAD, LateThread, start_thread
from launcher.model.errors import UsageError, sanitize
from launcher.model.text import format_count
from launcher.views.run_events import RunEvent, encode_event
from launcher.views.run_json import encode
from launcher.views.run_view import SCHEMA, RankView, RoundView
from rendezvous import codec

STDOUT = "-"
WAITING_BYTES_MAX = 1 << 20
"""Of lines that wait to be written."""
END_LIMIT_S = 3.0
"""For what is still to be written when the agent ends."""
WORKER_FIELDS = ("rank", "local_rank", "pid", "state", "started_at", "ended_at", "exit_code", "sentence")
"""Of a worker in the file of a round."""
ROUND_LIMIT_S = 1.0
"""How long the agent waits for the file of a round."""


class EventSink(Protocol):
    """Where events go."""

    thread: LateThread
    """Brings them there; started with the first one."""

    def write(self, event: RunEvent) -> None:
        """Take an event; never wait for its reader."""
        ...

    def close(self) -> None:
        """Let go of it, after a moment at most."""
        ...


class EventFile:
    """The lines of --events. `warn` gets a sentence when lines are lost, from any thread.

    A thread writes them: storage that hangs must not hold the agent. Lines wait for it up to `WAITING_BYTES_MAX`.
    Raises UsageError for a file that cannot be written.
    """

    def __init__(self, path: str, origin: str, warn: Callable[[str], None]) -> None:
        self._label = f"{origin} {sanitize(path)}"
        self._warn = warn
        try:
            self._descriptor = os.dup(1) if path == STDOUT else _open_append(path)
        except OSError as error:
            hint = "start the reader of the pipe first" if error.errno == 6 else ""
            raise UsageError(f"{self._label} cannot be written: {error.strerror}", hint) from None
        is_file = stat.S_ISREG(os.fstat(self._descriptor).st_mode)
        self._excuse = "its storage does not answer" if is_file else "its reader is too slow"
        self._changed = threading.Condition()  # of all that follows
        self._waiting: deque[bytes] = deque()  # the first is being written
        self._waiting_size = 0
        self._lost_count = 0
        self._why = ""
        self._is_closed = False
        self.thread = LateThread(self._run, "events")

    def write(self, event: RunEvent) -> None:
        """Have a line written, or drop it if too many wait."""
        line = encode_event(event) + b"\n"
        with self._changed:
            if self._waiting and self._waiting_size + len(line) > WAITING_BYTES_MAX:
                self._lose(1, self._excuse)
                return
            self._waiting.append(line)
            self._waiting_size += len(line)
            self._changed.notify()
        self.thread.start()

    def close(self) -> None:
        """Wait a moment for what is still to be written, and say what is lost."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self.thread.finish(END_LIMIT_S)
        with self._changed:
            lost_count = self._lost_count + len(self._waiting)
            if lost_count:
                why = NO_THREAD if self.thread.is_missing else self._excuse if self._waiting else self._why
                self._warn(f"{self._label}: {format_count(lost_count, 'event')} lost: {why}")
        if not self.thread.has_started:
            os.close(self._descriptor)

    def _run(self) -> None:
        rest, problem = b"", ""  # of a line of which a part has been written
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_closed)
                line = self._waiting[0] if self._waiting else b""
            rest, problem = self._store(rest)
            if line and not problem:
                rest, problem = self._store(line)
                if rest and rest != line:
                    problem = ""  # the rest follows with the next line
                else:
                    rest = b""
            with self._changed:
                if not line:
                    break
                self._waiting.popleft()
                self._waiting_size -= len(line)
                if problem:
                    self._lose(1, problem)
                elif self._lost_count and not self._waiting:
                    lost, self._lost_count = format_count(self._lost_count, "event"), 0
                    self._warn(f"{self._label} is written again; {lost} were lost")
        if rest:  # `close` tells
            self._lost_count, self._why = self._lost_count + 1, problem
        os.close(self._descriptor)

    def _store(self, data: bytes) -> tuple[bytes, str]:
        """Write what can be, however long it takes; return the rest, and why it is left."""
        room = select.poll()
        room.register(self._descriptor, select.POLLOUT)
        try:
            while data:
                room.poll()  # stdout may be non-blocking, if another process that shares it has made it so
                with suppress(BlockingIOError):
                    data = data[os.write(self._descriptor, data) :]
        except OSError as error:
            return data, error.strerror or str(error)
        return b"", ""

    def _lose(self, count: int, why: str) -> None:
        self._lost_count, self._why = self._lost_count + count, why
        if self._lost_count == count:
            self._warn(f"{self._label}: events are lost: {why}")


def make_round_writer(
    find_folder: Callable[[], str], warn: Callable[[str], None]
) -> Callable[[RoundView, Sequence[RankView]], None]:
    """Return what writes `round_<number>.json` into a folder: the round as this node saw it, and its workers.

    `find_folder`: called when there is a round to write.

    A thread writes: storage that hangs may be why the round has ended, and must not hold the agent.
    """
    has_warned = False
    writer: threading.Thread | None = None

    def warn_once(sentence: str) -> None:
        nonlocal has_warned
        if not has_warned:
            has_warned = True
            warn(sentence)

    def write(ended: RoundView, workers: Sequence[RankView]) -> None:
        nonlocal writer
        if writer is not None and writer.is_alive():
            return
        path = os.path.join(find_folder(), f"round_{ended.round}.json")
        records = [{name: encode(getattr(worker, name), name) for name in WORKER_FIELDS} for worker in workers]
        text = msgspec.json.format(codec.encode({"schema": SCHEMA, **encode(ended), "workers": records}), indent=2)
        writer = start_thread(store, "round file", path, text)
        if writer is None:
            warn_once(f"{path} is not written: {NO_THREAD}")
            return
        writer.join(ROUND_LIMIT_S)
        if writer.is_alive():
            warn_once(f"{path} is not written: its storage does not answer")

    def store(path: str, text: bytes) -> None:
        try:
            with replacing(path) as file:
                file.write(text + b"\n")
        except OSError as error:
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
