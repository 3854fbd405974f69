"""Formats tables and small quantities for a terminal: columns as wide as needed, the least important left out first."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from launcher.meshctl.table import GAP, align, measure_width
from launcher.model.console import escape


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

    @property
    def width(self) -> int:
        return max(map(measure_width, (self.header, *self.cells)))


def fit_columns(columns: Sequence[Column], width: int) -> list[Column]:
    """Leave out empty columns, then the least important until the rest fits `width` letters (0: no limit).

    What controls a terminal is escaped, and long cells are cut.
    """
    shown = (column for column in columns if not column.priority or any(cell not in ("", "-") for cell in column.cells))
    kept = [_clean(column) for column in shown]
    while width and _measure(kept) > width and any(column.priority for column in kept):
        kept.remove(max(reversed(kept), key=lambda column: column.priority))
    return kept


def format_table(columns: Sequence[Column], width: int = 0) -> str:
    """Format columns with equally many cells as lines, without a newline at the end."""
    kept = fit_columns(columns, width)
    rows = [*zip(*((column.header, *column.cells) for column in kept), strict=True)]
    return "\n".join(align(rows, right=[index for index, column in enumerate(kept) if column.is_right]))


def format_size(count: int) -> str:
    """ "64M", "1.0G", "-" for less than nothing; powers of 1024."""
    if count < 0:
        return "-"
    size = float(count)
    for unit in ("", "K", "M", "G", "T"):
        if size < 1000:
            return f"{size:.0f}{unit}" if size >= 10 or not unit else f"{size:.1f}{unit}"
        size /= 1024
    return f"{size:.0f}P"


def format_age(seconds: float) -> str:
    """ "4s", "3m05s", "2h40m", "3d04h", "-" for less than nothing."""
    if seconds < 0:
        return "-"
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    for unit, small, size, part in (("d", "h", 86400, 3600), ("h", "m", 3600, 60)):
        if whole >= size:
            return f"{whole // size}{unit}{whole % size // part:02d}{small}"
    return f"{whole // 60}m{whole % 60:02d}s"


def _measure(columns: Sequence[Column]) -> int:
    return sum(column.width for column in columns) + len(GAP) * (len(columns) - 1)


def _clean(column: Column) -> Column:
    cells = (cell if len(cell) <= column.most else f"{cell[: column.most - 3]}..." for cell in column.cells)
    return replace(column, cells=tuple(map(escape, cells)))
