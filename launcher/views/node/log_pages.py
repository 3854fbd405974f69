"""Pages of the workers' output, each line exactly once, however often a request is repeated.

The files are only appended to, and a cursor is a file's name and an offset in it, so the reader of the pages holds all
state. A page ends with a whole line, if it holds one; of a longer line, or of a worker that has ended without one, it
takes what there is. The name of a file comes from outside and is only looked up among those that the workers write.
"""

from __future__ import annotations

import codecs
import os
from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import BinaryIO

from msgspec import Struct

from launcher.model.ranges import format_ranges
from launcher.model.text import format_list
from launcher.views.requests import PAGE_BYTES_MAX, LogChunk, LogCursor, LogPage, ReadLogs

TAIL_BYTES_MAX = 1 << 20
"""How far back from a file's end lines are counted."""
TAIL_LINES_MAX = 10_000
SHARE_MIN = 1024
"""Of a page, in bytes, for each file: of hundreds of them, a page may become a little longer."""
_BLOCK = 64 * 1024
_NO_FILES = "the workers' output is not kept here: set --log-dir DIRECTORY with --redirects 3 or --tee 3 to keep it"


class LogSource(Struct, frozen=True, kw_only=True):
    """A file that a worker writes, or the end of a stream that the agent has passed on."""

    name: str
    """Within the job's log directory."""
    path: str = ""
    rank: int
    stream: str
    round: int
    ring: tuple[int, bytes] | None = None
    """Without a file: how many bytes there were, and the last of them."""

    @property
    def first(self) -> int:
        """The offset of the first byte that is kept."""
        return 0 if self.ring is None else self.ring[0] - len(self.ring[1])

    def open(self) -> BinaryIO:
        """Open what is kept; its position 0 is at `first`. Raises OSError."""
        return open(self.path, "rb") if self.ring is None else BytesIO(self.ring[1])


def read_page(
    sources: Sequence[LogSource], request: ReadLogs, live_round: int, page_bytes: int = PAGE_BYTES_MAX
) -> LogPage:
    """Read the next page of those files that the request is about. `live_round`: that runs, 0 for none."""
    chosen = choose_sources(sources, request)
    if not chosen:
        return LogPage(chunks=(), cursors=(), remark=_describe_absence(sources, request, live_round))
    known = {cursor.file: cursor.offset for cursor in request.cursors}
    sizes = {source.name: _get_size(source) for source in chosen}
    truncated = [source for source in chosen if 0 <= sizes[source.name] < known.get(source.name, 0)]
    known |= {source.name: 0 for source in truncated}
    offsets = {
        source.name: max(source.first, known[source.name])
        if source.name in known
        else find_tail(source, request.tail_lines)
        for source in chosen
    }
    newest = max(source.round for source in chosen)
    shares = divide_page({name: size - offsets[name] for name, size in sizes.items()}, page_bytes)
    chunks, cursors, is_last = [], [], True
    for source in chosen:
        offset = offsets[source.name]
        is_final = source.round != live_round
        data, has_more = _read_lines(source, offset, shares[source.name], is_final=is_final)
        if data:
            chunks.append(
                LogChunk(
                    file=source.name,
                    rank=source.rank,
                    stream=source.stream,
                    round=source.round,
                    offset=offset,
                    data=data.decode(errors="replace"),
                )
            )
        elif is_final and not has_more and source.round < newest - 1:
            continue  # of long ago, read to its end: without a cursor it is not read again
        is_last = is_last and not has_more
        cursors.append(LogCursor(source.name, offset + len(data)))
    remark = ""
    if any(known.get(source.name, source.first) < source.first for source in chosen):
        remark = "of a stream without a file the agent keeps the last lines, and some were gone before they were read"
    if truncated:
        whose = format_list([f"{one.stream} of rank {one.rank}" for one in truncated], 4)
        remark = f"the log of {whose} was truncated; it is read from its beginning"
    return LogPage(chunks=tuple(chunks), cursors=tuple(cursors), is_last=is_last, remark=remark)


