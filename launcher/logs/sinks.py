"""The sinks of captured output: a log file, or the agent's own stdout or stderr.

Neither lets an error reach a worker. What a full disk does not accept is dropped, with one warning; when there is
space again the output continues, after a line that says how much is missing. A terminal or pipe that has closed
stays closed. Only a slow console may slow workers down, as it would without us; it must not block the agent's
thread, so it gets only what it can accept.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import stat
import sys
import termios
from collections import deque
from collections.abc import Callable, Sequence

from msgspec import Struct

from launcher.model.console import open_unblocked

PENDING_LIMIT = 1024 * 1024  # bytes that wait for a slow console before the streams that feed it are no longer read
PIPE_SIZE = 1024 * 1024  # bytes; the kernel's default for the most that an unprivileged user may ask for
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_LINE_END = 0x0A

Warn = Callable[[str, str], None]
"""Called with a key and a sentence; each key is reported once."""


class LogFile:
    """A file that is only appended to. It is opened at once; if that fails, again with each write."""

    def __init__(self, path: str, warn: Warn) -> None:
        self.path = path
        self._warn = warn
        self._fd = -1
        self._gap = _Gap()
        with contextlib.suppress(OSError):  # reported when there is something to lose
            self._fd = _open_log(path)

    def write(self, data: memoryview) -> None:
        """Append `data`; what cannot be written is dropped and counted."""
        left = data
        try:
            if self._fd < 0:
                self._fd = _open_log(self.path)
            if self._gap.size:
                self._gap.write_note(self._fd)
            while left:
                written = os.write(self._fd, left)
                self._gap.is_mid_line = left[written - 1] != _LINE_END
                left = left[written:]
        except OSError as error:
            self._gap.widen(len(left), error)
            self._warn(
                f"log file {error.errno}",
                f"cannot write to {self.path}: {error.strerror}; output is missing from log files until that is over; "
                "training continues",
            )

    def close(self) -> None:
        if self._fd >= 0:
            with contextlib.suppress(OSError):  # NFS reports a full server here; there is nothing left to drop
                os.close(self._fd)
            self._fd = -1


class LineFilter:
    """Copies lines of all workers that contain one of `texts` to `file`: --duplicate-stdout-filters and the like.

    As with torchrun 2.13 the input is what the console shows, so a stream has to be teed for it and not be silenced by
    --local-ranks-filter; a line is copied with its prefix, which names the worker; and one file lies beside the
    workers' directories in every round. Used in the output thread.
    """

    def __init__(self, texts: Sequence[str], file: LogFile) -> None:
        self._texts = [text.encode(errors="surrogateescape") for text in texts]
        self._file = file
        file.close()  # it exists now, and is open from the first line on

    def take(self, lines: bytes, prefix_size: int) -> None:
        """Search whole lines, each after a prefix of `prefix_size` bytes, which is not searched."""
        if not any(text in lines for text in self._texts):
            return
        found = [
            line for line in lines.split(b"\n")[:-1] if any(line.find(text, prefix_size) >= 0 for text in self._texts)
        ]
        if found:
            self._file.write(memoryview(b"\n".join((*found, b""))))

    def close(self) -> None:
        """Close the file, since a stream has ended; a line of another one opens it again."""
        self._file.close()


class Console:
    """The agent's stdout or stderr: queues whole lines, in order, and writes them as fast as they are accepted."""

    def __init__(self, fd: int, name: str, warn: Warn) -> None:
        self.fd = fd
        self.name = name
        self.pending_size = 0
        """Bytes that the console has not accepted yet."""
        self.is_gone = False
        self._warn = warn
        self._pending: deque[bytes] = deque()
        self._offset = 0  # how much of the first pending block is written
        self._gap = _Gap()
        self._is_regular = False
        self._own_fd = -1
        self._capacity = 0  # of a pipe, in bytes
        self._poll = select.poll()
        try:
            mode = os.fstat(fd).st_mode
        except OSError:  # closed before the agent started; the number may soon be another file's
            self.is_gone = True
            return
        self._is_regular = stat.S_ISREG(mode)
        if not self._is_regular:
            # If it cannot be reopened, testing before each small piece is nearly as good.
            with contextlib.suppress(OSError):
                self.fd = self._own_fd = open_unblocked(fd)
        if stat.S_ISFIFO(mode):
            self._capacity = enlarge_pipe(self.fd)
        self._poll.register(self.fd, select.POLLOUT)

    @property
    def is_full(self) -> bool:
        """Whether the streams that feed this console should pause."""
        return self.pending_size >= PENDING_LIMIT

    def put(self, lines: bytes) -> None:
        """Queue whole lines. They are written by `flush`."""
        if lines and not self.is_gone:
            self._pending.append(lines)
            self.pending_size += len(lines)

    def flush(self) -> None:
        """Write what the console accepts at once; the rest stays pending."""
        try:
            while self._pending and self._write_piece():
                pass
        except BlockingIOError:
            pass
        except OSError as error:
            self._fail(error)

    def discard(self) -> int:
        """Drop what is pending and return its size in bytes."""
        size, self.pending_size, self._offset = self.pending_size, 0, 0
        self._pending.clear()
        return size

    def close(self) -> None:
        """Close what was opened here; the agent's own stdout and stderr stay open."""
        self.is_gone = True
        if self._own_fd >= 0:
            os.close(self._own_fd)
            self._own_fd = -1

    def _write_piece(self) -> bool:
        """Write some of the first block. False: the console accepts nothing now."""
        if self._gap.size:
            self._gap.write_note(self.fd)
        block = self._pending[0]
        end = len(block)
        if not self._is_regular:
            if self._own_fd < 0 and not self._poll.poll(0):
                return False
            limit = min(end, self._offset + self._count_free_bytes())
            end = block.rfind(b"\n", self._offset, limit) + 1 or limit
        written = os.write(self.fd, memoryview(block)[self._offset : end])
        self._offset += written
        self._gap.is_mid_line = block[self._offset - 1] != _LINE_END
        self.pending_size -= written
        if self._offset == len(block):
            self._pending.popleft()
            self._offset = 0
        return True

    def _count_free_bytes(self) -> int:
        """Return how many bytes the console accepts in one piece, so that no other writer can write in between.

        Linux guarantees that for PIPE_BUF bytes. A pipe does it for as much as fits, but what fits is counted in
        pages, and those may be partly filled: half of the free bytes is a careful guess. Only where the descriptor
        does not block, though, as the guess may be wrong.
        """
        if not self._capacity or self._own_fd < 0:
            return select.PIPE_BUF
        unread = int.from_bytes(fcntl.ioctl(self.fd, termios.FIONREAD, bytes(4)), sys.byteorder)
        return max(select.PIPE_BUF, (self._capacity - unread) // 2)

    def _fail(self, error: OSError) -> None:
        lost_size = self.discard()
        if error.errno in _NO_SPACE:
            self._gap.widen(lost_size, error)
            what = "workers' output is missing there until there is space"
        else:
            self.is_gone = True
            what = "workers' output no longer appears there"
        self._warn(f"console {self.name}", f"cannot write to {self.name}: {error.strerror}; {what}; training continues")


def enlarge_pipe(fd: int) -> int:
    """Enlarge a pipe as far as this user may and return its size in bytes."""
    # EPERM: the user's pipes together are at their limit (pipe-user-pages-soft), or pipe-max-size was lowered.
    with contextlib.suppress(OSError):
        return fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, PIPE_SIZE)
    return fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ)


class _Gap(Struct):
    """What is missing at the end of a file."""

    size: int = 0
    """In bytes."""
    reason: str = ""
    is_mid_line: bool = False
    """Whether what is before it has no line end."""

    def widen(self, size: int, error: OSError) -> None:
        self.size += size
        self.reason = error.strerror or str(error)

    def write_note(self, fd: int) -> None:
        start = "\n" if self.is_mid_line else ""
        note = f"{start}[meshrun: {self.size} bytes are missing here: {self.reason}]\n".encode()
        self.is_mid_line = os.write(fd, note) < len(note)
        self.size = 0


def _open_log(path: str) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOCTTY
    try:
        return os.open(path, flags, 0o666)
    except FileNotFoundError:  # its directory could not be created when the round began
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return os.open(path, flags, 0o666)
