"""Aligns cells in columns, for a terminal or a log: two blanks between columns, none at a line's end.

Columns are as wide as needed, and the least important are left out first.
Letters of East Asian scripts take two columns of a terminal, combining ones none.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Container, Sequence

from msgspec import Struct
from msgspec.structs import replace

from launcher.model.console import escape, format_local_time

GAP = "  "


def measure_width(text: str) -> int:
    """Return how many columns of a terminal the text takes."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(letter) else 2 if unicodedata.east_asian_width(letter) in "FW" else 1
        for letter in text
    )


def align(rows: Sequence[Sequence[str]], right: Container[int] = (), gap: str = GAP) -> list[str]:
    """Return a line per row, each column as wide as its widest cell; all rows have equally many cells.

    `right`: the numbers of the columns whose cells stand at the right, as numbers do. `gap`: between columns.
    """
    widths = [max(map(measure_width, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = enumerate(zip(row, widths, strict=True))
        lines.append(gap.join(pad(cell, width, is_right=index in right) for index, (cell, width) in cells).rstrip())
    return lines


def pad(text: str, width: int, *, is_right: bool = False) -> str:
    """Return the text with as many blanks behind or before it as make it `width` columns wide; a wider one as it is."""
    blanks = " " * (width - measure_width(text))
    return blanks + text if is_right else text + blanks


def format_clock(at: float, now: float) -> str:
    """Format seconds since 1970 as local time: 08:05:00, with the date in front if it was not in the last 12 hours.

    A time may be foreign input: one that no calendar has is a question mark.
    """
    day, _, clock = format_local_time(at).partition("T")
    if not clock:
        return "?"
    return f"{day} {clock}" if abs(now - at) > 12 * 3600 else clock


def truncate(text: str, most: int) -> str:
    """Return the text without what controls a terminal, and of one of more than `most` letters the beginning."""
    text = escape(text)
    return text if len(text) <= most else f"{text[: most - 3]}..."


class Column(Struct, frozen=True):
    """A column of a table that fits a terminal."""

    header: str
    cells: tuple[str, ...]
    priority: int = 0
    """The higher, the sooner it is left out; 0 never."""
    is_right: bool = False
    """Aligned to the right, as numbers are."""
    most: int = 40
    """Letters of a cell."""


def format_table(columns: Sequence[Column], width: int = 0) -> str:
    """Format columns with equally many cells as lines, without a newline at the end.

    Empty columns are left out, then the least important until the rest fits `width` letters (0: no limit). What
    controls a terminal is escaped, and long cells are cut.
    """
    shown = (column for column in columns if not column.priority or any(cell not in ("", "-") for cell in column.cells))
    kept = [replace(column, cells=tuple(truncate(cell, column.most) for cell in column.cells)) for column in shown]
    while width and _measure(kept) > width and any(column.priority for column in kept):
        kept.remove(max(reversed(kept), key=lambda column: column.priority))
    rows = [*zip(*((column.header, *column.cells) for column in kept), strict=True)]
    return "\n".join(align(rows, right=[index for index, column in enumerate(kept) if column.is_right]))


def _measure(columns: Sequence[Column]) -> int:
    widths = (max(map(measure_width, (column.header, *column.cells))) for column in columns)
    return sum(widths) + len(GAP) * (len(columns) - 1)
