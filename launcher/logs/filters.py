"""Lines that somebody looks for, of all workers, in one file: --duplicate-stdout-filters and its twin for stderr.

As with torchrun 2.13 what is looked through is what the console shows, so a stream has to be teed for it and not be
silenced by --local-ranks-filter; a line is copied with its prefix, which says whose it is; and one file lies beside
the directories of the workers in every round. The thread that writes the console writes here too, line by line, so
none is torn.
"""

from __future__ import annotations

from collections.abc import Sequence

from launcher.logs.sinks import LogFile


class LineFilter:
    """Copies lines that hold one of `texts` to `file`. Used in the output thread, but for `share`."""

    def __init__(self, texts: Sequence[str], file: LogFile) -> None:
        self._texts = [text.encode(errors="surrogateescape") for text in texts]
        self._file = file
        self._stream_count = 0

    def add_stream(self) -> None:
        """One more stream is looked through."""
        self._stream_count += 1

    def take(self, lines: bytes, prefix_size: int) -> None:
        """Look through whole lines, each behind a prefix of so many bytes, in which nothing is looked for."""
        if not any(text in lines for text in self._texts):
            return
        found = [
            line for line in lines.split(b"\n")[:-1] if any(line.find(text, prefix_size) >= 0 for text in self._texts)
        ]
        if found:
            self._file.write(memoryview(b"\n".join((*found, b""))))

    def remove_stream(self) -> None:
        """One of the streams has ended. Its file is closed with the last; what comes later opens it again."""
        self._stream_count -= 1
        if self._stream_count <= 0:
            self._file.close()
