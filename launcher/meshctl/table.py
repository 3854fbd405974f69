"""Aligns cells in columns, for a terminal or a log: two blanks between columns, none at a line's end.

Letters of East Asian scripts take two columns of a terminal, combining ones none.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Container, Sequence

from launcher.model.console import format_local_time

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
