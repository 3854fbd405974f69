"""Draws round.svg: how one round ends and the next begins, on four nodes and in the store.

Time runs to the right. Like idea.svg it brings its own background, for light and dark pages. Run
`python docs/images/round.py` after a change; a test compares the file with what this script draws.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

from docs.images.idea import BAND, INK, LINE, LOST, REPLICAS, SOFT, box, element, svg, text, wire

WIDTH, HEIGHT = 700, 388
LEFT, RIGHT = 118, 672
STORE, FIRST, STEP, BAR = 78, 140, 50, 26
SEALED, BEGUN, LOSS, STOP, QUIET, AGAIN, ANEW = 150, 182, 322, 372, 448, 502, 534  # what happens, from left to right
NODES = ("node a (leader)", "node b", "node c", "node d (spare)")


def lane(index: int) -> float:
    """The top of a node's bar."""
    return FIRST + index * STEP


def workers(index: int, start: float, end: float, round: int, words: str) -> list[str]:
    bar = element(
        "rect", x=start, y=lane(index), width=end - start, height=BAR, rx=4, fill=REPLICAS[0 if round == 1 else 2]
    )
    return [bar, text((start + end) / 2, lane(index) + 18, words, colour="#ffffff", weight="600", size=12)]


def arrow(x: float, start: float, end: float, *, colour: str = SOFT) -> str:
    """A line down or up with a head at its end."""
    head = -6 if end > start else 6
    return wire(f"M{x:g} {start:g}V{end:g}m-4 {head}l4 {-head}l4 {head}", colour=colour)


def record(x: float, words: str, width: float, *, colour: str = INK) -> list[str]:
    """A write to the store."""
    return [
        box(x - width / 2, STORE - 14, width, 28, fill="#ffffff", line=colour),
        text(x, STORE + 4.5, words, size=12, weight="600", colour=colour),
    ]


def picture() -> str:
    """The whole SVG file."""
    parts = [
        text(20, 32, "From one round to the next", size=15, weight="700", anchor="start"),
        text(RIGHT + 8, 32, "time runs to the right", colour=SOFT, anchor="end"),
        box(LEFT - 10, STORE - 19, RIGHT - LEFT + 18, 38, fill=BAND),
        text(20, STORE + 4.5, "store", weight="600", anchor="start"),
    ]
    bottom = lane(3) + BAR
    parts.append(
        element("rect", x=QUIET, y=lane(0) - 8, width=ANEW - QUIET, height=bottom - lane(0) + 16, rx=4, fill=BAND)
    )
    for index, name in enumerate(NODES):
        parts.append(text(20, lane(index) + 18, name, anchor="start", colour=LOST if index == 2 else INK))
        end = LOSS if index == 2 else RIGHT
        parts.append(wire(f"M{LEFT:g} {lane(index) + BAR / 2:g}H{end:g}", dashes="2 3"))
    for index, end in ((0, STOP + 48), (1, STOP + 62), (2, LOSS)):
        parts += workers(index, BEGUN, end, 1, "workers of round 1")
        parts.append(arrow(BEGUN - 16 + 5 * index, STORE + 19, lane(index), colour=LINE))
    cross = lane(2) + BAR / 2
    parts.append(wire(f"M{LOSS - 1:g} {cross - 9:g}l18 18m0 -18l-18 18", colour=LOST))
    parts.append(text(LOSS + 24, cross + 4.5, "lost (proven)", size=12, anchor="start", colour=LOST))
    parts += [arrow(STOP - 4, STORE + 19, lane(0), colour=LINE), arrow(STOP + 6, STORE + 19, lane(1), colour=LINE)]
    parts += [arrow(STOP + 54, lane(0) + 2, STORE + 19), arrow(STOP + 68, lane(1) + 2, STORE + 19)]
    for number, index in enumerate((0, 1, 3)):
        parts += workers(index, ANEW, RIGHT, 2, "round 2")
        parts.append(arrow(ANEW - 20 + 6 * number, STORE + 19, lane(index), colour=LINE))
    parts += record(SEALED + 6, "seal 1", 60)
    parts += record(STOP - 30, "stop 1", 60, colour=LOST)
    parts += record(STOP + 54, "stopped", 66)
    parts += record(AGAIN + 18, "seal 2", 60)
    between = "no workers run"
    parts.append(text((QUIET + ANEW) / 2, bottom + 22, between, size=12))
    rule = "Round 2 is sealed only when a and b have written that they stopped, and c is proven lost."
    parts.append(text(20, HEIGHT - 16, rule, anchor="start"))
    title = "Node c is lost; the round is stopped; when nothing of it runs, the next one is sealed with d"
    return svg(WIDTH, HEIGHT, title, parts)


if __name__ == "__main__":
    Path(__file__).with_name("round.svg").write_text(picture())
