"""Formats many names or numbers as ranges: 0-7, 12; h1-h31, h40.

Names count as a range when they differ only in the number at their end, written with the same number of digits or
without zeros in front.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_DIGITS_MAX = 18  # a longer one is no counter
_NO_NUMBER = -2  # next to nothing


def format_ranges(values: Sequence[int]) -> str:
    """Format consecutive numbers as ranges, in the given order: [0, 1, 2, 7] is "0-2, 7"."""
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in _find_runs(values))


def merge_names(values: Iterable[str]) -> list[str]:
    """Merge names with consecutive numbers to ranges, sorted by number: h1, h2, h3, a are ["a", "h1-h3"]."""
    parts = [_split_number(name) for name in sorted(set(values))]
    padded = {(stem, len(digits)) for stem, digits in parts if digits.startswith("0") and len(digits) > 1}
    families: dict[tuple[str, int], list[int]] = {}
    for stem, digits in parts:
        width = len(digits) if (stem, len(digits)) in padded else 0
        families.setdefault((stem, width), []).append(int(digits) if digits else _NO_NUMBER)
    found = []
    for (stem, width), members in sorted(families.items()):
        for first, last in _find_runs(sorted(members)):
            ends = [f"{stem}{number:0{width}}" if number >= 0 else stem for number in (first, last)]
            to = " to " if "-" in stem else "-"
            found.append(ends[0] if first == last else to.join(ends))
    return found


def _split_number(name: str) -> tuple[str, str]:
    stem = name.rstrip("0123456789")
    digits = name[len(stem) :]
    return (stem, digits) if len(digits) <= _DIGITS_MAX else (name, "")


def _find_runs(values: Sequence[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for value in values:
        if runs and value == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], value)
        else:
            runs.append((value, value))
    return runs
