"""From chunks of bytes to whole lines with a prefix, without a loop over lines.

A chunk is split at its last line end; one `bytes.replace` puts the prefix after all others. The incomplete last line
waits for its end, so that lines of several workers never mix on the console.

A carriage return ends a line too, as with torchrun: a progress bar that redraws itself with "\\r" would
otherwise show nothing until it is finished, and eight of them would overwrite each other. Log files keep the
bytes as they came.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import re

_SEARCH_LIMIT = 64 * 1024  # bytes
# Bytes. A line that grows beyond is shown in pieces of about this size; it is what one stream may hold in memory.
LINE_LIMIT = 8 * 1024 * 1024


class LinePrefixer:
    """One stream on its way to the console."""

    def __init__(self, prefix: bytes, limit: int = LINE_LIMIT) -> None:
        self._prefix = prefix
        self._line_end_and_prefix = b"\n" + prefix
        self._limit = limit
        self.has_cut_line = False
        self._pending: list[bytes] = []
        self._pending_size = 0
        # A "\r" at the end of a chunk: whether it is half of "\r\n" is only known with the next one.
        self._undecided = b""

    def feed(self, chunk: bytes) -> bytes:
        """Return the lines that `chunk` completes, each with its prefix; a line beyond the limit in pieces."""
        if self._undecided:
            chunk = self._undecided + chunk
            self._undecided = b""
        if b"\r" in chunk:
            if chunk.endswith(b"\r"):
                chunk, self._undecided = chunk[:-1], b"\r"
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        end = chunk.rfind(b"\n")
        if end < 0:
            self._pending.append(chunk)
            self._pending_size += len(chunk)
            if self._pending_size < self._limit:
                return b""
            self.has_cut_line = True
            return self._release()
        body = chunk[:end]
        if self._pending_size:
            self._pending.append(body)
            body = b"".join(self._pending)
        rest = chunk[end + 1 :]
        self._pending, self._pending_size = [rest], len(rest)
        return b"".join((self._prefix, body.replace(b"\n", self._line_end_and_prefix), b"\n"))

    def finish(self) -> bytes:
        """Return the line that the stream's end truncated, if any, with a line end."""
        is_open, self._undecided = bool(self._undecided or self._pending_size), b""
        return self._release() if is_open else b""

    def _release(self) -> bytes:
        body = b"".join(self._pending)
        self._pending, self._pending_size = [], 0
        return b"".join((self._prefix, body, b"\n"))


class LineSearch:
    """One stream, searched for lines that match a pattern: --expect."""

    def __init__(self, pattern: re.Pattern[bytes]) -> None:
        self._pattern = pattern
        self._pending = b""

    def feed(self, chunk: bytes) -> bool:
        """Whether a line that `chunk` completes matches. Of a line longer than 64 KiB only the end is searched."""
        end = max(chunk.rfind(b"\n"), chunk.rfind(b"\r")) + 1
        body = self._pending + chunk[:end] if end else b""
        self._pending = chunk[end:] if end else (self._pending + chunk)[-_SEARCH_LIMIT:]
        return bool(body) and self._pattern.search(body.replace(b"\r", b"\n")) is not None


def split_last_lines(data: bytes, count: int) -> tuple[str, ...]:
    """Return the last `count` lines of `data`; of a line that was redrawn with "\\r" only its last version."""
    lines = data.decode(errors="replace").replace("\r\n", "\n").rstrip("\r\n").split("\n")[-count:]
    return tuple(line.rstrip("\r").rpartition("\r")[2] for line in lines) if lines != [""] else ()
