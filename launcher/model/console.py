"""Words for people: the agent's own lines on stderr, never a reason to stop, and on stdout what was asked for.

stderr may be closed, a terminal that has gone, or a pipe nobody reads. The agent keeps workers alive, so it
waits a moment for room and then goes on; while nobody reads, it does not wait again. What stderr has not taken is
kept, up to a limit, and comes out ahead of later words or at the end.

Room that was seen is no promise: a worker that shares the pipe may fill it first, and then a plain write would wait
for the reader. So nothing is written in a way that can wait, except to a file, and to a terminal of another user.

Names of files and nodes come from elsewhere. What would steer a terminal is written out in both, \\x1b for escape.
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
"""Bytes that wait for a reader; what comes then is dropped. A pipe holds as much."""

_is_unread = False
_buffer: list[memoryview] = []
_lock = _thread.allocate_lock()  # threads have remarks, too
_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n"}


def write_stderr(text: str, *, patience_s: float = 0.0) -> None:
    """Write `text`, of one line or several, to stderr in one piece if there is room for it, or keep it for later.

    `patience_s`: how long it is worth waiting for a reader who has not read before.
    """
    with _lock:
        if sum(map(len, _buffer)) < BUFFER_MAX:
            _buffer.append(memoryview(_encode(f"{text}\n")))
        _flush(patience_s if _is_unread else max(PATIENCE_S, patience_s))


def finish() -> None:
    """Call it at the end: what is kept has its last chance."""
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
            except BlockingIOError:  # somebody else has taken the room
                if left_s <= 0:
                    break
                time.sleep(0.001)
            if not _buffer[0]:
                del _buffer[0]
            left_s = until - time.monotonic()
    except OSError:  # stderr has gone
        _buffer.clear()
    _is_unread = bool(_buffer)


def _write(data: memoryview) -> int:
    """Write to stderr what it takes at once. Raises BlockingIOError."""
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
    """Open a terminal or pipe a second time, without waiting. Raises OSError for a socket, or if it is another user's.

    O_NONBLOCK set on the descriptor itself would hit everyone who shares it: the shell, the workers.
    """
    return os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)


def _splice(data: memoryview) -> int:
    """Move `data`, of PIPE_BUF bytes at most, into a pipe that may not be opened anew."""
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    try:
        return os.splice(read_end, 2, os.write(write_end, data), flags=os.SPLICE_F_NONBLOCK)
    finally:
        os.close(read_end)
        os.close(write_end)


def log(sentence: str) -> None:
    """One line in the name of the program; more, from another node perhaps, would be taken for other lines of ours."""
    write_stderr(f"{PROGRAM}: " + sentence.replace("\n", "\\n"))


def write_stdout(text: str) -> None:
    """Write what was asked for to stdout, all of it. A reader who has gone has what they wanted.

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