def _describe_absence(sources: Sequence[LogSource], request: ReadLogs, live_round: int) -> str:
    """Describe why no file is what was asked for."""
    if not sources:
        return _NO_FILES if live_round else "no worker is running here, and there is no output of earlier ones"
    rounds = sorted({source.round for source in sources})
    of_round = [source for source in sources if source.round == (request.round or rounds[-1])]
    if not of_round:
        return f"round {request.round} has no output here; rounds with output: {format_ranges(rounds)}"
    if request.stream not in ("both", *(source.stream for source in of_round)):
        return f"{request.stream} is not kept here: set --redirects 3 or --tee 3 to keep both"
    return f"rank {request.rank} has no output here"


def choose_sources(sources: Sequence[LogSource], request: ReadLogs) -> list[LogSource]:
    """Choose the files of the round, rank and streams that are asked for.

    Of the newest round, that is also those of a cursor, and of rounds that have begun since.
    """
    known = {cursor.file for cursor in request.cursors}
    newest = max((source.round for source in sources), default=0)
    newest_known = max((source.round for source in sources if source.name in known), default=newest)
    return [
        source
        for source in sources
        if (
            source.round == request.round
            if request.round
            else source.round == newest or source.name in known or source.round > newest_known
        )
        and request.rank in (-1, source.rank)
        and request.stream in ("both", source.stream)
    ]


def divide_page(waiting: Mapping[str, int], page_bytes: int = PAGE_BYTES_MAX) -> dict[str, int]:
    """Divide a page among files by what waits in each, in bytes: what one does not need is left to the others."""
    shares, left = {}, page_bytes
    for index, (name, size) in enumerate(sorted(waiting.items(), key=lambda one: one[1])):
        fair = left // (len(waiting) - index)
        shares[name] = max(SHARE_MIN, min(fair, size))
        left = max(0, left - max(0, min(fair, size)))
    return shares


def find_tail(source: LogSource, line_count: int) -> int:
    """Return where the last lines of a file begin; its beginning with a negative number."""
    if line_count < 0:
        return source.first
    wanted = min(line_count, TAIL_LINES_MAX)
    try:
        with source.open() as file:
            size = file.seek(0, os.SEEK_END)
            start, found = size, b""
            while start > 0 and size - start < TAIL_BYTES_MAX and found.count(b"\n") <= wanted:
                step = min(_BLOCK, start)
                start -= step
                file.seek(start)
                found = file.read(step) + found
    except OSError:
        return 0
    body = found[:-1] if found.endswith(b"\n") else found
    at = len(body)
    for _ in range(wanted):
        at = body.rfind(b"\n", 0, at)
        if at < 0:
            return source.first + start
    return source.first + (start + at + 1 if wanted else size)


def _get_size(source: LogSource) -> int:
    """Return the bytes of a file, -1 if they are not known."""
    if source.ring is not None:
        return source.ring[0]
    try:
        return os.stat(source.path).st_size
    except OSError:
        return -1


def _read_lines(source: LogSource, offset: int, size: int, *, is_final: bool) -> tuple[bytes, bool]:
    """Read whole lines; whether there is more now. `is_final`: nobody writes to it any more."""
    try:
        with source.open() as file:
            file.seek(max(0, offset - source.first))
            data = file.read(size + 1)
    except (OSError, ValueError, OverflowError):
        return b"", False
    has_more, data = len(data) > size, data[:size]
    end = data.rfind(b"\n") + 1
    if end:
        return data[:end], has_more or (is_final and end < len(data))
    if not (has_more or is_final):
        return b"", False  # the line is still being written
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(data)
    begun = len(decoder.getstate()[0])  # bytes of a character of which the last are not there yet
    return data[: len(data) - begun] or data, has_more
