"""Text in a picture: its width, how to make it fit, and short numbers.

A picture is drawn without a browser, so the width of a word is estimated from the widest of the usual fonts
(DejaVu Sans, per character): a word that fits here fits everywhere. Names come from users, so characters that are
invisible or change the direction of the text are replaced.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

from launcher.model import ranges

FONTS = "system-ui, -apple-system, Segoe UI, DejaVu Sans, sans-serif"
ELLIPSIS, DASH = "\u2026", "\u2013"
BOLD = 1.13  # bold letters are wider by at most this

# Widths as parts of the font size.
_LETTER_WIDTHS = {
    **dict.fromkeys("ijlI.,:;'|!·", 0.36),
    **dict.fromkeys("frt()[]{}/\\-` ", 0.42),
    **dict.fromkeys("wAVXYBEFGKLPRSTUZ", 0.82),
    **dict.fromkeys("CDHNOQ~+=<>", 0.86),
    **dict.fromkeys("mMW@%&", 1.05),
}
_DEFAULT_WIDTH, _WIDE_WIDTH = 0.66, 1.4


def measure_width(text: str, size: float, is_bold: bool = False) -> float:
    """Return an upper bound of the width of `text`, in the units of the font's `size`."""
    return sum(_measure_letter(letter) for letter in text) * size * (BOLD if is_bold else 1)


def _measure_letter(letter: str) -> float:
    known = _LETTER_WIDTHS.get(letter)
    if known is not None:
        return known
    if letter < "\u0080":
        return _DEFAULT_WIDTH
    if letter < "\u0250" or letter in (ELLIPSIS, DASH):
        return 1.0
    return 0.0 if unicodedata.combining(letter) else _WIDE_WIDTH


def replace_unprintable(name: str) -> str:
    """Replace what cannot be seen: control characters, halves of characters, changes of direction."""
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in name)


def shorten(text: str, room: float, size: float, is_bold: bool = False) -> str:
    """Return `text`, or its beginning and end with an ellipsis between, such that it fits; empty if nothing does.

    Names of nodes mostly differ at the end, so the end keeps the larger part.
    """
    if measure_width(text, size, is_bold) <= room:
        return text
    for kept in range(min(len(text) - 1, int(room / size / 0.3)), 2, -1):
        head = kept // 3
        found = text[:head] + ELLIPSIS + text[len(text) - (kept - head) :]
        if measure_width(found, size, is_bold) <= room:
            return found
    return ""


def wrap(text: str, room: float, size: float, is_bold: bool = False) -> list[str]:
    """Wrap `text` to lines that fit; a single word that does not is shortened."""
    lines: list[str] = []
    for word in text.split():
        longer = f"{lines[-1]} {word}" if lines else ""
        if lines and measure_width(longer, size, is_bold) <= room:
            lines[-1] = longer
        else:
            lines.append(shorten(word, room, size, is_bold))
    return lines


def format_number(number: int | float) -> str:
    """1,008 or 0.25 or 1,234.5: at most two decimals."""
    if isinstance(number, float) and not number.is_integer():
        return f"{number:,.2f}".rstrip("0").rstrip(".") if abs(number) >= 0.01 else f"{number:.1e}"
    return f"{int(number):,}"


def format_ranges(numbers: Iterable[int]) -> str:
    """Format 0 to 7 and 16 as "0-7, 16" with a dash: the numbers, runs of them as their ends."""
    return ranges.format_ranges(sorted(set(numbers))).replace("-", DASH)
