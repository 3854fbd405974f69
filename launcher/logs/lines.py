"""From chunks of bytes to whole lines with a prefix, without a loop over lines.

A chunk is split at its last line end; one `bytes.replace` puts the prefix after all others. The incomplete last line
waits for its end, so that lines of several workers never mix on the console.

A progress bar redraws its line with "\\r", some ten times a second, and bars of several workers would overwrite each
other. So of a line that is redrawn the console shows its last state, and every REDRAW_S seconds the newest. Log files
keep the bytes as they came.
"""

from __future__ import annotations

# Bytes. A line that grows beyond is shown in pieces of about this size; it is what one stream may hold in memory.
LINE_LIMIT = 8 * 1024 * 1024
REDRAW_S = 1.0


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
        self._redrawn = b""  # the newest state that is not shown
        self._redraws_since: float | None = None  # or since one was shown

    def feed(self, chunk: bytes, now: float = 0.0) -> bytes:
        """Return the lines that `chunk` completes, each with its prefix; a line beyond the limit in pieces.

        `now`, seconds on any clock, decides whether the newest state of a line that is redrawn is shown already.
        """
        if self._undecided:
            chunk = self._undecided + chunk
            self._undecided = b""
        if b"\r" in chunk:
            if chunk.endswith(b"\r"):
                chunk, self._undecided = chunk[:-1], b"\r"
            chunk = chunk.replace(b"\r\n", b"\n")
        if b"\r" in chunk or (self._redrawn and b"\n" in chunk):
            chunk = self._take_redraws(chunk)
        shown = self._show_redrawn(now) if self._redrawn else b""
        end = chunk.rfind(b"\n")
        if end < 0:
            self._pending.append(chunk)
            self._pending_size += len(chunk)
            if self._pending_size < self._limit:
                return shown
            self.has_cut_line, self._redrawn = True, b""
            return shown + self._release()
        body = chunk[:end]
        if self._pending_size:
            self._pending.append(body)
            body = b"".join(self._pending)
        rest = chunk[end + 1 :]
        self._pending, self._pending_size = [rest], len(rest)
        return b"".join((shown, self._prefix, body.replace(b"\n", self._line_end_and_prefix), b"\n"))

    def finish(self) -> bytes:
        """Return the line that the stream's end truncated, if any, with a line end."""
        if not b"".join(self._pending).strip():  # wiped out, or nothing
            self._pending, self._pending_size = [self._redrawn], len(self._redrawn)
        return self._release() if self._pending_size else b""

    def _take_redraws(self, chunk: bytes) -> bytes:
        """Return what is pending and `chunk`, without states that were drawn over; remember the newest of them."""
        *lines, rest = (b"".join(self._pending) + chunk).split(b"\n")
        self._pending, self._pending_size = [], 0
        for index, line in enumerate(lines):
            if self._redrawn or b"\r" in line:
                before, _, last = line.rpartition(b"\r")
                lines[index], self._redrawn = last or _find_last_state(before) or self._redrawn, b""
        before, _, rest = rest.rpartition(b"\r")
        self._redrawn = _find_last_state(before) or self._redrawn
        return b"\n".join([*lines, rest])

    def _show_redrawn(self, now: float) -> bytes:
        if self._redraws_since is None:
            self._redraws_since = now
        if now - self._redraws_since < REDRAW_S:
            return b""
        shown, self._redrawn, self._redraws_since = self._prefix + self._redrawn + b"\n", b"", now
        return shown

    def _release(self) -> bytes:
        body = b"".join(self._pending)
        self._pending, self._pending_size = [], 0
        return b"".join((self._prefix, body, b"\n"))


def _find_last_state(states: bytes) -> bytes:
    """Return the last of the states, separated by "\\r", that is not blank, or nothing."""
    end = len(states.rstrip())
    return states[states.rfind(b"\r", 0, end) + 1 :].partition(b"\r")[0] if end else b""


def split_last_lines(data: bytes, count: int) -> tuple[str, ...]:
    """Return the last `count` lines of `data`; of a line that was redrawn with "\\r" only its last version."""
    lines = data.decode(errors="replace").replace("\r\n", "\n").rstrip("\r\n").split("\n")[-count:]
    return tuple(line.rstrip("\r").rpartition("\r")[2] for line in lines) if lines != [""] else ()
