"""Formats numbers, lists and labelled lines for reading."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fractions import Fraction

WIDTH = 80
"""Of a terminal, in letters."""
NAMES_MAX = 8

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")


def format_bytes(count: float) -> str:
    """ "64 MiB", "1.5 GiB" """
    count = max(0.0, count)
    for unit in _UNITS:
        if count < 1024 or unit == _UNITS[-1]:
            break
        count /= 1024
    return f"{format_number(count)} {unit}"


def format_number(count: float) -> str:
    """ "8", "1.5", "20,000" """
    if count >= 100 or count == int(count):
        return f"{round(count):,}"
    return f"{count:.1f}".removesuffix(".0")


def format_amount(value: Fraction | int | float) -> str:
    """1,008; 2.5; 1,397,981.3: one decimal is enough where there are thousands."""
    if value == int(value):
        return f"{int(value):,}"
    return f"{float(value):,.1f}" if value >= 100 else f"{float(value):.4g}"


def format_seconds(seconds: float) -> str:
    """ "0.68 s", "12.3 ms", "4 µs", "1,240 s" """
    for unit, factor in (("µs", 1e6), ("ms", 1e3)):
        if 0 < seconds * factor < 100:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds:.3g} s" if seconds < 999.5 else f"{seconds:,.0f} s"


def format_count(count: int, noun: str) -> str:
    """1 node, 2 nodes, 16,384 nodes."""
    return f"1 {noun}" if count == 1 else f"{count:,} {noun}s"


def format_list(names: Sequence[str], most: int = NAMES_MAX) -> str:
    """Format the names, the first few of many, with their number then."""
    if len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[:most])} and {len(names) - most:,} more"


def hash_words(*words: str) -> str:
    """Return 16 hexadecimal digits that stand for these words, on every machine."""
    import hashlib
    import json

    return hashlib.sha256(json.dumps(words).encode()).hexdigest()[:16]


def format_duration(seconds: float) -> str:
    """0.4 s, 12 s, 3 min 5 s, 2 h 40 min, 3 d 4 h."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for unit, small, size, part in (("d", "h", 86400, 3600), ("h", "min", 3600, 60), ("min", "s", 60, 1)):
        if whole >= size:
            rest = whole % size // part
            return f"{whole // size} {unit}" + (f" {rest} {small}" if rest else "")
    return f"{whole} s"


def wrap(text: str, first: str = "", rest: str | None = None) -> list[str]:
    """Wrap the text to 80 columns, where no longer word is split: it can be copied.

    `first`, `rest`: what the first line begins with, and the others, by default with the same.
    """
    wrapper = textwrap.TextWrapper(
        WIDTH,
        initial_indent=first,
        subsequent_indent=first if rest is None else rest,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return wrapper.wrap(text) or [first]


def wrap_labelled(label: str, text: str, label_width: int, indent: int = 0) -> str:
    """Format a label, and the text beside it, wrapped to as many lines as necessary."""
    start, margin = f"{label:<{label_width - 1}} ", " " * (label_width + indent)
    lines = textwrap.fill(text, WIDTH, initial_indent=start, subsequent_indent=margin, break_on_hyphens=False)
    return lines + "\n"
