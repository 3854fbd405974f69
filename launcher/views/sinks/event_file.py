"""Where events go on this node's disk: the file or stream of --events, and a file beside the workers' logs.

Neither may hold the agent, nor end it: a thread writes, and a pipe that is not read, storage that hangs or a full disk
costs lines, which is said. A line is written whole or not at all, so that several agents may append to one file.
"""

from __future__ import annotations

import os
import select
import stat
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from launcher.model.concurrency import NO_THREAD, LateThread
from launcher.model.errors import UsageError, sanitize
from launcher.model.text import format_count
from launcher.views.run_events import RunEvent, encode_event

STDOUT = "-"
WAITING_BYTES_MAX = 1 << 20
"""Of lines that wait to be written."""
END_LIMIT_S = 3.0
"""For what is still to be written when the agent ends."""
KEPT_FILE = "events.jsonl"
"""In a node's log directory: what is shown of a run that has ended is made of it."""


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
    `find_folder` returns where the file is, "" as long as that is not known: then it is opened by the thread. Otherwise
    raises UsageError for a file that cannot be written.
    """

    def __init__(
        self, path: str, origin: str, warn: Callable[[str], None], find_folder: Callable[[], str] | None = None
    ) -> None:
        self._label = f"{origin} {sanitize(path)}"
        self._warn = warn
        self._path = path
        self._find_folder = find_folder or (lambda: ".")
        self._flags = 0 if find_folder is None else os.O_NOFOLLOW  # who may write to the folder chooses no other file
        self._descriptor = -1
        self._excuse = "its storage does not answer"
        if find_folder is None:
            try:
                self._open()
            except OSError as error:
                hint = "start the reader of the pipe first" if error.errno == 6 else ""
                raise UsageError(f"{self._label} cannot be written: {error.strerror}", hint) from None
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
        if self._find_folder():
            self.thread.start()

    def close(self) -> None:
        """Wait a moment for what is still to be written, and say what is lost."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self.thread.finish(END_LIMIT_S)
        with self._changed:
            lost_count = self._lost_count + len(self._waiting)
            if lost_count and self._find_folder():
                why = NO_THREAD if self.thread.is_missing else self._excuse if self._waiting else self._why
                self._warn(f"{self._label}: {format_count(lost_count, 'event')} lost: {why}")
        if not self.thread.has_started:
            self._let_go()

    def _open(self) -> None:
        """Raises OSError."""
        path = os.path.join(self._find_folder(), self._path)
        self._descriptor = os.dup(1) if self._path == STDOUT else _open_append(path, self._flags)
        if not stat.S_ISREG(os.fstat(self._descriptor).st_mode):
            self._excuse = "its reader is too slow"

    def _let_go(self) -> None:
        if self._descriptor >= 0:
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
                    self._warn(f"{self._label} is written again, without {lost}")
        if rest:  # `close` tells
            self._lost_count, self._why = self._lost_count + 1, problem
        self._let_go()

    def _store(self, data: bytes) -> tuple[bytes, str]:
        """Write what can be, however long it takes; return the rest, and why it is left."""
        room = select.poll()
        try:
            if self._descriptor < 0:
                self._open()
            room.register(self._descriptor, select.POLLOUT)
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


def _open_append(path: str, more_flags: int) -> int:
    """Open a file to append to, or a pipe without waiting for it. Raises OSError."""
    flags = os.O_WRONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY | more_flags
    descriptor = os.open(path, flags | os.O_APPEND | os.O_CREAT, 0o666)
    if stat.S_ISDIR(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise IsADirectoryError(21, "it is a directory")
    return descriptor
