"""Output for the user: the agent's own lines on stderr, which never block it, and requested output on stdout.

stderr may be closed, a terminal that has gone, or a pipe without a reader. The agent keeps workers alive, so it
waits a moment for room and then continues; until there is a reader, it does not wait again. Unwritten output is
kept, up to a limit, and written before later lines or at the end. A test for room is not reliable, as a worker that
shares the pipe may fill it first: every write is non-blocking, except to a file, and to a terminal of another user.

Names of files and nodes are foreign input: control characters are escaped in both outputs, \\x1b for escape.

Once the options are read, each line of an agent begins with the time and the node's name where stderr is no terminal,
so that the logs of several nodes can be laid beside each other. Of a text of several lines, such as the failure report,
each has the same stamp. On a terminal, what matters has a colour; nothing is said by colour alone.
"""

from __future__ import annotations

import _thread
import errno
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
_stamp_node: str | None = None  # the node's name, if lines begin with time and node
_RED, _CYAN, _PLAIN = "\x1b[1;31m", "\x1b[1;36m", "\x1b[0m"
_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n"}
_ESCAPES |= {code: f"\\u{code:04x}" for code in (*range(0x2028, 0x202F), *range(0x2066, 0x206A))}


def begin_stamps(mode: str, node: str) -> None:
    """From now on begin each line on stderr with time and node. `mode`: "on", "off", or "auto": not on a terminal."""
    global _stamp_node
    is_stamped = mode == "on" or (mode == "auto" and not os.isatty(2))
    _stamp_node = node if is_stamped else None


def write_stderr(text: str, *, patience_s: float = 0.0) -> None:
    """Write `text`, of one line or several, to stderr in one piece if there is room for it, or keep it for later.

    `patience_s`: how long to wait for a reader that has not read before.
    """
    encoded = _encode_lines(text)
    with _lock:
        if sum(map(len, _buffer)) < BUFFER_MAX:
            _buffer.append(memoryview(encoded))
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
                _buffer[0] = _buffer[0][write_at_once(2, _buffer[0]) :]
            except BlockingIOError:  # another process has taken the room
                if left_s <= 0:
                    break
                time.sleep(0.001)
            if not _buffer[0]:
                del _buffer[0]
            left_s = until - time.monotonic()
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):  # stderr was closed
            _buffer.clear()
    _is_unread = bool(_buffer)


def write_at_once(descriptor: int, data: bytes | memoryview) -> int:
    """Write of `data` what a stream that others share accepts without waiting, `PIPE_BUF` bytes at most.

    Raises BlockingIOError if it accepts nothing, OSError if it is closed.
    """
    data = memoryview(data)[: select.PIPE_BUF]
    kind = stat.S_IFMT(os.fstat(descriptor).st_mode)
    if kind == stat.S_IFREG:
        return os.write(descriptor, data)
    if kind == stat.S_IFSOCK:
        import socket

        with socket.socket(fileno=os.dup(descriptor)) as end:
            return end.send(data, socket.MSG_DONTWAIT)
    try:
        own = open_unblocked(descriptor)
    except OSError:
        is_pipe = kind == stat.S_IFIFO and hasattr(os, "splice")
        return _splice(descriptor, data) if is_pipe else os.write(descriptor, data)
    try:
        return os.write(own, data)
    finally:
        os.close(own)


def open_unblocked(descriptor: int) -> int:
    """Open a terminal or pipe a second time, non-blocking. Raises OSError for a socket, or another user's.

    O_NONBLOCK set on the descriptor itself would affect every process that shares it: the shell, the workers.
    """
    return os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)


def _splice(descriptor: int, data: memoryview) -> int:
    """Move `data`, of PIPE_BUF bytes at most, into a pipe that cannot be reopened."""
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    try:
        return os.splice(read_end, descriptor, os.write(write_end, data), flags=os.SPLICE_F_NONBLOCK)
    finally:
        os.close(read_end)
        os.close(write_end)


def log(sentence: str) -> None:
    """Log one line with the program's name; further lines, perhaps from another node, could pass for lines of ours."""
    write_stderr(f"{PROGRAM}: {escape(sentence)}")


def write_stdout(text: str) -> None:
    """Write requested output to stdout, all of it. A closed reader is no error.

    Raises LauncherError.
    """
    data = memoryview(f"{text}\n".translate(_ESCAPES).encode(errors="backslashreplace"))
    try:
        while data:
            data = data[os.write(1, data) :]
    except BrokenPipeError:
        return
    except OSError as error:
        raise LauncherError(f"cannot write to stdout: {error.strerror}", find_shortage_hint(error.errno)) from None


def format_time(at: float) -> str:
    """Format seconds since 1970 by RFC 3339, in UTC, with milliseconds: "2026-01-31T08:05:00.250Z".

    "@1e+18" where no calendar goes so far: a clock may show anything, and each line of a log has its time.
    """
    try:
        milliseconds = round(at * 1000)
        clock = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(milliseconds // 1000))
    except (OverflowError, ValueError, OSError):
        return f"@{at:g}"
    return f"{clock}.{milliseconds % 1000:03d}Z"


def format_local_time(at: float) -> str:
    """Format seconds since 1970 in this machine's time zone: "2026-01-31T08:05:00", or "@1e+18" as `format_time`."""
    try:
        return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(at))
    except (OverflowError, ValueError, OSError):
        return f"@{at:g}"


def _encode_lines(text: str) -> bytes:
    """Encode lines for stderr, with their stamps and colours."""
    stamp = "" if _stamp_node is None else f"{format_time(time.time())} {_stamp_node} ".translate(_ESCAPES)
    lines = text.translate(_ESCAPES).split("\n")
    paint = _paint if _is_coloured() else str
    return "".join(f"{stamp}{paint(line)}\n" for line in lines).encode(errors="backslashreplace")


def _is_coloured() -> bool:
    """Whether stderr gets colours: variables decide in CPython's order, which workers' tracebacks follow, too."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or (os.environ.get("TERM") != "dumb" and os.isatty(2))


def _paint(line: str) -> str:
    """Colour `error:` with the program before it, `hint:`, and the head of a failure report."""
    start, colour = "", ""
    program, error, rest = line.partition(": error: ")
    if error and " " not in program:
        start, colour, line = f"{program}: error:", _RED, f" {rest}"
    for hint in ("hint:", f"{PROGRAM}: hint:"):
        if line.startswith(f"{hint} "):
            start, colour, line = hint, _CYAN, line.removeprefix(hint)
    if line.endswith(" FAILED"):
        return f"{_RED}{line}{_PLAIN}"
    return f"{colour}{start}{_PLAIN}{line}" if start else line


def escape(text: str) -> str:
    """Return foreign text on one line, without what moves a terminal's cursor, colours it or turns its text around."""
    return text.translate(_ESCAPES).replace("\n", "\\n")
