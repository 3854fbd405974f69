"""Output for the user: the agent's own lines on stderr, which never block it, and requested output on stdout.

stderr may be closed, a terminal that has gone, or a pipe without a reader. The agent keeps workers alive, so it
waits a moment for room and then continues; until there is a reader, it does not wait again. Unwritten output is
kept, up to a limit, and written before later lines or at the end. A test for room is not reliable, as a worker that
shares the pipe may fill it first: every write is non-blocking, except to a file, and to a terminal of another user.

Names of files and nodes are foreign input: control characters are escaped in both outputs, \\x1b for escape.
"""

from __future__ import annotations

import _thread
import os
import select
import stat
import time

from launcher.model.errors import LauncherError, find_shortage_hint

PROGRAM = "meshrun"
PATIENCE_S = 1.0
BUFFER_MAX = 64 * 1024
"""Bytes that wait for a reader; later ones are dropped. A pipe has the same capacity."""

_is_unread = False
_buffer: list[memoryview] = []
_lock = _thread.allocate_lock()  # threads log, too
_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n"}


def write_stderr(text: str, *, patience_s: float = 0.0) -> None:
    """Write `text`, of one line or several, to stderr in one piece if there is room for it, or keep it for later.

    `patience_s`: how long to wait for a reader that has not read before.
    """
    with _lock:
        if sum(map(len, _buffer)) < BUFFER_MAX:
            _buffer.append(memoryview(_encode(f"{text}\n")))
        _flush(patience_s if _is_unread else max(PATIENCE_S, patience_s))


def finish() -> None:
    """Write what is kept, at the end of the process."""
    with _lock:
        _flush(PATIENCE_S)


def _flush(limit_s: float) -> None:
    global _is_unread
    until, left_s = time.monotonic() + limit_s, limit_s
    poll = select.poll()
    poll.register(2, select.POLLOUT)
    try:
        while _buffer and poll.poll(max(0.0, left_s) * 1000):
            try:
                _buffer[0] = _buffer[0][_write(_buffer[0][: select.PIPE_BUF]) :]
            except BlockingIOError:  # another process has taken the room
                if left_s <= 0:
                    break
                time.sleep(0.001)
            if not _buffer[0]:
                del _buffer[0]
            left_s = until - time.monotonic()
    except OSError:  # stderr was closed
        _buffer.clear()
    _is_unread = bool(_buffer)


def _write(data: memoryview) -> int:
    """Write to stderr what it accepts at once. Raises BlockingIOError."""
    kind = stat.S_IFMT(os.fstat(2).st_mode)
    if kind == stat.S_IFREG:
        return os.write(2, data)
    if kind == stat.S_IFSOCK:
        import socket

        with socket.socket(fileno=os.dup(2)) as end:
            return end.send(data, socket.MSG_DONTWAIT)
    try:
        own = open_unblocked(2)
    except OSError:
        return _splice(data) if kind == stat.S_IFIFO and hasattr(os, "splice") else os.write(2, data)
    try:
        return os.write(own, data)
    finally:
        os.close(own)


def open_unblocked(descriptor: int) -> int:
    """Open a terminal or pipe a second time, non-blocking. Raises OSError for a socket, or another user's.

    O_NONBLOCK set on the descriptor itself would affect every process that shares it: the shell, the workers.
    """
    return os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)


def _splice(data: memoryview) -> int:
    """Move `data`, of PIPE_BUF bytes at most, into a pipe that cannot be reopened."""
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    try:
        return os.splice(read_end, 2, os.write(write_end, data), flags=os.SPLICE_F_NONBLOCK)
    finally:
        os.close(read_end)
        os.close(write_end)


def log(sentence: str) -> None:
    """Log one line with the program's name; further lines, perhaps from another node, could pass for lines of ours."""
    write_stderr(f"{PROGRAM}: " + sentence.replace("\n", "\\n"))


def write_stdout(text: str) -> None:
    """Write requested output to stdout, all of it. A closed reader is no error.

    Raises LauncherError.
    """
    data = memoryview(_encode(f"{text}\n"))
    try:
        while data:
            data = data[os.write(1, data) :]
    except BrokenPipeError:
        return
    except OSError as error:
        raise LauncherError(f"cannot write to stdout: {error.strerror}", find_shortage_hint(error.errno)) from None


def _encode(text: str) -> bytes:
    return text.translate(_ESCAPES).encode(errors="backslashreplace")
