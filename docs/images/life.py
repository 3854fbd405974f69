"""Draws life.svg: how a membership lives, and how a round lives on a node, from the tables in rendezvous/state/life.py.

A column is a phase, a row a transition: dots where it may begin, an arrow to the phase after it. Like idea.svg it
brings its own background. Run `python docs/images/life.py` after a change; a test compares file and drawing.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

from docs.images.idea import CARD, INK, LINE, PAPER, REPLICAS, SOFT, box, element, svg, text, wire
from rendezvous.state.life import MEMBERSHIP, ROUND, Life

WIDTH, LEFT, COLUMN, ROW, HEAD = 900, 62, 80, 36, 74
WORDS = 524  # where the words of a row begin


def list_phases(life: Life) -> list[str]:
    """The phases: those that a transition leaves, in the order of the table, then the others."""
    befores = [before for before, _ in life]
    return list(dict.fromkeys([*befores, *(after.phase for after in life.values())]))


def list_rows(life: Life) -> list[tuple[list[tuple[str, str]], str, str]]:
    """Transitions with the same event and action in one: (phase, phase after it) of each, the event, the action."""
    rows: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for (before, event), after in life.items():
        rows.setdefault((event, after.action), []).append((before, after.phase))
    return [(steps, *words) for words, steps in rows.items()]


def draw_step(start: float, end: float, y: float) -> list[str]:
    """A dot where it begins and an arrow to its end; a ring where the phase stays."""
    if start == end:
        return [element("circle", cx=end, cy=y, r=6, fill=PAPER, stroke=REPLICAS[0], stroke_width=2)]
    side = 1 if start > end else -1
    path = f"M{start:g} {y:g}H{end + 7 * side:g}m{6 * side:g} -4l{-6 * side:g} 4l{6 * side:g} 4"
    return [wire(path, colour=REPLICAS[0]), element("circle", cx=start, cy=y, r=4, fill=REPLICAS[0])]


def draw_life(life: Life, title: str, top: float) -> tuple[list[str], float]:
    """One table, and where it ends."""
    phases = list_phases(life)
    x = {phase: LEFT + COLUMN * index for index, phase in enumerate(phases)}
    rows = list_rows(life)
    bottom = top + HEAD + ROW * len(rows)
    parts = [text(20, top + 22, title, size=15, weight="700", anchor="start")]
    for phase in phases:
        parts.append(wire(f"M{x[phase]:g} {top + HEAD - 14:g}V{bottom - 10:g}", dashes="2 3"))
        parts.append(box(x[phase] - 35, top + 36, 70, 24, fill=CARD))
        parts.append(text(x[phase], top + 52.5, phase, weight="600", colour=INK))
    for index, (steps, event, action) in enumerate(rows):
        y = top + HEAD + ROW * index + 10
        for before, after in steps:
            parts += draw_step(x[before], x[after], y)
        parts.append(text(WORDS, y - 2, event, weight="600", anchor="start"))
        parts.append(text(WORDS, y + 13, action, size=12, colour=SOFT, anchor="start"))
    return parts, bottom


def picture() -> str:
    """The whole SVG file."""
    first, middle = draw_life(MEMBERSHIP, "A membership", 14)
    second, bottom = draw_life(ROUND, "A round on one node", middle + 6)
    height = bottom + 10
    title = "Phases of a membership and of a round on a node, and the events that change them"
    return svg(WIDTH, height, title, [wire(f"M20 {middle:g}H{WIDTH - 20}", colour=LINE), *first, *second])


if __name__ == "__main__":
    Path(__file__).with_name("life.svg").write_text(picture())
