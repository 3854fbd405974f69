"""Collects matching lines of all workers in one file: --duplicate-stdout-filters and its counterpart for stderr.

As with torchrun 2.13 the input is what the console shows, so a stream has to be teed for it and not be silenced by
--local-ranks-filter; a line is copied with its prefix, which names the worker; and one file lies beside the workers'
directories in every round. The thread that writes the console writes here too, line by line, so no line is split.
"""

from __future__ import annotations

from collections.abc import Sequence

from launcher.logs.sinks import LogFile


class LineFilter:
    """Copies lines that contain one of `texts` to `file`. Used in the output thread, except for `add_stream`."""

    def __init__(self, texts: Sequence[str], file: LogFile) -> None:
        self._texts = [text.encode(errors="surrogateescape") for text in texts]
        self._file = file
        self._stream_count = 0

    def add_stream(self) -> None:
        """Count one more input stream."""
        self._stream_count += 1

    def take(self, lines: bytes, prefix_size: int) -> None:
        """Search whole lines, each after a prefix of `prefix_size` bytes, which is not searched."""
        if not any(text in lines for text in self._texts):
            return
        found = [
            line for line in lines.split(b"\n")[:-1] if any(line.find(text, prefix_size) >= 0 for text in self._texts)
        ]
        if found:
            self._file.write(memoryview(b"\n".join((*found, b""))))

    def remove_stream(self) -> None:
        """Count one stream less. The file is closed with the last; a later line opens it again."""
        self._stream_count -= 1
        if self._stream_count <= 0:
            self._file.close()
