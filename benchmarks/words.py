"""Figures as a person reads them: no more digits than the spread of the samples allows, and a unit near their size.

A median whose samples lie within a tenth of it has three digits, any other two: what changes from run to run is no
figure. One digit more is given where rounding would hide whether an aim is reached.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

from benchmarks.figures import Aim
from benchmarks.runs import NEVER, Spread

SHOWN = {"1/s": "per s"}  # units that are written otherwise
UNIT = re.compile(r"(?<=\d) (?=(?:s|ms|MiB|[kM]?B(?:/s)?|per s|million/s)\b)")
NOT_MEASURED = "Not measured yet."
STEADY = 0.1  # a range of at most this share of the median


def number(value: float, digits: int) -> str:
    """So many significant digits, thousands apart: 0.18, 17.1, 1,230."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else "never"
    return _rounded(value, _places(value, digits))


def quantity(value: float, unit: str, digits: int) -> str:
    """The same with its unit: seconds below a tenth in ms, large rates and bytes in millions."""
    if unit == "s" and 0 < abs(value) < 0.0995:
        return f"{number(value * 1000, digits)} ms"
    scale = _scale(value, unit)
    if scale > 1:
        words = f"million{unit[1:]}" if unit == "1/s" else f"{'M' if scale > 1e3 else 'k'}{unit}"
        return f"{number(value / scale, digits)} {words}"
    if unit == "" and float(value).is_integer():
        return f"{value:,.0f}"
    return f"{number(value, digits)} {SHOWN.get(unit, unit)}".rstrip()


def digits(found: Spread) -> int:
    """How many digits of its median mean anything."""
    if found.median in (0, NEVER):
        return 2
    return 3 if found.samples > 1 and found.most - found.least <= STEADY * abs(found.median) else 2


def median(found: Spread | None, unit: str) -> str:
    """The median with its unit; empty for no samples; `not within 12 s, 5 runs` where most were late."""
    if found is None:
        return ""
    if found.median == NEVER:
        runs = f"{found.late}" if found.late == found.samples else f"{found.late} of {found.samples}"
        return f"not within {found.watched_s:g} s, {runs} run{'s' * (found.samples > 1)}"
    return quantity(found.median, unit, digits(found))


def with_range(found: Spread | None, unit: str) -> str:
    """Median, range and number of samples: `0.24 s (0.19 to 0.29; 3)`."""
    if found is None or found.median == NEVER:
        return median(found, unit)
    if found.samples < 2:
        return f"{median(found, unit)} (1)"
    scale = _scale(found.median, unit)
    places = _places(found.median / scale, digits(found))
    ends = [_rounded(each / scale, places) if each < NEVER else f"more than {found.watched_s:g}" for each in found[1:3]]
    return f"{median(found, unit)} ({ends[0]} to {ends[1]}; {found.samples})"


def ratio(found: Spread | None, aim: Aim | None = None) -> str:
    """Median, range and number of pairs: `0.124 (0.079 to 0.159; 7)`."""
    if found is None:
        return ""
    many = digits(found)
    while aim is not None and aim.ratio is not None and many < 5:
        if aim.is_reached(float(number(found.median, many).replace(",", ""))) == aim.is_reached(found.median):
            break
        many += 1
    middle = number(found.median, many)
    if found.samples < 2:
        return f"{middle} (1)"
    places = _places(found.median, many)
    return f"{middle} ({_rounded(found.least, places)} to {_rounded(found.most, places)}; {found.samples})"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown, in whose cells no number parts from its unit; a sentence where it has no rows."""
    rows = list(rows)
    if not rows:
        return NOT_MEASURED
    lines = [f"| {' | '.join(line)} |" for line in (heads, ["---"] * len(heads), *rows)]
    return UNIT.sub("\N{NO-BREAK SPACE}", "\n".join(lines))


def join(words: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def round_up(value: float) -> float:
    """To two digits, so that what is less than `value` is less than what is shown."""
    places = _places(value, 2)
    return math.ceil(round(value * 10**places, 6)) / 10**places


def _places(value: float, digits: int) -> int:
    """Behind the point, for so many significant digits; less than none for large values."""
    return 0 if value == 0 else digits - 1 - math.floor(math.log10(abs(value)))


def _rounded(value: float, places: int) -> str:
    return f"{round(value, places):,.{max(0, places)}f}"


def _scale(value: float, unit: str) -> float:
    """What the unit that is shown for `value` has of `unit`."""
    if unit == "s":
        return 0.001 if 0 < abs(value) < 0.0995 else 1
    if unit == "1/s":
        return 1e6 if abs(value) >= 1e5 else 1
    if unit in ("B", "B/s"):
        return 1e6 if abs(value) >= 0.995e6 else 1e3 if abs(value) >= 995 else 1
    return 1
