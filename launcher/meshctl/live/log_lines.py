"""Merges the lines of many workers into one stream: equal lines of several ranks once, with the ranks in front.

Workers that do the same print the same, at slightly different times, with lines of their own in between. The lines of
a file keep their order. A line waits a moment for other ranks to come to the same line; then it is shown with those
that have. It also waits while another rank still has the same line further behind in what has been read, so that a line
of one rank does not tear apart what the others have in common.

No line is lost or shown twice, whatever the order in which pages arrive. Nothing here reads a clock.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence

from msgspec import Struct

from launcher.model.console import escape
from launcher.model.ranges import format_ranges

HOLD_S = 0.5
"""How long a line waits for other ranks."""
LINES_MAX = 20_000
"""Lines that wait; beyond it the oldest go out as they are."""
UNFINISHED_MAX = 1 << 20
"""Characters of a line without an end; beyond it, it is shown in parts."""


class OutputFile(Struct, frozen=True, order=True):
    """Whose output a file has."""

    round: int
    rank: int
    node: str
    """A member id."""
    stream: str
    file: str


class MergedLine(Struct, frozen=True, kw_only=True):
    """A line of one or several ranks."""

    ranks: tuple[int, ...]
    round: int
    stream: str
    text: str
    """As the worker wrote it, without its end."""


_Key = tuple[int, str, str]  # round, stream, text: what makes lines equal


class _Waiting(Struct):
    """The lines of one file that are not shown yet, each with the time of its arrival, and a line without its end."""

    lines: deque[tuple[_Key, float]]
    unfinished: list[str]
    unfinished_size: int = 0
    unfinished_at: float = 0.0


class LineMerger:
    """Takes pieces of files, and returns merged lines. Times are of any one clock, in seconds."""

    def __init__(self, lines_max: int = LINES_MAX) -> None:
        self._lines_max = lines_max
        self._files: dict[OutputFile, _Waiting] = {}
        self._pending: dict[_Key, Counter[OutputFile]] = {}  # how often each file has it waiting
        self.line_count = 0
        """Lines that wait."""
        self._file_counts: Counter[tuple[int, str]] = Counter()  # by round and stream
        self._newest_round = 0

    def add(self, file: OutputFile, data: str, now: float) -> None:
        """Take the next piece of a file; it may begin and end within a line."""
        waiting = self._files.get(file)
        if waiting is None:
            if file.round > self._newest_round:
                self._newest_round = file.round
                self._forget_before(file.round)
            waiting = self._files[file] = _Waiting(lines=deque(), unfinished=[])
            self._file_counts[file.round, file.stream] += 1
        *whole, rest = data.split("\n")
        for line in whole:
            waiting.unfinished.append(line)
            self._end_line(file, waiting, now)
        if rest:
            waiting.unfinished.append(rest)
            waiting.unfinished_size += len(rest)
            waiting.unfinished_at = now
            if waiting.unfinished_size > UNFINISHED_MAX:
                self._end_line(file, waiting, now)

    def take(self, now: float, *, is_final: bool = False) -> Iterator[MergedLine]:
        """Yield the lines that need not wait any longer; all with `is_final`."""
        for file, waiting in self._files.items():
            if waiting.unfinished and (is_final or now - waiting.unfinished_at >= 4 * HOLD_S):
                self._end_line(file, waiting, now)
        while self.line_count:
            groups = self._group_heads()
            has_shown = False
            for key, files in groups.items():
                # Another file may have the same line behind others, so those go first.
                is_common = len(files) == len(self._pending[key])
                if is_common and (is_final or self._is_due(key, files, now)):
                    has_shown = True
                    yield self._show(key, files)
            if has_shown:
                continue
            # Files that have the same lines in another order wait for each other, or all lines still wait for time.
            key, files = min(groups.items(), key=lambda one: (self._get_age(one[1]), one[1][0]))
            if not (is_final or self._is_due(key, files, now)):
                return
            yield self._show(key, files)

    def _end_line(self, file: OutputFile, waiting: _Waiting, now: float) -> None:
        key = (file.round, file.stream, "".join(waiting.unfinished))
        waiting.unfinished, waiting.unfinished_size = [], 0
        waiting.lines.append((key, now))
        self._pending.setdefault(key, Counter())[file] += 1
        self.line_count += 1

    def _group_heads(self) -> dict[_Key, list[OutputFile]]:
        """Group the files by their next lines: those of the oldest round that has any, since later ones follow it."""
        groups: dict[_Key, list[OutputFile]] = {}
        files = sorted(file for file, waiting in self._files.items() if waiting.lines)
        for file in files:
            if file.round > files[0].round:
                break
            groups.setdefault(self._files[file].lines[0][0], []).append(file)
        return groups

    def _is_due(self, key: _Key, files: Sequence[OutputFile], now: float) -> bool:
        if self.line_count > self._lines_max:
            return True
        return len(files) == self._file_counts[key[:2]] or now - self._get_age(files) >= HOLD_S

    def _forget_before(self, round: int) -> None:
        """Forget files of earlier rounds of which nothing waits."""
        for file, waiting in list(self._files.items()):
            if file.round < round and not waiting.lines and not waiting.unfinished:
                del self._files[file]
                self._file_counts[file.round, file.stream] -= 1

    def _get_age(self, files: Sequence[OutputFile]) -> float:
        return min(self._files[file].lines[0][1] for file in files)

    def _show(self, key: _Key, files: Sequence[OutputFile]) -> MergedLine:
        pending = self._pending[key]
        for file in files:
            self._files[file].lines.popleft()
            pending[file] -= 1
            if not pending[file]:
                del pending[file]
        if not pending:
            del self._pending[key]
        self.line_count -= len(files)
        return MergedLine(ranks=tuple(sorted(file.rank for file in files)), round=key[0], stream=key[1], text=key[2])


def format_line(line: MergedLine) -> str:
    """Format "[0-2,7] text"; what controls a terminal is escaped.

    A progress bar rewrites its line with carriage returns: its last state is shown, as a terminal would.
    """
    text = line.text.rstrip("\r")
    if "\r" in text:
        text = text[text.rindex("\r") + 1 :]
    return f"[{format_ranges(line.ranks).replace(', ', ',')}] {escape(text)}"
