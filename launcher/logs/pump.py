"""The one thread that carries captured output from the workers' pipes to log files and the console.

A single writer for all streams keeps lines whole. It works on large chunks: after each poll it lets the pipes
fill for a moment, and then moves hundreds of lines with a few system calls. A log file gets a stream's exact
bytes; the console gets whole lines with a prefix (`lines`).

The thread owns streams and sinks. Other threads only add a stream, read its last lines, and wait.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import signal
import termios
import threading
import time
from collections.abc import Callable, Sequence
from typing import Literal

from msgspec import Struct

from launcher.logs.lines import LINE_LIMIT, LinePrefixer, split_last_lines
from launcher.logs.sinks import PENDING_LIMIT, Console, LineFilter, LogFile, enlarge_pipe

CHUNK_SIZE = 256 * 1024  # bytes read at once
NAP_S = 0.002  # for pipes to fill: without it, workers that print unbuffered lines wake the thread for each
CLOSE_LIMIT_S = 2.0  # for the thread to end, which a dead network file system may block
_RING_SIZE = 24 * 1024  # bytes of a stream's end that are kept: some 200 lines

StreamName = Literal["stdout", "stderr"]


class OutputPump:
    """Starts its thread at once; create one only when a stream is to be captured.

    `console_stdout` and `console_stderr` are descriptors and stay open. `tail_lines` is the number of lines that
    `read_tail` returns. `warn` gets a sentence, in the thread. Raises OSError when there are no descriptors or threads
    left.
    """

    def __init__(
        self, *, console_stdout: int = 1, console_stderr: int = 2, tail_lines: int = 20, warn: Callable[[str], None]
    ) -> None:
        self.moved_size = 0
        """Bytes that workers have written, of all streams since `reset_counts`."""
        self._output_at: dict[int, float] = {}
        self._tail_lines = tail_lines
        self._warn_agent = warn
        self._warned: set[str] = set()
        self._buffer = memoryview(bytearray(CHUNK_SIZE))
        stdout = Console(console_stdout, "stdout", self._warn)
        # `2>&1`: two queues to one pipe would split each other's lines.
        is_same = _is_same_file(console_stdout, console_stderr)
        stderr = stdout if is_same else Console(console_stderr, "stderr", self._warn)
        self._consoles: dict[StreamName, Console] = {"stdout": stdout, "stderr": stderr}
        self._console_by_fd = {console.fd: console for console in (stdout, stderr)}
        self._slow_consoles: set[Console] = set()  # in the epoll set, to learn when they accept more
        self._paused: list[_Capture] = []  # not in the epoll set, because their console is slow
        self._changed = threading.Condition()  # guards what follows
        self._captures: dict[int, _Capture] = {}
        self._latest: dict[tuple[int, StreamName], _Capture] = {}
        self._is_closing = False
        self._is_awaited = False  # whether another thread waits for what is in a pipe
        self._epoll = select.epoll()
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll.register(self._wake_fd, select.EPOLLIN)
        self._thread = threading.Thread(target=self._run, name="output", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # Python's exception for EAGAIN
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN)) from error

    def reset_counts(self) -> None:
        """Begin to count anew."""
        self.moved_size = 0
        self._output_at.clear()

    def list_output_times(self) -> dict[int, float]:
        """Return when each worker has last written, on time.monotonic(), by local rank, since `reset_counts`."""
        return self._output_at.copy()

    def open_filter(self, path: str, texts: Sequence[str]) -> LineFilter:
        """Open a file for lines that contain one of `texts`, for `open_stream` of each stream to search."""
        return LineFilter(texts, LogFile(path, self._warn))

    def open_stream(
        self,
        *,
        stream: StreamName,
        local_rank: int,
        rank: int,
        path: str | None,
        prefix: bytes | None,
        line_filter: LineFilter | None = None,
    ) -> int:
        """Capture one stream of one worker and return the write end of its pipe.

        Pass it to the worker and close it: the stream ends when no process holds it any more. With `path` its bytes
        are appended to that file, with `prefix` its lines go to the console, each after the prefix, and those
        that match `line_filter` to its file too. Raises OSError when there are no descriptors left.
        """
        assert path is not None or prefix is not None, "a stream without a destination needs no pipe"
        read_fd, write_fd = os.pipe()
        os.set_blocking(read_fd, False)
        try:  # first what may fail; no event comes while the write end is open and unwritten
            self._epoll.register(read_fd, select.EPOLLIN)
        except OSError:
            os.close(read_fd)
            os.close(write_fd)
            raise
        capture = _Capture(
            fd=read_fd,
            local_rank=local_rank,
            label=f"rank {rank} on {stream}",
            capacity=enlarge_pipe(read_fd),
            file=None if path is None else LogFile(path, self._warn),
            prefixer=None if prefix is None else LinePrefixer(prefix),
            console=self._consoles[stream],
            line_filter=None if prefix is None else line_filter,
            prefix_size=len(prefix or b""),
        )
        with self._changed:
            self._captures[read_fd] = capture
            self._latest[local_rank, stream] = capture
        return write_fd

    def read_tail(self, local_rank: int, stream: StreamName, limit_s: float = 0.0) -> tuple[str, ...]:
        """Return the last lines of the stream that was opened last for this local rank, or none.

        Waits up to `limit_s` for the pipe's present content; not for the stream's end, as children may hold it open,
        nor for a console that is slow.
        """
        with self._changed:
            capture = self._latest.get((local_rank, stream))
            if capture and limit_s > 0:
                self._is_awaited = True
                self._changed.wait_for(lambda: not self._is_behind(capture), limit_s)
                self._is_awaited = False
        return split_last_lines(capture.ring[1], self._tail_lines) if capture else ()

    def list_rings(self) -> dict[tuple[int, StreamName], tuple[int, bytes]]:
        """Return of each stream without a file how many bytes it has had, and its last lines, by local rank."""
        with self._changed:
            rings = {key: capture.ring for key, capture in self._latest.items() if capture.file is None}
        return {key: (size, _drop_cut_line(kept) if len(kept) < size else kept) for key, (size, kept) in rings.items()}

    def drain(self, limit_s: float) -> bool:
        """Wait until every stream has ended and all of it is written; False if `limit_s` passed first."""
        with self._changed:
            return self._changed.wait_for(
                lambda: not self._captures and not any(console.pending_size for console in self._consoles.values()),
                limit_s,
            )

    def close(self) -> None:
        """Read what the pipes contain now, give up on a console that is still slow, and end the thread."""
        with self._changed:
            if not self._is_closing:
                self._is_closing = True
                os.eventfd_write(self._wake_fd, 1)
        self._thread.join(CLOSE_LIMIT_S)

    def _is_behind(self, capture: _Capture) -> bool:
        """Whether something was written that is not in the ring yet."""
        if self._captures.get(capture.fd) is not capture or capture in self._paused:
            return False
        unread = fcntl.ioctl(capture.fd, termios.FIONREAD, bytes(4))
        return any(unread) or capture.is_moving  # in this order: what has left the pipe is being moved

    # What follows runs in the thread.

    def _run(self) -> None:
        # Signals are for the main thread: one delivered here would not interrupt its wait.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            while not self._is_closing:
                is_pressing = False
                for fd, _ in self._epoll.poll():
                    if fd in self._captures:
                        is_pressing |= self._pump_stream(self._captures[fd])
                    elif fd in self._console_by_fd:
                        self._flush(self._console_by_fd[fd])
                if self._is_awaited:
                    with self._changed:
                        self._changed.notify_all()
                if not is_pressing and not self._is_closing:
                    time.sleep(NAP_S)
            self._finish()
        except Exception as error:  # a bug: end the streams, so that workers fail and do not hang at full pipes
            self._warn("bug", f"the output thread failed (a bug in meshrun): {type(error).__name__}: {error}")
            raise
        finally:
            self._release()

    def _pump_stream(self, capture: _Capture) -> bool:
        """Move a stream's data. True: there is so much that a pause could block the worker."""
        if capture.prefixer and capture.console.is_full:
            self._epoll.unregister(capture.fd)
            self._paused.append(capture)
            return False
        size = self._move(capture)
        if size == 0:
            self._end(capture)
        return size * 2 >= min(capture.capacity, CHUNK_SIZE)

    def _move(self, capture: _Capture) -> int:
        """Read once and pass it on. Returns the size in bytes: 0 at the stream's end, -1 when there is nothing now."""
        capture.is_moving = True
        try:
            size = os.readv(capture.fd, [self._buffer])
            chunk = self._buffer[:size]
            moved_size, kept = capture.ring
            capture.ring = moved_size + size, (kept + bytes(chunk[-_RING_SIZE:]))[-_RING_SIZE:]
        except BlockingIOError:
            return -1
        finally:
            capture.is_moving = False
        if size:
            self.moved_size += size
            self._output_at[capture.local_rank] = now = time.monotonic()
            if capture.file:
                capture.file.write(chunk)
            if capture.prefixer:
                self._show(capture, capture.prefixer.feed(bytes(chunk), now))
                if capture.prefixer.has_cut_line:
                    limit = f"{LINE_LIMIT >> 20} MiB; the console shows it in pieces"
                    self._warn("cut", f"{capture.label} printed a line longer than {limit}")
        return size

    def _show(self, capture: _Capture, lines: bytes) -> None:
        if capture.line_filter:
            capture.line_filter.take(lines, capture.prefix_size)
        capture.console.put(lines)
        self._flush(capture.console)

    def _end(self, capture: _Capture) -> None:
        if capture.file:
            capture.file.close()
        if capture.prefixer:
            self._show(capture, capture.prefixer.finish())
        if capture.line_filter:
            capture.line_filter.close()
        with self._changed:
            del self._captures[capture.fd]
            os.close(capture.fd)  # this removes it from the epoll set, too
            self._changed.notify_all()

    def _flush(self, console: Console) -> None:
        console.flush()
        if console.pending_size and console not in self._slow_consoles:
            self._epoll.register(console.fd, select.EPOLLOUT)
            self._slow_consoles.add(console)
        elif not console.pending_size and console in self._slow_consoles:
            self._epoll.unregister(console.fd)
            self._slow_consoles.discard(console)
            with self._changed:
                self._changed.notify_all()
        if self._paused and console.pending_size <= PENDING_LIMIT // 2:
            for capture in [capture for capture in self._paused if capture.console is console]:
                self._paused.remove(capture)
                self._epoll.register(capture.fd, select.EPOLLIN)

    def _finish(self) -> None:
        with self._changed:
            captures = list(self._captures.values())
        for capture in captures:
            left = capture.capacity  # not more: a process may write without end
            while left > 0 and (size := self._move(capture)) > 0:
                left -= size
            self._end(capture)
        for console in set(self._consoles.values()):
            if lost_size := console.discard():
                sentence = f"{console.name} was too slow: the last {lost_size} bytes of output are not shown there"
                self._warn(f"console {console.name}", sentence)

    def _release(self) -> None:
        with self._changed:
            self._is_closing = True
            for fd in self._captures:
                os.close(fd)
            self._captures.clear()
            os.close(self._wake_fd)
            self._epoll.close()
            for console in set(self._consoles.values()):
                console.close()
            self._changed.notify_all()

    def _warn(self, key: str, sentence: str) -> None:
        if key not in self._warned:
            self._warned.add(key)
            with contextlib.suppress(OSError):  # stderr itself may be what has failed
                self._warn_agent(sentence)


class _Capture(Struct, eq=False, kw_only=True):
    """One stream of one worker: the read end of its pipe and where it goes."""

    fd: int
    local_rank: int
    label: str
    capacity: int
    file: LogFile | None
    prefixer: LinePrefixer | None
    console: Console
    line_filter: LineFilter | None
    prefix_size: int
    ring: tuple[int, bytes] = (0, b"")  # bytes so far, and the last of them; in one value, for other threads
    is_moving: bool = False  # something has been read that is not in the ring yet


def _drop_cut_line(data: bytes) -> bytes:
    """Return what follows the first line, of which the beginning is missing; all of it if there is no other."""
    return data[data.find(b"\n") + 1 :] or data


def _is_same_file(first: int, second: int) -> bool:
    try:
        return os.path.sameopenfile(first, second)
    except OSError:
        return False
