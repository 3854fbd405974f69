"""Two pictures of the planner's figures, written as SVG by hand: a plotting library would be a hundred times this.

Quality has a line per family and a dot per instance: how far above the best known cost it lies, in per cent, on a
logarithmic scale whose left end is "none at all". Time goes by the number of nodes, both logarithmic, with the straight
line that a time in proportion to the nodes would follow.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

INK, SOFT, PAPER, LINE = "#1c2733", "#4a5866", "#f4f6f8", "#c9d1d9"
COLORS = ("#1f6feb", "#bf5b00", "#8b949e")
FONT = "system-ui, -apple-system, Segoe UI, DejaVu Sans, sans-serif"
LEAST, MOST = 0.1, 1_000.0  # per cent


def text(x: float, y: float, words: str, anchor: str = "start", size: int = 13, color: str = INK) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{color}" text-anchor="{anchor}">{words}</text>'


def line(x1: float, y1: float, x2: float, y2: float, color: str = LINE, dash: str = "none", width: float = 1) -> str:
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{color}" stroke-width="{width}" '
        f'stroke-dasharray="{dash}"/>'
    )


def dot(x: float, y: float, color: str) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{color}" fill-opacity="0.55"/>'


def page(width: int, height: int, title: str, parts: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" font-family="{FONT}">'
    )
    frame = f'<rect x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="5" fill="{PAPER}" stroke="{LINE}"/>'
    return "\n".join([head, f"<title>{title}</title>", frame, *parts, "</svg>"]) + "\n"


def quality(ratios: Mapping[str, Mapping[str, Sequence[float]]], mean_goal: float, worst_goal: float) -> str:
    """`ratios`: family -> what was laid out ("meshrun", "path order") -> cost over best known, per instance."""
    width, left, right, top, step = 760, 110.0, 720.0, 78.0, 32.0
    bottom = top + step * len(ratios)

    def across(ratio: float) -> float:
        excess = (ratio - 1) * 100
        if excess < 0.999 * LEAST:
            return left + 12
        share = math.log(min(excess, MOST) / LEAST) / math.log(MOST / LEAST)
        return left + 60 + share * (right - left - 60)

    parts = [text(24, 30, "Cost above the best known layout, per instance", size=15)]
    names = list(dict.fromkeys(name for found in ratios.values() for name in found))
    for index, name in enumerate(names):
        x = left + 12 + index * 150
        parts += [dot(x, 52, COLORS[index]), text(x + 10, 57, name, color=SOFT)]
    for mark, words in ((None, "none"), (0.1, "0.1 %"), (1, "1 %"), (10, "10 %"), (100, "100 %"), (1_000, "1,000 %")):
        x = across(1 + mark / 100) if mark else left + 12
        parts += [line(x, top - 12, x, bottom - 10), text(x, bottom + 10, words, "middle", 12, SOFT)]
    for goal, words in ((mean_goal, "aim: mean"), (worst_goal, "aim: worst")):
        x = across(goal)
        label = text(x, bottom + 26, words, "middle", 11, COLORS[0])
        parts += [line(x, top - 12, x, bottom - 10, COLORS[0], "4 3"), label]
    for row, (family, found) in enumerate(ratios.items()):
        y = top + step * row
        parts.append(text(24, y + 5, family))
        for index, name in reversed(list(enumerate(names))):
            parts += [dot(across(each), y + 7 * (index - 1), COLORS[index]) for each in found.get(name, ())]
    return page(width, int(bottom + 40), "Cost of plans above the best known layout, by family", parts)


def times(rows: Sequence[Mapping[str, Any]], goal_s: float) -> str:
    """`rows`: kind, size, and cpu_s with its range, as the table of times has them."""
    width, height, left, right, top, bottom = 760, 380, 90.0, 700.0, 60.0, 320.0
    sizes = sorted({row["size"] for row in rows})
    low = 10 ** math.floor(math.log10(min(row["cpu_s_min"] for row in rows)))
    high = max(2.0, 2 * max(row["cpu_s_max"] for row in rows))

    def across(size: float) -> float:
        return left + math.log(size / sizes[0]) / math.log(sizes[-1] / sizes[0]) * (right - left)

    def up(seconds: float) -> float:
        return bottom - math.log(seconds / low) / math.log(high / low) * (bottom - top)

    parts = [text(24, 30, "CPU seconds from the text of a cluster file to its plan", size=15)]
    tick = low
    while tick <= high:
        parts += [line(left, up(tick), right, up(tick)), text(left - 8, up(tick) + 4, f"{tick:g} s", "end", 12, SOFT)]
        tick *= 10
    for size in sizes:
        parts += [
            line(across(size), top, across(size), bottom),
            text(across(size), bottom + 18, f"{size:,} nodes", "middle", 12, SOFT),
            text(across(size), bottom + 34, f"{size * 8:,} ranks", "middle", 11, SOFT),
        ]
    parts += [line(across(sizes[-1]) - 24, up(goal_s), across(sizes[-1]) + 24, up(goal_s), COLORS[0], "4 3", 2)]
    parts.append(text(across(sizes[-1]) - 28, up(goal_s) - 4, f"aim: {goal_s:g} s", "end", 12, COLORS[0]))
    for index, kind in enumerate(dict.fromkeys(row["kind"] for row in rows)):
        own = sorted((row for row in rows if row["kind"] == kind), key=lambda row: row["size"])
        for one, other in itertools.pairwise(own):
            ends = across(one["size"]), up(one["cpu_s"]), across(other["size"]), up(other["cpu_s"])
            parts.append(line(*ends, COLORS[index], width=2))
        for row in own:
            x = across(row["size"])
            parts += [dot(x, up(row["cpu_s"]), COLORS[index])]
            parts.append(line(x, up(row["cpu_s_min"]), x, up(row["cpu_s_max"]), COLORS[index], width=2))
        parts += [dot(left + 24 + 180 * index, 48, COLORS[index]), text(left + 34 + 180 * index, 53, kind, color=SOFT)]
    # In proportion to the nodes, from the second largest size on.
    if len(sizes) > 1:
        start = min(row["cpu_s"] for row in rows if row["size"] == sizes[-2])
        end = start * sizes[-1] / sizes[-2]
        ends = across(sizes[-2]), up(start), across(sizes[-1]), up(min(end, high))
        parts.append(line(*ends, SOFT, "2 4"))
    return page(width, height, "CPU time of the planner by number of nodes", parts)
