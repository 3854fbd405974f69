"""Colours that distinguish stages and groups, also for colour-blind users.

An axis of the mesh is shown as a hue, another as its shade, from strong to pale. The hues are based on those that
Okabe and Ito proposed, made lighter so that dark text is readable on each of them and on every shade. Six of them
are distinguishable with any colour blindness; later coordinates repeat them, and the number on a cell distinguishes
them. A test checks contrast and distances.
"""

from __future__ import annotations

HUES = ("#62b1e6", "#eba23c", "#35ab84", "#f2e26b", "#d48fbb", "#e5734d", "#b7d989", "#c2c8ce")
PALEST = 0.55
"""The share of white in the palest shade."""


def choose_colour(hue: int, shade: int = 0, shade_count: int = 1) -> str:
    """Return the colour of coordinate `hue` of one axis and coordinate `shade` of `shade_count` of the other."""
    assert 0 <= shade < shade_count
    base = HUES[hue % len(HUES)]
    # In integers, so that every machine writes the same digits.
    white, steps = round(PALEST * 100) * shade, 100 * max(shade_count - 1, 1)
    parts = (int(base[start : start + 2], 16) for start in (1, 3, 5))
    return "#" + "".join(f"{(part * (steps - white) + 255 * white + steps // 2) // steps:02x}" for part in parts)
